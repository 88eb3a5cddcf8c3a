#!/usr/bin/env bash
# For a machine with GPUs: one test for each path of docs/gpu.md, in a quarter of an hour with one GPU, and a report that can be
# pasted into an issue. It names the machine's GPUs, its driver and the versions of packages; no names, no addresses, no
# keys.
#
#   tests/gpu/first_run.sh              run, and write gpu-report.md
#   tests/gpu/first_run.sh --dry-run    show what would be run, and why something would not
#
# PYTHON names the interpreter of the GPU installation (.venv/bin/python, else python3). OUT is the report's file.
# LIMIT is how many seconds a path may take (1500; a first run also compiles).
# Exit status: 0 something passed and nothing failed, 1 something failed, nothing passed or there is no GPU, 2 bad usage.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
DRY_RUN=0
case "$*" in
  '') ;;
  --dry-run) DRY_RUN=1 ;;
  *)
    echo "usage: tests/gpu/first_run.sh [--dry-run]" >&2
    exit 2
    ;;
esac
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=$ROOT/.venv/bin/python
  [[ -x $PYTHON ]] || PYTHON=python3
fi
# Tests run in the folder of this package, and a path may be named from another one.
[[ $PYTHON != */* || $PYTHON == /* ]] || PYTHON=$PWD/$PYTHON
OUT=${OUT:-gpu-report.md}
LIMIT=${LIMIT:-1500}

# Path; GPUs that it needs; test in tests/gpu. Those that show the least come first: if one fails, look at it first.
PATHS=(
  "flash-attn packing|1|test_packing.py::test_packed_samples_do_not_see_each_other"
  "weights by CUDA IPC, sleep and wake|1|test_weight_sync.py::test_policy_and_engine_take_turns_on_one_gpu"
  "refilling with a prefix cache|1|test_weight_sync.py::test_weights_survive_sleep_with_prefix_cache"
  "LoRA by CUDA IPC|1|test_weight_sync.py::test_adapters_go_merged_through_shared_memory[2]"
  "dynamic batches, one GPU|1|test_packing.py::test_pools_of_any_length_are_trained_on_one_gpu"
  "PPO, all models on one GPU|1|test_modes.py::test_all_models_share_one_gpu[PPO]"
  "est with a pass-rate critic|1|test_modes.py::test_all_models_share_one_gpu[critic]"
  "ZeRO-3, average, export|1|test_modes.py::test_zero_3_trains_averages_and_exports[1]"
  "an engine that dies beside the policy|1|test_engine_death.py::test_an_engine_comes_back_beside_the_policy[actor]"
  "mode off beside OpenRLHF|1|test_modes.py::test_off_equals_host_as_far_as_gpu_is_deterministic"
  "NCCL, DeepSpeed and flash-attn, two processes|2|test_packing.py::test_micro_batches_by_tokens_keep_sample_weights"
  "weights by NCCL, CUDA graphs|2|test_weight_sync.py::test_weights_arrive_by_nccl[graphs]"
  "LoRA by NCCL|2|test_weight_sync.py::test_adapters_go_merged_by_nccl"
  "an engine that dies, NCCL formed anew|2|test_engine_death.py::test_a_group_is_formed_anew_after_an_engines_death[actor]"
  "asynchronous, partial rollouts|2|test_modes.py::test_weights_change_during_partial_rollouts"
  "tensor-parallel engine, colocated|2|test_weight_sync.py::test_tensor_parallel_engine_shares_gpus_with_policy"
  "tensor-parallel engine, apart|3|test_weight_sync.py::test_a_tensor_parallel_engine_gets_whole_tensors"
  "dynamic batches, two processes|3|test_packing.py::test_two_processes_share_pools_of_any_length[2]"
)

# -- the machine --------------------------------------------------------------------------------------------------------

no_gpu() {
  echo "first_run: no NVIDIA GPU was found: $1" >&2
  echo "Without a GPU, run make gpu-rehearsal." >&2
  exit 1
}

command -v nvidia-smi >/dev/null || no_gpu "there is no nvidia-smi here$(
  "$PYTHON" -c 'from openrlhf_ada.platforms.gpu import trouble; print(f" ({trouble()})" if trouble() else "")' 2>/dev/null || true
)"
if ! GPU_LINES=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>&1) || [[ -z $GPU_LINES ]]; then
  no_gpu "nvidia-smi says: ${GPU_LINES:-nothing}"
fi
NUM_GPUS=$(wc -l <<<"$GPU_LINES")
# nvidia-smi shows all; CUDA takes those up to the first entry that names none.
if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
  VISIBLE=$(awk -F, '{ for (i = 1; i <= NF && $i !~ /^ *(-.*|NoDevFiles)? *$/; i++); print i - 1 }' <<<"$CUDA_VISIBLE_DEVICES")
  ((VISIBLE > 0)) || no_gpu "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES hides all"
  ((VISIBLE >= NUM_GPUS)) || NUM_GPUS=$VISIBLE
fi

# For each path: "run", or why not.
plan() {
  local needs=$1
  if ((NUM_GPUS >= needs)); then
    echo run
  else
    echo "needs $needs GPUs, here is $NUM_GPUS"
  fi
}

if ((DRY_RUN)); then
  echo "$NUM_GPUS x ${GPU_LINES%%$'\n'*}"
  for entry in "${PATHS[@]}"; do
    IFS='|' read -r name needs test <<<"$entry"
    what=$(plan "$needs")
    if [[ $what == run ]]; then
      echo "run      $name: $PYTHON -m pytest -m gpu tests/gpu/$test"
    else
      echo "skipped  $name: $what"
    fi
  done
  exit 0
fi

TROUBLE=$("$PYTHON" -c 'from openrlhf_ada.platforms.gpu import trouble; print(trouble() or "")') || {
  echo "first_run: $PYTHON cannot import openrlhf_ada. docs/gpu.md says how to install it" >&2
  exit 1
}
if [[ -n $TROUBLE ]]; then
  echo "first_run: $TROUBLE" >&2
  exit 1
fi

versions() {
  "$PYTHON" - <<'TEXT'
import platform
from importlib.metadata import PackageNotFoundError, version
names = ("openrlhf-ada", "openrlhf", "vllm", "torch", "transformers", "ray", "deepspeed", "flash-attn",
         "nvidia-nccl-cu13")
def found(name):
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
print(", ".join([f"Python {platform.python_version()}", *map(found, names)]))
TEXT
}

# -- the run ------------------------------------------------------------------------------------------------------------

FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
ROWS=$FOLDER/rows
DETAILS=$FOLDER/details
FENCE=$(printf '\x60%.0s' 1 2 3)
: >"$ROWS"
: >"$DETAILS"
FAILED=0
PASSED=0
STOPPED=0
trap 'STOPPED=1' INT TERM

row() { printf '| %s | %s | %s | %s |\n' "$@" >>"$ROWS"; }

# Runs one test; its row and, of a failure, the last lines.
run_path() {
  local name=$1 needs=$2 test=$3 log=$FOLDER/log status=0 start=$SECONDS result
  (cd "$ROOT" && timeout --kill-after=30 "$LIMIT" "$PYTHON" -m pytest -q -x --tb=short -rs -p no:cacheprovider \
    -m gpu "tests/gpu/$test") >"$log" 2>&1 || status=$?
  if ((status == 0)) && grep -q '[0-9] passed' "$log"; then
    result=pass
    PASSED=1
  elif ((status == 0)); then
    result="skipped: $(sed -n 's/^SKIPPED \[[0-9]*\] [^ ]*: //p' "$log" | head -n 1)"
  elif ((status == 124 || status == 137)); then
    result="FAIL (not done after $LIMIT s)"
  else
    result="FAIL (status $status)"
  fi
  if [[ $result == FAIL* ]]; then
    FAILED=1
    {
      printf '\n**%s**, tests/gpu/%s\n\n%s\n' "$name" "$test" "$FENCE"
      tail -n 25 "$log" | cut -c 1-300
      echo "$FENCE"
    } >>"$DETAILS"
  fi
  row "$name" "$needs" "$result" $((SECONDS - start))
  printf '%-50s %s, %d s\n' "$name" "$result" $((SECONDS - start)) >&2
}

for entry in "${PATHS[@]}"; do
  IFS='|' read -r name needs test <<<"$entry"
  what=$(plan "$needs")
  if ((STOPPED)); then
    row "$name" "$needs" "not run: interrupted" ""
  elif [[ $what != run ]]; then
    row "$name" "$needs" "skipped: $what" ""
  else
    run_path "$name" "$needs" "$test"
  fi
done

# -- the report ---------------------------------------------------------------------------------------------------------

{
  printf '### openrlhf_ada on GPUs\n\n'
  printf -- '- GPUs: %s\n' "$(sort <<<"$GPU_LINES" | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -sd ';' -)"
  printf -- '- Machine: %s, %s processors, %s of memory\n' "$(uname -srm)" "$(nproc)" \
    "$(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
  printf -- '- Versions: %s; commit %s\n' "$(versions)" \
    "$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)"
  printf -- '- Time: %d s\n\n' "$SECONDS"
  printf '| Path | GPUs | Result | Seconds |\n|---|---|---|---|\n'
  cat "$ROWS"
  cat "$DETAILS"
} | tee "$OUT"
echo "first_run: the report is in $OUT. Please paste it into an issue, whatever it says." >&2
if ! ((PASSED || FAILED)); then
  echo "first_run: nothing was run: every path was skipped, and the report says why" >&2
  exit 1
fi
exit "$FAILED"
