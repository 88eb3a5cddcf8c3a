# shellcheck shell=bash
# Reinforce-Ada's published settings, for the scripts reproduce_*.sh; sourced by them, not run.
#
# Needs:   8 GPUs of 80 GB; prompts of the hard band, which prepare_data.sh makes: 16 answers, 1 to 5 of them right.
#          EVAL_DATA: held-out prompts, evaluated every 50 steps.
# Expect:  400 steps on 13,650 prompts, 15 times over (EPISODES); answers of 2048 tokens, as in the method's run script.
#          The paper says 4096: MAX_LEN=5120 MAX_NEW_TOKENS=4096, where the model takes as many. Compare with
#          METHOD=grpo at the same number of rollouts, not of steps (docs/evaluation.md).
#          We have not run it: no such machine was at hand. Evaluate with eval_model.sh.

# reproduce MODEL ZERO [more flags]: the setting METHOD (--ada_method: batches, loss, optimizer and learning rate are in
# openrlhf_ada/config/presets.py) and what no preset knows: model, ZeRO stage, lengths and steps. OpenRLHF counts passes over the
# prompts, not steps: EPISODES is 400 steps x 512 prompts a step over the number of prompts.
reproduce() {
  METHOD=${METHOD:-reinforce-ada-balance}
  local group=4
  if [[ $METHOD == reinforce-ada-est* ]]; then
    group=8
  fi
  GROUP=${GROUP:-$group}
  if [[ ${DEVICE:-gpu} == gpu ]]; then
    MODEL=${MODEL:-$1}
    ZERO=${ZERO:-$2}
    MAX_LEN=${MAX_LEN:-3072}
    MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-2048}
    EVAL_STEPS=${EVAL_STEPS:-50}
    SAVE_STEPS=${SAVE_STEPS:-50}
    if [[ -z ${STEPS:-} ]]; then
      EPISODES=${EPISODES:-15}
    fi
  fi
  source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

  if [[ $DEVICE == cpu ]]; then
    batches
  elif [[ ${BATCH:=512} != 512 || $GROUP != "$group" ]]; then
    echo "BATCH is $BATCH and GROUP is $GROUP: the published setting has 512 prompts a step and trains $group of each" >&2
    exit 2
  fi
  flags=(--ada_method "$METHOD" "${flags[@]}")
  if [[ -n ${ADA_MODE:-} ]]; then
    flags+=(--ada_mode "$ADA_MODE")
  fi
  on_shared_gpus
  train "${@:3}"
}
