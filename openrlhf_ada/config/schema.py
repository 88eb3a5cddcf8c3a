"""AdaConfig: our flags, each with its type, default, unit, range, choices, and under it its help text.

The parser, `--help`, docs/flags.md and the checks of single values are derived from it. OpenRLHF's flags are declared
nowhere in this package. A default of None depends on other flags: `settings.resolve` fills it in.
"""

from __future__ import annotations

import argparse
import importlib.util
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
    imports_of,
)
from openrlhf_ada.config.passed_on import ARGUMENTS, ENDS
from openrlhf_ada.config.presets import DEVICES, METHODS
from openrlhf_ada.core.advantages import BASELINES
from openrlhf_ada.core.allocation import ALLOCATIONS
from openrlhf_ada.core.corrections import CORRECTIONS
from openrlhf_ada.core.criteria import CHOICES
from openrlhf_ada.core.objectives import OBJECTIVES
from openrlhf_ada.core.pieces import Need, Piece
from openrlhf_ada.core.scheduling import SCHEDULERS
from openrlhf_ada.core.selection import SELECTIONS
from openrlhf_ada.core.stopping import EXITS, Gate

METHOD_NAMES = ", ".join(METHODS)
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

FACTORS = {
    "one": Piece(None),
    "least_noise": Piece(None, frozenset({Need.UNSHAPED_REWARDS, Need.SUMMED_TOKENS})),
}
"""--ada_baseline_factor, with what each needs."""

MAX_SAMPLES = 32
"""Largest number of rollouts of a prompt in mode seq, unless it is given."""

GATE = Gate(pilot=8, low=0.125, high=0.75)
"""Pilot-Commit's: the rollouts of its configuration file, the bounds of its scripts."""

PILOT = 4
"""First rollouts of --ada_allocation hit (HORA), unless they are given."""

FORMATS = ("none", "boxed", "think", "answer")

ON_CPU = ", ".join(f"--{name} {value}" for name, value in DEVICES["cpu"].items())


def _are_installed(text: str) -> bool:
    return all(name.isidentifier() and importlib.util.find_spec(name) is not None for name in imports_of(text))


@dataclass(frozen=True, kw_only=True)
class AdaConfig:
    """All our flags. Defaults are the published setting of Reinforce-Ada (arXiv 2510.04996)."""

    mode: str = flag("off", choices=("off", "seq", "est"))
    """How many rollouts a prompt gets. off: OpenRLHF unchanged. seq (Ada-Seq): sample each prompt in waves until its
    exit rule holds. est (Ada-Est): predict its pass rate and split a fixed budget. seq and est then train
    --rollout.n_samples_per_prompt of them (see --ada_select)."""
    method: str | None = flag(None, "NAME|FILE")
    """A method by name, or a YAML file of your own (with a slash, or .yaml at its end). It sets our flags and
    OpenRLHF's. Flags that you give win, and are printed as deviations. Names: {METHOD_NAMES}."""
    exit: str = flag_of_seq("balance", choices=EXITS)
    """When to stop sampling a prompt (mode seq). pos: at enough positives. balance: at enough positives and enough
    negatives. fixed: at N_max rollouts. gate: after --ada_pilot rollouts, but at N_max if the share of positives lies
    between --ada_gate_low and --ada_gate_high. Where n is more than --ada_pilot, prompts that do not go on are not
    trained (see --ada_unresolved)."""
    wave: int = flag(8, "M", "[1, inf)", read_by=SEQ | {"has_waves": SOME})
    """M: rollouts that every open prompt gets per wave (mode seq)."""
    k_pos: int | None = flag_of_seq(None, "K", "[1, inf)", read_by=SEQ | {"k_pos": SOME})
    """Number of positives that ends sampling. Default: 1 for exit pos, half of n (rounded down) for exit balance."""
    k_neg: int | None = flag_of_seq(None, "K", "[1, inf)", read_by=SEQ | {"k_neg": SOME})
    """Number of negatives that ends sampling (exit balance only). Default: n minus the default of --ada_k_pos."""
    pilot: int | None = flag_of_both(None, "COUNT", "[2, inf)", read_by=ADAPTIVE | {"has_pilot": SOME})
    """Number of first rollouts of every prompt (exit gate, or --ada_allocation hit in mode est). Their outcomes decide
    how many more are drawn. Default: {GATE.pilot} with exit gate, {PILOT} with hit."""
    gate_low: float | None = flag_of_seq(None, "SHARE", "[0, 1]", read_by={"mode": ("seq",), "exit": ("gate",)})
    """Least share of positives among the first rollouts with which exit gate goes on. Default: {GATE.low}."""
    gate_high: float | None = flag_of_seq(None, "SHARE", "[0, 1]", read_by={"mode": ("seq",), "exit": ("gate",)})
    """Largest share of positives among the first rollouts with which exit gate goes on. Default: {GATE.high}."""
    policy: str | None = flag_of_both(None, "FILE")
    """Python file with a sampling policy of your own: a function make_policy(settings). Mode seq; see
    docs/extending.md."""
    budget: float | None = flag_of_est(None, "MEAN", "[2, inf)")
    """Mean rollouts per prompt, exact in every step (mode est). Default: --rollout.n_samples_per_prompt."""
    allocation: str = flag_of_est("inverse_sqrt", choices=ALLOCATIONS)
    """How mode est splits the budget by pass rate p: in proportion to 1/√p (inverse_sqrt), 1/p (inverse), √(p(1-p))
    (std), √((1-p)/p) (odds), equally (uniform), or as GVM-RAFT (gvm) or DARS (dars) does. Or by what one rollout more
    is worth: least variance of RLOO (vip), most groups with two outcomes (knapsack). hit: --ada_pilot rollouts of
    each, then by the chance of a first positive among those that follow (HORA)."""
    estimator: str | None = flag_of_both(None, choices=PREDICTORS, read_by=ADAPTIVE | {"remembers": SOME})
    """What predicts pass rates. ema: decayed counts per prompt. rating: ratings of the policy and of every prompt, as
    of players in a game. critic: PPO's critic, or in critic-free training a critic of its own (--critic... flags)
    fitted to outcomes. Default: ema, or critic for --ada_baseline critic."""
    half_life: float = flag_of_both(50.0, "STEPS", "(0, inf)", read_by=ADAPTIVE | {"remembers": SOME})
    """Number of training steps after which old outcomes of a prompt count half (--ada_estimator ema), and old rewards
    in what an outcome is worth."""
    known_counts: bool = flag_of_both(False, read_by=ADAPTIVE | {"remembers": SOME})
    """Start with the outcomes that `openrlhf-ada prepare-data` counted: columns ada_draws and ada_positives of
    --data.prompt_dataset."""
    floor: float = flag_of_both(0.02, "P", "(0, 0.5)", read_by=ADAPTIVE | {"reads_floor": SOME})
    """Allocation and weights treat a smaller pass rate as this one."""
    give_up: int = flag_of_est(64, "COUNT", "[0, inf)", read_by=EST | {"pilot": (None,)})
    """After this many rollouts in a row without a positive, a prompt gets the least number at every visit, until one
    is positive. 0: never (mode est)."""
    trust_steps: int = flag(5, "STEPS", "[1, inf)", read_by=ADAPTIVE | {"reads_critic": SOME})
    """Number of steps over which a critic must predict better than a constant before it is used."""
    candidates: int | None = flag_of_both(None, "C", "[1, inf)")
    """C: consider C prompts for every one that is sampled, and choose by --ada_choice. Default: 1."""
    choice: str | None = flag_of_both(None, choices=CHOICES, read_by=ADAPTIVE | {"chooses": SOME})
    """With --ada_candidates, prompts are chosen with a chance in proportion to this value at a draw of their pass rate
    p. std: √(p(1-p)). vade: p(1-p)². mopps: nearness to 1/2. mmr1: p(1-p) for half of a step, equal chances for the
    other half. greso: less after each visit in a row with one outcome. pools: less where the last visit was mostly
    right or mostly wrong. Default: std."""
    min_samples: int | None = flag_of_est(None, "N_MIN", "[2, inf)")
    """Least number of rollouts per prompt (mode est). Default: n if groups are selected from the pool, else 2."""
    max_samples: int | None = flag_of_both(None, "N_MAX", "[1, inf)")
    """N_max: largest number of rollouts of a prompt in a step. Default: {MAX_SAMPLES} in mode seq, four times the
    budget in mode est."""
    positive_threshold: float | None = flag(None, "T")
    """A rollout is positive if its score is greater than this. The score comes before any shaping: 'scores' of the
    reward function ('rewards' if it returns none), or the reward model's output. Default: full marks (0.999999)
    with a reward of ours; 0.5 with another one that scores in [0, 1]; none for raw scores, which need one."""
    scores: str | None = flag_of_both(None, choices=SCORES)
    """What scores look like. unit: numbers in [0, 1]. raw: any number; policies see 1 above --ada_positive_threshold
    and 0 otherwise. Default: raw with a reward model (--reward.model_name_or_path) or --ada_positive_quantile, else
    unit."""
    positive_quantile: float | None = flag_of_both(None, "Q", "(0, 1)")
    """Q: from the second step on, the threshold for positives is the Q-quantile of earlier steps' scores (the first
    rollouts of every prompt), so about 1 - Q of them are positive. The first step uses --ada_positive_threshold."""
    objective: str = flag_of_both(
        "log",
        "NAME",
        allowed=(
            lambda v: v in OBJECTIVES or v.startswith(MATCHED),
            f"expected one of: {', '.join(OBJECTIVES)}, or {MATCHED} and the name of a method",
            "Try --ada_objective log",
        ),
        read_by=ADAPTIVE | {"aims": SOME},
    )
    """Objective f of the pass rate p that --ada_correction aims at. linear: p. sqrt: 2√p. log: log p. arcsin: 2 arcsin
    √p. matched:NAME: the weight that a method really gives, by its name or file."""
    correction: str | None = flag_of_both(None, choices=CORRECTIONS)
    """How trained rollouts are weighed. none: as in the published code. paper: by f'(p), without the part that
    allocation gives already. stratum: exact for --ada_objective. positives: positives only, exact for log p truncated
    at N_max. Default: none in mode seq and with group_norm; in mode est paper if all rollouts are trained, else
    stratum."""
    baseline: str | None = flag_of_both(None, choices=BASELINES)
    """b of the advantage reward - b. pool: mean of all rollouts drawn. loo: mean of the others. kept: mean of the
    trained ones; group_norm then takes their standard deviation too (PODS). posterior: as kept, divided by their
    standard deviation, and a signal for prompts of one outcome (AERO). unbiased: the pool's mean without stopping
    bias. estimator, critic: prediction made before sampling. blend: the prediction and the other rollouts of the
    prompt, each by what it is worth. none: 0. Default: critic for gae; the prediction in mode est and with
    --ada_correction stratum; else loo for rloo, pool for the others."""
    baseline_rounding: float = flag_of_both(0.0, "RATE", "[0, 0.5]", read_by=ADAPTIVE | {"predicts_baseline": SOME})
    """In a predicted baseline, pass rates below this count as 0 and those above 1 minus this as 1. Rollouts that come
    out as expected get the coefficient 0, and with --ada_zeros skip they cost no training. What is optimised stays the
    same with --ada_correction stratum, and where all or random rollouts are trained."""
    baseline_factor: str = flag_of_both("one", choices=FACTORS, read_by=ADAPTIVE | {"predicts_baseline": SOME})
    """What a predicted baseline is multiplied by. one: nothing else. least_noise: the factor at which the gradient had
    the least noise in earlier steps, by log-probabilities that engines then give in every step. Near 0 where right
    answers are certain, near 1 where they vary. What is optimised stays the same."""
    zeros: str = flag_of_both("compute", choices=ZEROS)
    """Trained rollouts whose coefficient is 0. compute: as all others. skip: the policy does not compute them; the
    gradient is the same, since they still count where the loss is averaged."""
    wrong_epochs: int = flag_of_both(0, "EPOCHS", "[0, inf)")
    """Number of epochs over a step (--train.max_epochs) that train rollouts with a negative coefficient: wrong ones,
    below their baseline. 0: all. Their gradient is as without the flag. Later epochs train right ones alone, which is
    another objective; the loss is averaged as before, and --ada_zeros skip computes no others."""
    select: str | None = flag_of_both(None, choices=SELECTIONS)
    """Which n rollouts of a pool are trained. balanced: half positive where possible. random. max_variance: those
    whose scores vary most. best_random: the best one and random others. all: every one (mode est with --ada_budget n).
    Default: all in mode est with budget n, else balanced."""
    unresolved: str = flag_of_both("keep", choices=UNRESOLVED)
    """What happens to a prompt whose rollouts all have the same outcome. keep: it is trained with zero advantage.
    refill: a fresh prompt takes its place."""
    refill_limit: int | None = flag_of_both(None, "COUNT", "[1, inf)", read_by=ADAPTIVE | {"unresolved": ("refill",)})
    """Largest number of fresh prompts per step for --ada_unresolved refill. Default: --rollout.batch_size."""
    loss: str = flag("host", choices=LOSSES)
    """How the policy's token losses are averaged. host: as --actor.loss_agg_mode says. sequence-constant: sum over
    each sample, divided by a constant, then mean over samples (Dr. GRPO's loss)."""
    loss_length: int | None = flag(None, "TOKENS", "[1, inf)", read_by={"loss": ("sequence-constant",)})
    """The constant of --ada_loss sequence-constant, in tokens. Default: --rollout.max_new_tokens, or else
    --data.max_len."""
    chat_template_args: str | None = flag(None, "JSON", allowed=ARGUMENTS)
    """Arguments of the model's chat template: '{{"enable_thinking": false}}'."""
    sampling_args: str | None = flag(None, "JSON", allowed=ENDS)
    """What else ends an answer: '{{"stop": ["</answer>"], "stop_token_ids": [13]}}'. It is trained, and rewards read
    it; agents with "include_stop_str_in_output": true."""
    scheduler: str = flag_of_seq("stream", choices=SCHEDULERS, read_by=SEQ | {"waits": SOME})
    """Order of work in mode seq. rounds: all open prompts get one wave, then all are waited for (the published
    algorithm). waves: each prompt waits for its own wave only. stream: as waves, and free slots take rollouts that
    will probably be needed."""
    speculation: int | None = flag_of_seq(
        None, "COUNT", "[0, inf)", read_by=SEQ | {"waits": SOME, "scheduler": ("stream",)}
    )
    """--ada_scheduler stream starts rollouts ahead of need while an engine has fewer than this. 0: never. Default: 256
    on a GPU, 16 on a CPU."""
    timeout: float = flag_of_both(1800.0, "SECONDS", "(0, inf)")
    """Time limit in seconds for one rollout, its reward included. After that it is aborted, and sampled once more."""
    max_no_score: float = flag_of_both(0.05, "SHARE", "[0, 1]")
    """Largest share of a step's prompts that may be replaced. A prompt is replaced if a sample gets no score twice
    (reward function failed, time limit). More end the run, with the cause."""
    engine_restarts: int = flag_of_both(3, "COUNT", "[0, inf)")
    """How often each vLLM engine is started again if it dies; its rollouts are sampled again. 0: its death ends the
    run."""
    cluster_wait: float = flag(0.0, "SECONDS", "[0, inf)")
    """Wait up to so many seconds for Ray nodes that are still joining, until the cluster has the slots that the flags
    ask for."""
    device: str = flag("gpu", choices=DEVICES)
    """What the run uses. gpu: GPUs. cpu: a machine without one; sets {ON_CPU}. Flags that you give win."""
    engine_args: str | None = flag(None, "FILE|JSON")
    """Other options of vLLM's engine: JSON, or a YAML or JSON file (docs/gpu.md)."""
    verify_sync: str = flag("first", choices=("off", "first", "always"))
    """When to compare checksums of the weights that the policy sends and the engines receive. off: never. first: in
    the first update, and after engines were started. always: in every update. A difference ends the run, and so does a
    weight that an engine lacks, does not use, or packs otherwise than before."""
    logprob_steps: int = flag_of_both(10, "STEPS", "[0, inf)")
    """Every so many steps, the first included, compare the engines' log-probability of every sampled token with the
    policy's. 0: never."""
    logprob_stop: float = flag_of_both(1.0, "GAP", "(0, inf)")
    """Mean gap in nats per token at which the run ends, before anything is trained. From a tenth of it on there is a
    note."""
    reward_timeout: float = flag(10.0, "SECONDS", "(0, inf)")
    """Seconds for one score in the process pool of the rewards math, reasoning_gym and code. Then its process is
    killed; the rollout is wrong if its label was readable, else it has no score."""
    reward_memory: int = flag(2048, "MIB", "[64, inf)")
    """MiB of memory that one score may take in that pool."""
    reward_workers: int | None = flag(None, "COUNT", "[1, inf)")
    """Number of processes per engine that score answers. Default: an eighth of the machine's cores, at least 2 and at
    most 8."""
    code_imports: str = flag(
        "none",
        "MODULES",
        allowed=(
            _are_installed,
            "each of these must be the name of a module that is installed here",
            "Install what is missing (pip install NAME), or leave it out",
        ),
    )
    """Modules that programs of the reward code may import besides the standard library, such as numpy,pandas. Install
    them where rewards are computed."""
    code_partial: bool = flag(False)
    """The score of a program is the share of tests that it passes, and not 1 or 0. For the reward code. Only whole
    passes are positive (--ada_positive_threshold)."""
    reward_weights: str | None = flag(None, "W,W,...")
    """How much each of several rewards counts (--reward.remote_url math,style.py:grade). The reward is their weighted
    sum. The score, which decides and is evaluated, is the first one alone."""
    reward_key: str | None = flag(None, "COLUMN")
    """Column in which each row names its grader (reward mixed): math, code, reasoning_gym, arithmetic, a function as
    FILE.py:NAME, or a value of --ada_reward_map. Default: reward."""
    reward_map: str | None = flag(None, "VALUE=GRADER,...")
    """Graders by what stands in that column, or by data set (reward mixed), such as openai/gsm8k=math,taco=code."""
    format: str = flag("none", choices=FORMATS)
    """Format of answers that --ada_format_bonus rewards. none: any. boxed: has a \\boxed answer. think: thinking that
    ends with </think>, then an answer. answer: ends with one <answer>...</answer>."""
    format_bonus: float = flag(0.0, "BONUS", "[0, inf)")
    """Added to the reward of a response in that format. Scores decide, and are evaluated, without it."""
    silence: float = flag(60.0, "SECONDS", "(0, inf)")
    """Seconds without progress, after which a line says who is waited for. Each further line comes after twice the
    time."""
    dead_after: float = flag(1800.0, "SECONDS", "(0, inf)")
    """Seconds without progress, after which the run ends and prints the command that resumes it. For engines: at least
    --ada_timeout plus 120."""
    eval_ends: bool = flag(False)
    """Also evaluate on --eval.dataset before the first and after the last step."""
    run_dir: str | None = flag(None, "DIR")
    """Run directory: the record, the log and the report. Default: runs/<--logger.wandb.run_name>."""
    log_texts: int = flag(4, "COUNT", "[0, inf)")
    """Number of prompts per step whose answers go to samples.jsonl in full, beside the prompts and reference answers
    of all (0: no texts, numbers only)."""
    verbose: bool = flag(False, alias="--verbose")
    """Show everything that OpenRLHF, vLLM and Ray print. Without it their logs stay in files."""
    trust_remote_code: bool = flag(False, alias="--trust_remote_code")
    """Run code that a model's folder or hub page brings along or names, and load pickled weights. Without it such a
    model is refused."""

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
    "chat_template_args": ("Prompts and answers", "In every mode."),
    "scheduler": ("Scheduling and failures", "All schedulers give the same pools."),
    "engine_args": ("Engines and their weights", ""),
    "reward_timeout": ("Rewards", "For the named rewards and those made with pooled, in every mode."),
    "silence": ("Processes that do nothing", "In every mode."),
    "eval_ends": ("The record, and models", "In every mode."),
}
"""Groups of flags in --help and docs/flags.md, by the first of each: title and description."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add every AdaConfig field, by SECTIONS."""
    add_flags_of(AdaConfig, parser, SECTIONS)
