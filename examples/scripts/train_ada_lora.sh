#!/usr/bin/env bash
# Ada-Seq with LoRA adapters: small checkpoints, little optimiser memory. Engines get the adapters merged.
#
# Needs:   fewer GPUs than full training: GPUS=1 for 1.5B parameters. Variables: RANK (64), ALPHA (128), LR (1e-5).
# Expect:  RUN_DIR/model has the adapter, RUN_DIR/model/merged the whole model.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_lora.sh [more flags]    (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --algo.advantage.estimator dr_grpo
  --ds.lora.rank "${RANK:-64}" --ds.lora.alpha "${ALPHA:-128}" --actor.adam.lr "${LR:-1e-5}")
train "$@"
