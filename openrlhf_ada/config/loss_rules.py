"""How token losses are averaged: what would change the objective of a correction is refused, or said at the start.

A sample's coefficient multiplies the loss of each of its tokens. The sum over the tokens of a sample is an unbiased
estimate of its share of the gradient; a mean over them divides that share by the sample's length, which depends on
the outcome. See docs/algorithms.md for the resulting weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_ada.config.flags import Problem
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.pieces import Need

POLICY_LOSSES = {"ppo": False, "gspo": True}
"""OpenRLHF's --actor.policy_loss_type: does it divide by a sample's length whatever --actor.loss_agg_mode says?"""

_BY_SAMPLE = "this loss divides a sample's gradient by its length"

_EXAMPLE = (
    "With right answers of 100 tokens and wrong ones of 400, uniform samples weigh a prompt of pass rate 0.1 by 1.48 "
    "and one of 0.9 by 0.52 (1 at 0.5)"
)


def averages(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    mode, rule = host.actor.loss_agg_mode, f"--ada_loss {s.loss} is another way to average the same losses"
    if s.loss != "host" and mode != "token-mean":
        yield "--actor.loss_agg_mode", mode, rule, "Leave one of the two out"


def lengths(s: Settings, host: SimpleNamespace) -> Iterator[Problem]:
    """A loss that divides by a sample's length contradicts a correction."""
    needs, found = CORRECTIONS[s.correction].needs, _divides_by_length(s, host)
    if found is not None and s.measures_factor:
        rule = f"{_BY_SAMPLE}, so that --ada_baseline_factor least_noise would change what is optimised"
        yield *found[:2], rule, f"Use {found[2]}"
    if found is not None and Need.SUMMED_TOKENS in needs:
        positives = "A right answer of 400 tokens counts a quarter of one of 100"
        example = positives if Need.NO_BASELINE in needs else _EXAMPLE
        rule = f"{_BY_SAMPLE}, so --ada_correction {s.correction} would miss its objective. {example}"
        yield *found[:2], rule, f"Use {found[2]}"


def loss_warnings(s: Settings, host: SimpleNamespace) -> list[str]:
    """What a run is told at its start: that lengths weigh its prompts, too, and that no epoch leaves anything out."""
    if s.mode == "off":
        return []
    said, found = list[str](), _divides_by_length(s, host)
    if found is not None:
        name, value, instead = found
        said.append(
            f"{name} {value}: {_BY_SAMPLE}, so it weighs prompts, too. {_EXAMPLE}. To leave lengths out, use {instead}"
        )
    if s.wrong_epochs and s.wrong_epochs >= host.train.max_epochs:
        said.append(f"--ada_wrong_epochs: without effect, since --train.max_epochs is {host.train.max_epochs}")
    return said


def _divides_by_length(s: Settings, host: SimpleNamespace) -> tuple[str, str, str] | None:
    """(flag, value, what to use instead) of a loss that divides by a sample's length; None if there is none."""
    if s.loss != "host":
        return None
    kind, mode = host.actor.policy_loss_type, host.actor.loss_agg_mode
    if POLICY_LOSSES[kind]:
        instead = "--ada_loss sequence-constant with it, or --actor.policy_loss_type ppo in its place"
        return "--actor.policy_loss_type", kind, instead
    if mode != "token-mean":
        instead = "--actor.loss_agg_mode token-mean, alone or with --ada_loss sequence-constant"
        return "--actor.loss_agg_mode", mode, instead
    return None
