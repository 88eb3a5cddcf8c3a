# shellcheck shell=bash
# Reinforce-Ada's published settings, shared by train_method.sh and reproduce.sh, which source it.
#
# Needs:   8 GPUs of 80 GB; prompts of the hard band, which prepare_data.sh makes: at most 2 of 16 answers right.
#          EVAL_DATA: held-out prompts, evaluated every 50 steps.
# Expect:  400 steps, 15 passes (EPISODES) over 13,650 prompts; answers of 2048 tokens, as in the method's run script.
#          The paper says 4096: MAX_LEN=5120 MAX_NEW_TOKENS=4096, if the model's context allows. Compare with
#          METHOD=grpo at the same number of rollouts, not of steps (docs/evaluation.md).
#          We have not run it: we have no such machine. Evaluate with eval_model.sh.

# reproduce [more flags]: --ada_method METHOD sets batches, loss, optimizer and learning rate
# (openrlhf_ada/methods). This adds model, ZeRO stage, lengths and steps. OpenRLHF counts passes over the prompts,
# not steps: EPISODES is 400 steps x prompts per step / number of prompts.
reproduce() {
  METHOD=${METHOD:-reinforce-ada-balance}
  local group=4 batch=512 by_tokens=1
  case $METHOD in
    uniform-8 | reinforce-ada-est* | maxrl | vip | knapsack | gvm | sgpo | aero | vade | mmr1 | greso) group=8 ;;
    prime-rl-pools | cures | dars) group=8 ;;
    pf-ppo) group=2 ;;
    dapo | hora) group=16 ;;
    lambda-n1-e2 | raft-n1-e2 | raft-1-twice | rated) group=1 batch=2048 ;;
    rated-pos) group=1 batch=768 by_tokens=0 ;;
    first-success-8 | first-right) group=1 batch=768 ;;
    spo-n2 | counted) group=2 batch=1024 ;;
    speed) group=24 ;;
    pilot-commit) group=64 batch=128 ;;
    mopps) group=8 batch=256 ;;
  esac
  GROUP=${GROUP:-$group}
  if [[ ${DEVICE:-gpu} == gpu || -n ${MODEL:-} ]]; then
    MAX_LEN=${MAX_LEN:-3072}
    MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-2048}
    EVAL_STEPS=${EVAL_STEPS:-50}
    SAVE_STEPS=${SAVE_STEPS:-50}
    if [[ -z ${STEPS:-} ]]; then
      EPISODES=${EPISODES:-$((15 * batch / 512))}
    fi
  fi
  source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

  if [[ $is_toy == yes ]]; then
    batches
  elif [[ $DEVICE == cpu && -n ${BATCH:-} ]]; then
    # As many as the cores can do.
    sizes
  elif [[ ${BATCH:=$batch} != "$batch" || $GROUP != "$group" ]]; then
    echo "BATCH is $BATCH and GROUP is $GROUP: the setting has $batch prompts a step and trains $group of each" >&2
    exit 2
  fi
  flags=(--ada_method "$METHOD" "${flags[@]}")
  if [[ -n ${ADA_MODE:-} ]]; then
    flags+=(--ada_mode "$ADA_MODE")
  fi
  on_shared_gpus
  train "$@"
}
