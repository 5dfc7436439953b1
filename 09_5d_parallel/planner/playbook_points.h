// The numbers that figures of the playbook print beside their curves, to be drawn beside ours as
// hollow marks. (What it tells only by a curve's height is not in here. The bandwidths of nodes are
// in 01's lab/nodes_picture.h.)
// https://huggingface.co/spaces/nanotron/ultrascale-playbook
#pragma once

#include <array>

namespace ultrascale::five_d::playbook {

struct PublishedPoint {
    int64_t at;
    double value;
};

// "Throughput Scaling with Data Parallelism": GPUs, and by how many % a GPU's rate is below that of
// the point before. It says neither which model this is, nor how many sequences a GPU has.
inline constexpr std::array<PublishedPoint, 6> dp_drops = {
    {{8, 0}, {16, 6.3}, {32, 6.0}, {64, 12.0}, {128, 15.0}, {256, 40.6}}};
// "Memory Usage Scaling with Data Parallelism": between these marks of its axis, in GB.
inline constexpr double dp_memory[] = {36, 37.5};

// "Maximum Batch Size per TP Value", 3B at 4096 tokens: tp, sequences.
inline constexpr std::array<PublishedPoint, 5> tp_batches = {
    {{2, 3}, {4, 8}, {8, 12}, {16, 16}, {32, 20}}};
inline constexpr std::array<PublishedPoint, 5> tp_sp_batches = {
    {{2, 4}, {4, 10}, {8, 20}, {16, 40}, {32, 100}}};

}  // namespace ultrascale::five_d::playbook
