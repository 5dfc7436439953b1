#!/usr/bin/env bash
# Runs a chapter on several machines, under Slurm:
#
#   sbatch cluster/job.sh build/cpu/01_data_parallel --steps 100
#
# Options of sbatch before the script's name replace the ones below. On GPUs say how many ranks a
# machine has (--ntasks-per-node=8 --gpus-per-node=8), and start a program of build/cuda.
#SBATCH --job-name=ultrascale
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.txt
set -eu
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# MPICH's ranks find each other by pmi2, Open MPI's by pmix (MPI=pmix).
exec srun --mpi="${MPI:-pmi2}" --kill-on-bad-exit=1 "$@"
