#!/usr/bin/env bash
# Ada-Seq, positive-focused, with dr_grpo (r - b): sample a prompt until one answer is right, at most 32; train 4.
#
# Needs:   as train_grpo.sh. Hard prompts take more samples: `openrlhf-ada plan` estimates how many.
# Expect:  training gets hard prompts that groups of four miss; easy prompts take one wave.
# Compare: with ESTIMATOR=dr_grpo train_grpo.sh, over rollouts (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_seq_pos.sh [more flags] (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --ada_exit pos --ada_wave 8 --ada_max_samples 32
  --algo.advantage.estimator dr_grpo)
train "$@"
