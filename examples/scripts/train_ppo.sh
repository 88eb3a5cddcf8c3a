#!/usr/bin/env bash
# Baseline: PPO with a critic of the policy's size, as OpenRLHF has it.
#
# Needs:   8 GPUs, with room for two models and their optimisers, or DEVICE=cpu; prompts with labels.
# Expect:  `critic_loss` in the record falls in the first steps; until then the baseline is random.
# Usage:   MODEL=... DATA=... examples/scripts/train_ppo.sh [more flags]         (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-off}" --algo.advantage.estimator gae)
train "$@"
