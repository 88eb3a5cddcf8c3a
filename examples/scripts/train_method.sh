#!/usr/bin/env bash
# A method by name, on your prompts: reinforce-ada-balance (published for four models), uniform-8 (the control that a run
# has to beat), grpo, dapo, ... (docs/choosing.md says which).
#
# Needs:   as train_grpo.sh, and as many prompts as a step of the method has (512).
# Expect:  published.sh has the rest of the setting. Here it is one pass over your prompts (EPISODES).
# Compare: with METHOD=uniform-8, over rollouts (`ada/total_drawn`) or time, not over steps.
# Usage:   METHOD=uniform-8 MODEL=... DATA=... examples/scripts/train_method.sh [more flags]  (all variables: common.sh)
set -euo pipefail
EPISODES=${EPISODES:-1}
source "$(dirname "$(readlink -f "$0")")/published.sh"

reproduce "$@"
