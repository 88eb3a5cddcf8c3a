"""Reward for problems of several kinds, each of whose labels names its grader. `eval` and `prepare-data` use it."""

from openrlhf_ada.reward.reward_function import pooled

reward_func = pooled("openrlhf_ada.reward.mixed_answers:grade")
