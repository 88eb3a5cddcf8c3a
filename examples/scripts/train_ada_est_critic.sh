#!/usr/bin/env bash
# Ada-Est with dr_grpo (r - b): pass rates from a critic that reads the prompt; 8 rollouts a prompt on average; train 4.
#
# Needs:   as train_ppo.sh: the critic is a second model. It pays where prompts are met once, so that there is nothing
#          to count (docs/choosing.md).
# Expect:  `ada/critic_in_use` turns 1 when it predicts better than the mean; until then all prompts get the same.
# Compare: with ESTIMATOR=dr_grpo train_grpo.sh, over rollouts (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_est_critic.sh [more flags]   (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-est}" --ada_estimator critic --ada_budget 8 --algo.advantage.estimator dr_grpo)
train "$@"
