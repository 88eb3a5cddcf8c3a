"""Our flags about a run's surroundings: transport of weights, rewards, the record."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from openrlhf_ada.config.flags import flag, flag_of_every_mode

FORMATS = ("none", "boxed", "think", "answer")


def imports_of(text: str) -> tuple[str, ...]:
    """The modules of --ada_code_imports."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def _are_installed(text: str) -> bool:
    return all(name.isidentifier() and importlib.util.find_spec(name) is not None for name in imports_of(text))


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What is neither sampled nor optimised; most of these are read in every mode."""

    trust_remote_code: bool = flag_of_every_mode(
        False,
        "Run code that a model's folder or hub page brings along or names, and load pickled weights. Without it such "
        "a model is refused.",
        aliases=("--trust_remote_code",),
    )
    # -- weights: from the policy to the engines ---------------------------------------------------------------------
    verify_sync: str = flag_of_every_mode(
        "first",
        "When to compare checksums of the weights that the policy sends and the engines receive. off: never. first: "
        "in the first update, and after engines were started. always: in every update. A difference ends the run, and "
        "so does a weight that an engine lacks, does not use, or packs otherwise than before.",
        choices=("off", "first", "always"),
    )
    logprob_steps: int = flag(
        10,
        "Every so many steps, the first included, compare the engines' log-probability of every sampled token with "
        "the policy's. 0: never.",
        metavar="STEPS",
        minimum=0,
    )
    logprob_warn: float = flag(
        0.1,
        "Mean gap in nats per token at which a note is shown.",
        metavar="GAP",
        allowed=(lambda v: v > 0, "it is a distance", "Try 0.1"),
    )
    logprob_stop: float = flag(
        1.0,
        "Mean gap in nats per token at which the run ends, before anything is trained.",
        metavar="GAP",
        allowed=(lambda v: v > 0, "it is a distance", "Try 1"),
    )
    # -- named rewards and those made with `reward_function.pooled`: every mode -----------------------------------
    reward_timeout: float = flag_of_every_mode(
        10.0,
        "Seconds that the score of one rollout may take in the process pool of the rewards math, reasoning_gym and "
        "code. Then its process is killed. The rollout is wrong if its label was readable, else it has no score.",
        metavar="SECONDS",
        allowed=(lambda v: v > 0, "it is a time in seconds", "Try 10"),
    )
    reward_memory: int = flag_of_every_mode(
        2048, "MiB of memory that one score may take in that pool.", metavar="MIB", minimum=64
    )
    reward_workers: int | None = flag_of_every_mode(
        None,
        "Number of processes per engine that score answers. Default: an eighth of the machine's cores, at least "
        "2 and at most 8.",
        metavar="COUNT",
        minimum=1,
    )
    code_imports: str = flag_of_every_mode(
        "none",
        "Modules that programs may import besides the standard library, with commas between them: numpy,pandas. For "
        "the reward code. They must be installed where rewards are computed.",
        metavar="MODULES",
        allowed=(
            _are_installed,
            "each of these must be the name of a module that is installed here",
            "Install what is missing (pip install NAME), or leave it out",
        ),
    )
    code_partial: bool = flag_of_every_mode(
        False,
        "The score of a program is the share of tests that it passes, and not 1 or 0. For the reward code. Only "
        "whole passes are positive (--ada_positive_threshold).",
    )
    reward_weights: str | None = flag_of_every_mode(
        None,
        "How much each of several rewards counts (--reward.remote_url math,style.py:grade). The reward is their "
        "weighted sum. The score, which decides and is evaluated, is the first one alone.",
        metavar="W,W,...",
    )
    reward_key: str | None = flag_of_every_mode(
        None,
        "Column in which each row names its grader (reward mixed): math, code, reasoning_gym, arithmetic, a "
        "function as FILE.py:NAME, or a value of --ada_reward_map. Default: reward.",
        metavar="COLUMN",
    )
    reward_map: str | None = flag_of_every_mode(
        None,
        "Graders by what stands in that column, or by data set (reward mixed), such as openai/gsm8k=math,taco=code.",
        metavar="VALUE=GRADER,...",
    )
    format: str = flag_of_every_mode(
        "none",
        "Format of answers that --ada_format_bonus rewards. none: any. boxed: has a \\boxed answer. think: thinking "
        "that ends with </think>, then an answer. answer: ends with one <answer>...</answer>.",
        choices=FORMATS,
    )
    format_bonus: float = flag_of_every_mode(
        0.0,
        "Added to the reward of a response in that format. Scores decide, and are evaluated, without it.",
        metavar="BONUS",
        allowed=(lambda v: v >= 0, "it is a reward for a format", "Try 0.1"),
    )
    # -- processes that do nothing ----------------------------------------------------------------------------------
    silence: float = flag_of_every_mode(
        60.0,
        "Seconds without progress, after which a line says who is waited for. Each further "
        "line comes after twice the time.",
        metavar="SECONDS",
        allowed=(lambda v: v > 0, "it is a time in seconds", "Try 60"),
    )
    dead_after: float = flag_of_every_mode(
        1800.0,
        "Seconds without progress, after which the run ends and prints the command that "
        "resumes it. For engines: at least --ada_timeout plus 120.",
        metavar="SECONDS",
        allowed=(lambda v: v > 0, "it is a time in seconds", "Try 1800"),
    )
    # -- the record -------------------------------------------------------------------------------------------------
    eval_ends: bool = flag_of_every_mode(
        False, "Also evaluate on --eval.dataset before the first and after the last step."
    )
    run_dir: str | None = flag_of_every_mode(
        None,
        "Run directory: the record, the log and the report. Default: runs/<--logger.wandb.run_name>.",
        metavar="DIR",
    )
    log_texts: int = flag_of_every_mode(
        4,
        "Number of prompts per step whose answers go to samples.jsonl in full, beside the prompts and reference "
        "answers of all (0: no texts, numbers only).",
        metavar="COUNT",
        minimum=0,
    )
    verbose: bool = flag_of_every_mode(
        False,
        "Show everything that OpenRLHF, vLLM and Ray print. Without it their logs stay in files.",
        aliases=("--verbose",),
    )
