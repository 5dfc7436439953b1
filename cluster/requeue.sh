#!/usr/bin/env bash
# Like job.sh, for a run that takes longer than a job may, or whose machines may be taken away.
# Slurm sends its ranks SIGUSR1 a minute before the time limit, and SIGTERM before a job of higher
# priority takes their place. Then they finish their step, save and end with exit code 85, and the
# job goes back into the queue. The next time it starts where it stopped (--resume):
#
#   sbatch cluster/requeue.sh build/cpu/01_data_parallel --save saved --save-every 100 \
#       --until-step 10000
#
# A link that fails ends a job with code 4, a rank that is killed with 137 (128 + SIGKILL's 9). Then
# the job goes back into the queue, too, and resumes from the last checkpoint. After 20 restarts
# (`RESTARTS=20 sbatch ...`) it stays out, in case that each attempt fails for the same reason.
#SBATCH --job-name=ultrascale
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --signal=USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.txt
set -u
trap : TERM  # else the signal would end this script before the ranks, which get it, too, have saved
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
srun --mpi="${MPI:-pmi2}" --kill-on-bad-exit=1 "$@" --resume
code=$? restart=$((${SLURM_RESTART_COUNT:-0} + 1))
if [[ " 85 4 137 " = *" $code "* ]] && [ "$restart" -le "${RESTARTS:-20}" ]; then
    echo "exit code $code: back into the queue (restart $restart)"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
