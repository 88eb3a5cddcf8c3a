"""Values of flags that are not given, where the value depends on other flags. Help texts name them from here."""

from __future__ import annotations

from openrlhf_ada.core.stopping import Gate

MAX_SAMPLES = 32
"""Largest number of rollouts of a prompt in mode seq."""

GATE = Gate(pilot=8, low=0.125, high=0.75)
"""Pilot-Commit's: the rollouts of its configuration file, the bounds of its scripts."""

PILOT = 4
"""First rollouts of --ada_allocation hit (HORA)."""

QUANTILE_STEPS = 10
"""Steps whose scores a quantile is taken of."""

FULL_MARKS = 0.999999
"""An answer with full marks scores more: 1, up to rounding."""
