#!/usr/bin/env bash
# Hard prompts only: sample every problem 16 times with the model, keep those with at most 2 right answers, train.
#
# Needs:   as prepare_data.sh and train_grpo.sh; RAW: the problems (openr1-math); TEMPLATE: the prompt, with {} for the
#          question. If the first part is stopped, the same command resumes. On a cluster (SUBMIT) call prepare_data.sh
#          there first, and train_ada_est_ema.sh on its prompts.
# Expect:  PROMPTS/README.md says what was kept. Ada-Est starts from the counts of the first part.
# Usage:   MODEL=... RAW=openr1-math examples/scripts/train_ada_hard_prompts.sh [more flags]  (variables: common.sh)
set -euo pipefail
if [[ ${DEVICE:-gpu} == cpu && -z ${MODEL:-} ]]; then
  PROMPTS=${PROMPTS:-$PWD/.cache/toy-examples/hard}
fi
PROMPTS=${PROMPTS:-data/$(basename "${MODEL:-Qwen2.5-Math-1.5B}")-hard}
DATA=$PROMPTS/train.parquet
INPUT_KEY=input
LABEL_KEY=label
source "$(dirname "$(readlink -f "$0")")/common.sh"

if [[ $is_toy == yes ]]; then
  toy "${RAW:=$TOY/data/train.jsonl}"
fi

prepare() {
  local how=(--reward "$REWARD") engines=1
  if [[ -n ${TEMPLATE:-} ]]; then how+=(--template "$TEMPLATE"); fi
  if [[ $DEVICE == gpu ]]; then
    engines=$((NODES * GPUS / TP))
    how+=(--tensor_parallel_size "$TP")
  fi
  DATA=${RAW:-openr1-math} ENGINES=$engines MAX_NEW_TOKENS=$MAX_NEW_TOKENS \
    "$(dirname "$(readlink -f "$0")")/prepare_data.sh" "${how[@]}"
}

MODEL=$MODEL OUT=$PROMPTS BAND=hard prepare

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-est}" --ada_budget 8 --ada_known_counts --algo.advantage.estimator dr_grpo)
train "$@"
