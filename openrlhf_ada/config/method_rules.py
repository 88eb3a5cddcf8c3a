"""Which of our own settings have no meaning together, checked before any start.

Most refusals follow from the tables of the method: one piece lacks what another needs. The rest are about sizes, and
about pairs of flags that say the same thing twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from openrlhf_ada.config.choices import MATCHED_OBJECTIVE, PREDICTORS, SCORES, SHAPED, UNRESOLVED
from openrlhf_ada.config.flags import ConfigError, Problem, check_read, unread
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.advantages import BASELINES, ESTIMATORS
from openrlhf_ada.core.allocation import ALLOCATIONS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.objectives import OBJECTIVES
from openrlhf_ada.core.pieces import Need, Piece, Trait
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.stopping import DROPPING, EXITS, SPREAD

Pieces = Mapping[str, Piece[Any]]


def check_settings(settings: Settings) -> None:
    """Raises ConfigError for the first combination without a meaning. Modes seq and est only."""
    check_read(settings.given)
    for rules in (_counts, _sizes, _budget, _first_rollouts, _unread, _candidates, _needs, _select_all, _weights):
        for problem in rules(settings):
            raise ConfigError(*problem)


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
    c = s.given
    by_name: list[tuple[str, str, Pieces]] = [
        ("--algo.advantage.estimator", s.advantage, ESTIMATORS),
        ("--ada_correction", s.correction, CORRECTIONS),
        ("--ada_select", s.select, SELECTIONS),
        ("--ada_scores", s.scores, SCORES),
        ("--ada_estimator", s.estimator, PREDICTORS),
        ("--ada_unresolved", c.unresolved, UNRESOLVED),
    ]
    if not s.in_ppo:
        by_name.append(("--ada_baseline", s.baseline, BASELINES))
    if c.mode == "est":
        by_name.append(("--ada_allocation", c.allocation, ALLOCATIONS))
    found = [_Choice(flag, name, table[name], table) for flag, name, table in by_name]
    found.append(_Choice("--ada_objective", c.objective, OBJECTIVES.get(c.objective, MATCHED_OBJECTIVE), OBJECTIVES))
    if c.mode == "seq":
        found.append(_Choice("--ada_exit", c.exit, DROPPING if s.drops_prompts else EXITS[c.exit], EXITS))
    if c.spread is not None:
        found.append(_Choice("--ada_spread", c.spread, SPREAD, {}))
    if s.chooses:
        found.append(_Choice("--ada_candidates", s.candidates, CHOICES[s.choice], {}))
    if c.format != "none":
        found.append(_Choice("--ada_format", c.format, SHAPED, {}))
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


def _counts(s: Settings) -> Iterator[Problem]:
    """A flag about positives, negatives (0, 1) or both, and an exit that does not count them."""
    c = s.given
    by_exit = {name: piece.function(s.group_size) for name, piece in EXITS.items()}
    for flag, value, outcomes in (
        ("--ada_k_pos", c.k_pos, (0,)),
        ("--ada_k_neg", c.k_neg, (1,)),
        ("--ada_spread", c.spread, (0, 1)),
    ):
        readers = [name for name, counts in by_exit.items() if all(counts[i] for i in outcomes)]
        if value is not None and c.exit not in readers:
            yield flag, value, *unread("--ada_exit", c.exit, readers)


def _sizes(s: Settings) -> Iterator[Problem]:
    if s.group_size < 2 and not s.needs_no_others:
        yield (
            "--rollout.n_samples_per_prompt",
            s.group_size,
            "a single rollout has nothing to be compared with but a prediction",
            "Use --rollout.n_samples_per_prompt 4, or --ada_mode seq --ada_exit fixed --ada_baseline blend",
        )
    if s.max_samples < s.group_size:
        yield (
            "--ada_max_samples",
            s.max_samples,
            f"a group of --rollout.n_samples_per_prompt {s.group_size} samples is trained, so N_max must be at least "
            f"{s.group_size}",
            f"Use --ada_max_samples {4 * s.group_size} (four times the group is a good start)",
        )
    wanted = s.k_pos + s.k_neg
    if s.mode == "seq" and wanted > s.max_samples:
        yield (
            "--ada_max_samples",
            s.max_samples,
            f"exit {s.exit!r} waits for {s.k_pos} positives and {s.k_neg} negatives, {wanted} in all",
            f"Use --ada_max_samples {4 * wanted} or lower --ada_k_pos / --ada_k_neg",
        )


def _budget(s: Settings) -> Iterator[Problem]:
    if s.mode != "est":
        return
    usual = s.group_size if s.trains_all else 2 * s.group_size
    if not s.min_samples <= s.budget <= s.max_samples:
        yield (
            "--ada_budget",
            s.budget,
            f"it is the mean of numbers between --ada_min_samples {s.min_samples} and --ada_max_samples "
            f"{s.max_samples}",
            f"Use --ada_budget {max(s.min_samples, min(usual, s.max_samples))}, or move the bounds apart",
        )
    if not s.trains_all and s.min_samples < s.group_size:
        yield (
            "--ada_min_samples",
            s.min_samples,
            f"--ada_select {s.select} trains --rollout.n_samples_per_prompt {s.group_size} rollouts of every prompt",
            f"Use --ada_min_samples {s.group_size}, or --ada_budget {s.group_size} with --ada_select all",
        )


def _first_rollouts(s: Settings) -> Iterator[Problem]:
    """Bounds of the rollouts that decide how many follow."""
    c = s.given
    if s.pilot is None:
        if c.pilot is not None:
            rule = "only --ada_exit gate (mode seq) and --ada_allocation hit (mode est) read it"
            yield "--ada_pilot", c.pilot, rule, "Leave it out, or use one of the two"
        return
    most = s.max_samples - 1 if s.gate is not None else min(math.floor(s.budget), s.max_samples)
    if s.pilot > most:
        where = "below --ada_max_samples" if s.gate is not None else "within --ada_budget and --ada_max_samples"
        yield (
            "--ada_pilot",
            s.pilot,
            f"they are rollouts {where}, so at most {most}",
            f"Use --ada_pilot {max(most, 2)}",
        )
    if s.gate is not None and s.gate.fewest > s.gate.most:
        rule = f"no number of positives among {s.pilot} rollouts is a share from {s.gate.low} to {s.gate.high}"
        yield "--ada_gate_low", s.gate.low, rule, "Move the bounds apart"


def _select_all(s: Settings) -> Iterator[Problem]:
    """How many rollouts a step trains must be known, or vary with the outcomes alone (`core.batches.thinned`)."""
    if s.trains_varying:
        if s.wave < s.group_size:
            yield (
                "--ada_wave",
                s.wave,
                f"with --ada_select all a prompt trains what it has drawn, so at least --rollout.n_samples_per_prompt "
                f"{s.group_size}",
                f"Use --ada_wave {s.group_size}",
            )
        return
    size = s.budget if s.mode == "est" else s.max_samples
    if s.trains_all and (size != s.group_size or s.gate is not None):
        yield (
            "--ada_select",
            s.select,
            f"a step trains exactly --rollout.batch_size x n rollouts, n being {s.group_size}, so all can be trained "
            f"only where that many are drawn",
            f"Use --ada_mode est with --ada_budget {s.group_size}, or another selection",
        )


# -- pairs of flags ---------------------------------------------------------------------------------------------------


def _unread(s: Settings) -> Iterator[Problem]:
    """A flag was given that the rest of the settings leaves no use for."""
    c = s.given
    if c.policy is not None and c.mode != "seq":
        yield (
            "--ada_policy",
            c.policy,
            "a policy of your own takes the place of Ada-Seq's",
            "Use --ada_mode seq, or leave it out",
        )
    if c.objective == "power" and c.objective_power is None:
        yield (
            "--ada_objective_power",
            None,
            "--ada_objective power needs its exponent",
            "Give both, such as --ada_objective power --ada_objective_power 0.5, or neither",
        )
    if c.baseline is not None and s.in_ppo and c.baseline != "critic":
        yield "--ada_baseline", c.baseline, "PPO's baseline is its critic", "Leave it out"
    if c.baseline is not None and Need.NO_BASELINE in CORRECTIONS[s.correction].needs:
        yield "--ada_baseline", c.baseline, f"--ada_correction {s.correction} has no baseline", "Leave it out"
    if c.baseline_rounding and (s.in_ppo or Need.PREDICTION not in BASELINES[s.baseline].needs):
        predicted = [name for name, piece in BASELINES.items() if Need.PREDICTION in piece.needs]
        yield (
            "--ada_baseline_rounding",
            c.baseline_rounding,
            f"it rounds a pass rate that is known before sampling, and the baseline is {s.baseline!r}",
            f"Use --ada_baseline {' or '.join(predicted)} without a critic of PPO, or leave it out",
        )


def _candidates(s: Settings) -> Iterator[Problem]:
    """Prompts are to be chosen, and nothing says by what; or a flag says how, and none are."""
    c = s.given
    if not s.chooses:
        for flag, value in (("--ada_choice", c.choice), ("--ada_choice_weight", c.choice_weight)):
            if value is not None:
                yield flag, value, "without --ada_candidates every prompt is sampled", "Add --ada_candidates 4"
        return
    if c.policy is not None:
        rule = "prompts are chosen by pass rates that Ada-Seq and Ada-Est remember, and a policy of your own may not"
        yield "--ada_candidates", s.candidates, rule, "Leave it out, or leave --ada_policy out"
    if s.scores == "raw":
        rule = (
            "a prompt is valued by the spread of scores of 0 and 1, and raw scores teach also where all of a prompt's "
            "are on one side of the threshold"
        )
        yield "--ada_candidates", s.candidates, rule, "Leave it out"


def _weights(s: Settings) -> Iterator[Problem]:
    """Combinations in which f' multiplies something else than r - b at p."""
    c = s.given
    needs, baseline = CORRECTIONS[s.correction].needs, BASELINES[s.baseline]
    if Need.COUNTS_AS_WEIGHT in needs and c.mode == "est" and not s.trains_all:
        yield (
            "--ada_correction",
            s.correction,
            f"the paper trains every rollout, and --ada_select {s.select} does not",
            f"Use --ada_correction stratum, or --ada_budget {s.group_size} with --ada_select all",
        )
    at_own_rate = Need.SILENT_UNRESOLVED in baseline.lacks and Need.PREDICTION not in baseline.needs
    if at_own_rate and s.scores == "raw" and Need.WEIGHT in needs and c.objective != "linear":
        yield (
            "--ada_baseline",
            s.baseline,
            f"the weight of --ada_objective {c.objective} is then taken at the pool's own pass rate, which is 0 for a "
            f"pool without a positive, and multiplies its raw scores",
            "Leave it out for a prediction, or use --ada_objective linear",
        )


# -- flags without effect ---------------------------------------------------------------------------------------------

_MEMORY_ONLY = ("known_counts", "estimator", "half_life", "prior_mean", "prior_strength")


def without_effect(s: Settings) -> list[str]:
    """A warning for every group of our flags that were set and change nothing in this run."""
    c, needs = s.given, CORRECTIONS[s.correction].needs
    changed = [f for f in fields(c) if getattr(c, f.name) != f.default]
    unread = tuple(f.name for f in changed if c.mode not in f.metadata["modes"])
    if c.mode == "off":
        cases = [(unread, "--ada_mode is off (adaptive sampling: --ada_mode seq or est)")]
    else:
        cases = [
            (unread, f"--ada_mode is {c.mode}"),
            (() if s.remembers else _MEMORY_ONLY, "nothing is predicted (see --ada_baseline estimator)"),
            (
                ("prior_strength",) if s.estimator == "rating" and not _reads_lengths(s) else (),
                "--ada_estimator rating has a prior of its own",
            ),
            (
                ("estimator",) if s.estimator == "critic" and s.remembers and not s.predicts else (),
                "--ada_candidates reads outcomes, and nothing else is predicted",
            ),
            (() if s.reads_critic else ("trust_steps",), "no critic predicts pass rates (--ada_estimator critic)"),
            (
                () if s.aims else ("objective", "objective_power"),
                f"--ada_correction {s.correction} has no weights",
            ),
            (
                ("floor",) if c.mode == "seq" and Need.WEIGHT not in needs else (),
                "no weight is computed from a pass rate",
            ),
            (
                ("wave", "scheduler", "speculation") if c.mode == "seq" and not s.waits else (),
                f"exit {c.exit} has no waves",
            ),
            (("wave",) if s.gate is not None else (), "exit gate has no waves"),
            (("give_up",) if c.mode == "est" and s.pilot else (), f"--ada_allocation {c.allocation} gives up nothing"),
            (
                ("speculation",) if c.mode == "seq" and c.scheduler != "stream" else (),
                f"--ada_scheduler {c.scheduler} sends nothing ahead",
            ),
        ]
    warnings: list[str] = []
    for names, reason in cases:
        ignored = [f.name for f in changed if f.name in names]
        if ignored:
            warnings.append(f"{', '.join(f'--ada_{name}' for name in ignored)}: without effect, since {reason}")
    return warnings


def _reads_lengths(s: Settings) -> bool:
    return s.chooses and Trait.READS_LENGTHS in CHOICES[s.choice].traits
