// How a run stops when it is asked to: by SIGTERM, which a scheduler sends before it takes the
// machines away (a time limit, a job of higher priority), or by SIGUSR1, which it can be told to
// send some time earlier (`sbatch --signal=USR1@120`: 120 s before the time limit). The run
// finishes its step, saves, and ends with Exit::stopped.
//
// The ranks may get the signal in different steps, but must stop after the same one: a rank that
// went on would wait for those that have left. So a rank that has got it adds 1, its vote, to two
// sums over ranks that each step computes anyway, first the gradient norm's
// (Updater::squared_norm), then the loss's (Step::sum_loss). All stop if the result is not 0. Both
// sums are needed, since neither need cover all ranks. Take tensor and data parallelism, where the
// ranks form a grid: the norm is summed along its rows (tp), so all ranks in the voter's row get
// the vote. They pass it on in the sum of the loss, along the columns (dp). Each column has a rank
// in the voter's row, so now all ranks have it. (With other layouts, too, each group of the one sum
// has a rank in every group of the other.)
#pragma once

#include "core/tensor.h"

namespace ultrascale {

void listen_for_stop();  // from now on the two signals do not end the process
// The signal that this rank has got since listen_for_stop(); 0: none.
int stop_signal();
// Writes 1 to `vote` (shape (1), fp64) if this rank has got one; else leaves it as it is.
void add_vote(const Tensor& vote);

}  // namespace ultrascale
