#include "updater.h"

#include "core/ops.h"
#include "gradients.h"
#include "step.h"
#include "stop.h"

namespace ultrascale {

Tensor Updater::own_squared_norm() {
    const Tensor own = phase("gradient norm", [&] { return sum_squares(); });
    if (on_gradient) on_gradient();
    return own;
}

Tensor Updater::squared_norm() {
    const Tensor own = own_squared_norm();
    const Communicator* const ranks = norm_group();
    if (!ranks) return own;
    const Tensor sums = Tensor::zeros({2}, DType::fp64, Memory::workspace);
    phase("gradient norm", [&] {
        ops::copy(sums.slice(0, 1), own);
        votes_ = sums.slice(1, 2);
        add_vote(votes_);
        ranks->all_reduce(sums);
    });
    return sums.slice(0, 1);
}

void Updater::step(double lr, const Tensor& squared_norm) {
    phase("update", [&] { update(lr, squared_norm); });
}

TrainingState PlainUpdater::start() {
    load_or_initialize(options_, parameters_);
    optimizer_ = make_optimizer(items_of(parameters_), options_.optimizer);
    return resume_or_start(options_, {&*optimizer_, 1}, parameters_);
}

Tensor PlainUpdater::sum_squares() { return squared_gradient_norm(parameters_, mesh_); }

const Communicator* PlainUpdater::norm_group() const {
    return mesh_ && mesh_->norm_group().size() > 1 ? &mesh_->norm_group() : nullptr;
}

}  // namespace ultrascale
