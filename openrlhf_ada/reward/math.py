"""Reward for mathematical problems: `--reward.remote_url math`.

Labels are the reference answer as text, or a list of several. See `math_answers` for what counts as equal.
"""

from openrlhf_ada.reward.reward_function import pooled

reward_func = pooled("openrlhf_ada.reward.math_answers:grade")
