#!/usr/bin/env bash
# Ada-Seq on several machines: submits a job to a running Ray cluster.
#
# Needs:   on the first machine    ray start --head --num-gpus=8
#          on every other one      ray start --address=FIRST:6379 --num-gpus=8
#          the same environment on all (docs/cluster.md). All must reach RUN_DIR, and MODEL or the hub.
# Expect:  the job's log here, and status 0 at the end if it succeeded. `ray job stop` stops it.
# Usage:   NODES=2 RUN_DIR=/shared/runs/a examples/scripts/train_multinode.sh [more flags]    (all variables: common.sh)
set -euo pipefail
NODES=${NODES:-2}
SUBMIT=${SUBMIT:-http://127.0.0.1:8265}
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --algo.advantage.estimator dr_grpo)
train "$@"
