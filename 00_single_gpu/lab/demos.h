// --demo: the demonstrations that need no training.
#pragma once

#include "failures_demo.h"
#include "formulas_demo.h"
#include "launches_demo.h"
#include "memory_demo.h"
#include "options.h"
#include "scales_demo.h"

namespace ultrascale::single_gpu {

inline void run_demo(const Options& options, const Chapter& chapter) {
    if (chapter.demo == "parameters") demo_parameters();
    if (chapter.demo == "activations") demo_activations();
    if (chapter.demo == "latent") demo_latent();
    if (chapter.demo == "scales") demo_scales(step_shape(options, options.config()));
    if (chapter.demo == "memory") demo_memory(options, chapter.settings);
    if (chapter.demo == "launches") demo_launches(options);
    if (chapter.demo == "failures") demo_failures(options.seed);
    if (chapter.demo == "batch")  // MiniMax-01's (arXiv 2501.08313) unless another one is given
        chapter.batch_ramp.empty()
            ? demo_batch("16M:69B,32M:721B,64M:3.91T,128M", 1, 8192)
            : demo_batch(chapter.batch_ramp, options.micro_batch,
                         options.seq > 0 ? options.seq : options.config().default_seq);
}

}  // namespace ultrascale::single_gpu
