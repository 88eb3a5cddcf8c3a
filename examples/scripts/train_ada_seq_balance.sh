#!/usr/bin/env bash
# Ada-Seq, balanced, with dr_grpo (r - b): sample a prompt until two answers are right and two wrong, at most 32; train 4.
#
# Needs:   as train_grpo.sh. Prompts that are nearly always or nearly never right take the most samples.
# Expect:  `signal` in the log well above `uniform`: more groups with a gradient, for more rollouts.
# Compare: with ESTIMATOR=dr_grpo train_grpo.sh, over rollouts (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_seq_balance.sh [more flags]  (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --ada_exit balance --ada_wave 8 --ada_max_samples 32
  --algo.advantage.estimator dr_grpo)
train "$@"
