// --calibrate: measures this machine, prints what was found and writes it to a file.
#include "calibrate.h"

#include "files/file.h"
#include "options.h"

namespace ultrascale::five_d {

bool write_calibration(const PlannerOptions& given, const Options& options,
                       const std::function<void()>& train) {
    const Communicator& world = Communicator::world();
    AtomicFile(given.calibrate);    // fails now rather than after seconds of measuring
    if (!device_is_gpu()) train();  // before links are slow: only its memory counts
    if (options.inter_gbps > 0) pretend_nodes(options.node_size, options.inter_gbps);
    Hardware h = Calibration(options.dtype).measure();
    h.process = largest_of_ranks(world, process_besides_tensors());
    print(fmt::format("{} in {}, measured at the same time", format_count(world.size(), "rank"),
                      dtype_name(options.dtype)));
    print(
        fmt::format("  large products     {:.4g} TFLOP/s; half of that at {:.0f} rows and columns",
                    h.peak * h.product_share / 1e12, h.product_half / (std::cbrt(2.0) - 1)));
    print(fmt::format("  attention          {:.4g} TFLOP/s forward, {:.4g} backward",
                      h.peak * h.attention_forward / 1e12, h.peak * h.attention_backward / 1e12));
    print(fmt::format("  memory             {:.4g} GB/s; any call costs {:.1f} us",
                      h.memory_rate / 1e9, h.operation * 1e6));
    print(fmt::format("  links in a node    {:.4g} GB/s and {:.1f} us a hop, {} a node",
                      h.inside.bytes_per_second / 1e9, h.inside.latency * 1e6,
                      format_count(h.nodes.ranks, "rank")));
    print(fmt::format("  links beyond       {:.4g} GB/s and {:.1f} us a hop",
                      h.between.bytes_per_second / 1e9, h.between.latency * 1e6));
    print(fmt::format(
        "  products take longer, for each ms of an all-gather beside them, by {:.2f} ms",
        h.between.collective_slows));
    if (world.rank() == 0) write_file(given.calibrate, file_of(h));
    print("written to " + given.calibrate);
    return true;
}

}  // namespace ultrascale::five_d
