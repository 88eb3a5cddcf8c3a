"""The tables of docs/scheduling.md are the saved results of their benchmarks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from documents import ROOT, section, tables

TEXT = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8")
LENGTHS = {"0%": "none", "50%": "half"}


def saved(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def plain(table: list[list[str]]) -> list[list[str]]:
    """Its rows without the header, and without what makes cells bold."""
    return [[cell.replace("*", "") for cell in row] for row in table[1:]]


def whole(value: float) -> str:
    return f"{value:.0f}"


def workload(name: str) -> tuple[str, str]:
    """(pass rates, share of length by prompt) of "Beta(3, 3), 50% of length by prompt"."""
    found = re.fullmatch(r"(Beta\(.*\)), (\d+%) of length by prompt", name)
    assert found, name
    return found[1], LENGTHS[found[2]]


def step_rows() -> Iterator[list[str]]:
    for row in saved("scheduler")["simulated"]:
        seconds = [f"{row['seconds'][name]:.0f} s" for name in ("rounds", "waves", "stream")]
        ratios = [f"{row[name]:.2f}" for name in ("stream_over_rounds", "stream_over_work")]
        rates, lengths = workload(row["workload"])
        waste, step = f"{row['waste_share']:.0%}".replace("%", " %"), f"{row['step_over_grpo']['stream']:.2f}"
        yield [f"{rates}, {lengths}", f"{row['rollouts_per_prompt']:.1f}", *seconds, *ratios, waste, step]


def filled_rows() -> Iterator[list[str]]:
    """`256 slots, filled` is the last column: as far as there are slots."""
    steps = saved("speculation")["steps"]
    for name, prompts in dict.fromkeys((step["workload"], step["prompts"]) for step in steps):
        of_row = {
            (step["slots"], step["filled"]): f"{step['seconds']:.0f} s, {100 * step['waste_share']:.0f} %"
            for step in steps
            if (step["workload"], step["prompts"]) == (name, prompts)
        }
        columns = [*((1024, filled) for filled in (0, 64, 128, 256, 512, 1024)), (256, 256)]
        rates, lengths = workload(name)
        if lengths == "none":
            yield [f"{rates}, {prompts:,} prompts", *(of_row[column] for column in columns)]


def overlap_rows(part: str) -> Iterator[list[str]]:
    """[row's name in the results, cells]. `part`: the table's key there."""
    models = saved("overlap")[part]
    columns = [models[size][method] for size in ("1.5B", "7B") for method in ("grpo-4", "balance")]
    for name in columns[0]:
        cells = [column[name][0] if isinstance(column[name], list) else column[name] for column in columns]
        yield [name, *map(whole, cells)]


def test_seconds_of_a_step_are_those_of_the_simulation() -> None:
    table = list(tables(section(TEXT, "In virtual time")))[1]
    assert sorted(plain(table)) == sorted(step_rows()), "python benchmarks/scheduler.py"


def test_how_far_to_fill_is_that_of_the_simulation() -> None:
    table = list(tables(section(TEXT, "In virtual time")))[2]
    assert sorted(plain(table)) == sorted(filled_rows()), "python benchmarks/speculation.py"


@pytest.mark.parametrize(("place", "part"), [(0, "seconds_of_a_step"), (1, "parts_on_shared_gpus")])
def test_shared_and_separate_gpus_are_those_of_the_simulation(place: int, part: str) -> None:
    table = list(tables(section(TEXT, "Shared or separate GPUs")))[place]
    assert [row[1:] for row in plain(table)] == [row[1:] for row in overlap_rows(part)], "python benchmarks/overlap.py"


def test_ratios_and_bounds_in_the_text_are_those_of_the_simulation() -> None:
    results, part = saved("overlap"), " ".join(section(TEXT, "Shared or separate GPUs").split())
    small, large = (
        of_size["balance"]["shared GPUs"][0] / of_size["grpo-4"]["shared GPUs"][0]
        for of_size in results["seconds_of_a_step"].values()
    )
    assert (
        f"`balance` takes {small:.2f} times a step of GRPO with n = 4 for 1.5B, and {large:.2f} times for 7B" in part
    )
    known, lengths, bound = map(whole, results["least_sampling_of_balance"]["1.5B"].values())
    assert f"it would take {known} s" in part and f"began with the longest, {lengths} s" in part
    assert f"({bound} s is a lower bound for every schedule" in part


def test_what_the_driver_does_is_as_measured() -> None:
    part, results = section(TEXT, "What the driver does for a rollout"), saved("driver")["results"]
    columns = ("us_python", "us_not_kept", "us_process")
    measured = [[whole(row[column]) for column in columns] for row in results.values()]
    assert [row[2:] for row in plain(next(iter(tables(part))))] == measured, "python benchmarks/driver.py"
    large, small = (
        [round(1e6 / results[row][column], -2) for column in ("us_python", "us_process")]
        for row in ("lognormal", "lognormal, messages of 16")
    )
    assert f"**{large[0]:,.0f} rollouts a second**" in part and f"it is {large[1]:,.0f}" in part
    assert f"{small[0]:,.0f} and {small[1]:,.0f}" in part
