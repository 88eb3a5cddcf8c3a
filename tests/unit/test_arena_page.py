"""Results in small files, and the page that is made from them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from documents import ROOT, tables

from openrlhf_ada.arena import aim, costs, method_page, short_page
from openrlhf_ada.arena.campaign import RUNGS, TRIALS, Cell, Results, made_with
from openrlhf_ada.arena.methods import AS_IT_RAN, OF_PRESET, OTHERWISE_AS_IT_RAN
from openrlhf_ada.arena.methods import METHODS as METHODS_HERE
from openrlhf_ada.arena.page import FIRST, LAST, PAGE_COSTS, inserted, pack, render, unpack
from openrlhf_ada.arena.tables import REFERENCE, Finals, finals_of, table
from openrlhf_ada.arena.tasks import TASKS
from openrlhf_ada.arena.trial import Spent
from openrlhf_ada.cli.arena_page import main
from openrlhf_ada.config import presets
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import resolve

BUDGET, SEEDS, SETTING = 8000, 6, (1e-3, 32)
METHODS = {cost: ["pos"] for cost in PAGE_COSTS}
PACKED, PAGE = ROOT / "openrlhf_ada" / "arena" / "results", ROOT / "docs" / "arena.md"


def curve(pace: float, seed: int) -> dict[str, object]:
    """41 measurements; the second wave begins in the middle."""
    rng, spent, points, accuracy = np.random.default_rng(seed), Spent(), [], []
    for at in range(41):
        if at:
            spent.add_wave(0, 0, 32, 160)
            if at > 20:
                spent.add_wave(0, 1, 10, int(rng.integers(20, 60)))
            spent.steps += 1
            spent.trained += 128
            spent.tokens, spent.trained_tokens = 3 * spent.rollouts, 3 * spent.trained
        fields = ("steps", "rollouts", "tokens", "trained", "trained_tokens")
        batches = [[list(wave) for wave in waves] for waves in spent.batches]
        points.append({name: getattr(spent, name) for name in fields} | {"batches": batches})
        accuracy.append(round(min(0.9, 0.1 + pace * at), 6))
    return {"spent": points, "accuracy": accuracy}


def cell(method: str, seed: int, rollouts: int, cost: str) -> Cell:
    return Cell("graded", method, *SETTING, seed, costs.budget_of(rollouts, cost), cost)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Of one setting, so that tuning is short."""
    monkeypatch.setattr("openrlhf_ada.arena.campaign.RATES", SETTING[:1])
    monkeypatch.setattr("openrlhf_ada.arena.campaign.PROMPTS", SETTING[1:])
    found = Results(tmp_path / "campaign" / TRIALS)
    for method, pace in ((REFERENCE, 0.01), ("pos", 0.015)):
        for cost, seed in product(PAGE_COSTS, range(SEEDS)):
            found.add(cell(method, seed, BUDGET, cost), curve(pace, seed))
        for cost, rung in product(PAGE_COSTS, RUNGS):
            found.add(cell(method, rung.seed, BUDGET // rung.part, cost), curve(pace, rung.seed))
    return found


def test_packed_results_say_what_the_trials_say(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    kept = unpack(file)
    assert set(kept) == set(PAGE_COSTS)
    for cost, finals in kept.items():
        whole = results.by_cell[cell("pos", 3, BUDGET, cost)]
        assert finals.runs["pos"][3]["spent"][-1] == whole["spent"][-1], cost
        exact = costs.COSTS[cost](whole["spent"])
        assert costs.COSTS[cost](finals.runs["pos"][3]["spent"]) == pytest.approx(exact)
        assert finals.settings == {REFERENCE: SETTING, "pos": SETTING}
        for ours, all_of_it in zip(
            table(finals), table(finals_of(results, "graded", ["pos"], SEEDS, BUDGET, cost)), strict=True
        ):
            assert ours.method == all_of_it.method
            assert (ours.cost, ours.area) == pytest.approx((all_of_it.cost, all_of_it.area), rel=0.001)
    pack(results, "graded", METHODS, SEEDS, BUDGET, tmp_path / "again.gz")
    assert (tmp_path / "again.gz").read_bytes() == file.read_bytes()


def test_cost_that_was_not_run_is_said(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    text = render([unpack(file)])
    assert "### At equal seconds\n\nNot run yet." in text and "depend on" not in text


def test_results_of_another_cost_model_are_refused(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    monkeypatch.setattr(costs, "STREAM_WAIT", 0.5)
    with pytest.raises(ValueError, match=r"another cost model \(STREAM_WAIT: 0.16 there, 0.5 here\).*pack it anew"):
        unpack(file)


def test_results_of_a_changed_method_are_refused(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that has gone, or that has other settings than its trials. A new setting changes nothing."""
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    now = {name: made_with(name, "graded") for name in (REFERENCE, "pos")}
    monkeypatch.setattr("openrlhf_ada.arena.page._made_with", lambda name, task: now[name] | {"new": 1})
    unpack(file)
    now["pos"]["passes"] = 2
    with pytest.raises(ValueError, match=r"its trials of pos were made otherwise \(passes: 1 there, 2 here\)"):
        unpack(file)
    pack(results, "graded", {"seconds": ["pos"]}, SEEDS, BUDGET, tmp_path / "graded.jsonl.gz")
    assert [cost for cost, finals in unpack(file).items() if "pos" in finals.runs] == ["seconds"], "packed anew"
    now[REFERENCE]["parts"] = 8
    with pytest.raises(
        ValueError, match=r"uniform-8 were made otherwise \(parts: 4 there, 8 here\)\. Remove the file"
    ):
        pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    now[REFERENCE]["parts"] = 4
    monkeypatch.setattr("openrlhf_ada.arena.page.METHODS", {REFERENCE: METHODS_HERE[REFERENCE]})
    with pytest.raises(ValueError, match=r"its trials of pos were made otherwise \(there is no such method now\)"):
        unpack(file)


def test_page_says_what_a_method_has_spent_at_its_target(results: Results, tmp_path: Path) -> None:
    """Every cost, whatever it was tuned for; at least that much where a seed is not there."""
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    finals = unpack(file)["rollouts"]
    text = render([{"rollouts": finals}])
    (line,) = (line for line in text.splitlines() if line.startswith("| `pos` | 0.001 | 32"))
    *_, rollouts, _, seconds, drawn, trained, _, _ = line.split(" | ")
    assert rollouts == f"{finals.costs_to(finals.target, 'pos')[0].mean():,.0f}"
    for cost, said in (("seconds", seconds), ("tokens", drawn), ("trained_tokens", trained)):
        assert said == f"{replace(finals, cost=cost).costs_to(finals.target, 'pos')[0].mean():,.0f}"
    for run in finals.runs["pos"]:
        run["accuracy"] = [0.1] * len(run["accuracy"])
    missed = replace(finals)
    least = f"{missed.costs_to(missed.target, 'pos')[0].mean():,.0f}"
    assert f"| `pos` | 0.001 | 32 | ≥ {least} |" in render([{"rollouts": missed}])


def test_page_is_written_in_one_command(results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results.add(cell("est", 0, BUDGET, "rollouts"), curve(0.01, 0))
    page = tmp_path / "arena.md"
    page.write_text(f"# Arena\n\n{FIRST}\nOutdated.\n{LAST}\n\nMore.\n")
    argv = [str(page), "--results", str(tmp_path / "packed"), "--pack", str(results.folder)]
    assert main([*argv, "--seeds", str(SEEDS), "--budget", str(BUDGET)]) == 0
    assert "graded, seconds: est is not finished and left out" in capsys.readouterr().err
    text = page.read_text()
    assert "| `pos` | **0.6" in text and "Outdated" not in text and text.endswith("More.\n")
    assert (tmp_path / "images" / "arena-graded.png").stat().st_size > 10_000


def test_bad_calls_of_the_page_say_what_to_do(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "arena.md"
    page.write_text("# Arena\n")
    argv = [str(page), "--results", str(tmp_path / "packed")]
    for more, says in (
        ([], "there are no files like graded.jsonl.gz. Make them with --pack DIR"),
        (
            ["--pack", str(results.folder), "--seeds", "20", "--budget", str(BUDGET)],
            "uniform-8 is not finished on any task with --seeds 20 and --budget 8000",
        ),
        (["--pack", str(results.folder), "--seeds", str(SEEDS), "--budget", str(BUDGET)], "the page has no lines"),
    ):
        assert main([*argv, *more]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.slow
def test_committed_page_is_of_the_committed_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert inserted(text, render([committed(task) for task in TASKS])) == text, "write it anew: make arena-docs"
    assert sum((PACKED / f"{task}.jsonl.gz").stat().st_size for task in TASKS) < 2_000_000


@pytest.mark.slow
def test_first_table_is_of_the_committed_results() -> None:
    """Written with the rest, in the order of the tasks."""
    by_task = [committed(task) for task in TASKS]
    text, marks = PAGE.read_text(encoding="utf-8"), (short_page.FIRST, short_page.LAST)
    assert inserted(text, short_page.render_short(by_task), marks) == text, "write it anew: make arena-docs"


def test_first_table_has_no_figures_of_what_was_not_run() -> None:
    varied = dict(committed("varied"))
    of = varied["rollouts"]
    varied["rollouts"] = replace(of, runs={name: runs for name, runs in of.runs.items() if name != "counted"})
    rows = {row[0]: row[1:] for row in next(tables(short_page.render_short([varied])))[1:]}
    assert rows["seconds: `counted`"] == ["0.56"] and rows["rollouts: `counted`"] == ["–"]
    assert rows["right after equal rollouts: `counted`"] == ["–"]


def test_committed_page_names_the_methods() -> None:
    text, marks = PAGE.read_text(encoding="utf-8"), (method_page.FIRST, method_page.LAST)
    assert inserted(text, method_page.render_methods(), marks) == text, "write it anew: make arena-docs"


def test_packing_keeps_other_methods_and_costs(results: Results, tmp_path: Path) -> None:
    """Results of several campaigns come together in one file; trials of one setting but another budget stay apart."""
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    for seed in range(SEEDS):
        results.add(cell("pos", seed, BUDGET, "rollouts"), curve(0.012, seed))
    pack(results, "graded", {"seconds": ["pos"]}, SEEDS, BUDGET, file)
    pack(results, "graded", {"seconds": []}, SEEDS, BUDGET, file)
    kept = unpack(file)
    assert set(kept) == {"rollouts", "seconds"} and all("pos" in finals.runs for finals in kept.values())
    assert kept["rollouts"].runs["pos"][0]["accuracy"] == curve(0.015, 0)["accuracy"]
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    assert unpack(file)["rollouts"].runs["pos"][0]["accuracy"] == pytest.approx(curve(0.012, 0)["accuracy"], abs=1e-4)
    with pytest.raises(ValueError, match=r"another seeds \(6 there, 7 here\)"):
        pack(results, "graded", {"rollouts": ["pos"]}, 7, BUDGET, file)


def test_packing_keeps_the_reference(results: Results, tmp_path: Path) -> None:
    """Of a campaign on another processor: with another reference the ratios of all methods would move."""
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    before = unpack(file)["rollouts"].runs[REFERENCE]
    for seed in range(SEEDS):
        results.add(cell(REFERENCE, seed, BUDGET, "rollouts"), curve(0.02, seed))
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    assert unpack(file)["rollouts"].runs[REFERENCE] == before


@cache
def committed(task: str) -> dict[str, Finals]:
    return unpack(PACKED / f"{task}.jsonl.gz")


def in_seconds(task: str) -> Finals:
    return committed(task)["seconds"]


def host_of(n: int, estimator: str) -> Any:
    algo = SimpleNamespace(advantage=SimpleNamespace(estimator=estimator))
    return SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=n, batch_size=64), algo=algo)


MENDED = {*AS_IT_RAN, *OTHERWISE_AS_IT_RAN} - {"maxrl"}
"""Presets that have other sizes or another estimator than what ran here."""


@pytest.mark.parametrize("name", [name for name in OF_PRESET if name not in MENDED])
def test_every_method_that_stands_for_a_preset_resolves_as_it_does(name: str) -> None:
    """But for the threshold of scores that are 0 or 1. `grpo` has none of our flags."""
    preset, ours = presets.METHODS[name].flags, METHODS_HERE[OF_PRESET[name]]
    flags = {flag.removeprefix("ada."): value for flag, value in preset.items() if flag.startswith("ada.")}
    host = host_of(preset["rollout.n_samples_per_prompt"], preset["algo.advantage.estimator"])
    same = ours.settings(64)
    assert (ours.passes, host.algo.advantage.estimator) == (preset["train.max_epochs"], ours.estimator)
    if name == "grpo":
        assert flags == {"mode": "off"} and (same.group_size, same.baseline, same.correction) == (4, "pool", "none")
        return
    theirs = replace(resolve(AdaConfig(**flags), host), positive_above=same.positive_above, config=same.config)
    assert theirs == same


def test_splits_gave_prompts_up_here_and_presets_do_not() -> None:
    splits = [name for name in OF_PRESET if presets.METHODS[name].flags["ada.mode"] == "est" and name != "hora"]
    assert splits
    for name in splits:
        assert METHODS_HERE[OF_PRESET[name]].settings(8).gives_up
        assert presets.METHODS[name].flags["ada.give_up"] == 0


@pytest.mark.parametrize("name", ["rated-pos", "first-success-8"])
def test_method_of_the_arena_is_the_preset(name: str) -> None:
    """But for the sizes of a step, which are tuned here, and the threshold of scores that are 0 or 1."""
    preset, ours = presets.METHODS[name].flags, METHODS_HERE[OF_PRESET[name]]
    flags = {name.removeprefix("ada."): value for name, value in preset.items() if name.startswith("ada.")}
    assert flags == {name: value for name, value in ours.ada.items() if name != "k_pos"} | {"positive_threshold": 0.7}
    assert ours.ada["k_pos"] == ours.settings(8).k_pos == 1, "as by default"
    assert (ours.n, ours.passes) == (preset["rollout.n_samples_per_prompt"], preset["train.max_epochs"])
    assert ours.estimator == preset["algo.advantage.estimator"]


def test_counted_of_the_arena_is_the_preset() -> None:
    """But for the sizes of a step and the threshold; a wave is of all rollouts, and counts predict by default."""
    preset, ours = presets.METHODS["spo-n2"].flags, METHODS_HERE["counted"]
    flags = {name.removeprefix("ada."): value for name, value in preset.items() if name.startswith("ada.")}
    assert flags | {"wave": 2} == ours.ada | {"positive_threshold": 0.7, "baseline": ours.settings(8).baseline}
    assert (ours.n, ours.passes) == (preset["rollout.n_samples_per_prompt"], preset["train.max_epochs"])
    assert ours.estimator == preset["algo.advantage.estimator"]
    assert ours.parts == preset["rollout.batch_size"] * ours.n / preset["train.batch_size"]


def test_readme_has_the_range_beside_the_cheapest_uniform_sampling() -> None:
    shares = [
        aim.beside(finals, ours, aim.cheapest_uniform(finals)).cost
        for finals in map(in_seconds, TASKS)
        for ours in ("first-right", "raft-1-twice")
    ]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{min(shares):.2f} to {max(shares):.2f} of the estimated time" in readme
