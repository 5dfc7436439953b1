// --demo: the demonstrations that need no training. Returns false if a result was wrong.
#pragma once

#include "bandwidth_demo.h"
#include "collectives_demo.h"
#include "latency_demo.h"
#include "nodes_picture.h"
#include "options.h"
#include "pictures.h"
#include "planet_demo.h"
#include "train/run.h"
#include "tree_demo.h"

namespace ultrascale::data_parallel {

inline bool run_demo(const Options& options, const Chapter& chapter) {
    const Communicator& world = Communicator::world();
    slow_down(options);
    if (chapter.demo == "bandwidth") {
        if (draws(options.svg) && options.node_size > 0)
            draw_nodes(options, world, chapter.largest_bytes());
        return demo_bandwidth(options, world, chapter.largest_bytes());
    }
    if (chapter.demo == "collectives") {
        RingHistory history;
        const bool ok = demo_collectives(world, history);
        draw_ring(options.svg, history);
        return ok;
    }
    if (chapter.demo == "planet") {
        demo_planet(options, parse_planet(chapter.planet));
    } else {
        const Link link{chapter.hop_gbps * 1e9 / 8, chapter.hop_us * 1e-6};
        if (chapter.demo == "tree")
            demo_tree(options, world, link);
        else
            demo_ring_latency(options, world, link, chapter.largest_bytes());
    }
    return true;
}

}  // namespace ultrascale::data_parallel
