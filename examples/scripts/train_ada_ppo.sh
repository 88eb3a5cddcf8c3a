#!/usr/bin/env bash
# Ada-Seq, balanced, with PPO. The critic's loss and the advantages are re-weighted to the true pass rate; on balanced groups
# alone, the critic would learn 50 % for every prompt.
#
# Needs:   as train_ppo.sh.
# Expect:  as train_ppo.sh, with more groups that have signal. ADA_MODE=est splits a fixed budget instead.
# Compare: with train_ppo.sh, over rollouts (`ada/total_drawn`), not over steps.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_ppo.sh [more flags]     (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --algo.advantage.estimator gae)
train "$@"
