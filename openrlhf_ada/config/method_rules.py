"""Which of our own settings have no meaning together, each with the reason: a table, checked before any start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.rewards import RewardFlags
from openrlhf_ada.config.settings import Settings
from openrlhf_ada.core.grouping import OUTSIDE_BASELINES

Problem = tuple[str, object, str, str]
"""Flag, value, rule, remedy."""


def check_settings(settings: Settings) -> None:
    """Raises ConfigError for the first combination without a meaning. Modes seq and est only."""
    for rules in (_policy, _sizes, _exit, _budget, _correction, _baseline, _selection, _refill):
        for problem in rules(settings):
            raise ConfigError(*problem)


def _policy(s: Settings) -> Iterator[Problem]:
    if s.config.policy is not None and s.config.mode != "seq":
        yield (
            "--ada_policy",
            s.config.policy,
            "a policy of your own takes the place of Ada-Seq's",
            "Use --ada_mode seq, or leave it out",
        )


def _sizes(s: Settings) -> Iterator[Problem]:
    if s.group_size < 2:
        yield (
            "--rollout.n_samples_per_prompt",
            s.group_size,
            f"--ada_mode {s.config.mode} trains a group that shows more than one outcome",
            "Use --rollout.n_samples_per_prompt 4",
        )
    if s.max_samples < s.group_size:
        yield (
            "--ada_max_samples",
            s.max_samples,
            f"a group of --rollout.n_samples_per_prompt {s.group_size} samples is trained, so N_max must be at least "
            f"{s.group_size}",
            f"Use --ada_max_samples {4 * s.group_size} (four times the group is a good start)",
        )


def _exit(s: Settings) -> Iterator[Problem]:
    c = s.config
    for name, value, exits in (("k_pos", c.k_pos, ("pos", "balance")), ("k_neg", c.k_neg, ("balance",))):
        if value is not None and c.exit not in exits:
            yield (
                f"--ada_{name}",
                value,
                f"it is read by exit {' and '.join(exits)} only, and --ada_exit is {c.exit!r}",
                f"Use --ada_exit {exits[-1]} or leave --ada_{name} out",
            )
    if c.spread is not None and (c.mode != "seq" or c.exit != "balance"):
        rule = "exit 'balance' of --ada_mode seq alone looks at it"
        yield "--ada_spread", c.spread, rule, "Use --ada_mode seq --ada_exit balance, or leave it out"
    if c.mode == "seq" and s.k_pos + s.k_neg > s.max_samples:
        yield (
            "--ada_max_samples",
            s.max_samples,
            f"exit {c.exit!r} waits for {s.k_pos} positives and {s.k_neg} negatives, {s.k_pos + s.k_neg} in all",
            f"Use --ada_max_samples {4 * (s.k_pos + s.k_neg)} or lower --ada_k_pos / --ada_k_neg",
        )


def _budget(s: Settings) -> Iterator[Problem]:
    if s.config.mode != "est":
        return
    if not s.min_samples <= s.budget <= s.max_samples:
        yield (
            "--ada_budget",
            s.budget,
            f"it is the mean of numbers between --ada_min_samples {s.min_samples} and --ada_max_samples "
            f"{s.max_samples}",
            f"Use --ada_budget {max(s.min_samples, min(s.group_size * 2, s.max_samples))}, or move the bounds apart",
        )
    if s.select != "all" and s.min_samples < s.group_size:
        yield (
            "--ada_min_samples",
            s.min_samples,
            f"--ada_select {s.select} trains --rollout.n_samples_per_prompt {s.group_size} rollouts of every prompt",
            f"Use --ada_min_samples {s.group_size}, or --ada_budget {s.group_size} with --ada_select all",
        )


def _correction(s: Settings) -> Iterator[Problem]:
    c = s.config
    if (c.objective == "power") != (c.objective_power is not None):
        yield (
            "--ada_objective_power",
            c.objective_power,
            f"exactly --ada_objective power has an exponent, and the objective is {c.objective}",
            "Give both, such as --ada_objective power --ada_objective_power 0.5, or neither",
        )
    if s.correction == "none":
        return
    if s.correction == "paper" and c.mode == "est":
        yield from _papers_weight(s)
    if s.advantage == "group_norm":
        yield (
            "--ada_correction",
            s.correction,
            "--algo.advantage.estimator group_norm divides by the pool's standard deviation, which is a weight of "
            "its own",
            "Use --algo.advantage.estimator dr_grpo",
        )
    if c.spread is not None:
        yield (
            "--ada_correction",
            s.correction,
            "with --ada_spread there is no pass rate, only verdicts with partial credit",
            "Leave one of the two out",
        )
    if s.correction == "positives" and c.objective != "log":
        yield (
            "--ada_objective",
            c.objective,
            "the mean of the positives is the gradient of the truncated log objective, no other",
            "Use --ada_objective log, or --ada_correction stratum",
        )
    if s.correction == "positives" and c.format != "none":
        yield (
            "--ada_format",
            c.format,
            "--ada_correction positives weighs right answers alike and does not look at rewards",
            "Leave one of the two out",
        )
    if s.correction == "positives" and s.advantage == "gae":
        yield (
            "--ada_correction",
            s.correction,
            "it needs no baseline, and PPO's critic is one",
            "Use --algo.advantage.estimator dr_grpo",
        )


def _papers_weight(s: Settings) -> Iterator[Problem]:
    """Ada-Est: what the paper's gradient weight completes to f' is the number of rollouts that are trained."""
    if s.select != "all":
        yield (
            "--ada_correction",
            "paper",
            f"the paper trains every rollout, and --ada_select {s.select} does not",
            f"Use --ada_correction stratum, or --ada_budget {s.group_size} with --ada_select all",
        )
    if s.config.allocation in ("std", "odds"):
        yield (
            "--ada_allocation",
            s.config.allocation,
            "it spends rollouts against variance, which is no weight that --ada_correction paper could complete",
            "Use --ada_correction stratum",
        )


def _baseline(s: Settings) -> Iterator[Problem]:
    c = s.config
    if c.baseline is not None and s.advantage == "gae" and c.baseline != "critic":
        yield "--ada_baseline", c.baseline, "PPO's baseline is its critic", "Leave it out"
    if c.baseline is not None and s.correction == "positives":
        yield "--ada_baseline", c.baseline, "--ada_correction positives has no baseline", "Leave it out"
    if c.baseline == "none" and s.scores == "raw" and s.correction in ("paper", "stratum") and c.objective != "linear":
        yield (
            "--ada_baseline",
            c.baseline,
            f"the weight of --ada_objective {c.objective} is then taken at the pool's own pass rate, which is 0 for a "
            f"pool without a positive, and multiplies its raw scores",
            "Leave it out for a prediction, or use --ada_objective linear",
        )
    if c.baseline == "kept" and s.correction != "none":
        yield (
            "--ada_baseline",
            c.baseline,
            f"it is the mean of the trained rollouts alone, and --ada_correction {s.correction} reckons with all that "
            f"were drawn",
            "Use --ada_correction none, or another baseline",
        )
    if s.baseline == "critic" and s.advantage != "gae" and s.estimator != "critic":
        yield (
            "--ada_estimator",
            s.estimator,
            "--ada_baseline critic is what a critic predicts",
            "Leave one of them out",
        )
    if s.baseline == "estimator" and s.estimator == "critic":
        yield (
            "--ada_baseline",
            s.baseline,
            "with --ada_estimator critic it has another name",
            "Say --ada_baseline critic",
        )
    if s.baseline in ("first_wave", "estimator", "critic") and s.advantage != "gae" and c.spread is not None:
        yield "--ada_baseline", s.baseline, "with --ada_spread there is no pass rate", "Use --ada_baseline pool"
    if s.baseline in OUTSIDE_BASELINES and s.advantage == "group_norm":
        yield (
            "--ada_baseline",
            s.baseline,
            "--algo.advantage.estimator group_norm divides by the pool's standard deviation, which is 0 where such a "
            "baseline gives a gradient",
            "Use --algo.advantage.estimator dr_grpo",
        )


def _selection(s: Settings) -> Iterator[Problem]:
    whole = s.budget == s.group_size if s.config.mode == "est" else s.config.exit == "fixed"
    size = s.budget if s.config.mode == "est" else s.max_samples
    if s.select == "all" and not (whole and size == s.group_size):
        yield (
            "--ada_select",
            s.select,
            f"a step trains exactly --rollout.batch_size x n rollouts, n being {s.group_size}, so all can be trained "
            f"only where that many are drawn",
            f"Use --ada_mode est with --ada_budget {s.group_size}, or another selection",
        )
    if s.select == "random" and s.correction in ("stratum", "positives"):
        yield (
            "--ada_select",
            s.select,
            f"--ada_correction {s.correction} needs positives in the group wherever the pool has some",
            "Use --ada_select balanced, or --ada_correction none",
        )
    if s.select == "max_variance" and s.correction == "stratum":
        yield (
            "--ada_select",
            s.select,
            "--ada_correction stratum needs fair samples of each outcome, and these are extremes",
            "Use --ada_select balanced",
        )
    if s.select == "max_variance" and s.advantage == "gae":
        yield (
            "--ada_select",
            s.select,
            "PPO's critic learns from the group, and the extremes of a pool are no fair sample of its rewards",
            "Use --ada_select balanced",
        )


def _refill(s: Settings) -> Iterator[Problem]:
    c = s.config
    if c.refill_limit is not None and c.unresolved != "refill":
        yield "--ada_refill_limit", c.refill_limit, "nothing is refilled", "Add --ada_unresolved refill"
    if c.unresolved != "refill":
        return
    if s.select == "all":
        yield "--ada_unresolved", "refill", "--ada_select all trains every rollout drawn", "Use --ada_unresolved keep"
    if s.baseline in OUTSIDE_BASELINES or s.correction == "positives":
        what = f"--ada_correction {s.correction}" if s.correction == "positives" else f"baseline {s.baseline!r}"
        yield (
            "--ada_unresolved",
            "refill",
            f"with {what} a prompt of one outcome has a gradient, and leaving it out would change the objective",
            "Use --ada_unresolved keep"
            + (", or --ada_baseline pool" if s.correction != "positives" and s.advantage != "gae" else ""),
        )


_IN_EVERY_MODE = (
    *("mode", "method", "run_dir", "log_texts", "eval_ends", "verbose", "cluster_wait", "loss", "loss_length"),
    *(f.name for f in fields(RewardFlags)),
)
_SEQ_ONLY = ("exit", "wave", "k_pos", "k_neg", "spread", "scheduler", "speculation")
_EST_ONLY = ("budget", "allocation", "min_samples", "give_up")
_MEMORY_ONLY = ("known_counts", "estimator", "half_life", "prior_mean", "prior_strength")


def without_effect(s: Settings) -> list[str]:
    """A warning for every group of our flags that were set and change nothing in this run."""
    c = s.config
    changed = [f.name for f in fields(c) if getattr(c, f.name) != f.default and f.name not in _IN_EVERY_MODE]
    if c.mode == "off":
        cases = [(tuple(changed), "--ada_mode is off (adaptive sampling: --ada_mode seq or est)")]
    else:
        cases = [
            (_EST_ONLY if c.mode == "seq" else _SEQ_ONLY, f"--ada_mode is {c.mode}"),
            (() if s.remembers else _MEMORY_ONLY, "nothing is predicted (see --ada_baseline estimator)"),
            (() if s.reads_critic else ("trust_steps",), "no critic predicts pass rates (--ada_estimator critic)"),
            (
                ("objective", "objective_power") if s.correction == "none" else (),
                "--ada_correction none has no weights",
            ),
            (
                ("floor",) if c.mode == "seq" and s.correction in ("none", "positives") else (),
                "no weight is computed from a pass rate",
            ),
            (
                ("wave", "scheduler", "speculation") if c.mode == "seq" and c.exit == "fixed" else (),
                "exit fixed has no waves",
            ),
            (
                ("speculation",) if c.mode == "seq" and c.scheduler != "stream" else (),
                f"--ada_scheduler {c.scheduler} sends nothing ahead",
            ),
        ]
    warnings: list[str] = []
    for names, reason in cases:
        ignored = [name for name in changed if name in names]
        if ignored:
            warnings.append(f"{', '.join(f'--ada_{name}' for name in ignored)}: without effect, since {reason}")
    return warnings
