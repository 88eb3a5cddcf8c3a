#!/usr/bin/env bash
# Ada-Est with dr_grpo (r - b): a critic predicts pass rates from the prompt; 8 rollouts per prompt on average; train 4.
#
# Needs:   as train_ppo.sh: the critic is a second model. It pays off if prompts are seen only once, so that there is
#          nothing to count (docs/choosing.md).
# Expect:  `ada/critic_in_use` turns 1 when it predicts better than the mean; until then counts predict.
# Compare: with ESTIMATOR=dr_grpo train_grpo.sh, over rollouts (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_est_critic.sh [more flags]   (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-est}" --ada_estimator critic --ada_budget 8 --algo.advantage.estimator dr_grpo)
train "$@"
