"""Flags of verdicts and of what is added to them; part of `config.AdaConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_ada.config.flags import flag

FORMAT_NAMES = ("none", "boxed", "think", "answer")


@dataclass(frozen=True, kw_only=True)
class RewardFlags:
    """For reward functions whose verdicts come from a process pool: math, reasoning_gym, code, and those that users
    make with `reward_function.pooled`."""

    reward_timeout: float = flag(
        10.0,
        "Seconds that one verdict may take in the process pool of the rewards math, reasoning_gym and code. After "
        "that its process is killed, and the rollout has no verdict.",
        metavar="SECONDS",
        allowed=(lambda v: v > 0, "it is a time in seconds", "Try 10"),
    )
    reward_memory: int = flag(2048, "MiB of memory that one verdict may take in that pool.", metavar="MIB", minimum=64)
    reward_workers: int | None = flag(
        None,
        "Processes of that pool, per engine. Default: an eighth of the machine's cores, at least 2 and at most 8.",
        metavar="COUNT",
        minimum=1,
    )
    format: str = flag(
        "none",
        "Format of responses that --ada_format_bonus rewards there. boxed: has a \\boxed answer. think: thinking that "
        "ends with </think>, then an answer. answer: ends with one <answer>...</answer>.",
        choices=FORMAT_NAMES,
    )
    format_bonus: float = flag(
        0.0,
        "What a response in that format gets in addition to its verdict. Only the reward that is trained on has it: "
        "verdicts decide, and are evaluated, without.",
        metavar="BONUS",
        allowed=(lambda v: v >= 0, "it is a reward for a format", "Try 0.1"),
    )
