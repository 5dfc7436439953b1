// Activation recomputation, layer by layer. A layer whose backward computes again what it needs
// keeps less from its forward:
//
//     none        everything that backward needs
//     selective   all but attention's T x T probabilities (attention in tiles never keeps them);
//                 with latent attention all but the heads' q, k and v (latent.h)
//     full        its input; backward begins with the whole forward
//
// The layers that recompute the most come first. Backward begins with the last layer, when most is
// held. If that layer kept only its input, it would just then bring back all that it had not kept.
// So recomputing the last layer saves nothing; recomputing an earlier one saves all but its input.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace ultrascale {

struct Recompute {
    enum Kind { none, selective, full };
    static constexpr int64_t all = int64_t(1) << 40;  // more layers than any model has
    int64_t full_layers, selective_layers;            // the first ones, and those behind them

    constexpr Recompute(Kind kind = none)  // of all layers
        : Recompute(kind == full ? all : 0, kind == selective ? all : 0) {}
    constexpr Recompute(int64_t full, int64_t selective)
        : full_layers(full), selective_layers(selective) {}
    // "full:8,selective:12", "full" for all layers, "none"; empty if the text says none of these.
    static std::optional<Recompute> parse(const std::string& text);
    std::string text() const;
    auto operator<=>(const Recompute&) const = default;

    constexpr Kind of(int64_t layer) const {
        return layer < full_layers                      ? full
               : layer < full_layers + selective_layers ? selective
                                                        : none;
    }
    // How many of the first `layers` layers are of this kind.
    constexpr int64_t count(Kind kind, int64_t layers) const {
        const int64_t whole = std::min(full_layers, layers),
                      scores = std::min(selective_layers, layers - whole);
        return kind == full ? whole : kind == selective ? scores : layers - whole - scores;
    }
    // How often the forwards of the first `layers` layers run: again in the backward of a full one.
    constexpr int64_t forwards(int64_t layers) const { return layers + count(full, layers); }
    bool same_in_all_layers() const { return *this == none || *this == selective || *this == full; }
    // The numbers of layers that were given, added up.
    int64_t given_layers() const {
        return (full_layers < all ? full_layers : 0) +
               (selective_layers < all ? selective_layers : 0);
    }
    // The same for a model that begins with the layer `first`.
    Recompute from(int64_t first) const {
        return {full_layers - count(full, first), selective_layers - count(selective, first)};
    }
};

}  // namespace ultrascale
