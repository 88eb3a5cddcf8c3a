"""Named policies: one file each, listed in one literal table."""

from __future__ import annotations

from openrlhf_ada.core.policies.base import Action, Close, Draw, Policy, PromptView
from openrlhf_ada.core.policies.sequential import Sequential

POLICIES = {"seq": Sequential}

__all__ = ["POLICIES", "Action", "Close", "Draw", "Policy", "PromptView", "Sequential"]
