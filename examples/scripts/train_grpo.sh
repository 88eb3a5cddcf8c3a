#!/usr/bin/env bash
# Baseline: GRPO as OpenRLHF has it, four answers to every prompt.
#
# Needs:   8 GPUs (GPUS=...), or DEVICE=cpu; prompts with labels (prepare_data.sh makes them).
# Expect:  in the record, `uniform` says how many groups have a signal; what train_ada_*.sh would add.
# Usage:   MODEL=... DATA=... examples/scripts/train_grpo.sh [more flags]        (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-off}" --algo.advantage.estimator group_norm)
train "$@"
