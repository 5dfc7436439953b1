#include "updater.h"

#include "gradients.h"
#include "step.h"

namespace ultrascale {

Tensor Updater::own_squared_norm() {
    const Tensor own = phase("gradient norm", [&] { return sum_squares(); });
    if (on_gradient) on_gradient();
    return own;
}

Tensor Updater::squared_norm() {
    const Tensor sum = own_squared_norm();
    if (const Communicator* ranks = norm_group())
        phase("gradient norm", [&] { ranks->all_reduce(sum); });
    return sum;
}

void Updater::step(double lr, const Tensor& squared_norm) {
    phase("update", [&] { update(lr, squared_norm); });
}

TrainingState PlainUpdater::start() {
    load_or_initialize(options_, parameters_);
    adamw_.emplace(parameters_, options_.optimizer);
    return resume_or_start(options_, {&*adamw_, 1}, parameters_);
}

Tensor PlainUpdater::sum_squares() { return squared_gradient_norm(parameters_, mesh_); }

const Communicator* PlainUpdater::norm_group() const {
    return mesh_ && mesh_->norm_group().size() > 1 ? &mesh_->norm_group() : nullptr;
}

}  // namespace ultrascale
