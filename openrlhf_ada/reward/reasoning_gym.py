"""Reward for tasks of reasoning-gym, by their own verifiers: `--reward.remote_url reasoning_gym`.

Labels are written by `openrlhf-ada prepare-data reasoning_gym:<task>`.
"""

from openrlhf_ada.reward.reward_function import pooled

reward_func = pooled("openrlhf_ada.reward.reasoning_answers:grade")
