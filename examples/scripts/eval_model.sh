#!/usr/bin/env bash
# Evaluate one or several checkpoints on benchmarks, as in the published tables: 32 answers at temperature 1, average
# weighted by problems. Answers of 3072 tokens fit into a context of 4096; set MAX_NEW_TOKENS=4096 for a longer context.
#
# Needs:   a model, and memory for vLLM to load it; GPUs are used if there are any. Benchmarks come from the hub, or from
#          local copies: BENCHMARKS=math500=/data/math500.jsonl. Several models or benchmarks: separated by commas.
#          Or an OpenAI-compatible server: BASE_URL=http://host:8000/v1, and MODEL is the model's name there.
# Expect:  a table of avg@n, pass@n, maj@n with intervals; OUT/results.json; OUT/results.html (pass@k and the share of
#          groups without signal against k). If it is stopped, the same command resumes.
# Usage:   MODEL=runs/a/model,runs/b/model examples/scripts/eval_model.sh [more flags]
#          DRY_RUN=1 prints the command.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/launch.sh"

MODEL=${MODEL:-Qwen/Qwen2.5-Math-1.5B}
BENCHMARKS=${BENCHMARKS:-math500,minerva,olympiadbench,aime24,aime25}
OUT=${OUT:-runs/eval}
N=${N:-32}
ENGINES=${ENGINES:-8}
MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-3072}

IFS=, read -ra models <<<"$MODEL"
IFS=, read -ra benchmarks <<<"$BENCHMARKS"
command=("$program" eval
  --model "${models[@]}"
  --benchmark "${benchmarks[@]}"
  --out "$OUT"
  --n "$N"
  --max_new_tokens "$MAX_NEW_TOKENS"
  ${CLUSTER_WAIT:+--cluster_wait "$CLUSTER_WAIT"}
  "$@")
# A server that runs already has its own engines.
if [[ -n ${BASE_URL:-} ]]; then command+=(--base_url "$BASE_URL"); else command+=(--engines "$ENGINES"); fi

launch "${command[@]}"
