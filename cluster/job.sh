#!/usr/bin/env bash
# Runs a chapter on several machines, under Slurm:
#
#   sbatch cluster/job.sh build/cpu/01_data_parallel --steps 100
#
# Options that sbatch gets before the script's name replace the ones below. On machines with GPUs
# start a rank for each (--ntasks-per-node=8 --gpus-per-node=8), and a program of build/cuda.
#SBATCH --job-name=ultrascale
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.txt
set -eu
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
# --mpi= is the protocol by which srun tells the ranks of each other: pmi2 for MPICH, and for Open
# MPI pmix (`MPI=pmix sbatch ...`). If one rank fails, --kill-on-bad-exit ends the others.
exec srun --mpi="${MPI:-pmi2}" --kill-on-bad-exit=1 "$@"
