"""Which of our own settings have no meaning together, checked before any start.

Most refusals follow from the tables of the method: one piece lacks what another needs. The rest are about sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from openrlhf_ada.config.flags import SOME, Problem, raise_first
from openrlhf_ada.config.schema import FACTORS, PREDICTORS, SCORES, UNRESOLVED, AdaConfig
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.allocation import ALLOCATIONS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.objectives import OBJECTIVES
from openrlhf_ada.core.pieces import Need, Piece, Trait
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.stopping import DROPPING, EXITS

Pieces = Mapping[str, Piece[Any]]

SHAPED = Piece(None, lacks={Need.UNSHAPED_REWARDS: "adds to some of them"})
"""--ada_format."""

MATCHED_OBJECTIVE = Piece(None, lacks={Need.LOG_OBJECTIVE: "is another"})
"""--ada_objective matched:NAME."""


def check_settings(settings: Settings) -> None:
    """Raises ConfigError for the first combination without a meaning. Modes seq and est only."""
    rules = (_sizes, _budget, _first_rollouts, _own_policy, _baseline, _needs, _select_all, _weights, _factor)
    raise_first(problem for rule in rules for problem in rule(settings))


# -- what pieces of the method need of each other ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Choice:
    """A piece of a run's method, the flag that chose it, and what else the flag offers (nothing: leave it out)."""

    flag: str
    value: object
    piece: Piece[Any]
    others: Pieces

    def instead(self, needed: frozenset[Need] = frozenset(), unmet: Need | None = None) -> str:
        """What to do with the flag so that its piece lacks nothing that is needed, and does not need what is unmet."""
        for name, piece in self.others.items():
            if unmet not in piece.needs and not needed & piece.lacks.keys():
                return f"use {self.flag} {name}"
        return f"leave {self.flag} out"


def _choices(s: Settings) -> list[_Choice]:
    by_name: list[tuple[bool, str, str, Pieces]] = [
        (True, "--algo.advantage.estimator", s.advantage, ESTIMATORS),
        (True, "--ada_correction", s.correction, CORRECTIONS),
        (True, "--ada_select", s.select, SELECTIONS),
        (True, "--ada_scores", s.scores, SCORES),
        (True, "--ada_estimator", s.estimator, PREDICTORS),
        (True, "--ada_unresolved", s.unresolved, UNRESOLVED),
        (not s.in_ppo, "--ada_baseline", s.baseline, BASELINES),
        (s.mode == "est", "--ada_allocation", s.allocation, ALLOCATIONS),
        (s.measures_factor, "--ada_baseline_factor", s.baseline_factor, FACTORS),
    ]
    found = [_Choice(flag, name, table[name], table) for is_used, flag, name, table in by_name if is_used]
    found.append(_Choice("--ada_objective", s.objective, OBJECTIVES.get(s.objective, MATCHED_OBJECTIVE), OBJECTIVES))
    if s.mode == "seq":
        found.append(_Choice("--ada_exit", s.exit, DROPPING if s.drops_prompts else EXITS[s.exit], EXITS))
    if s.chooses:
        found.append(_Choice("--ada_candidates", s.candidates, CHOICES[s.choice], {}))
    if s.format != "none":
        found.append(_Choice("--ada_format", s.format, SHAPED, {}))
    return found


def _needs(s: Settings) -> Iterator[Problem]:
    """One piece lacks what another needs."""
    choices = _choices(s)
    for needer in choices:
        for need in (need for need in Need if need in needer.piece.needs):
            for other in (other for other in choices if need in other.piece.lacks):
                rule = f"it needs {need.value}, and {other.flag} {other.value} {other.piece.lacks[need]}"
                remedy = f"{other.instead(needed=needer.piece.needs)}, or {needer.instead(unmet=need)}"
                yield needer.flag, needer.value, rule, remedy[0].upper() + remedy[1:]


# -- sizes ------------------------------------------------------------------------------------------------------------


def _sizes(s: Settings) -> Iterator[Problem]:
    n = s.group_size
    if n < 2 and not s.needs_no_others:
        rule = "a single rollout has nothing to be compared with but a prediction"
        remedy = "Use --rollout.n_samples_per_prompt 4, or --ada_mode seq --ada_exit fixed --ada_baseline blend"
        yield "--rollout.n_samples_per_prompt", n, rule, remedy
    if s.max_samples < n:
        rule = f"a group of --rollout.n_samples_per_prompt {n} is trained, so N_max must be at least {n}"
        remedy = f"Use --ada_max_samples {4 * n} (four times the group is a good start)"
        yield "--ada_max_samples", s.max_samples, rule, remedy
    wanted = s.k_pos + s.k_neg
    if s.mode == "seq" and wanted > s.max_samples:
        rule = f"exit {s.exit!r} waits for {s.k_pos} positives and {s.k_neg} negatives, {wanted} in all"
        remedy = f"Use --ada_max_samples {4 * wanted} or lower --ada_k_pos / --ada_k_neg"
        yield "--ada_max_samples", s.max_samples, rule, remedy


def _budget(s: Settings) -> Iterator[Problem]:
    if s.mode != "est":
        return
    n, least, most = s.group_size, s.min_samples, s.max_samples
    if not least <= s.budget <= most:
        rule = f"it is the mean of numbers between --ada_min_samples {least} and --ada_max_samples {most}"
        usual = max(least, min(n if s.trains_all else 2 * n, most))
        yield "--ada_budget", s.budget, rule, f"Use --ada_budget {usual}, or move the bounds apart"
    if not s.trains_all and least < n:
        rule = f"--ada_select {s.select} trains --rollout.n_samples_per_prompt {n} rollouts of every prompt"
        remedy = f"Use --ada_min_samples {n}, or --ada_budget {n} with --ada_select all"
        yield "--ada_min_samples", least, rule, remedy


def _first_rollouts(s: Settings) -> Iterator[Problem]:
    """Bounds of the rollouts that decide how many follow."""
    if s.pilot is None:
        return
    most = s.max_samples - 1 if s.gate is not None else min(math.floor(s.budget), s.max_samples)
    if s.pilot > most:
        where = "below --ada_max_samples" if s.gate is not None else "within --ada_budget and --ada_max_samples"
        rule = f"they are rollouts {where}, so at most {most}"
        yield "--ada_pilot", s.pilot, rule, f"Use --ada_pilot {max(most, 2)}"
    if s.gate is not None and s.gate.fewest > s.gate.most:
        rule = f"no number of positives among {s.pilot} rollouts is a share from {s.gate.low} to {s.gate.high}"
        yield "--ada_gate_low", s.gate.low, rule, "Move the bounds apart"


def _select_all(s: Settings) -> Iterator[Problem]:
    """How many rollouts a step trains must be known, or vary with the outcomes alone (`core.batches.thinned`)."""
    n, size = s.group_size, s.budget if s.mode == "est" else s.max_samples
    if s.trains_varying:
        if s.wave < n:
            rule = f"with --ada_select all a prompt trains what it draws: --rollout.n_samples_per_prompt {n} or more"
            yield "--ada_wave", s.wave, rule, f"Use --ada_wave {n}"
    elif s.trains_all and (size != n or s.gate is not None):
        rule = f"a step trains --rollout.batch_size x {n} rollouts, so all can be trained only where as many are drawn"
        yield "--ada_select", s.select, rule, f"Use --ada_mode est with --ada_budget {n}, or another selection"


# -- pairs ------------------------------------------------------------------------------------------------------------


def _own_policy(s: Settings) -> Iterator[Problem]:
    if s.policy is not None and s.mode != "seq":
        rule = "a policy of your own takes the place of Ada-Seq's"
        yield "--ada_policy", s.policy, rule, "Use --ada_mode seq, or leave it out"
    if s.policy is not None and s.chooses:
        rule = "prompts are chosen by pass rates that Ada-Seq and Ada-Est remember, and a policy of your own may not"
        yield "--ada_candidates", s.candidates, rule, "Leave it out, or leave --ada_policy out"
    if s.scores == "raw" and s.chooses:
        rule = "prompts are valued by scores of 0 and 1, and raw ones teach also on one side of the threshold"
        yield "--ada_candidates", s.candidates, rule, "Leave it out"


def _baseline(s: Settings) -> Iterator[Problem]:
    """It was given where there is another one, or none."""
    baseline = s.given.baseline
    if baseline is not None and s.in_ppo and baseline != "critic":
        yield "--ada_baseline", baseline, "PPO's baseline is its critic", "Leave it out"
    if baseline is not None and Need.NO_BASELINE in CORRECTIONS[s.correction].needs:
        yield "--ada_baseline", baseline, f"--ada_correction {s.correction} has no baseline", "Leave it out"


def _weights(s: Settings) -> Iterator[Problem]:
    """Combinations in which f' multiplies something else than r - b at p."""
    needs, baseline = CORRECTIONS[s.correction].needs, BASELINES[s.baseline]
    if Need.COUNTS_AS_WEIGHT in needs and s.mode == "est" and not s.trains_all:
        rule = f"the paper trains every rollout, and --ada_select {s.select} does not"
        remedy = f"Use --ada_correction stratum, or --ada_budget {s.group_size} with --ada_select all"
        yield "--ada_correction", s.correction, rule, remedy
    at_own_rate = Need.SILENT_UNRESOLVED in baseline.lacks and Need.PREDICTION not in baseline.needs
    if at_own_rate and s.scores == "raw" and Need.WEIGHT in needs and s.objective != "linear":
        rule = f"--ada_objective {s.objective} takes its weight at the pool's own pass rate, 0 without a positive"
        remedy = "Leave it out for a prediction, or use --ada_objective linear"
        yield "--ada_baseline", s.baseline, rule, remedy


def _factor(s: Settings) -> Iterator[Problem]:
    """Else what is optimised would depend on the factor: where a baseline, times the weights of the trained rollouts,
    moves the expected update."""
    if not s.measures_factor:
        return
    flag, value = "--ada_baseline_factor", s.baseline_factor
    stops = s.has_pilot or (s.waits and s.max_samples > max(s.wave, s.group_size))
    rule = f"with --ada_baseline {s.baseline} it would change what is optimised, since"
    if s.baseline == "blend" and stops:
        why = "a baseline of a prompt's other rollouts is biased where outcomes decide how many are drawn"
        yield flag, value, f"{rule} {why}", "Use --ada_baseline estimator"
    everything = s.trains_all or s.max_samples == s.group_size
    fair = Trait.FAIR_SAMPLE in SELECTIONS[s.select].traits and not stops
    if not (everything or fair or Need.UNBIASED_RATE in CORRECTIONS[s.correction].needs):
        why = f"the rollouts that --ada_select {s.select} keeps are chosen by their outcomes"
        yield flag, value, f"{rule} {why}", "Use --ada_correction stratum, or --ada_select all"


# -- flags without effect ---------------------------------------------------------------------------------------------

_WHY = {
    "remembers": "nothing is predicted (see --ada_baseline estimator)",
    "reads_critic": "no critic predicts pass rates (--ada_estimator critic)",
    "aims": "--ada_correction {s.correction} has no weights",
    "reads_floor": "no weight is computed from a pass rate",
    "has_waves": "exit {s.exit} has no waves",
    "waits": "exit {s.exit} waits for no outcome",
    "has_pilot": "only --ada_exit gate and --ada_allocation hit have first rollouts that decide",
    "pilot": "--ada_allocation {s.allocation} gives up nothing",
    "chooses": "every prompt is sampled (see --ada_candidates)",
    "k_pos": "--ada_exit {s.exit} does not count them",
    "k_neg": "--ada_exit {s.exit} does not count them",
    "predicts_baseline": "--ada_baseline {s.baseline} is no pass rate that is known before sampling",
}
"""By attribute of the settings, in other words than those of a flag."""


def without_effect(s: Settings) -> list[str]:
    """A warning for every group of our flags that were set and change nothing in this run."""
    by_reason: dict[str, list[str]] = {}
    for f in fields(AdaConfig):
        if getattr(s.given, f.name) == f.default:
            continue
        for name, values in f.metadata["read_by"].items():
            found = getattr(s, name)
            if not (found if values is SOME else found in values):
                reason = _WHY.get(name, f"--ada_{name} is {found}").format(s=s)
                by_reason.setdefault(reason, []).append(f"--ada_{f.name}")
                break
    lines = [f"{', '.join(flags)}: without effect, since {reason}" for reason, flags in by_reason.items()]
    if s.mode == "seq" and s.has_waves and s.wave >= s.max_samples:
        most = f"--ada_wave {s.wave} is not below --ada_max_samples {s.max_samples}"
        remedy = f"Use --ada_wave {max(s.max_samples // 4, 1)}, or a larger --ada_max_samples"
        lines.append(f"{most}: every prompt gets {s.max_samples} rollouts at once, and nothing is adaptive. {remedy}")
    return lines
