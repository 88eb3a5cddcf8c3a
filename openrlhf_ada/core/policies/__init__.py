"""The policies: one file each."""

from __future__ import annotations

from openrlhf_ada.core.policies.base import Action, Close, Draw, Policy
from openrlhf_ada.core.policies.estimated import Estimated
from openrlhf_ada.core.policies.memory import Memory
from openrlhf_ada.core.policies.sequential import Sequential
from openrlhf_ada.core.policies.two_stage import TwoStage

__all__ = ["Action", "Close", "Draw", "Estimated", "Memory", "Policy", "Sequential", "TwoStage"]
