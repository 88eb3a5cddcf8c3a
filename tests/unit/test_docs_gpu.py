"""docs/gpu.md: its measured table; and `make gpu-rehearsal` runs what shows a path on GPUs without one."""

from __future__ import annotations

import json
from pathlib import Path

from documents import ROOT, tables

PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_make_runs_all_that_carry_it() -> None:
    recipe = Path(ROOT / "Makefile").read_text(encoding="utf-8").partition("\ngpu-rehearsal:")[2].partition("\n\n")[0]
    selections = [words.partition('"')[0] for words in recipe.split('-m "')[1:]]
    assert selections == ["rehearsal and not e2e", "rehearsal and e2e"], "together: all"
    assert "tests/gpu/first_run.sh" in recipe


def test_microseconds_of_a_token_are_as_measured() -> None:
    figures = json.loads((ROOT / "benchmarks" / "results" / "engine_host.json").read_text())["figures"]
    table = next(rows for rows in tables(PAGE) if rows[0][0] == "vLLM's output processor")
    measured = [
        [f"{figures[name + end]:.1f}" for end in ("_host", "")] for name in ("us_per_token", "us_per_token_logprobs")
    ]
    assert [row[1:] for row in table[1:]] == measured, "python benchmarks/engine_host.py"
