// On rung 3, after 4_sequence_parallel.h, the backward of a column linear hides its communication.
// dW does not depend on the sum of dX, and dX does not depend on the second gather of X:
//
//   without      compute   [ dX = dY W ]               [ dW = dY^T X ]
//   overlap      network                [ sum dX      ]
//
//   async        compute   [ dX = dY W ][ dW = dY^T X ]
//                network   [ X again   ][ sum dX      ]       X again: rung 2 only
//
// Work on the communication stream first waits for everything that was queued on the compute stream
// before it (comm/comm.h). The sum of dX is issued after dX's GEMM and before dW's, so it waits for
// the former and overlaps with the latter. Compute waits for it only in wait(). This is
// Megatron-LM's asynchronous gradient all-reduce. The head is a column linear too, and gets the
// same backward. Without sequence parallelism there is no second gather: whole_input() returns what
// was kept.
#pragma once

#include "3_vocabulary_head.h"
#include "4_sequence_parallel.h"

namespace ultrascale::tensor_parallel {

class AsyncColumnLinear : public RegatheringColumnLinear {
public:
    using RegatheringColumnLinear::RegatheringColumnLinear;

    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        // A pipeline may ask for dX now and for dW later: then dW cannot hide anything here.
        if (when == WeightGradient::later) return Linear::backward(dy, saved, context, when);
        const TraceName name(TraceName::part, name_);
        Pending x = whole_input(saved, communication_stream());  // under dX's GEMM
        Tensor partial = partial_dx(dy, context);
        // Waits for dX's GEMM, and runs under dW's.
        Pending dx = region_.begin_leave(std::move(partial), communication_stream());
        region_.end_turn();  // of one half of a micro-batch: 6_halves.h
        gemm_->add_weight_gradient(dy, x.wait(), context);
        return dx.wait();
    }
};

class AsyncVocabularyHead : public VocabularyHead {
public:
    using VocabularyHead::VocabularyHead;

    Tensor backward(Saved& saved, Context& context, WeightGradient when) override {
        if (when == WeightGradient::later) return Head::backward(saved, context, when);
        Pending x = whole_input(saved, communication_stream());  // under dX's GEMM
        Tensor partial = Head::backward_input(saved, context);
        // Waits for dX's GEMM, and runs under dW's.
        Pending dx = region_.begin_leave(std::move(partial), communication_stream());
        region_.end_turn();
        add_weight_gradient(x.wait(), saved, context);
        return dx.wait();
    }
};

}  // namespace ultrascale::tensor_parallel
