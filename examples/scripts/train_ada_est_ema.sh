#!/usr/bin/env bash
# Ada-Est with dr_grpo (r - b): pass rates from decayed counts; 8 rollouts a prompt on average, hard prompts get more; train 4.
#
# Needs:   as train_grpo.sh, and prompts that are met several times (EPISODES), or counts that prepare_data.sh made:
#          then add --ada_known_counts. A prompt that was never met gets the average.
# Expect:  the same number of rollouts in every step, exactly; `ada/estimator_brier` in the record falls as counts come in.
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
