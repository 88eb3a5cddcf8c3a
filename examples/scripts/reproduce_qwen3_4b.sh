#!/usr/bin/env bash
# Reinforce-Ada's published setting with Qwen3-4B-Instruct-2507:
# Ada-Seq-balance, 512 prompts per step, up to 32 samples per prompt, 4 of them trained.
#
# Needs:   8 GPUs of 80 GB, or DEVICE=cpu; prompts of the hard band, which prepare_data.sh makes.
# Expect:  400 steps, 15 passes over 13,650 prompts; published.sh has the rest of the setting.
# Usage:   METHOD=reinforce-ada-pos examples/scripts/reproduce_qwen3_4b.sh [more flags]  (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/published.sh"

reproduce Qwen/Qwen3-4B-Instruct-2507 3 "$@"
