#!/usr/bin/env bash
# Reinforce-Ada's published setting with Qwen2.5-Math-7B:
# Ada-Seq-balance, 512 prompts a step, 4 of up to 32 answers trained.
#
# Needs:   8 GPUs of 80 GB; prompts of the hard band, which prepare_data.sh makes: 16 answers, 1 to 5 of them right.
#          EVAL_DATA: held-out prompts, evaluated every 50 steps.
# Expect:  400 steps on 13,650 prompts, 15 times over (EPISODES); answers of 2048 tokens, as in the method's run script.
#          The paper says 4096: MAX_LEN=5120 MAX_NEW_TOKENS=4096, where the model takes as many. Compare with
#          METHOD=grpo at the same number of rollouts, not of steps (docs/evaluation.md).
#          We have not run it: no such machine was at hand. Evaluate with eval_model.sh.
# Usage:   METHOD=reinforce-ada-pos examples/scripts/reproduce_qwen2.5_math_7b.sh [more flags]  (all variables: common.sh)
set -euo pipefail
if [[ ${DEVICE:-gpu} == gpu ]]; then
  MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
  ZERO=${ZERO:-3}
  MAX_LEN=${MAX_LEN:-3072}
  MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-2048}
  EVAL_STEPS=${EVAL_STEPS:-50}
  SAVE_STEPS=${SAVE_STEPS:-50}
  if [[ -z ${STEPS:-} ]]; then
    EPISODES=${EPISODES:-15}
  fi
fi
source "$(dirname "$(readlink -f "$0")")/common.sh"

published
on_shared_gpus
train "$@"
