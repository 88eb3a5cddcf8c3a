"""Measured pass rates of problems, and the band of pass rates that is kept."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.eval.intervals import wilson

BANDS = {"hard": (0.0, 0.125), "easy": (0.0, 0.313), "all": (0.0, 1.0), "learnable": (1e-9, 1.0 - 1e-9)}
"""`hard` and `easy`: the published cut-offs, at most 2 and 5 of 16. `learnable`: neither none nor all right."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Of one problem: `positives` of `draws` answers were right."""

    problem: Problem
    draws: int
    positives: int
    mean_tokens: float
    truncated: float

    @property
    def pass_rate(self) -> float:
        """Share of right answers."""
        return self.positives / self.draws

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the pass rate."""
        return wilson(self.positives, self.draws)


def parse_band(text: str) -> tuple[float, float]:
    """A name of BANDS or `low:high`, both included; raises ConfigError."""
    if text in BANDS:
        return BANDS[text]
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(
            "--band", text, f"expected {', '.join(BANDS)}, or two pass rates as low:high", "Try --band 0.1:0.9"
        )
    return low, high


def in_band(difficulty: Difficulty, band: tuple[float, float]) -> bool:
    """Is the pass rate in the band, both ends included?"""
    return band[0] <= difficulty.pass_rate <= band[1]
