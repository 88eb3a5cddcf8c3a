#!/usr/bin/env bash
# Reinforce-Ada's published setting: Ada-Seq-balance, 512 prompts per step, up to 32 samples per prompt, 4 of them trained.
#
# Models:  Qwen/Qwen2.5-Math-1.5B (the default), meta-llama/Llama-3.2-3B-Instruct (its licence must be accepted on the hub
#          first); with ZERO=3 Qwen/Qwen2.5-Math-7B, Qwen/Qwen3-4B-Instruct-2507.
# Needs:   8 GPUs of 80 GB, or DEVICE=cpu; prompts of the hard band, which prepare_data.sh makes.
# Expect:  400 steps, 15 passes over 13,650 prompts; published.sh has the rest of the setting.
# Usage:   METHOD=reinforce-ada-pos MODEL=... examples/scripts/reproduce.sh [more flags]  (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/published.sh"

reproduce "$@"
