#!/usr/bin/env bash
# Ada-Seq, asynchronous, with partial rollouts: half of the GPUs sample the next batch while the other half trains.
#
# Needs:   8 GPUs (an even number), or DEVICE=cpu.
# Expect:  nobody waits for the longest answer; rollouts may be a few versions old (`ada/staleness_mean`), which the
#          token-level importance correction takes into account.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_async.sh [more flags]   (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_separate_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --algo.advantage.estimator dr_grpo
  --train.async_enable --train.partial_rollout_enable --algo.advantage.is_correction_level token)
train "$@"
