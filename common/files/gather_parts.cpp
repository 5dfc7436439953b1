#include "gather_parts.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

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

bool GatherParts::Piece::operator==(const Piece& other) const {
    return begin == other.begin && count == other.count &&
           std::ranges::equal(slice, other.slice, [](Range x, Range y) {
               return x.begin == y.begin && x.end == y.end;
           });
}

GatherParts::Piece GatherParts::piece_of(const TensorPart& part, int rank) {
    return {rank, part.slice, part.begin, part.tensor.numel()};
}

GatherParts::GatherParts(const Communicator* group, const std::vector<TensorPart>& mine)
    : group_(group), rank_(group ? group->rank() : 0) {
    const std::string own = describe(mine);
    const std::vector<std::string> descriptions =
        group ? group->gather_strings(own) : std::vector<std::string>{own};
    std::map<std::string, std::pair<Whole, std::vector<Piece>>> found;
    for (int rank = 0; rank < int(descriptions.size()); ++rank)
        for (const json& part : json::parse(descriptions[size_t(rank)])) {
            auto& [whole, pieces] = found[part[0]];
            whole = {part[0], part[1].get<Shape>(), DType(part[2].get<int>())};
            Piece piece{rank, {}, part[4], part[5]};
            for (const json& range : part[3]) piece.slice.push_back({range[0], range[1]});
            if (std::ranges::find(pieces, piece) == pieces.end()) pieces.push_back(piece);
        }
    for (const TensorPart& part : mine) {
        if (part.tensor.numel() == 0) continue;
        const std::vector<Piece>& pieces = found.at(part.name).second;
        const Piece piece = piece_of(part);
        if (std::ranges::find(pieces, piece)->rank == rank_ && !this->own(part.name, piece))
            mine_.emplace(part.name, part);
    }
    for (auto& [name, tensor] : found) {
        tensors_.push_back(std::move(tensor.first));
        pieces_.push_back(std::move(tensor.second));
    }
}

const TensorPart* GatherParts::own(const std::string& name, const Piece& piece) const {
    const auto [first, last] = mine_.equal_range(name);
    const auto part =
        std::find_if(first, last, [&](const auto& p) { return piece_of(p.second) == piece; });
    return part == last ? nullptr : &part->second;
}

int64_t GatherParts::own_bytes() const {
    int64_t bytes = 0;
    for (const auto& [name, part] : mine_) bytes += part.tensor.bytes();
    return bytes;
}

void GatherParts::keep_copies() {
    for (auto& [name, part] : mine_)  // written now, so that no save waits for the pages
        part.tensor = Tensor::zeros(part.tensor.shape(), part.tensor.dtype(), Memory::checkpoint);
}

void GatherParts::copy(const std::vector<TensorPart>& mine) {
    std::set<const TensorPart*> copied;
    for (const TensorPart& part : mine)
        if (const TensorPart* own = this->own(part.name, piece_of(part)); copied.insert(own).second)
            if (own) copy_async(own->tensor, part.tensor, compute_stream());
    copied.erase(nullptr);
    check(copied.size() == mine_.size(), "a save has other parts than the one before");
}

std::vector<char> GatherParts::gather(size_t index) const {
    const Whole& whole = tensors_[index];
    const int64_t elements = numel(whole.shape), width = dtype_bytes(whole.dtype),
                  cols = whole.shape.back();
    std::vector<char> all;
    int64_t covered = 0;
    for (const Piece& piece : pieces_[index]) {
        if (rank_ != 0 && rank_ != piece.rank) continue;
        std::vector<char> values(size_t(piece.count * width));
        if (rank_ == piece.rank) {
            const Tensor& own = this->own(whole.name, piece)->tensor;
            if (own.on_host())
                std::memcpy(values.data(), own.data(), values.size());
            else
                own.copy_to_host(values.data());
        }
        if (rank_ != 0) {
            group_->send_from_host(values.data(), int64_t(values.size()), 0);
            continue;
        }
        if (piece.rank != 0)
            group_->recv_on_host(values.data(), int64_t(values.size()), piece.rank);
        if (piece.count == elements) return values;
        all.resize(size_t(elements * width));
        TensorPart::for_each_block(
            piece.slice, piece.begin, piece.count,
            [&](const std::vector<Range>& block, int64_t first, int64_t) {
                const bool matrix = block.size() == 2;
                const int64_t rows = matrix ? block[0].size() : 1, run = block.back().size();
                for (int64_t i = 0; i < rows; ++i) {
                    const int64_t to =
                        matrix ? (block[0].begin + i) * cols + block[1].begin : block[0].begin;
                    std::memcpy(&all[size_t(to * width)],
                                &values[size_t((first + i * run) * width)], size_t(run * width));
                }
            });
        covered += piece.count;
    }
    check(rank_ != 0 || covered == elements, "gather: the ranks' parts are not the whole tensor");
    return all;
}

}  // namespace ultrascale
