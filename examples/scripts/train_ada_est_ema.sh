#!/usr/bin/env bash
# Ada-Est with dr_grpo (r - b): decayed counts predict pass rates; 8 rollouts per prompt on average, more for hard ones; train 4.
#
# Needs:   as train_grpo.sh, and prompts that are seen several times (EPISODES), or counts from prepare_data.sh (add
#          --ada_known_counts). A prompt that was never seen counts as a typical one.
# Expect:  exactly the same number of rollouts in every step; `ada/estimator_brier` in the record falls as counts grow.
# Compare: with ESTIMATOR=dr_grpo EPISODES=3 train_grpo.sh, over rollouts (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_est_ema.sh [more flags] (all variables: common.sh)
set -euo pipefail
if [[ -z ${STEPS:-} ]]; then
  EPISODES=${EPISODES:-3}
fi
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-est}" --ada_estimator ema --ada_budget 8
  --algo.advantage.estimator dr_grpo)
train "$@"
