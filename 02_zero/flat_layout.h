// The flat sharding that all ZeRO stages share: each unit's parameters (embedding; each layer; final norm and head) lie one after the
// other in one flat tensor, padded so that it can be cut into n equal shards. Rank r owns the r-th shard of every unit.
//
//     unit layers.3, 4 ranks   [ norm | q ........ | k .. | v .. | o ........ | norm | gate ......... | up ......... | down ...... |pad]
//                              [ shard of rank 0      | shard of rank 1      | shard of rank 2      | shard of rank 3              ]
//
// A shard ends where it ends, in the middle of a matrix and of a row: what AdamW does to an element does not depend on its neighbours.
// Unit by unit, and not the whole model in n pieces, so that a unit's shards can be gathered or reduced as soon as it is its turn.
#pragma once

#include <map>
#include <vector>

#include "llama.h"
#include "optimizer.h"

namespace ultrascale {

struct FlatUnit {
    struct Place {
        Parameter* parameter;
        int64_t offset;  // in the unit's flat tensor
    };
    std::vector<Place> places;
    int64_t numel = 0;   // elements of its parameters
    int64_t padded = 0;  // elements of its flat tensor
    int64_t shard = 0;   // elements of a shard: padded / n
};

class FlatLayout {
public:
    // A tied weight belongs to the first unit that has it, the embedding; the head, which uses it too, has only the norm.
    FlatLayout(const std::vector<Unit>& units, int ranks) {
        constexpr int64_t grain = 8;  // shards begin at multiples of 16 bytes
        for (const Unit& unit : units) {
            FlatUnit flat;
            for (Parameter* parameter : unit.parameters) {
                if (!unit_of_.try_emplace(parameter, units_.size()).second) continue;
                flat.places.push_back({parameter, flat.numel});
                flat.numel += parameter->local_numel();
            }
            flat.shard = (flat.numel + ranks * grain - 1) / (ranks * grain) * grain;
            flat.padded = flat.shard * ranks;
            units_.push_back(std::move(flat));
        }
    }

    size_t size() const { return units_.size(); }
    const FlatUnit& operator[](size_t unit) const { return units_[unit]; }
    size_t unit_of(const Parameter& parameter) const { return unit_of_.at(&parameter); }
    int64_t padded() const {  // elements of the whole model
        int64_t sum = 0;
        for (const FlatUnit& unit : units_) sum += unit.padded;
        return sum;
    }

    // The units whose flat tensors a unit's parameters lie in: its own, and for a tied head the embedding's.
    std::vector<size_t> flats_of(const Unit& unit) const {
        std::vector<size_t> all = {size_t(unit.index)};
        for (const Parameter* parameter : unit.parameters)
            if (unit_of(*parameter) != all.front()) all.push_back(unit_of(*parameter));
        return all;
    }

    // Points the value (or grad) of a unit's parameters to their places in `flat`; an empty tensor takes their storage away.
    void place(size_t unit, const Tensor& flat, Tensor Parameter::*member) const {
        for (const auto& [parameter, offset] : units_[unit].places)
            parameter->*member = flat ? flat.slice(offset, offset + parameter->local_numel()).view(parameter->local_shape()) : Tensor();
    }

    // What lies in a rank's shard of a unit, piece by piece: of `values` and `grads`, the shard's own tensors (shard elements each).
    std::vector<AdamW::Item> shard_items(size_t unit, int rank, const Tensor& values, const Tensor& grads) const {
        const int64_t first = rank * units_[unit].shard, last = first + units_[unit].shard;
        std::vector<AdamW::Item> items;
        for (const auto& [parameter, offset] : units_[unit].places) {
            const int64_t begin = std::max(first, offset), end = std::min(last, offset + parameter->local_numel());
            if (begin < end)
                items.push_back(
                    {parameter, begin - offset, values.slice(begin - first, end - first), grads.slice(begin - first, end - first)});
        }
        return items;
    }

private:
    std::vector<FlatUnit> units_;
    std::map<const Parameter*, size_t> unit_of_;
};

}  // namespace ultrascale
