"""Reward for mathematical problems: `--reward.remote_url math`.

Labels are the reference answer as text, or a list of several. See `mathematics/answers.py` for what counts as equal.
"""

from openrlhf_ada.reward.reward_function import pooled

reward_func = pooled("openrlhf_ada.reward.mathematics:grade")
