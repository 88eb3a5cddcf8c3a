"""Benchmarks by name: where they are on the hub, which columns count and how they are graded."""

from __future__ import annotations

import os
from dataclasses import replace

from openrlhf_ada.config.nearest import did_you_mean
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.problems import Source

BOXED = "{}\nPlease reason step by step, and put your final answer within \\boxed{}."
"""The prompt of the published evaluations of mathematics."""


BENCHMARKS = {
    source.name: source
    for source in (
        Source("math500", "HuggingFaceH4/MATH-500", "test", "problem", "answer", BOXED, "math"),
        Source("gsm8k", "openai/gsm8k@main", "test", "question", "answer", BOXED, "math"),
        Source("minerva", "math-ai/minervamath", "test", "question", "answer", BOXED, "math"),
        Source("olympiadbench", "math-ai/olympiadbench", "test", "question", "final_answer", BOXED, "math"),
        Source("aime24", "HuggingFaceH4/aime_2024", "train", "problem", "answer", BOXED, "math"),
        Source("aime25", "math-ai/aime25", "test", "problem", "answer", BOXED, "math"),
        Source("amc23", "math-ai/amc23", "test", "question", "answer", BOXED, "math"),
    )
}

DATASETS = {
    source.name: source
    for source in (
        Source("openr1-math", "open-r1/OpenR1-Math-220k", "train", "problem", "answer", BOXED),
        Source("dapo-17k", "BytedTsinghua-SIA/DAPO-Math-17k", "train", "prompt", "reward_model.ground_truth"),
    )
}
"""Training data by name."""


def name_and_path(spec: str) -> tuple[str, str]:
    """The two of `name=path`; a path that exists may have a = of its own."""
    name, _, path = spec.partition("=")
    return (spec, "") if os.path.lexists(spec) else (name, path)


def find_benchmark(spec: str) -> Source:
    """Of `name`, `name=path` (a local copy), `reasoning_gym:<task>`, or the path of a file; raises DataError."""
    name, path = name_and_path(spec)
    if name.startswith("reasoning_gym:"):
        return Source(name, name, reward="reasoning_gym")
    if name in BENCHMARKS:
        known = BENCHMARKS[name]
        if not path:
            return known
        # A copy may have other column names: they are detected.
        return replace(known, path=path, question_key=None, label_key=None)
    if path or "/" in name or "." in name:
        return Source(name.rpartition("/")[2].partition(".")[0], path or name)
    known = ", ".join(BENCHMARKS)
    near = did_you_mean(name, BENCHMARKS)
    raise DataError(f"--benchmark {spec}: expected one of {known}, reasoning_gym:<task>, or the path of a file.{near}")
