// Counts the messages of one layer: the first layer, in the first step, separately for forward and
// backward.
#pragma once

#include "comm/comm.h"
#include "lab/report/report.h"
#include "model/parts.h"

namespace ultrascale {

class LayerCommunication : public Hooks {
public:
    void before(const Unit& unit, Pass pass, const Context&) override {
        if (counts(unit, pass)) begin_ = communication_counts();
    }
    void after(const Unit& unit, Pass pass, const Context&) override {
        if (!counts(unit, pass)) return;
        sent_[pass != Pass::forward] = difference(communication_counts(), begin_);
        seen_[pass != Pass::forward] = true;
    }

    CommunicationCount forward(Collective kind) const { return sent_[0][size_t(kind)]; }

    // The calls of forward (0) or backward (1): "2 all-reduce, each of 1.00 MiB". The calls for a
    // GEMM's chunks count one by one.
    std::string in_words(int pass) const {
        std::string words;
        for (int k = 0; k < collective_kinds; ++k) {
            const CommunicationCount c = sent_[pass][size_t(k)];
            if (c.calls == 0) continue;
            words += fmt::format("{}{} {}, each of {}", words.empty() ? "" : "; ", c.calls,
                                 collective_names[size_t(k)],
                                 format_bytes(double(c.bytes) / double(c.calls)));
        }
        return words;
    }

    void add_to(Report& report) const {
        for (int pass = 0; pass < 2; ++pass) {
            const char* name = pass == 0 ? "forward" : "backward";
            for (int k = 0; k < collective_kinds; ++k)
                if (const CommunicationCount c = sent_[pass][size_t(k)]; c.calls > 0)
                    report.value(fmt::format("layer_{}", name), collective_names[size_t(k)],
                                 double(c.bytes));
            if (report.full())
                print(fmt::format("  of which a layer, {}: {}", name, in_words(pass)));
        }
    }

private:
    bool counts(const Unit& unit, Pass pass) const {
        return unit.name == "layers.0" && !seen_[pass != Pass::forward];
    }
    CommunicationCounts begin_{}, sent_[2]{};
    bool seen_[2] = {false, false};
};

}  // namespace ultrascale
