// A run that is asked to stop: by SIGTERM, which a scheduler sends before it takes the machines
// away (a time limit, a job of higher priority), or by SIGUSR1, which it can be told to send some
// time earlier (`sbatch --signal=USR1@120`). The run finishes its step, saves, and ends with
// Exit::stopped.
//
// The ranks do not get the signal in the same step. So each adds its vote to the two sums that a
// step computes over the ranks anyway, of the norm (Updater::squared_norm) and of the loss
// (Step::sum_loss). Ranks that are in no common group of the one are in one of the other.
#pragma once

#include "core/tensor.h"

namespace ultrascale {

void listen_for_stop();  // from now on the two signals do not end the process
// The signal that this rank has got since then; 0: none.
int stop_signal();
// Writes 1 to `vote` (1) fp64 if it has got one.
void add_vote(const Tensor& vote);

}  // namespace ultrascale
