// Counts what one layer sends: the first layer, in the first step, separately for forward and
// backward.
#pragma once

#include "comm/comm.h"
#include "model/parts.h"
#include "report/report.h"

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

    // "of which a layer, forward: 2 all-reduce, each of 1.00 MiB"; the calls for a GEMM's chunks
    // are counted one by one.
    void add_to(Report& report) const {
        for (int pass = 0; pass < 2; ++pass) {
            std::string line =
                pass == 0 ? "  of which a layer, forward:" : "  of which a layer, backward:";
            for (int k = 0; k < collective_kinds; ++k) {
                const CommunicationCount c = sent_[pass][size_t(k)];
                if (c.calls == 0) continue;
                line += fmt::format(" {} {}, each of {};", c.calls, collective_names[size_t(k)],
                                    format_bytes(double(c.bytes) / double(c.calls)));
                report.value(pass == 0 ? "layer_forward" : "layer_backward",
                             collective_names[size_t(k)], double(c.bytes));
            }
            if (line.back() == ';') line.pop_back();
            if (report.full()) print(line);
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
