#!/usr/bin/env bash
# Reinforce-Ada's published setting with Qwen2.5-Math-7B: Ada-Seq-balance, 512 prompts a step, 4 of up to 32 answers trained.
#
# Needs:   8 GPUs of 80 GB; prompts of the hard band, which prepare_data.sh makes: 16 answers, 1 to 5 of them right.
#          4096 tokens are all that this model takes, prompt included.
# Expect:  400 steps. Compare with METHOD=grpo at the same number of rollouts, not of steps (docs/evaluation.md).
#          We have not run it: no such machine was at hand. Evaluate with eval_model.sh.
# Usage:   METHOD=reinforce-ada-pos examples/scripts/reproduce_qwen2.5_math_7b.sh [more flags]  (all variables: common.sh)
set -euo pipefail
if [[ ${DEVICE:-gpu} == gpu ]]; then
  MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
  ZERO=${ZERO:-3}
  MAX_LEN=${MAX_LEN:-4096}
  MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-3072}
  EVAL_STEPS=${EVAL_STEPS:-50}
  SAVE_STEPS=${SAVE_STEPS:-50}
fi
source "$(dirname "$0")/common.sh"

published
on_shared_gpus
train "$@"
