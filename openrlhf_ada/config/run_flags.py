"""Our flags about a run's surroundings: transport of weights, rewards, the record."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from openrlhf_ada.config.flags import flag, flag_of_both

FULL_MARKS = 0.999999
"""An answer with full marks scores more: 1, up to rounding."""

FORMATS = ("none", "boxed", "think", "answer")


def imports_of(text: str) -> tuple[str, ...]:
    """The modules of --ada_code_imports."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


def _are_installed(text: str) -> bool:
    return all(name.isidentifier() and importlib.util.find_spec(name) is not None for name in imports_of(text))


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What is neither sampled nor optimised; most of these are read in every mode."""

    timeout: float = flag_of_both(
        1800.0,
        "Time limit in seconds for one rollout, its reward included. After that it is aborted, and sampled once more.",
        metavar="SECONDS",
        within="(0, inf)",
    )
    max_no_score: float = flag_of_both(
        0.05,
        "Largest share of a step's prompts that may be replaced. A prompt is replaced if a sample gets no score twice "
        "(reward function failed, time limit). More end the run, with the cause.",
        metavar="SHARE",
        within="[0, 1]",
    )
    engine_restarts: int = flag_of_both(
        3,
        "How often each vLLM engine is started again if it dies; its rollouts are sampled again. 0: its death ends "
        "the run.",
        metavar="COUNT",
        within="[0, inf)",
    )
    cluster_wait: float = flag(
        0.0,
        "Wait up to so many seconds for Ray nodes that are still joining, until the cluster has the slots that the "
        "flags ask for.",
        metavar="SECONDS",
        within="[0, inf)",
    )
    verify_sync: str = flag(
        "first",
        "When to compare checksums of the weights that the policy sends and the engines receive. off: never. first: "
        "in the first update, and after engines were started. always: in every update. A difference ends the run, and "
        "so does a weight that an engine lacks, does not use, or packs otherwise than before.",
        choices=("off", "first", "always"),
    )
    logprob_steps: int = flag_of_both(
        10,
        "Every so many steps, the first included, compare the engines' log-probability of every sampled token with "
        "the policy's. 0: never.",
        metavar="STEPS",
        within="[0, inf)",
    )
    logprob_stop: float = flag_of_both(
        1.0,
        "Mean gap in nats per token at which the run ends, before anything is trained. From a tenth of it on there is "
        "a note.",
        metavar="GAP",
        within="(0, inf)",
    )
    reward_timeout: float = flag(
        10.0,
        "Seconds that the score of one rollout may take in the process pool of the rewards math, reasoning_gym and "
        "code. Then its process is killed. The rollout is wrong if its label was readable, else it has no score.",
        metavar="SECONDS",
        within="(0, inf)",
    )
    reward_memory: int = flag(
        2048, "MiB of memory that one score may take in that pool.", metavar="MIB", within="[64, inf)"
    )
    reward_workers: int | None = flag(
        None,
        "Number of processes per engine that score answers. Default: an eighth of the machine's cores, at least "
        "2 and at most 8.",
        metavar="COUNT",
        within="[1, inf)",
    )
    code_imports: str = flag(
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
    code_partial: bool = flag(
        False,
        "The score of a program is the share of tests that it passes, and not 1 or 0. For the reward code. Only "
        "whole passes are positive (--ada_positive_threshold).",
    )
    reward_weights: str | None = flag(
        None,
        "How much each of several rewards counts (--reward.remote_url math,style.py:grade). The reward is their "
        "weighted sum. The score, which decides and is evaluated, is the first one alone.",
        metavar="W,W,...",
    )
    reward_key: str | None = flag(
        None,
        "Column in which each row names its grader (reward mixed): math, code, reasoning_gym, arithmetic, a "
        "function as FILE.py:NAME, or a value of --ada_reward_map. Default: reward.",
        metavar="COLUMN",
    )
    reward_map: str | None = flag(
        None,
        "Graders by what stands in that column, or by data set (reward mixed), such as openai/gsm8k=math,taco=code.",
        metavar="VALUE=GRADER,...",
    )
    format: str = flag(
        "none",
        "Format of answers that --ada_format_bonus rewards. none: any. boxed: has a \\boxed answer. think: thinking "
        "that ends with </think>, then an answer. answer: ends with one <answer>...</answer>.",
        choices=FORMATS,
    )
    format_bonus: float = flag(
        0.0,
        "Added to the reward of a response in that format. Scores decide, and are evaluated, without it.",
        metavar="BONUS",
        within="[0, inf)",
    )
    silence: float = flag(
        60.0,
        "Seconds without progress, after which a line says who is waited for. Each further "
        "line comes after twice the time.",
        metavar="SECONDS",
        within="(0, inf)",
    )
    dead_after: float = flag(
        1800.0,
        "Seconds without progress, after which the run ends and prints the command that "
        "resumes it. For engines: at least --ada_timeout plus 120.",
        metavar="SECONDS",
        within="(0, inf)",
    )
    eval_ends: bool = flag(False, "Also evaluate on --eval.dataset before the first and after the last step.")
    run_dir: str | None = flag(
        None,
        "Run directory: the record, the log and the report. Default: runs/<--logger.wandb.run_name>.",
        metavar="DIR",
    )
    log_texts: int = flag(
        4,
        "Number of prompts per step whose answers go to samples.jsonl in full, beside the prompts and reference "
        "answers of all (0: no texts, numbers only).",
        metavar="COUNT",
        within="[0, inf)",
    )
    verbose: bool = flag(
        False,
        "Show everything that OpenRLHF, vLLM and Ray print. Without it their logs stay in files.",
        alias="--verbose",
    )
    trust_remote_code: bool = flag(
        False,
        "Run code that a model's folder or hub page brings along or names, and load pickled weights. Without it such "
        "a model is refused.",
        alias="--trust_remote_code",
    )
