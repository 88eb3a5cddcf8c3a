"""The reward file of named graders, functions (FILE.py:NAME) and several rewards: engines load and `configure` it."""

from openrlhf_ada.reward.weighted_sum import CombinedReward

reward_func = CombinedReward()
