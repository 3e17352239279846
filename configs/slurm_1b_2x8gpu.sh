#!/usr/bin/env bash
# Two machines with eight GPUs each under SLURM, requeued until the run is finished.
#
#   sbatch configs/slurm_1b_2x8gpu.sh [--KEY VALUE]...
#
# SIGUSR1 comes five minutes before the time limit: every rank finishes its step, one checkpoint is
# saved, and the exit code 75 asks for a requeue. The run directory must be shared or in a bucket.
#SBATCH --job-name=llama-1b
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail

configs="${CONFIGS:-configs}"    # sbatch runs a copy of this script: give the place if it is another

srun --kill-on-bad-exit=0 stream-pretrain fit --config "$configs/llama_1b_8gpu.yaml" \
    --compute.nodes 2 --compute.strategy hsdp "$@"
code=$?
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
