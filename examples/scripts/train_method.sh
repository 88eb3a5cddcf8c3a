#!/usr/bin/env bash
# A method by name, on your prompts: reinforce-ada-balance, grpo, dapo, counted, ... (docs/choosing.md says which).
#
# Needs:   as train_grpo.sh, and as many prompts as a step of the method has (reinforce-ada-balance 512).
# Expect:  published.sh has the rest of the setting. Here it is one pass over your prompts (EPISODES).
# Compare: with METHOD=grpo, over rollouts (`ada/total_drawn`) or time, not over steps.
# Usage:   METHOD=dapo MODEL=... DATA=... examples/scripts/train_method.sh [more flags]  (all variables: common.sh)
set -euo pipefail
EPISODES=${EPISODES:-1}
source "$(dirname "$(readlink -f "$0")")/published.sh"

reproduce Qwen/Qwen2.5-Math-1.5B 2 "$@"
