#!/usr/bin/env bash
# Trains for 50 steps with profiling, and says how to view the results.
#
#   examples/profile_short.sh [folder for the results] [more flags of the script]
#
# To use it with your own script, set SCRIPT; the flags are those of the dialect "hf".
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
SCRIPT="${SCRIPT:-$here/flags.py}"
PYTHON="${PYTHON:-python}"
folder="${1:-./profiler_traces}"
[ $# -gt 0 ] && shift

"$PYTHON" "$SCRIPT" \
    --max-steps 50 \
    --enable-profiling \
    --profiler-output-dir "$folder" \
    --profiler-wait-steps 5 \
    --profiler-warmup-steps 2 \
    --profiler-active-steps 3 \
    --profiler-repeat 1 \
    --enable-memory-logging \
    --memory-log-steps 10 \
    "$@"

"$PYTHON" -m stepscope report "$folder"

cat <<END

The results are in $folder. To see more:
  stepscope report $folder
      the report again
  stepscope view $folder
      the timeline, flame graphs and tables in the browser
  stepscope show --list
      the questions
  stepscope show operators $folder
      where the operators' time went
  tensorboard --logdir $folder
      with torch-tb-profiler, the tab PYTORCH_PROFILER
  chrome://tracing or ui.perfetto.dev
      load a .pt.trace.json.gz of the folder
END
