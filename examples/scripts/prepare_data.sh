#!/usr/bin/env bash
# Prepare training data of known difficulty: drop copies and labels that fail their own check, sample N answers per problem
# with the model that will be trained, keep a band of pass rates, write Parquet and a dataset card.
#
# Needs:   a model, and memory for vLLM to load it; GPUs are used if there are any. DATA comes from the hub,
#          or from a local copy: DATA=dapo-17k=/data/dapo.parquet (several: separated by commas)
# Expect:  OUT/train.parquet, OUT/README.md (the card, with the flags to train on it). If it is
#          stopped, the same command resumes.
# Usage:   MODEL=Qwen/Qwen2.5-Math-1.5B DATA=openr1-math BAND=hard examples/scripts/prepare_data.sh [more flags]
#          DRY_RUN=1 prints the command.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/launch.sh"

MODEL=${MODEL:-Qwen/Qwen2.5-Math-1.5B}
DATA=${DATA:-openr1-math}
OUT=${OUT:-data/$(basename "$MODEL")-$(basename "${DATA%%[=:,]*}")}
BAND=${BAND:-hard}
N=${N:-16}
ENGINES=${ENGINES:-8}
MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-3072}

IFS=, read -ra sources <<<"$DATA"
command=("$program" prepare-data "${sources[@]}"
  --model "$MODEL"
  --out "$OUT"
  --n "$N"
  --band "$BAND"
  --engines "$ENGINES"
  --max_new_tokens "$MAX_NEW_TOKENS"
  ${CLUSTER_WAIT:+--cluster_wait "$CLUSTER_WAIT"}
  "$@")

launch "${command[@]}"
