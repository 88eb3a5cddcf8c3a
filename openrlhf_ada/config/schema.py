"""AdaConfig: our flags, each with its type, default, range, choices and help text.

The parser, `--help`, docs/flags.md and the checks of single values are derived from it. OpenRLHF's flags are declared
nowhere in this package. A default of None depends on other flags: `settings.resolve` fills it in.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

from openrlhf_ada.config.flags import (
    ADAPTIVE,
    EST,
    SEQ,
    SOME,
    add_flags_of,
    check_value,
    flag,
    flag_of_both,
    flag_of_est,
    flag_of_seq,
)
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.run_flags import FULL_MARKS, RunFlags
from openrlhf_ada.core.advantages import BASELINES
from openrlhf_ada.core.allocation import ALLOCATIONS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.objectives import OBJECTIVES
from openrlhf_ada.core.pieces import Need, Piece
from openrlhf_ada.core.scheduling import SCHEDULERS
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.stopping import EXITS, Gate

LOSSES = ("host", "sequence-constant")
ZEROS = ("compute", "skip")
MATCHED = "matched:"
"""Prefix of an objective that is a method's."""


PREDICTORS = {
    "ema": Piece(None, lacks={Need.CRITICS_RATE: "counts outcomes"}),
    "rating": Piece(None, lacks={Need.CRITICS_RATE: "rates outcomes"}),
    "critic": Piece(None, lacks={Need.COUNTED_RATE: "asks a critic, whose baseline is called critic"}),
}
"""--ada_estimator, with what each lacks."""

UNRESOLVED = {
    "keep": Piece(None),
    # Else leaving them out would change the objective.
    "refill": Piece(None, frozenset({Need.SILENT_UNRESOLVED, Need.ONE_GROUP_SIZE})),
}
"""--ada_unresolved, with what each needs."""

SCORES = {
    "unit": Piece(None),
    "raw": Piece(None, lacks={Need.UNSHAPED_REWARDS: "are rewards of any size"}),
}
"""--ada_scores, with what each lacks."""

MAX_SAMPLES = 32
"""Largest number of rollouts of a prompt in mode seq, unless it is given."""

GATE = Gate(pilot=8, low=0.125, high=0.75)
"""Pilot-Commit's: the rollouts of its configuration file, the bounds of its scripts."""

PILOT = 4
"""First rollouts of --ada_allocation hit (HORA), unless they are given."""


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """What is sampled, and how it is trained."""

    mode: str = flag(
        "off",
        "How many rollouts a prompt gets. off: OpenRLHF unchanged. seq (Ada-Seq): sample each prompt in waves "
        "until its exit rule holds. est (Ada-Est): predict its pass rate and split a fixed budget. seq and est "
        "then train --rollout.n_samples_per_prompt of them (see --ada_select).",
        choices=("off", "seq", "est"),
    )
    method: str | None = flag(
        None,
        "A method by name, or a YAML file of your own (with a slash, or .yaml at its end). It sets our flags and "
        f"OpenRLHF's. Flags that you give win, and are printed as deviations. Names: {', '.join(METHODS)}.",
        metavar="NAME|FILE",
    )
    exit: str = flag_of_seq(
        "balance",
        "When to stop sampling a prompt (mode seq). pos: at enough positives. balance: at enough positives and "
        "enough negatives. fixed: at N_max rollouts. gate: after --ada_pilot rollouts, but at N_max if the share "
        "of positives lies between --ada_gate_low and --ada_gate_high. Where n is more than --ada_pilot, prompts that "
        "do not go on are not trained (see --ada_unresolved).",
        choices=EXITS,
    )
    wave: int = flag(
        8,
        "M: rollouts that every open prompt gets per wave (mode seq).",
        metavar="M",
        within="[1, inf)",
        read_by=SEQ | {"has_waves": SOME},
    )
    k_pos: int | None = flag_of_seq(
        None,
        "Number of positives that ends sampling. Default: 1 for exit pos, half of n (rounded down) for exit balance.",
        metavar="K",
        within="[1, inf)",
        read_by=SEQ | {"k_pos": SOME},
    )
    k_neg: int | None = flag_of_seq(
        None,
        "Number of negatives that ends sampling (exit balance only). Default: n minus the default of --ada_k_pos.",
        metavar="K",
        within="[1, inf)",
        read_by=SEQ | {"k_neg": SOME},
    )
    pilot: int | None = flag_of_both(
        None,
        "Number of first rollouts of every prompt (exit gate, or --ada_allocation hit in mode est). Their outcomes "
        f"decide how many more are drawn. Default: {GATE.pilot} with exit gate, {PILOT} with hit.",
        metavar="COUNT",
        within="[2, inf)",
        read_by=ADAPTIVE | {"has_pilot": SOME},
    )
    gate_low: float | None = flag_of_seq(
        None,
        f"Least share of positives among the first rollouts with which exit gate goes on. Default: {GATE.low}.",
        metavar="SHARE",
        within="[0, 1]",
        read_by={"mode": ("seq",), "exit": ("gate",)},
    )
    gate_high: float | None = flag_of_seq(
        None,
        f"Largest share of positives among the first rollouts with which exit gate goes on. Default: {GATE.high}.",
        metavar="SHARE",
        within="[0, 1]",
        read_by={"mode": ("seq",), "exit": ("gate",)},
    )
    policy: str | None = flag_of_both(
        None,
        "Python file with a sampling policy of your own: a function make_policy(settings). Mode seq; see "
        "docs/extending.md.",
        metavar="FILE",
    )
    budget: float | None = flag_of_est(
        None,
        "Mean rollouts per prompt, exact in every step (mode est). Default: --rollout.n_samples_per_prompt.",
        metavar="MEAN",
        within="[2, inf)",
    )
    allocation: str = flag_of_est(
        "inverse_sqrt",
        "How mode est splits the budget by pass rate p: in proportion to 1/√p (inverse_sqrt), 1/p (inverse), "
        "√(p(1-p)) (std), √((1-p)/p) (odds), equally (uniform), or as GVM-RAFT (gvm) or DARS (dars) does. Or by "
        "what one rollout more is worth: least variance of RLOO (vip), most groups with two outcomes (knapsack). hit: "
        "--ada_pilot rollouts of each, then by the chance of a first positive among those that follow (HORA).",
        choices=ALLOCATIONS,
    )
    estimator: str | None = flag_of_both(
        None,
        "What predicts pass rates. ema: decayed counts per prompt. rating: ratings of the policy and of every prompt, "
        "as of players in a game. critic: PPO's critic, or in critic-free training a critic of its own (--critic... "
        "flags) fitted to outcomes. Default: ema, or critic for --ada_baseline critic.",
        choices=PREDICTORS,
        read_by=ADAPTIVE | {"remembers": SOME},
    )
    half_life: float = flag_of_both(
        50.0,
        "Number of training steps after which old outcomes of a prompt count half (--ada_estimator ema), and old "
        "rewards in what an outcome is worth.",
        metavar="STEPS",
        within="(0, inf)",
        read_by=ADAPTIVE | {"remembers": SOME},
    )
    known_counts: bool = flag_of_both(
        False,
        "Start with the outcomes that `openrlhf-ada prepare-data` counted: columns ada_draws and ada_positives of "
        "--data.prompt_dataset.",
        read_by=ADAPTIVE | {"remembers": SOME},
    )
    floor: float = flag_of_both(
        0.02,
        "Allocation and weights treat a smaller pass rate as this one.",
        metavar="P",
        within="(0, 0.5)",
        read_by=ADAPTIVE | {"reads_floor": SOME},
    )
    give_up: int = flag_of_est(
        64,
        "After this many rollouts in a row without a positive, a prompt gets the least number at every visit, until "
        "one is positive. 0: never (mode est).",
        metavar="COUNT",
        within="[0, inf)",
        read_by=EST | {"pilot": (None,)},
    )
    trust_steps: int = flag(
        5,
        "Number of steps over which a critic must predict better than a constant before it is used.",
        metavar="STEPS",
        within="[1, inf)",
        read_by=ADAPTIVE | {"reads_critic": SOME},
    )
    candidates: int | None = flag_of_both(
        None,
        "C: consider C prompts for every one that is sampled, and choose by --ada_choice. Default: 1.",
        metavar="C",
        within="[1, inf)",
    )
    choice: str | None = flag_of_both(
        None,
        "With --ada_candidates, prompts are chosen with a chance in proportion to this value at a draw of their pass "
        "rate p. std: √(p(1-p)). vade: p(1-p)². mopps: "
        "nearness to 1/2. mmr1: p(1-p) for half of a step, equal chances for the other half. greso: less after each "
        "visit in a row with one outcome. pools: less where the last visit was mostly right or mostly wrong. "
        "Default: std.",
        choices=CHOICES,
        read_by=ADAPTIVE | {"chooses": SOME},
    )
    min_samples: int | None = flag_of_est(
        None,
        "Least number of rollouts per prompt (mode est). Default: n if groups are selected from the pool, else 2.",
        metavar="N_MIN",
        within="[2, inf)",
    )
    max_samples: int | None = flag_of_both(
        None,
        f"N_max: largest number of rollouts of a prompt in a step. Default: {MAX_SAMPLES} in mode seq, four times the "
        "budget in mode est.",
        metavar="N_MAX",
        within="[1, inf)",
    )
    positive_threshold: float | None = flag(
        None,
        "A rollout is positive if its score is greater than this. The score comes before any shaping: 'scores' "
        "of the reward function ('rewards' if it returns none), or the reward model's output. Default: full "
        f"marks ({FULL_MARKS:g}) with a reward of ours; 0.5 with another one that scores in [0, 1]; none for raw "
        "scores, which need one.",
        metavar="T",
    )
    scores: str | None = flag_of_both(
        None,
        "What scores look like. unit: numbers in [0, 1]. raw: any number; policies see 1 above "
        "--ada_positive_threshold and 0 otherwise. Default: raw with a reward model "
        "(--reward.model_name_or_path) or --ada_positive_quantile, else unit.",
        choices=SCORES,
    )
    positive_quantile: float | None = flag_of_both(
        None,
        "Q: from the second step on, the threshold for positives is the Q-quantile of earlier steps' scores (the "
        "first rollouts of every prompt), so about 1 - Q of them are positive. The first step uses "
        "--ada_positive_threshold.",
        metavar="Q",
        within="(0, 1)",
    )
    objective: str = flag_of_both(
        "log",
        "Objective f of the pass rate p that --ada_correction aims at. linear: p. sqrt: 2√p. log: log p. arcsin: "
        "2 arcsin √p. matched:NAME: the weight that a method really gives, by its name or file.",
        metavar="NAME",
        allowed=(
            lambda v: v in OBJECTIVES or v.startswith(MATCHED),
            f"expected one of: {', '.join(OBJECTIVES)}, or {MATCHED} and the name of a method",
            "Try --ada_objective log",
        ),
        read_by=ADAPTIVE | {"aims": SOME},
    )
    correction: str | None = flag_of_both(
        None,
        "How trained rollouts are weighed. none: as in the published code. paper: by f'(p), without the part "
        "that allocation gives already. stratum: exact for --ada_objective. positives: positives only, exact for "
        "log p truncated at N_max. Default: none in mode seq and with group_norm; in mode est paper if all "
        "rollouts are trained, else stratum.",
        choices=CORRECTIONS,
    )
    baseline: str | None = flag_of_both(
        None,
        "b of the advantage reward - b. pool: mean of all rollouts drawn. loo: mean of the others. kept: mean of "
        "the trained ones; group_norm then takes their standard deviation too (PODS). posterior: as kept, divided by "
        "their standard deviation, and a signal for prompts of one outcome (AERO). unbiased: the pool's "
        "mean without stopping bias. estimator, critic: prediction made before sampling. blend: "
        "the prediction and the other rollouts of the prompt, each by what it is worth. none: 0. Default: "
        "critic for gae; the prediction in mode est and with --ada_correction stratum; else loo for rloo, pool "
        "for the others.",
        choices=BASELINES,
    )
    baseline_rounding: float = flag_of_both(
        0.0,
        "In a predicted baseline, pass rates below this count as 0 and those above 1 minus this as 1. Rollouts that "
        "come out as expected get the coefficient 0, and with --ada_zeros skip they cost no training. What is "
        "optimised stays the same with --ada_correction stratum, and where all or random rollouts are trained.",
        metavar="RATE",
        within="[0, 0.5]",
        read_by=ADAPTIVE | {"predicts_baseline": SOME},
    )
    zeros: str = flag_of_both(
        "compute",
        "Trained rollouts whose coefficient is 0. compute: as all others. skip: the policy does not compute them; the "
        "gradient is the same, since they still count where the loss is averaged.",
        choices=ZEROS,
    )
    select: str | None = flag_of_both(
        None,
        "Which n rollouts of a pool are trained. balanced: half positive where possible. random. max_variance: those "
        "whose scores vary most. best_random: the best one and random others. all: every one (mode est with "
        "--ada_budget n). Default: all in mode est with budget n, else balanced.",
        choices=SELECTIONS,
    )
    unresolved: str = flag_of_both(
        "keep",
        "What happens to a prompt whose rollouts all have the same outcome. keep: it is trained with zero "
        "advantage. refill: a fresh prompt takes its place.",
        choices=UNRESOLVED,
    )
    refill_limit: int | None = flag_of_both(
        None,
        "Largest number of fresh prompts per step for --ada_unresolved refill. Default: --rollout.batch_size.",
        metavar="COUNT",
        within="[1, inf)",
        read_by=ADAPTIVE | {"unresolved": ("refill",)},
    )
    loss: str = flag(
        "host",
        "How the policy's token losses are averaged. host: as --actor.loss_agg_mode says. sequence-constant: sum "
        "over each sample, divided by a constant, then mean over samples (Dr. GRPO's loss).",
        choices=LOSSES,
    )
    loss_length: int | None = flag(
        None,
        "The constant of --ada_loss sequence-constant, in tokens. Default: --rollout.max_new_tokens, or else "
        "--data.max_len.",
        metavar="TOKENS",
        within="[1, inf)",
        read_by={"loss": ("sequence-constant",)},
    )
    scheduler: str = flag_of_seq(
        "stream",
        "Order of work in mode seq. rounds: all open prompts get one wave, then all are waited for (the published "
        "algorithm). waves: each prompt waits for its own wave only. stream: as waves, and free slots take "
        "rollouts that will probably be needed.",
        choices=SCHEDULERS,
        read_by=SEQ | {"has_waves": SOME},
    )
    speculation: int | None = flag_of_seq(
        None,
        "--ada_scheduler stream starts rollouts ahead of need while an engine has fewer than this. 0: never. Default: "
        "256 on a GPU, 16 on a CPU.",
        metavar="COUNT",
        within="[0, inf)",
        read_by=SEQ | {"has_waves": (True,), "scheduler": ("stream",)},
    )


@dataclass(frozen=True, kw_only=True)
class AdaConfig(RunFlags, SamplingFlags):
    """All our flags. Defaults are the published setting of Reinforce-Ada (arXiv 2510.04996)."""

    def __post_init__(self) -> None:
        for f in fields(AdaConfig):
            check_value(f, getattr(self, f.name), f"--ada_{f.name}")

    def resolved_run_dir(self, run_name: str) -> Path:
        """The run directory: --ada_run_dir, or runs/<run name> with ':' made file-system safe."""
        return Path(self.run_dir) if self.run_dir else Path("runs") / run_name.replace(":", "-")


SECTIONS = {
    "mode": ("The method", ""),
    "exit": ("Ada-Seq (--ada_mode seq)", ""),
    "budget": (
        "Ada-Est (--ada_mode est)",
        "What predicts pass rates also serves Ada-Seq with --ada_baseline estimator or critic.",
    ),
    "candidates": ("Both modes", "What is sampled at most, what is kept, and with which weights."),
    "loss": ("The policy's loss", "In every mode."),
    "scheduler": ("Scheduling and failures", "All schedulers give the same pools."),
    "verify_sync": ("Weights", "From the policy to the engines."),
    "reward_timeout": ("Rewards", "For the named rewards and those made with pooled, in every mode."),
    "silence": ("Processes that do nothing", "In every mode."),
    "eval_ends": ("The record, and models", "In every mode."),
}
"""Groups of flags in --help and docs/flags.md, by the first of each: title and description."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every AdaConfig field, by SECTIONS."""
    add_flags_of(AdaConfig, parser, SECTIONS)
