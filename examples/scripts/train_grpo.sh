#!/usr/bin/env bash
# Baseline: GRPO as OpenRLHF has it, four answers to every prompt.
#
# Needs:   8 GPUs (GPUS=...), or DEVICE=cpu; prompts with labels (prepare_data.sh makes them).
# Expect:  `rollout/reward_mean` in the record rises. GRPO divides advantages by the group's standard deviation.
# Compare: with train_ada_*.sh use ESTIMATOR=dr_grpo, which does not divide. The runs then differ in sampling, and thereby in
#          how much prompts weigh (docs/choosing.md has a control with equal weights). Compare over rollouts
#          (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_grpo.sh [more flags]        (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-off}" --algo.advantage.estimator "${ESTIMATOR:-group_norm}")
train "$@"
