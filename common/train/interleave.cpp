#include "interleave.h"

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/trace.h"

namespace ultrascale {
namespace {

namespace context = boost::context;

thread_local bool interleaving = false;
// The one of the two that waits; empty if it has ended.
thread_local context::fiber waiting;
// Why `other` ended, if it failed: `one` then fails, too.
thread_local std::exception_ptr failure;

// Runs `work`, and returns the exception that left it, if any. Boost unwinds a fiber by an
// exception of its own, which passes.
std::exception_ptr failure_of(const std::function<void()>& work) {
    try {
        work();
    } catch (const context::detail::forced_unwind&) {
        throw;
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

constexpr size_t stack_bytes = 8 << 20;  // as much as a thread's usually; only used pages exist

}  // namespace

void interleave(const std::function<void()>& one, const std::function<void()>& other) {
    check(!interleaving, "interleave() inside interleave()");
    interleaving = true;
    const TracePlace place = trace_place();
    waiting = context::fiber(std::allocator_arg, context::protected_fixedsize_stack(stack_bytes),
                             [&](context::fiber&& from) {
                                 waiting = std::move(from);
                                 set_trace_place({place.innermost, "phase beside"});
                                 failure = failure_of(other);
                                 return std::move(waiting);
                             });
    const std::exception_ptr failed = failure_of([&] {
        one();
        while (waiting) yield_to_other();
    });
    waiting = {};  // unwinds the other one, if it has not ended
    failure = nullptr;
    set_trace_place(place);
    interleaving = false;
    if (failed) std::rethrow_exception(failed);
}

void yield_to_other() {
    if (!waiting) return;
    const TracePlace place = trace_place();
    waiting = std::move(waiting).resume();  // returns when the other one yields or ends
    set_trace_place(place);
    if (failure) std::rethrow_exception(failure);
}

}  // namespace ultrascale
