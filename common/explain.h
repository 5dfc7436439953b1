// --explain for hooks: prints every call in firing order and passes it on to the technique's own hooks.
#pragma once

#include "parts.h"
#include "trace.h"

namespace ultrascale {

class ExplainHooks : public Hooks {
public:
    explicit ExplainHooks(Hooks* inner = nullptr) : inner_(inner) {}
    void before(const Unit& unit, Pass pass, int micro_batch) override {
        line("before", unit, pass, micro_batch);
        if (inner_) inner_->before(unit, pass, micro_batch);
    }
    void after(const Unit& unit, Pass pass, int micro_batch) override {
        line("after", unit, pass, micro_batch);
        if (inner_) inner_->after(unit, pass, micro_batch);
    }
    void gradient_complete(Parameter& parameter, int micro_batch) override {
        explain(fmt::format("    gradient complete: {}", parameter.name));
        if (inner_) inner_->gradient_complete(parameter, micro_batch);
    }

private:
    static void line(const char* when, const Unit& unit, Pass pass, int micro_batch) {
        explain(fmt::format("{} {} of {} (micro-batch {})", when, pass_names[int(pass)], unit.name, micro_batch));
    }
    Hooks* inner_;
};

}  // namespace ultrascale
