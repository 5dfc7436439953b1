// A run that is asked to stop: by SIGTERM, which a scheduler sends before it takes the machines
// away (a time limit, a job of higher priority), or by SIGUSR1, which it can be told to send some
// time earlier (`sbatch --signal=USR1@120`). The run finishes its step, saves, and ends with
// Exit::stopped.
//
// The ranks do not get the signal in the same step, but must stop after the same one. So each adds
// a vote to the two sums that a step computes over ranks anyway, first the norm's
// (Updater::squared_norm), then the loss's (Step::sum_loss). A group of the one sum has ranks in
// all groups of the other: with tensor and data parallelism a vote reaches the ranks along tp
// beside the norm, and from each of them those along dp beside the loss.
#pragma once

#include "core/tensor.h"

namespace ultrascale {

void listen_for_stop();  // from now on the two signals do not end the process
// The signal that this rank has got since then; 0: none.
int stop_signal();
// Writes 1 to `vote` (1) fp64 if it has got one.
void add_vote(const Tensor& vote);

}  // namespace ultrascale
