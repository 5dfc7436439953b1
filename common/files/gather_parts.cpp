#include "gather_parts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace ultrascale {

using nlohmann::json;

// A rank's description of its parts for the other ranks; empty parts are omitted.
static std::string describe(const std::vector<TensorPart>& parts) {
    json all = json::array();
    for (const TensorPart& part : parts) {
        if (part.tensor.numel() == 0) continue;
        json slice = json::array();
        for (const Range& range : part.slice) slice.push_back({range.begin, range.end});
        all.push_back({part.name, part.shape, int(part.tensor.dtype()), slice, part.begin,
                       part.tensor.numel()});
    }
    return all.dump();
}

GatherParts::GatherParts(const Communicator* group, std::vector<TensorPart> mine)
    : group_(group), mine_(std::move(mine)) {
    const std::string own = describe(mine_);
    const std::vector<std::string> descriptions =
        group ? group->gather_strings(own) : std::vector<std::string>{own};
    std::map<std::string, std::pair<Whole, std::vector<Piece>>> found;
    for (int rank = 0; rank < int(descriptions.size()); ++rank)
        for (const json& part : json::parse(descriptions[size_t(rank)])) {
            auto& [whole, pieces] = found[part[0]];
            whole = {part[0], part[1].get<Shape>(), DType(part[2].get<int>())};
            Piece piece{rank, {}, part[4], part[5]};
            for (const json& range : part[3]) piece.slice.push_back({range[0], range[1]});
            const auto replica = [&](const Piece& other) {
                return other.begin == piece.begin && other.count == piece.count &&
                       same(other.slice, piece.slice);
            };
            if (std::ranges::none_of(pieces, replica)) pieces.push_back(std::move(piece));
        }
    for (auto& [name, tensor] : found) {
        tensors_.push_back(std::move(tensor.first));
        pieces_.push_back(std::move(tensor.second));
    }
}

bool GatherParts::same(const std::vector<Range>& a, const std::vector<Range>& b) {
    return std::ranges::equal(
        a, b, [](Range x, Range y) { return x.begin == y.begin && x.end == y.end; });
}

// A copy on the device, which every transport can send.
static Tensor on_device(const Tensor& host) {
    Tensor copy = Tensor::empty(host.shape(), host.dtype(), Memory::workspace);
    copy.copy_from_host(host.data());
    return copy;
}

Tensor GatherParts::own(const std::string& name, const Piece& piece) const {
    for (const TensorPart& part : mine_)
        if (part.name == name && part.begin == piece.begin && part.tensor.numel() == piece.count &&
            same(part.slice, piece.slice))
            return part.tensor.on_host() ? on_device(part.tensor) : part.tensor;
    check(false, "gather: this rank has no such part");
    return {};
}

Tensor GatherParts::gather(size_t index) const {
    const Whole& whole = tensors_[index];
    const int64_t elements = numel(whole.shape), width = dtype_bytes(whole.dtype),
                  cols = whole.shape.back();
    const int rank = group_ ? group_->rank() : 0;
    if (const Piece& first = pieces_[index].front();
        first.count == elements) {  // one rank has the whole tensor
        if (first.rank == 0) return rank == 0 ? own(whole.name, first).view(whole.shape) : Tensor();
    }
    std::vector<char> host(rank == 0 ? size_t(elements * width) : 0);
    int64_t covered = 0;
    for (const Piece& piece : pieces_[index]) {
        if (rank != 0 && rank == piece.rank) group_->send(own(whole.name, piece), 0);
        if (rank != 0) continue;
        // The place of the piece in the whole tensor, without its values.
        TensorPart part(whole.name, Tensor::empty({piece.rank == 0 ? 0 : piece.count}, whole.dtype,
                                                  Memory::workspace));
        part.shape = whole.shape, part.slice = piece.slice, part.begin = piece.begin;
        if (piece.rank == 0)
            part.tensor = own(whole.name, piece);
        else
            group_->recv(part.tensor, piece.rank);
        std::vector<char> values(size_t(piece.count * width));
        part.tensor.copy_to_host(values.data());
        part.for_each_block([&](const std::vector<Range>& block, int64_t first, int64_t) {
            const bool matrix = block.size() == 2;
            const int64_t rows = matrix ? block[0].size() : 1, run = block.back().size();
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t to =
                    matrix ? (block[0].begin + i) * cols + block[1].begin : block[0].begin;
                std::memcpy(&host[size_t(to * width)], &values[size_t((first + i * run) * width)],
                            size_t(run * width));
            }
        });
        covered += piece.count;
    }
    if (rank != 0) return {};
    check(covered == elements, "gather: the ranks' parts are not the whole tensor");
    Tensor tensor = Tensor::empty(whole.shape, whole.dtype, Memory::workspace);
    tensor.copy_from_host(host.data());
    return tensor;
}

}  // namespace ultrascale
