#!/usr/bin/env bash
# Ada-Seq with an agent of several turns: examples/agents/second_try.py gives a wrong answer a second try.
#
# Needs:   as train_grpo.sh; it scores as `math` does, whatever REWARD is. For an environment of your own, AGENT=file.py
#          with a class AgentExecutor as in OpenRLHF.
# Expect:  a rollout is a whole conversation; its score is the agent's `scores`. Its answers have MAX_NEW_TOKENS tokens
#          together, and fit into MAX_LEN with the prompt and what the environment says.
# Usage:   MODEL=... DATA=... examples/scripts/train_ada_agent.sh [more flags]   (all variables: common.sh)
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/common.sh"

# A relative path, because only files with relative paths are uploaded to a cluster.
example=$(realpath --relative-base="$PWD" "$(dirname "$(readlink -f "$0")")/../agents/second_try.py")

batches
on_shared_gpus
flags+=(--ada_mode "${ADA_MODE:-seq}" --algo.advantage.estimator dr_grpo
  --train.agent_func_path "${AGENT:-$example}")
train "$@"
