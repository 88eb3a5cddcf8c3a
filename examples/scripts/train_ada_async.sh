#!/usr/bin/env bash
# Ada-Seq, asynchronous, with partial rollouts: half of the GPUs sample the next batch while the other half trains.
#
# Needs:   8 GPUs (an even number), or DEVICE=cpu.
# Expect:  training does not wait for the longest answer. Rollouts may be a few policy versions old
#          (`ada/staleness_mean`); the token-level importance correction accounts for that.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_async.sh [more flags]   (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_separate_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --algo.advantage.estimator dr_grpo
  --train.async_enable --train.partial_rollout_enable --algo.advantage.is_correction_level token)
train "$@"
