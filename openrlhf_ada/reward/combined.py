"""The reward file of named graders, of functions (FILE.py:NAME) and of several rewards.

Engines load this file, and tell it what `--reward.remote_url` names with `configure`.
"""

from openrlhf_ada.reward.weighted_sum import CombinedReward

reward_func = CombinedReward()
