// --explain for hooks: prints every call in firing order and passes it on to the technique's own hooks.
#pragma once

#include "parts.h"
#include "trace.h"

namespace ultrascale {

class ExplainHooks : public Hooks {
public:
    explicit ExplainHooks(Hooks* inner = nullptr) : inner_(inner) {}
    void before(const Unit& unit, Pass pass, const Context& context) override {
        line("before", unit, pass, context);
        if (inner_) inner_->before(unit, pass, context);
    }
    void after(const Unit& unit, Pass pass, const Context& context) override {
        line("after", unit, pass, context);
        if (inner_) inner_->after(unit, pass, context);
    }
    void gradient_complete(Parameter& parameter, const Context& context) override {
        explain(fmt::format("    gradient complete: {}", parameter.name));
        if (inner_) inner_->gradient_complete(parameter, context);
    }

private:
    static void line(const char* when, const Unit& unit, Pass pass, const Context& context) {
        explain(fmt::format("{} {} of {} (micro-batch {})", when, pass_names[int(pass)], unit.name, context.micro_batch));
    }
    Hooks* inner_;
};

}  // namespace ultrascale
