"""Reward for a list of rewards, and for a function (`--reward.remote_url math,style.py:grade`).

Engines load this file, and tell it what the list names with `configure`.
"""

from openrlhf_ada.reward.weighted_sum import CombinedReward

reward_func = CombinedReward()
