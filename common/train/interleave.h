// Two micro-batches that take turns on a device, so that one computes while the other communicates.
//
//     one after    compute   [ A1 ]    [ A2 ]    [ B1 ]    [ B2 ]
//     the other    network         [a1]      [a2]      [b1]      [b2]
//
//     interleaved  compute   [ A1 ][ B1 ][ A2 ][ B2 ]
//                  network         [a1]  [b1]  [a2]  [b2]
//
// A layer stays as it is: where it would wait for a communication that it has begun on a stream of
// its own, it calls yield_to_other(), and the other micro-batch resumes where it last yielded. Each
// runs on a stack of its own (a fiber, Boost.Context), so it may yield from any depth. There is
// only one host thread, so the two never run at once on the host, and their order does not depend
// on timing. So all ranks of a group make their calls in the same order, if the layers do.
#pragma once

#include <functional>

namespace ultrascale {

// Runs both; `one` begins. Returns when both have ended. If one of them throws, the other is
// unwound where it waits, and interleave() rethrows. Must not be called from within either.
void interleave(const std::function<void()>& one, const std::function<void()>& other);

// Lets the other one run until it yields or ends. Does nothing outside interleave(), or if the
// other one has ended.
void yield_to_other();

}  // namespace ultrascale
