#!/usr/bin/env bash
# One machine with eight GPUs under torchrun, started again as long as it was only interrupted.
#
#   configs/torchrun_1b_8gpu.sh [--KEY VALUE]...
#
# torchrun reports 1 whatever its processes return, so the run's own stop.json says how it ended:
# code 75 means stopped by a signal or deadline, with a whole checkpoint in the run directory.
set -uo pipefail

run_dir="${RUN_DIR:-runs/llama-1b}"
gpus="${GPUS:-8}"
launcher="${LAUNCHER:-torchrun}"
interrupted=0
trap 'interrupted=1; kill -TERM "$job" 2>/dev/null' TERM INT

while :; do
    rm -f "$run_dir/stop.json"
    "$launcher" --standalone --nproc_per_node "$gpus" \
        --signals_to_handle SIGTERM,SIGINT,SIGUSR1 \
        -m -- stream_pretrain.cli fit --config "$(dirname "$0")/llama_1b_8gpu.yaml" \
        --run.dir "$run_dir" --compute.devices "$gpus" "$@" &
    job=$!
    wait "$job"; status=$?
    while kill -0 "$job" 2>/dev/null; do wait "$job"; status=$?; done
    code=$(sed -n 's/.*"code": *\([0-9]*\).*/\1/p' "$run_dir/stop.json" 2>/dev/null)
    code="${code:-$status}"
    # 75 that nobody here asked for (a deadline, a notice to the processes): go on from the checkpoint.
    if [ "$code" -ne 75 ] || [ "$interrupted" -eq 1 ]; then
        exit "$code"
    fi
done
