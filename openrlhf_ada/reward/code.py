"""Reward for programs in Python that must pass tests: `--reward.remote_url code`.

Labels are the tests, as JSON; see `code_answers` for their forms and `sandbox` for what a program may do.
"""

from openrlhf_ada.reward.reward_function import pooled

reward_func = pooled("openrlhf_ada.reward.code_answers:grade")
