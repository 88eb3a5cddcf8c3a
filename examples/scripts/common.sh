# shellcheck shell=bash
# Shared by the training scripts here, which source it. Environment variables, all optional:
#
#   MODEL       model to train: a folder or a hub id
#   DATA        prompts: .jsonl, .parquet or a hub id, with columns INPUT_KEY and LABEL_KEY (several: separated by commas)
#   CHAT        1: apply the model's chat template to prompts (default on GPUs); 0 or empty: take them as text
#   REWARD      math | code | reasoning_gym | arithmetic, a Python file, or the URL of a reward server
#   EVAL_DATA   held-out prompts in the same form, evaluated every EVAL_STEPS steps and at both ends; empty: none
#   RUN_DIR     folder for the record, the checkpoints (every SAVE_STEPS steps) and the trained model
#   ADA_MODE    off | seq | est: another mode with the script's other flags
#   STEPS       training steps at most, divided equally among EPISODES passes (1) over the first prompts
#   BATCH       prompts per step (128)
#   GROUP       trained samples per prompt (4)
#   DEVICE      gpu | cpu. cpu: try the script in about a minute on two cores. Without MODEL it swaps in a toy model, toy
#               prompts, 6 steps of 16 prompts, a 4-token answer limit and a learning rate of 3e-4. With MODEL everything
#               but the machine is as on GPUs: set DATA, BATCH, MAX_LEN, MAX_NEW_TOKENS to what your cores can do
#   GPUS NODES  GPUs per node (8), nodes (1)
#   TP ZERO     GPUs per vLLM engine (1), ZeRO stage (2)
#   ESTIMATOR   train_grpo.sh only: group_norm (GRPO, the default), or dr_grpo, to be the control of train_ada_*.sh
#   METHOD      train_method.sh and reproduce.sh only: reinforce-ada-balance (the default), uniform-8, grpo, ...
#   MAX_LEN     tokens of prompt and answer together
#   MAX_NEW_TOKENS   tokens of an answer
#   SUBMIT      URL of a Ray cluster's dashboard (http://head:8265): run there, by `ray job submit` with SUBMIT_FLAGS
#               (by default it uploads the current folder). RUN_DIR must be on storage that all nodes reach
#   CLUSTER_WAIT   wait up to so many seconds for Ray nodes that are still joining
#   DRY_RUN=1   print the command and run nothing
#
# Arguments of a script are more flags, and win over its own.

source "$(dirname "${BASH_SOURCE[0]}")/launch.sh"

DEVICE=${DEVICE:-gpu}
if [[ $DEVICE != gpu && $DEVICE != cpu ]]; then
  echo "DEVICE is '$DEVICE': expected gpu or cpu" >&2
  exit 2
fi
for name in STEPS EPISODES BATCH GROUP GPUS NODES TP; do
  if [[ ! ${!name:-1} =~ ^[1-9][0-9]*$ ]]; then
    echo "$name is ${!name}: expected a whole number, at least 1" >&2
    exit 2
  fi
done
GPUS=${GPUS:-8}
NODES=${NODES:-1}
TP=${TP:-1}
ZERO=${ZERO:-2}
EPISODES=${EPISODES:-1}
TOY=$PWD/.cache/toy-examples

# The toy's settings suit nothing but the toy.
is_toy=no
if [[ $DEVICE == cpu && ${MODEL:-$TOY/model} == "$TOY/model" ]]; then is_toy=yes; fi

if [[ $is_toy == yes ]]; then
  MODEL=$TOY/model
  DATA=${DATA:-$TOY/data/train.jsonl}
  EVAL_DATA=${EVAL_DATA-$TOY/data/heldout.jsonl}
  REWARD=${REWARD:-arithmetic}
  MAX_LEN=${MAX_LEN:-48}
  MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-4}
  BATCH=${BATCH:-16}
  STEPS=${STEPS:-$((6 * EPISODES))}
else
  MODEL=${MODEL:-Qwen/Qwen2.5-Math-1.5B}
  # What prepare_data.sh writes for this model.
  DATA=${DATA:-data/$(basename "$MODEL")-openr1-math/train.parquet}
  EVAL_DATA=${EVAL_DATA:-}
  REWARD=${REWARD:-math}
  CHAT=${CHAT-1}
  MAX_LEN=${MAX_LEN:-4096}
  MAX_NEW_TOKENS=${MAX_NEW_TOKENS:-3072}
fi
if ((${STEPS:-0} % EPISODES)); then
  echo "STEPS is $STEPS and EPISODES is $EPISODES: each pass over the prompts has as many steps" >&2
  exit 2
fi
INPUT_KEY=${INPUT_KEY:-input}
LABEL_KEY=${LABEL_KEY:-label}
RUN_DIR=${RUN_DIR:-$PWD/runs/$(basename "$0" .sh)-$(date +%m%d-%H%M%S)}
GROUP=${GROUP:-4}

flags=(
  --actor.model_name_or_path "$MODEL"
  --data.prompt_dataset "$DATA"
  --data.input_key "$INPUT_KEY"
  --data.label_key "$LABEL_KEY"
  --data.max_len "$MAX_LEN"
  --reward.remote_url "$REWARD"
  --rollout.max_new_tokens "$MAX_NEW_TOKENS"
  --train.num_episodes "$EPISODES"
  --algo.kl.init_coef 0
  --ada_run_dir "$RUN_DIR"
  --ckpt.path "$RUN_DIR/ckpt"
  --ckpt.output_dir "$RUN_DIR/model"
  --ckpt.save_steps "${SAVE_STEPS:--1}"
)
if [[ ${CHAT:-0} != 0 ]]; then
  flags+=(--data.apply_chat_template)
fi
if [[ -n ${CLUSTER_WAIT:-} ]]; then
  flags+=(--ada_cluster_wait "$CLUSTER_WAIT")
fi
if [[ -n $EVAL_DATA ]]; then
  flags+=(--eval.dataset "$EVAL_DATA" --eval.steps "${EVAL_STEPS:--1}" --eval.n_samples_per_prompt 4
    --eval.temperature 1.0 --ada_eval_ends)
fi

# $GROUP samples of each of $BATCH prompts. published.sh has sizes of its own, and learning rates.
sizes() {
  BATCH=${BATCH:-128}
  flags+=(
    --rollout.batch_size "$BATCH"
    --rollout.n_samples_per_prompt "$GROUP"
    --train.batch_size $((BATCH * GROUP))
  )
}

batches() {
  sizes
  if [[ $is_toy == yes ]]; then
    flags+=(--actor.adam.lr 3e-4 --critic.adam.lr 1e-3)
  else
    flags+=(--actor.adam.lr 1e-6 --critic.adam.lr 5e-6)
  fi
}

# Policy, critic and engines take turns on the same GPUs.
on_shared_gpus() {
  if [[ $DEVICE == cpu ]]; then on_cpu; return; fi
  if ((GPUS < 1 || GPUS % TP)); then
    echo "GPUS is $GPUS and TP is $TP: engines of TP GPUs share the GPUS of a node" >&2
    exit 2
  fi
  _on_gpus "$GPUS" $((NODES * GPUS / TP))
  flags+=(--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.6)
}

# Half of the GPUs train while the other half samples. Asynchronous training needs this.
on_separate_gpus() {
  if [[ $DEVICE == cpu ]]; then on_cpu; return; fi
  if ((GPUS < 2 || GPUS % 2 || GPUS / 2 % TP)); then
    echo "GPUS is $GPUS and TP is $TP: half of a node's GPUs are engines of TP each" >&2
    exit 2
  fi
  _on_gpus $((GPUS / 2)) $((NODES * GPUS / 2 / TP))
  flags+=(--vllm.gpu_memory_utilization 0.9)
}

_on_gpus() {
  local per_model=$1 engines=$2
  for model in actor ref critic; do
    flags+=("--$model.num_nodes" "$NODES" "--$model.num_gpus_per_node" "$per_model")
  done
  flags+=(
    --vllm.num_engines "$engines"
    --vllm.tensor_parallel_size "$TP"
    --ds.zero_stage "$ZERO"
    --ds.packing_samples
    --actor.gradient_checkpointing_enable
  )
  # Steps of varying size need batches by number (docs/algorithms.md).
  if [[ ${by_tokens:-1} == 1 ]]; then
    flags+=(--train.dynamic_batch_enable --train.max_tokens_per_gpu 8192 --rollout.max_tokens_per_gpu 8192)
  else
    flags+=(--train.micro_batch_size 4 --rollout.micro_batch_size 4)
  fi
}

# After `batches`: micro-batches divide a step's samples, and have 64 of them at most.
on_cpu() {
  local samples=$((BATCH * GROUP)) micro=64
  while ((samples % micro)); do micro=$((micro - 1)); done
  flags+=(
    --ada_device cpu
    --rollout.micro_batch_size "$micro"
    --train.micro_batch_size "$micro"
  )
}

# Builds the toy model and its prompts once, if the run uses them.
toy() {
  if [[ $MODEL == "$TOY/model" ]]; then
    launch "$program" demo-model --toy "$TOY/model"
  fi
  if [[ ${1:-$DATA} == "$TOY"/* || $EVAL_DATA == "$TOY"/* ]]; then
    launch "$program" demo-data --toy --num-train 256 --num-heldout 64 "$TOY/data"
  fi
}

# Runs the command. The script's own arguments come last, so that they win.
train() {
  if [[ -n ${STEPS:-} ]]; then
    local in_a_pass=$((STEPS / EPISODES))
    flags+=(--data.max_samples $((in_a_pass * BATCH)))
  fi
  local command=("$program")
  if [[ -n ${SUBMIT:-} ]]; then
    if [[ $RUN_DIR != /* ]]; then
      echo "RUN_DIR is $RUN_DIR: Ray deletes the folder that a job works in, so name an absolute path that all nodes reach" >&2
      exit 2
    fi
    # Ray's default of 3 s is too short to end a run with large models.
    local submit_flags=(--working-dir . --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30"}}')
    if [[ -n ${SUBMIT_FLAGS:-} ]]; then
      read -ra submit_flags <<<"$SUBMIT_FLAGS"
    fi
    command=(ray job submit --address "$SUBMIT" "${submit_flags[@]}" -- openrlhf-ada)
  fi
  command+=(train "${flags[@]}" "$@")
  if [[ $DEVICE == cpu ]]; then toy; fi
  launch "${command[@]}"
}
