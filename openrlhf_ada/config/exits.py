"""What the flags say of how the sampling of a prompt ends, with the defaults that depend on other flags."""

from __future__ import annotations

from dataclasses import replace

from openrlhf_ada.config.defaults import GATE, PILOT
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.core.allocation import PILOTED
from openrlhf_ada.core.stopping import EXITS, Gate


def exit_counts(config: AdaConfig, n: int) -> tuple[int, int]:
    """(K_pos, K_neg) for a trained group of n samples: those of the exit, or given."""
    k_pos, k_neg = EXITS[config.exit].function(n)
    return (config.k_pos or k_pos) if k_pos else 0, (config.k_neg or k_neg) if k_neg else 0


def gate_of(config: AdaConfig) -> Gate | None:
    if config.mode != "seq" or config.exit != "gate":
        return None
    given = {"pilot": config.pilot, "low": config.gate_low, "high": config.gate_high}
    return replace(GATE, **{name: value for name, value in given.items() if value is not None})


def pilot_of(config: AdaConfig) -> int | None:
    """Of mode est."""
    return (config.pilot or PILOT) if config.mode == "est" and config.allocation in PILOTED else None
