// Hooks (parts.h) that belong to no technique.
#pragma once

#include <vector>

#include "core/trace.h"
#include "model/parts.h"

namespace ultrascale {

// Several hooks, called in the order in which they were added.
class HookList : public Hooks {
public:
    void add(Hooks* hooks) {
        if (hooks) list_.push_back(hooks);
    }
    bool empty() const { return list_.empty(); }
    void before(const Unit& unit, Pass pass, const Context& context) override {
        for (Hooks* hooks : list_) hooks->before(unit, pass, context);
    }
    void after(const Unit& unit, Pass pass, const Context& context) override {
        for (Hooks* hooks : list_) hooks->after(unit, pass, context);
    }
    void gradient_complete(Parameter& parameter, const Context& context) override {
        for (Hooks* hooks : list_) hooks->gradient_complete(parameter, context);
    }
    void forward_done(const Saved& saved, const Context& context) override {
        for (Hooks* hooks : list_) hooks->forward_done(saved, context);
    }

private:
    std::vector<Hooks*> list_;
};

// --explain: prints every call when it happens.
class ExplainHooks : public Hooks {
public:
    void before(const Unit& unit, Pass pass, const Context& context) override {
        line("before", unit, pass, context);
    }
    void after(const Unit& unit, Pass pass, const Context& context) override {
        line("after", unit, pass, context);
    }
    void gradient_complete(Parameter& parameter, const Context&) override {
        explain(fmt::format("    gradient complete: {}", parameter.name));
    }

private:
    static void line(const char* when, const Unit& unit, Pass pass, const Context& context) {
        explain(fmt::format("{} {} of {} (micro-batch {})", when, pass_names[int(pass)], unit.name,
                            context.micro_batch));
    }
};

}  // namespace ultrascale
