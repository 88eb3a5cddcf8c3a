"""Seconds of a training step of a language model on 8 GPUs, fitted to published step times.

    seconds = sampling * (seconds of the virtual engines) + per_token * (trained tokens, prompts' included) + fixed

`python -m benchmarks.arena seconds` derives the figures again.
"""

from __future__ import annotations

from dataclasses import dataclass

ENGINES = 8

ANSWER_TOKENS = 730
"""Mean length of an answer of the synthetic workload."""

PROMPT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class StepModel:
    """One model on one machine. `sampling`: a factor. `per_token`, `fixed`: seconds."""

    sampling: float
    per_token: float
    fixed: float


STEP_MODELS = {
    "1.5b": StepModel(sampling=1.32, per_token=3.9e-6, fixed=35.0),
    "7b": StepModel(sampling=0.99, per_token=75e-6, fixed=60.0),
}
"""Qwen2.5-Math-1.5B on 8 H100 and Qwen2.5-Math-7B on 8 A100, from Reinforce-Ada, arXiv 2510.04996 v3."""
