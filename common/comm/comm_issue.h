// Private to communication: the part that all calls of comm.h share, once their arguments are
// checked.
#pragma once

#include <optional>

#include "comm_transport.h"

namespace ultrascale {

// A call's bytes and description, for the counts and --explain, and the tensors that its Work owns.
struct Call {
    int64_t bytes;
    std::vector<Tensor> tensors;
    std::string detail = "";
    std::optional<double> sent = {};  // if the ranks' slices differ; otherwise by the formula
};

// Counts the call, prints its line for --explain, hands the operation to the backend's transport
// (or only imagines it), in the stream's order, and returns its Work.
Work issue(const std::shared_ptr<Communicator::Impl>& group, Operation operation, Call call,
           Stream& stream);

}  // namespace ultrascale
