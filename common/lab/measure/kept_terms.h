// What a layer of a GPT keeps, measured, beside the terms of s b h (34 + 5 a s / h) (gpt_terms.h).
// Under tensor parallelism the tensors between a column linear's output and a row linear's input
// are divided by tp: s b h (10 + 24 / tp + 5 a s / (h tp)). With sequence parallelism all are.
#pragma once

#include <cmath>
#include <map>
#include <set>

#include "core/trace.h"
#include "model/gpt_terms.h"
#include "model/llama.h"
#include "model/step_shape.h"

namespace ultrascale {

class KeptTerms : public Hooks {
public:
    explicit KeptTerms(const StepShape& shape, int64_t tp = 1, bool sequence_parallel = false)
        : shape_(shape), tp_(tp), sequence_parallel_(sequence_parallel) {}

    // Notes what the first micro-batch's layers keep. A tensor that two parts share counts once,
    // under the first name.
    void forward_done(const Saved& saved, const Context&) override {
        if (!bytes_.empty()) return;
        std::set<const void*> seen;
        saved.for_each([&](const std::string& path, const Tensor& t) {
            if (path.starts_with("layers.") && seen.insert(t.data()).second)
                bytes_[path.substr(path.find('/') + 1)] += double(t.bytes());
        });
    }
    // Whether there is something to compare: full recomputation keeps none of it.
    bool applies() const {
        const Recompute& recompute = shape_.model.recompute;
        return shape_.config.gpt && recompute.same_in_all_layers() && recompute != Recompute::full;
    }
    // Returns false if a term is neither kept as the formula says nor left out for a known reason.
    bool print_table() const {
        std::map<std::string, double> bytes = of_one_layer();
        print(fmt::format("\na layer's activations in units of s b h, a number being {} bytes",
                          number_bytes()));
        print(fmt::format("  {:<45} {:>8} {:>8}", "", "formula", "kept"));
        const auto row = [](const std::string& what, double formula, double kept,
                            const std::string& why) {
            print(fmt::format("  {:<45} {:>8.6g} {:>8.6g}   {}", what, formula, kept, why));
        };
        bool ok = true;
        double formula = 0, kept = 0;
        const std::vector<KeptTerm> terms = gpt_layer_activations();
        check(terms.size() == tensors().size(), "a term for each tensor");
        for (size_t i = 0; i < terms.size(); ++i) {
            double held = 0;
            for (const char* name : tensors()[i].names) held += bytes[name], bytes.erase(name);
            const double want = value(terms[i], tensors()[i].inside);
            std::string why =
                std::abs(held - want) < 1e-9 ? "equal" : why_not(terms[i], held, want);
            if (why.empty()) ok = false, why = "MISMATCH";
            row(terms[i].what, want, held, why);
            formula += want, kept += held;
        }
        for (const auto& [name, held] : bytes) {
            row(name, 0, held, "not in the formula");
            kept += held;
        }
        print(fmt::format("  {:<45} {:>8.6g} {:>8.6g}",
                          number_bytes() == 2 ? "sum: " + written_out() : "sum", formula, kept));
        return ok;
    }

private:
    // A term's tensors, by the names under which a layer keeps them, in the order of the terms.
    struct Kept {
        std::vector<const char*> names;
        bool inside;  // between a column and a row linear
    };
    static const std::vector<Kept>& tensors() {
        static const std::vector<Kept> all = {
            {{"qkv_proj/x"}, false},
            {{"attention/q", "attention/k"}, true},
            {{"attention/probabilities"}, true},
            {{"attention/mask"}, true},
            {{"attention/dropped"}, true},
            {{"attention/v"}, true},
            {{"attention/o", "o_proj/x"}, true},  // one tensor under two names
            {{"o_proj/mask"}, false},
            {{"mlp/up_proj/x"}, false},
            {{"mlp/up"}, true},
            {{"mlp/down_proj/x"}, true},
            {{"mlp/down_proj/mask"}, false},
            {{"input_layernorm/x", "post_attention_layernorm/x"}, false}};
        return all;
    }
    static bool is_mask(const KeptTerm& term) { return term.sbh == 1 || term.assb == 1; }
    int64_t number_bytes() const { return dtype_bytes(shape_.model.dtype); }

    // A term in units of s b h. The formula counts 2 bytes a number and 1 a mask.
    double value(const KeptTerm& term, bool inside) const {
        const double a_s_h =
                         double(shape_.config.heads * shape_.seq) / double(shape_.config.hidden),
                     each = is_mask(term) ? 1 : double(number_bytes()) / 2;
        return (term.sbh + term.assb * a_s_h) * each /
               double(inside || sequence_parallel_ ? tp_ : 1);
    }
    // What a layer kept under which name, in units of s b h.
    std::map<std::string, double> of_one_layer() const {
        std::map<std::string, double> bytes = bytes_;
        for (auto& [name, value] : bytes)
            value /= double(shape_.seq * shape_.micro_batch) *
                     double(shape_.config.hidden * shape_.config.layers);
        return bytes;
    }
    // Why a term of the formula is not kept; "" if it should be.
    std::string why_not(const KeptTerm& term, double held, double formula) const {
        const ModelOptions& m = shape_.model;
        const bool squared = term.assb > 0;
        if (held == formula * double(tp_)) return "kept as it was gathered";
        if (held != 0) return "";
        if (squared && m.attention == AttentionKind::flash)
            return "attention in tiles has no s x s";
        if (squared && m.recompute == Recompute::selective) return "computed again";
        if (m.dropout == 0 && (is_mask(term) || (squared && term.what[0] == 'i')))
            return "no dropout";
        if (m.keep_masks) return "";
        if (is_mask(term)) return "drawn again";
        if (squared && term.what[0] == 'i') return "multiplied with the mask again";
        return term.what == std::string("input of down") ? "GELU is computed again" : "";
    }
    std::string written_out() const {
        if (tp_ == 1) return "34 + 5 a s / h";
        return sequence_parallel_ ? "(34 + 5 a s / h) / tp" : "10 + 24 / tp + 5 a s / (h tp)";
    }

    StepShape shape_;
    int64_t tp_;
    bool sequence_parallel_;
    std::map<std::string, double> bytes_;  // of all layers together, by name
};

}  // namespace ultrascale
