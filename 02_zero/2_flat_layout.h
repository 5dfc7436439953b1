// The flat sharding that all ZeRO stages share: each unit's parameters (embedding; each layer;
// final norm and head) lie one after the other in one flat tensor, padded so that it can be cut
// into n equal shards. Rank r owns the r-th shard of every unit.
//
//     unit layers.3, 4 ranks
//     [ norm | q ..... | k . | v . | o ..... | norm | gate ...... | up ........ | down ..... |pad]
//     [ shard of rank 0     | shard of rank 1     | shard of rank 2     | shard of rank 3        ]
//
// A shard may end anywhere, even in the middle of a row: AdamW updates each element independently
// of its neighbours. The model is cut unit by unit, not as a whole, so that a unit's shards can be
// gathered or reduced as soon as it is its turn. (--cut model cuts it as a whole, to show what is
// lost.)
//
// A parameter is sharded over the ranks over which its gradient is summed (mesh.h). If these differ
// among a unit's parameters (the experts of a layer, a norm under sequence parallelism), the unit
// has a flat tensor for each kind. But parameters that are split over the same axes stay together,
// even if ranks along these hold copies of only some of them (of key-value heads, but not of query
// heads): q, k, v are one matrix and must lie side by side.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "model/llama.h"
#include "model/optimizer.h"
#include "train/replica_groups.h"

namespace ultrascale::zero {

enum class Cut { unit, model };

struct FlatUnit {
    struct Segment {
        Parameter* parameter;
        int64_t offset;  // in the flat tensor
    };
    const Unit* unit;           // with Cut::model the first one
    std::string name;           // the unit's, or "model"
    const Communicator* group;  // each of its ranks has one shard
    std::vector<Segment> segments;
    int64_t numel = 0;   // elements of its parameters
    int64_t padded = 0;  // elements of its flat tensor
    int64_t shard = 0;   // elements of a shard: padded / n
};

class FlatLayout {
public:
    // `units` may belong to one model or to several. A tied weight belongs to the first unit that
    // has it, the embedding; the head's flat tensor then has only the norm.
    FlatLayout(const std::vector<const Unit*>& units, const Mesh& mesh, Cut cut = Cut::unit)
        : cut_(cut) {
        for (const Unit* unit : units)
            for (Parameter* parameter : unit->parameters) {
                if (flat_of_.contains(parameter)) continue;
                FlatUnit& flat = flat_for(unit, *parameter, mesh);
                flat_of_[parameter] = size_t(&flat - flats_.data());
                flat.segments.push_back({parameter, flat.numel});
                flat.numel += parameter->local_numel();
            }
        constexpr int64_t grain = 8;  // shards begin at multiples of 16 bytes
        for (FlatUnit& flat : flats_) {
            const int64_t ranks = flat.group->size();
            flat.shard = (flat.numel + ranks * grain - 1) / (ranks * grain) * grain;
            flat.padded = flat.shard * ranks;
        }
    }

    size_t size() const { return flats_.size(); }
    const FlatUnit& operator[](size_t flat) const { return flats_[flat]; }
    size_t flat_of(const Parameter& parameter) const { return flat_of_.at(&parameter); }
    int64_t padded() const {  // elements of the whole model
        int64_t sum = 0;
        for (const FlatUnit& flat : flats_) sum += flat.padded;
        return sum;
    }

    // The flat tensors that a unit's parameters lie in: its own, and for a tied head the
    // embedding's.
    std::vector<size_t> flats_of(const Unit& unit) const {
        std::vector<size_t> all;
        for (const Parameter* parameter : unit.parameters)
            if (std::ranges::find(all, flat_of(*parameter)) == all.end())
                all.push_back(flat_of(*parameter));
        return all;
    }

    // Points the value (or grad) of a flat unit's parameters to their places in `flat`; an empty
    // tensor takes their storage away.
    void bind(size_t u, const Tensor& flat, Tensor Parameter::*member) const {
        for (const auto& [parameter, offset] : flats_[u].segments)
            parameter->*member = flat ? flat.slice(offset, offset + parameter->local_numel())
                                            .view(parameter->local_shape())
                                      : Tensor();
    }

    // A rank's shard of a flat tensor, and all of it, as ranges of elements.
    Range shard_of(size_t u, int rank) const {
        return {rank * flats_[u].shard, (rank + 1) * flats_[u].shard};
    }
    Range whole(size_t u) const { return {0, flats_[u].padded}; }
    // The pieces of parameters that lie in such a range.
    struct Piece {
        Parameter* parameter;
        int64_t begin;  // in the parameter
        Range at;       // in the range
    };
    std::vector<Piece> pieces(size_t u, const Range& range) const {
        std::vector<Piece> all;
        // exercise 02.4 begin: the part of each parameter that lies in the range, if there is any
        for (const auto& [parameter, offset] : flats_[u].segments) {
            const int64_t begin = std::max(range.begin, offset),
                          end = std::min(range.end, offset + parameter->local_numel());
            if (begin < end)
                all.push_back(
                    {parameter, begin - offset, {begin - range.begin, end - range.begin}});
        }
        // exercise 02.4 end
        return all;
    }
    // Those in a rank's shard, as views of `values` and `grads`, the shard's tensors (shard
    // elements each).
    std::vector<AdamW::Item> shard_items(size_t u, int rank, const Tensor& values,
                                         const Tensor& grads) const {
        std::vector<AdamW::Item> items;
        for (const auto& [parameter, begin, at] : pieces(u, shard_of(u, rank)))
            items.push_back(
                {parameter, begin, values.slice(at.begin, at.end), grads.slice(at.begin, at.end)});
        return items;
    }

    // Further groups over which gradients are summed: those of all parameters of a flat tensor, and
    // those that a parameter has besides.
    std::vector<std::string> replica_groups(size_t u) const {
        std::vector<std::string> groups = flats_[u].segments.front().parameter->replica_groups;
        for (const FlatUnit::Segment& segment : flats_[u].segments)
            std::erase_if(groups, [&](const std::string& group) {
                return !contains(segment.parameter->replica_groups, group);
            });
        return groups;
    }
    static std::vector<std::string> besides(const std::vector<std::string>& groups,
                                            const Parameter& parameter) {
        std::vector<std::string> own = parameter.replica_groups;
        std::erase_if(own, [&](const std::string& group) { return contains(groups, group); });
        return own;
    }

private:
    static bool contains(const std::vector<std::string>& names, const std::string& name) {
        return std::ranges::find(names, name) != names.end();
    }
    // The unit's flat tensor for parameters of this kind; a new one if there is none yet.
    FlatUnit& flat_for(const Unit* unit, const Parameter& parameter, const Mesh& mesh) {
        for (FlatUnit& flat : flats_) {
            if (cut_ == Cut::unit && flat.unit != unit) continue;
            const Parameter& first = *flat.segments.front().parameter;
            if (first.split_over == parameter.split_over &&
                (!first.split_over.empty() || first.replica_groups == parameter.replica_groups))
                return flat;
        }
        flats_.push_back({.unit = unit,
                          .name = cut_ == Cut::unit ? unit->name : "model",
                          .group = &data_group(mesh, parameter)});
        return flats_.back();
    }

    Cut cut_;
    std::vector<FlatUnit> flats_;
    std::map<const Parameter*, size_t> flat_of_;
};

}  // namespace ultrascale::zero
