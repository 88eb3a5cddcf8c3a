"""Reward for programs in Python that must pass tests: `--reward.remote_url code`.

Labels are the tests, as JSON (`programs/answers.py`); what a program may do: `programs/sandbox.py`.
"""

from openrlhf_ada.reward.reward_function import pooled

reward_func = pooled("openrlhf_ada.reward.programs:grade")
