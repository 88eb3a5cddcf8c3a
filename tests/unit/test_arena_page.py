"""Results in small files, and the page that is made from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from documents import ROOT, section, spans, tables

from openrlhf_ada.arena import aim, costs, method_page, short_page
from openrlhf_ada.arena.campaign import RUNGS, TRIALS, Cell, Results, made_with
from openrlhf_ada.arena.control_page import CONTROLS
from openrlhf_ada.arena.methods import METHODS as METHODS_HERE
from openrlhf_ada.arena.methods import OF_PRESET, PUBLISHED
from openrlhf_ada.arena.page import FIRST, LAST, PAGE_COSTS, inserted, pack, render, unpack
from openrlhf_ada.arena.tables import REFERENCE, Finals, finals_of, table
from openrlhf_ada.arena.tasks import TASKS
from openrlhf_ada.arena.trial import Spent
from openrlhf_ada.arena.weights import effective_weight_of
from openrlhf_ada.cli.arena_page import main
from openrlhf_ada.config import presets
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import resolve

BUDGET, SEEDS, SETTING = 8000, 6, (1e-3, 32)
METHODS = {cost: ["pos"] for cost in PAGE_COSTS}
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven"}
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


def test_choosing_says_at_which_rates_and_sizes_of_steps_ours_are_best() -> None:
    choosing = " ".join((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").split())
    settings = {task: in_seconds(task).settings for task in TASKS}
    single, ours, grpo = ([of[name] for of in settings.values()] for name in ("raft-1-twice", "first-right", "grpo-4"))
    assert [rate for rate, _ in single] == [rate for rate, _ in grpo]
    assert "In the arena, tuned for seconds, the best one of `raft-1-twice` is GRPO's, on all seven tasks" in choosing
    assert {round(rate / other) for (rate, _), (other, _) in zip(ours, grpo, strict=True)} == {1, 3}
    assert "and that of `first-right` the same or three times as large" in choosing
    rates = [{name: rate for name, (rate, _) in in_rollouts(task).settings.items()} for task in TASKS]
    both = {round(of[name] / of["grpo-4"]) for of in rates for name in ("raft-1-twice", "first-right")}
    assert both == {1, 3} and "Tuned for rollouts both are GRPO's or three times that." in choosing
    sizes = [16 * prompts for _, prompts in (*single, *ours)]
    assert f"{min(sizes):,} to {max(sizes):,} of your prompts with one rollout each or `first-right`" in choosing
    text = PAGE.read_text(encoding="utf-8")
    header, *rows = next(tables(section(text, "What the seconds depend on")))
    by_name = {spans(row[0])[0]: dict(zip(header, row, strict=True)) for row in rows}
    (one, eight), (one_small, eight_small) = (
        [by_name[name][cost].removeprefix("0") for name in ("raft-1-twice", "first-right")]
        for cost in ("7B on A100", "4 B prompts")
    )
    said = f"it takes {one} of `uniform-8`, and `first-right` {eight}; with those of 1.5B and steps of a quarter"
    assert f"{said} of the size {one_small} and {eight_small}." in choosing


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


def beside_grpo(finals: Finals, method: str) -> str:
    """Of a task's cost to the target."""
    if method not in finals.runs:
        return "–"
    return f"{finals.to_target[method][0].mean() / finals.to_target['grpo-4'][0].mean():.2f}"


def test_readme_says_what_the_results_say() -> None:
    """Seconds to the target beside GRPO with n = 4, on every task that was run."""
    header, *rows = next(tables(section((ROOT / "README.md").read_text(encoding="utf-8"), "Methods")))
    names = [spans(cell)[0] for cell in header[1:]]
    assert names[0] == "first-right" and "balance" in names
    run = {task: in_seconds(task) for task in TASKS}
    said = {spans(row[0])[0]: row[1:] for row in rows}
    assert said == {task: [beside_grpo(finals, name) for name in names] for task, finals in run.items()}
    both = [beside_grpo(finals, name) for finals in run.values() for name in ("first-right", "raft-1-twice")]
    first_screen = " ".join((ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0].split())
    assert f"They reach the target in {min(both)} to {max(both)} of the seconds of GRPO with n = 4," in first_screen
    assert [METHODS_HERE[name].parts * METHODS_HERE[name].passes for name in names] == [8, 8, 8, 8, 4, 4]


def test_pages_say_what_smaller_steps_cost() -> None:
    """Presets make smaller steps than those that are best in seconds."""
    smaller = [replace(in_seconds(task), cost=short_page.SMALLER) for task in TASKS]
    cost = {name: [beside_grpo(finals, name) for finals in smaller] for name in short_page.SHOWN_SMALLER}
    ours, one, counted = (
        f"{min(cost[name])} to {max(cost[name])}" for name in ("first-right", "raft-1-twice", "counted")
    )
    readme, choosing = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "docs/choosing.md")
    )
    said = f"`first-right` takes {ours}, `raft-1-twice` {one}, and `counted` {counted}."
    assert f"With a quarter of the prompts {said}" in readme
    said = f"`first-right` takes {ours} of GRPO's seconds, `raft-1-twice` {one}, and `counted` {counted}."
    assert said.replace("0.", ".") in choosing
    both = [aim.beside(in_seconds(task), "first-right", "raft-1-twice").cost for task in TASKS]
    assert f"`first-right` takes {min(both):.2f} to {max(both):.2f} of the seconds of `raft-1-twice`" in readme
    sizes = [costs.STEP_MODELS["seconds"].scale * in_seconds(task).settings["raft-1-twice"][1] for task in TASKS]
    assert min(sizes) >= 4096 and "4,096 prompts and more." in readme


@cache
def committed(task: str) -> dict[str, Finals]:
    return unpack(PACKED / f"{task}.jsonl.gz")


def in_seconds(task: str) -> Finals:
    return committed(task)["seconds"]


def in_rollouts(task: str) -> Finals:
    return committed(task)["rollouts"]


def to_reference(finals: Finals, method: str) -> str:
    return f"{finals.to_target[method][0].mean() / finals.to_target[REFERENCE][0].mean():.2f}"


def test_page_says_what_each_part_of_counted_gives() -> None:
    """Beside uniform-8."""
    _, *rows = next(tables(section(PAGE.read_text(encoding="utf-8"), "Why `counted` is cheap")))
    said = {spans(row[0])[0]: row[1:] for row in rows}
    assert len(said) == 7
    assert said == {name: [to_reference(in_seconds(task), name) for task in ("graded", "hard")] for name in said}


@pytest.mark.parametrize("page", ["docs/arena.md", "docs/decisions.md"])
def test_pages_say_what_published_methods_cost(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    more = ("maxrl", "uniform-2", "uniform-2-twice", "uniform-16") if page == "docs/arena.md" else ("balance", "pos")
    defaults = ("pos-4", "pos-16", "balance-16", "pos-linear", "balance-linear", "est-counts")
    for name in ("balance-1-1", "est", "gvm", *defaults, *more):
        assert " and ".join(to_reference(in_seconds(task), name) for task in ("graded", "hard")) in text


def test_page_says_what_reinforce_ada_costs_on_all_tasks() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    pos, balance, est = (
        {task: to_reference(in_seconds(task), name) for task in TASKS} for name in ("pos", "balance", "est")
    )
    _, *rows = next(tables(section(PAGE.read_text(encoding="utf-8"), "At equal seconds")))
    by_name = {spans(row[0])[0]: row for row in rows}
    for name, costs_of in (("pos", pos), ("balance", balance), ("est", est)):
        shown = [cell.replace("*", "").split(" ")[0] for cell in by_name[name][1 : 1 + len(TASKS)]]
        assert shown == list(costs_of.values())
    del balance["curriculum"]
    least = aim.beside(in_seconds("curriculum"), "balance", REFERENCE).text
    assert f"on six tasks, and {least} on `curriculum`; `pos` costs {spread(pos.values())}." in page
    assert f"`balance` costs {spread(balance.values())} on six tasks," in page
    dearest = est.pop("unsolvable")
    assert f"it costs {spread(est.values())} (`est`) on six tasks, and {dearest} on `unsolvable`" in page
    in_rollouts_too = [
        " and ".join(to_reference(in_rollouts(task), name) for task in ("graded", "hard"))
        for name in ("balance", "pos")
    ]
    assert "In rollouts they cost {}, and {}.".format(*in_rollouts_too) in page


def test_choosing_says_what_smaller_waves_gain() -> None:
    text = " ".join((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").split())
    four, eight = (
        " and ".join(to_reference(in_seconds(task), name).removeprefix("0") for task in ("graded", "hard"))
        for name in ("pos-4", "pos")
    )
    assert f"(`--ada_wave 4`) it takes {four} of the seconds of `uniform-8` in the arena" in text
    assert f"in waves of 8 {eight} |" in text


def test_pages_say_what_gvms_split_gains() -> None:
    """Beside RAFT with as many rollouts."""
    page, decisions = (
        " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split()) for name in ("arena.md", "decisions.md")
    )

    def both(name: str, other: str) -> str:
        return " and ".join(aim.beside(in_seconds(task), name, other).text for task in ("graded", "hard"))

    def ends(name: str) -> str:
        return " and ".join(f"{end_of(task, name):.1f}" for task in ("graded", "hard"))

    assert f"with 8 on average {both('gvm-twice', 'raft-8-twice')} of `raft-8-twice`" in page
    assert f"with 4 (`gvm-4-twice`) {both('gvm-4-twice', 'raft-twice')} of `raft-twice`" in page
    assert f"at the end: {ends('gvm-4-twice')} % are right, with `raft-twice` {ends('raft-twice')}." in page
    ours = both("first-right", "gvm-4-twice")
    assert f"`first-right` takes {ours} of `gvm-4-twice`" in page and f"`first-right` takes {ours} of it" in decisions


def test_page_says_where_costs_of_published_methods_are_lower_bounds() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    tasks = ("graded", "hard", "unsolvable", "format")
    missed = {task: {name: in_seconds(task).to_target[name][1] for name in PUBLISHED} for task in tasks}
    often = {task: {name: seeds for name, seeds in of.items() if seeds > 3} for task, of in missed.items()}
    assert often == {
        "graded": {"d3s": 8},
        "hard": {"aero": 10, "pilot-commit": 6, "speed": 5, "pods": 4},
        "unsolvable": {"d3s": 7, "sgpo": 4},
        "format": {},
    }
    assert "on `hard` for `aero` in all ten, `pilot-commit` in six, `speed` in five and `pods` in four," in page
    assert "on `graded` for `d3s` in eight, on `unsolvable` for `d3s` in seven and `sgpo` in four." in page
    sgpo, dars = (
        [to_reference(in_seconds(task), name) for task in ("unsolvable", "format")] for name in ("sgpo", "dars")
    )
    said = f"`sgpo` costs {sgpo[0]} and `dars` {dars[0]}, on `format` {sgpo[1]} and {dars[1]}."
    assert f"lose where some cannot be solved: on `unsolvable` {said}" in page


def test_page_tells_sampling_from_weight_and_says_what_choosing_prompts_gains() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())

    def costs(name: str, of: Callable[[str], Finals] = in_seconds) -> str:
        return " and ".join(to_reference(of(task), name) for task in ("graded", "hard"))

    decisions = " ".join((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").split())
    equal = costs("uniform-8-counts")
    assert f"weighed alike, cost {equal} (`uniform-8-counts`)" in page
    assert f"and with equal weights and the same baseline {equal}." in decisions
    pos, balance = (costs(f"uniform-8-as-{name}") for name in ("pos", "balance"))
    assert f"of `pos` costs {pos}, of `balance` {balance}, and" in decisions

    def of_equal(name: str) -> str:
        return " and ".join(
            f"{aim.beside(in_seconds(task), name, 'uniform-8-counts').cost:.2f}" for task in ("graded", "hard")
        )

    same = [of_equal(f"uniform-8-as-{name}") for name in ("pos", "balance", "est")]
    assert "they take {} of that (as `pos`), {} (as `balance`) and {} (log p".format(*same) in page
    sampled = [of_equal(name) for name in ("pos", "balance", "est")]
    assert "`pos` takes {} of it, `balance` {}, and `est` {}.".format(*sampled) in page
    plain, inverse, per_token = (costs(f"choose-4-{how}") for how in ("share", "share-corrected", "per-token"))
    assert f"cost {plain} (`choose-4-share`), or {inverse} weighed by the inverse" in page
    assert f"or {per_token} by spread per token. 4 rollouts of prompts that come as they come cost" in page
    assert f"as they come cost {costs('uniform-4')}." in page
    share, corrected, without = (
        costs(name, in_rollouts) for name in ("choose-4-share", "choose-4-share-corrected", "uniform-4")
    )
    assert f"{share} (`choose-4-share`), or {corrected} weighed by the inverse, and {without} without" in page
    assert "In rollouts choosing gains nothing either: " in page
    decisions, choosing = (
        " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
        for name in ("decisions.md", "choosing.md")
    )
    assert f"In rollouts it costs {share}, and {without} without." in decisions
    assert f"take {costs('uniform-4')}. Nor did it in rollouts." in choosing
    assert f"{plain} of `uniform-8` on `graded` and `hard`, {inverse} with inverse weights, and" in decisions
    assert f"{plain} of `uniform-8`, where 4 rollouts of all prompts take {costs('uniform-4')}." in choosing
    assert f"16 cost {costs('uniform-16')}, and 32 {costs('uniform-32')}." in page
    on_all = (spread(to_reference(in_seconds(task), f"uniform-{n}") for task in TASKS) for n in (4, 16, 32))
    assert "On all seven tasks 4 cost {}, 16 {} and 32 {}.".format(*on_all) in page
    missed = {task: in_seconds(task).to_target["uniform-32"][1] for task in TASKS}
    assert (missed["many"], missed["curriculum"]) == (10, 9)
    assert "of `uniform-32` all ten on `many`, and nine on `curriculum`." in page
    assert f"(`counted-chosen`) costs {costs('counted-chosen')}, on all {costs('counted')}." in page
    skip, skip_4 = costs("uniform-8-twice-skip"), costs("uniform-4-twice-skip")
    assert f"costs {costs('est-counts')} (`est-counts`), and as published {costs('est')}." in page
    assert f"Two passes without computing zeros gain more: {skip} with 8" in page
    assert f"with 8 rollouts, {skip_4} with 4." in page


def test_page_says_what_eight_updates_gain_for_uniform_sampling() -> None:
    text = PAGE.read_text(encoding="utf-8")
    page, decisions = (
        " ".join(part.split()) for part in (text, (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"))
    )
    eight = "uniform-4-twice-in-eight"
    seconds, rollouts = (
        {task: aim.beside(of(task), eight, four) for task in TASKS}
        for of, four in ((in_seconds, "uniform-4-twice-skip"), (in_rollouts, "uniform-4-twice"))
    )
    for cost, found in (("seconds", seconds), ("rollouts", rollouts)):
        assert f"| {cost} | {' | '.join(f'{beside.cost:.2f}' for beside in found.values())} |" in page
        said = spread(f"{beside.cost:.2f}" for beside in found.values())
        assert f"takes {said} of the {cost} that" in decisions or f"and {said} of the {cost}; GRPO" in decisions
    assert all(7 / 8 < beside.cost < 9 / 8 for beside in seconds.values()), "no more than tuning may do"
    assert f"In rollouts they gain on {NUMBERS[sum(beside.high < 1 for beside in rollouts.values())]} tasks." in page
    cheapest = [[t for t in TASKS if aim.cheapest_uniform(of(t)) == eight] for of in (in_seconds, in_rollouts)]
    assert f"in seconds on {names_of(cheapest[0])}, in rollouts on all tasks but `graded`." in page
    assert cheapest[1] == [task for task in TASKS if task != "graded"]

    def costs(name: str, of: Callable[[str], Finals]) -> str:
        return " and ".join(to_reference(of(task), name) for task in ("graded", "hard"))

    first, four = costs(eight, in_seconds), costs("uniform-4-twice-skip", in_seconds)
    assert f"it costs {first} of `uniform-8`, and {four} in four." in page
    first, four = costs(eight, in_rollouts), costs("uniform-4-twice", in_rollouts)
    assert f"In rollouts it costs {first}, and {four} in four." in page
    of_eight = spread(to_reference(in_seconds(task), eight) for task in TASKS)
    assert f"In eight updates instead of four it takes {of_eight} ([more](#parts-and-controls))." in page
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    of_grpo = spread(beside_grpo(in_seconds(task), eight) for task in TASKS)
    assert f"with eight, uniform sampling takes {of_grpo} (`{eight}`)." in " ".join(readme.split())


def in_both(name: str, other: str) -> str:
    """On the two tasks where weights were measured."""
    return " and ".join(f"{aim.beside(in_seconds(task), name, other).cost:.2f}" for task in ("graded", "hard"))


def test_page_tells_sampling_from_weight_at_true_pass_rates() -> None:
    """One over the other, and the weight alone, are in a table that is written from the results."""
    text = section(PAGE.read_text(encoding="utf-8"), "Weight or sampling?")
    page = " ".join(text.split())
    decisions = " ".join((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").split())
    placebo = in_both("maxrl", "weighed-as-maxrl")
    assert f"it takes {placebo} of it." in page
    weight = {name: in_both(f"weighed-as-{name}", REFERENCE) for name in ("balance", "pos", "maxrl")}
    sampling = {name: in_both(name, f"weighed-as-{name}") for name in ("balance", "pos", "dapo", "pods")}
    assert (
        f"`uniform-8` with the weight of `balance` costs {weight['balance']}, with that of `maxrl` {weight['maxrl']}"
        in page
    )
    assert f"`dapo` takes {sampling['dapo']} of its weight alone, `pods` {sampling['pods']}" in page
    assert f"`balance` {sampling['balance']} and `pos` {sampling['pos']}." in page
    fall = ("maxrl", "est", "sgpo", "hora", "dars", "pf-ppo")
    both = [(name, in_seconds(task), f"weighed-as-{name}") for name in fall for task in ("graded", "hard")]
    for name, finals, _ in both:
        weights = [effective_weight_of(name, finals.task).weight(p) for p in (0.1, 0.2, 0.3, 0.5, 0.7, 0.8)]
        assert weights == sorted(weights, reverse=True)
    alone = spread(to_reference(finals, control) for _, finals, control in both if control in finals.runs)
    assert f"({', '.join(f'`{name}`' for name in fall)}) cost {alone} alone." in page
    splits = ("est", "knapsack", "sgpo", "hora", "dars")
    each = spread(
        f"{aim.beside(in_seconds(task), name, f'weighed-as-{name}').cost:.2f}"
        for name in splits
        for task in ("graded", "hard")
    )
    assert f"take {each} of their weight alone." in page
    beside = {
        (name, task): aim.beside(in_seconds(task), name, control)
        for task in ("graded", "hard")
        for name, control in CONTROLS.items()
    }
    less = [of for of, found in beside.items() if found.high < 1.0]
    more = [of for of, found in beside.items() if found.low > 1.0]
    assert f"Of {len(beside)} comparisons ({len(CONTROLS)} methods, two tasks) the method costs less in" in page
    told = [f"`{name}` on `{task}` {beside[name, task].text}" for name, task in less]
    assert f"the method costs less in {NUMBERS[len(less)]}: {listed(told)}." in page
    apart = len(beside) - len(less) - len(more)
    assert f"It costs more in {len(more)}, and in {apart} the two are not told apart." in page
    of_all, alone = (to_reference(in_seconds("hard"), name) for name in ("vade", "weighed-as-vade"))
    said = (
        f"`vade` costs {of_all} of `uniform-8` on `hard`: its choice only makes up for its weight, which costs {alone}"
    )
    assert said in page
    rates = f"at true pass rates costs {weight['balance']}, with that of `pos` {weight['pos']}."
    assert rates in decisions
    assert f"Beside that `balance` takes {sampling['balance']}, and `pos` {sampling['pos']}:" in decisions


def test_page_lists_published_methods_from_the_cheapest_to_the_dearest() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    tasks = [in_seconds(task) for task in ("graded", "hard")]
    names = [
        name
        for name in PUBLISHED
        if name not in ("maxrl", "gvm", "raft") and all(name in finals.runs for finals in tasks)
    ]
    shares = {name: [float(to_reference(finals, name)) for finals in tasks] for name in names}
    exact = {name: np.prod([finals.to_target[name][0].mean() for finals in tasks]) for name in names}
    listed = ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: exact[name]))
    assert f"From the cheapest to the dearest on the first two: {listed}." in page
    (low, high), (low_hard, high_hard) = ((min(of), max(of)) for of in zip(*shares.values(), strict=True))
    unsolvable, tagged = in_seconds("unsolvable"), in_seconds("format")
    low_high, low_high_tagged = (
        spread(to_reference(finals, name) for name in names if name in finals.runs) for finals in (unsolvable, tagged)
    )
    said = f"{low_hard:.2f} to {high_hard:.2f} on `hard`, {low_high} on `unsolvable` and {low_high_tagged} on `format`"
    assert f"cost {low:.2f} to {high:.2f} of `uniform-8` on `graded`, {said}." in page
    maxrl, gvm = (" and ".join(to_reference(of, name) for of in (unsolvable, tagged)) for name in ("maxrl", "gvm"))
    assert f"and {maxrl} on `unsolvable` and `format`." in page and f"(`gvm`), and {gvm} on `unsolvable` and" in page


def test_page_says_what_published_methods_cost_on_curriculum() -> None:
    page, finals = " ".join(PAGE.read_text(encoding="utf-8").split()), in_seconds("curriculum")
    run = sorted(finals.runs.keys() & set(PUBLISHED), key=lambda name: finals.to_target[name][0].mean())
    run = [name for name in run if name not in ("raft", "gvm")]
    first, *others = run
    said = listed(f"`{name}` {to_reference(finals, name)}" for name in others)
    assert f"`{first}` costs {to_reference(finals, first)}, {said}." in page
    raft, gvm = (to_reference(finals, name) for name in ("raft", "gvm"))
    assert f"Right answers alone cost less: `raft` {raft} and `gvm` {gvm}." in page
    sure = [name for name in run if aim.beside(finals, name, REFERENCE).high < 1.0]
    assert {*run, "raft", "gvm"} == set(PUBLISHED)
    assert f"{len(sure)} of {len(run)} cost less than `uniform-8` with the whole interval" in page
    cheapest = to_reference(finals, "uniform-4-twice-skip")
    assert f"without computing zeros: it costs {cheapest} (`uniform-4-twice-skip`)." in page


def ranks_of(finals: Finals, names: Sequence[str]) -> list[int]:
    """Places of the methods by cost, from 0."""
    order = sorted(names, key=lambda name: finals.to_target[name][0].mean())
    return [order.index(name) for name in names]


def test_page_says_what_published_methods_take_of_the_references_rollouts() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    tasks = [in_rollouts(task) for task in ("graded", "hard")]

    def costs(name: str) -> str:
        return " and ".join(to_reference(finals, name) for finals in tasks)

    said = f"`raft` takes {costs('raft')} of `uniform-8`, and `gvm` {costs('gvm')}. `pf-ppo` takes {costs('pf-ppo')};"
    assert f"{said} it draws 4 of a prompt, as `uniform-4`, which takes {costs('uniform-4')}." in page
    assert f"`est` takes {costs('est')}, and `maxrl`, which only weighs prompts otherwise, {costs('maxrl')}." in page
    others = [name for name in PUBLISHED if name not in ("raft", "gvm", "pf-ppo", "maxrl")]
    ranges = " and ".join(spread(to_reference(finals, name) for name in others) for finals in tasks)
    exact = {name: np.prod([finals.to_target[name][0].mean() for finals in tasks]) for name in others}
    listing = ", ".join(f"`{name}`" for name in sorted(others, key=lambda name: exact[name]))
    assert f"The other {len(others)} take {ranges} (`pos` and `balance`: [above](#what-does-not-pay))." in page
    assert f"From the cheapest to the dearest: {listing}." in page
    spent = {name: np.prod([in_seconds(f.task).to_target[name][0].mean() for f in tasks]) for name in others}
    before, now = (sorted(others, key=lambda name: of[name]) for of in (spent, exact))
    moved = {name: before.index(name) - now.index(name) for name in others}
    far = sorted((name for name in others if abs(moved[name]) > 3), key=lambda name: -moved[name])
    assert far == ["greso", "vade", "hora"] and "`greso` moves up, `hora` and `vade` down." in page
    against = {(f.task, name): aim.beside(f, name, REFERENCE) for f in tasks for name in others}
    ((task, name), sure), *more = [(key, found) for key, found in against.items() if found.high < 1.0]
    assert not more
    few = "`knapsack` takes {}, `vip` {}, `dapo` {}, and `pods` {}."
    assert f"For example {few.format(*map(costs, ('knapsack', 'vip', 'dapo', 'pods')))} Of the 17 only" in page
    assert f"only `{name}` on `{task}` takes less than `uniform-8` with the whole interval, {sure.text}:" in page
    assert f"one of {len(against)} comparisons, which shows little." in page
    dapo = [aim.beside(finals, "dapo-8", REFERENCE) for finals in tasks]
    assert all(beside.low < 1 < beside.high for beside in dapo)
    assert "`dapo-8` is ahead of it here, and not told apart from it in the arena's rollouts." in page
    behind = [f.task for f in [*map(in_seconds, TASKS), *tasks] if aim.beside(f, "est", REFERENCE).cost > 1]
    assert behind == ["unsolvable"] and "and ahead in the arena, but for `unsolvable`." in page
    often = [{name for name in others if finals.to_target[name][1] > 3} for finals in tasks]
    bounds = {"d3s", "pods", "pilot-commit", "speed"}
    assert often == [bounds, bounds | {"aero"}]
    assert min(of.to_target[name][1] for of, missed in zip(tasks, often, strict=True) for name in missed) == 7
    for finals, as_in in zip(tasks, map(in_seconds, ("graded", "hard")), strict=True):
        both = np.corrcoef(ranks_of(finals, list(PUBLISHED)), ranks_of(as_in, list(PUBLISHED)))
        assert both[0, 1] > 0.8, "a similar order"


def visits(finals: Finals, at_end: bool = False) -> float:
    """Mean visits of a prompt by `counted` to the target, or in the whole budget."""
    runs = finals.runs["counted"]
    found = [-1 if at_end else int(np.argmax(np.array(run["accuracy"]) >= finals.target)) for run in runs]
    spent = [run["spent"][at]["rollouts"] for run, at in zip(runs, found, strict=True)]
    return float(np.mean(spent)) / METHODS_HERE["counted"].n / TASKS[finals.task].num_train


def test_page_says_after_how_many_visits_counted_is_there() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    few = [visits(in_seconds(task)) for task in TASKS if task not in ("curriculum", "many", "varied")]
    many = in_seconds("many")
    by_mean = "counted-by-mean"
    assert f"after {min(few):.0f} to {max(few):.0f} visits of a prompt on average" in page
    assert (
        f"on `curriculum` after {visits(in_seconds('curriculum')):.0f}, and on `many` after {visits(many):.1f}."
        in page
    )
    assert to_reference(many, "counted") == to_reference(many, by_mean) and "0.31 with both" in page
    ends = {name: 100 * np.mean([run["accuracy"][-1] for run in runs]) for name, runs in many.runs.items()}
    at_end = visits(many, at_end=True)
    assert f"{ends['counted']:.1f} % are right with them, after {at_end:.1f} visits, and {ends[by_mean]:.1f}" in page


def test_page_says_after_how_few_steps_first_right_is_there() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())

    def steps(finals: Finals) -> int:
        runs = finals.runs["first-right"]
        found = [int(np.argmax(np.array(run["accuracy"]) >= finals.target)) for run in runs]
        return round(np.mean([run["spent"][at]["steps"] for run, at in zip(runs, found, strict=True)]))

    few = [steps(in_seconds(task)) for task in TASKS if task != "curriculum"]
    prompts = [in_seconds(task).settings["first-right"][1] for task in TASKS]
    said = f"after {min(few)} to {max(few)} steps on average (`curriculum`: {steps(in_seconds('curriculum'))}) of"
    assert f"{said} {min(prompts)} to {max(prompts):,} prompts, which stand for {16 * min(prompts):,} to" in page
    assert f"stand for {16 * min(prompts):,} to {16 * max(prompts):,}." in page


def spread(figures: Iterable[str]) -> str:
    """The least and the most."""
    found = list(figures)
    return f"{min(found)} to {max(found)}"


def test_page_says_between_what_each_lies() -> None:
    """The first table has what each method takes on each task."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = {task: in_seconds(task) for task in TASKS}

    def of_grpo(name: str) -> str:
        return spread(beside_grpo(finals, name) for finals in found.values())

    def of_uniform(name: str) -> str:
        return spread(f"{aim.beside(f, name, aim.cheapest_uniform(f)).cost:.2f}" for f in found.values())

    assert f"first right answer**: {of_grpo('first-right')} of GRPO, and {of_uniform('first-right')} of the" in page
    assert f"in two passes of four updates: {of_grpo('raft-1-twice')} of GRPO." in page
    assert f"With 4 of each (`raft-twice`) it is {of_grpo('raft-twice')}." in page
    assert f"`counted` takes {of_grpo('counted')} of GRPO, and {of_uniform('counted')} of the cheapest" in page


@pytest.mark.parametrize("page", ["docs/choosing.md", "docs/decisions.md"])
def test_pages_say_what_counted_takes_of_grpo(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    figures = [beside_grpo(in_seconds(task), "counted") for task in TASKS]
    listed = f"{', '.join(figures[:-1])} and {figures[-1]}"
    assert listed in text or listed.replace("0.", ".") in text


@pytest.mark.parametrize("name", ["first-right", "counted"])
def test_pages_say_what_ours_take_of_grpos_rollouts(name: str) -> None:
    page, decisions, readme, choosing = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split()).replace(" .", " 0.")
        for name in ("docs/arena.md", "docs/decisions.md", "README.md", "docs/choosing.md")
    )
    run = [found for found in map(in_rollouts, TASKS) if name in found.runs]
    assert [found.task for found in run] == list(TASKS)
    figures = [beside_grpo(found, name) for found in run]
    assert f"`{name}` takes {spread(figures)} of GRPO" in page[page.index("### In rollouts") :]
    assert f"`{name}` takes {listed(figures)}" in decisions
    assert f"`{name}` takes {min(figures)} to {max(figures)} of GRPO" in readme[readme.index("In rollouts,") :]
    assert f"it takes {listed(figures)} of GRPO" in choosing or f"`{name}` takes {listed(figures)} |" in choosing
    of_uniform = [aim.beside(found, name, aim.cheapest_uniform(found)).cost for found in run]
    assert f"{min(of_uniform):.2f} to {max(of_uniform):.2f} of the cheapest uniform" in page


def test_page_says_what_first_right_takes_of_others_in_rollouts() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = {task: in_rollouts(task) for task in TASKS}
    of_raft = [aim.beside(finals, "first-right", "raft-twice") for finals in found.values()]
    assert f"and {spread(beside.text.split(' ')[0] for beside in of_raft)} of `raft-twice`." in page
    both = {task: finals for task, finals in found.items() if "counted" in finals.runs}
    dearer = [task for task, finals in both.items() if aim.beside(finals, "first-right", "counted").cost > 1]
    assert dearer == ["curriculum", "many"] and "It takes fewer than `first-right` on `curriculum` and `many`." in page
    tight = found["curriculum"]
    to_grpo, to_uniform = (aim.beside(tight, "first-right", name) for name in (aim.GRPO, aim.cheapest_uniform(tight)))
    missed = f"{to_grpo.text} of GRPO and {to_uniform.text} of the cheapest uniform sampling (`{to_uniform.other}`)"
    assert f"On `curriculum` it takes {missed}, which is not told apart from two thirds." in page
    assert to_uniform.low < aim.AT_MOST["uniform"] < to_uniform.cost


def listed(words: Iterable[str]) -> str:
    """As a sentence has them."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def names_of(tasks: Iterable[str]) -> str:
    return listed(f"`{task}`" for task in tasks)


def end_of(task: str, name: str) -> float:
    """Percent right at the end."""
    return 100 * float(np.mean([run["accuracy"][-1] for run in in_seconds(task).runs[name]]))


@pytest.mark.parametrize("page", ["docs/choosing.md", "docs/decisions.md"])
def test_pages_say_what_first_right_takes_of_grpo(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split()).replace(" .", " 0.")
    assert listed(beside_grpo(in_seconds(task), "first-right") for task in TASKS) in text


def rows_beside() -> list[list[str]]:
    """Of `first-right` beside `raft-1-twice`: in seconds and in rollouts, to the target and to 80 % of its gain."""
    _, *rows = list(tables(section(PAGE.read_text(encoding="utf-8"), "What to use")))[1]
    return [row[1:] for row in rows]


def test_pages_say_what_first_right_takes_of_raft() -> None:
    """Of one rollout of every prompt, to the target and to 80 % of what that gains in the whole budget."""
    page, decisions, choosing = (
        " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())
        for name in ("arena.md", "decisions.md", "choosing.md")
    )
    found = [in_seconds(task) for task in TASKS]
    to_target, further = (
        [f"{aim.beside(finals, 'first-right', 'raft-1-twice', target_of=of).cost:.2f}" for finals in found]
        for of in (REFERENCE, "raft-1-twice")
    )
    assert f"To the target `first-right` takes {listed(to_target)} of" in decisions or (
        f"To the target it takes {listed(to_target)} of `raft-1-twice`" in decisions
    )
    assert listed(further) in decisions
    assert rows_beside()[:2] == [to_target, further]
    assert min(to_target) < "1.00" < max(to_target)
    assert "To the target it takes less than `raft-1-twice` on some tasks and more on others." in page
    least, most = (f(to_target).removeprefix("0") for f in (min, max))
    assert f"all tasks: `first-right` takes {least} to {most} of the seconds of `raft-1-twice`." in choosing
    for name in ("raft-1-twice", "raft-twice"):
        assert listed(beside_grpo(finals, name) for finals in found) in decisions


def test_pages_say_what_first_right_takes_of_rafts_rollouts() -> None:
    """On the tasks on which one rollout of every prompt was run."""
    page, choosing, decisions, readme = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("docs/arena.md", "docs/choosing.md", "docs/decisions.md", "README.md")
    )
    run = [in_rollouts(task) for task in TASKS]
    of_grpo = [beside_grpo(finals, "raft-1-twice") for finals in run]
    to_target, further = (
        [aim.beside(finals, "first-right", "raft-1-twice", target_of=of) for finals in run]
        for of in (REFERENCE, "raft-1-twice")
    )
    assert rows_beside()[2:] == [[f"{beside.cost:.2f}" for beside in of] for of in (to_target, further)]
    assert [beside.low > 1 for beside in to_target] == [finals.task != "varied" for finals in run]
    assert f"tuned for rollouts it takes {spread(of_grpo)} of GRPO's. `first-right` takes" in page
    assert (
        "It takes more than `raft-1-twice` on six of the seven tasks (on `varied` the two are not told apart)." in page
    )
    ours, one = (
        listed(f"{100 * np.mean([run['accuracy'][-1] for run in finals.runs[name]]):.1f}" for finals in run)
        for name in ("first-right", "raft-1-twice")
    )
    assert f"At the end {ours} % are right with `first-right`, {one} with `raft-1-twice`." in page
    fewest = choosing[choosing.index("| fewest rollouts | `--ada_method raft-1-twice") :]
    assert (
        f"it takes {listed(of_grpo).replace('0.', '.')} of GRPO's rollouts in the arena, on its seven tasks." in fewest
    )
    assert f"than `raft-1-twice`, but on `varied`, and {ours} % are right at the end, not {one}." in fewest
    assert f"In rollouts, `raft-1-twice` takes {min(of_grpo)} to {max(of_grpo)} of GRPO, " in readme
    said = f"In rollouts `raft-1-twice` takes {listed(of_grpo)}: fewer than `first-right` on all but `varied`."
    assert said in decisions
    of_both = [of(task) for of in (in_seconds, in_rollouts) for task in TASKS]
    assert all(aim.reached(finals, "raft-1-twice") for finals in of_both)
    (unsure,) = (finals for finals in of_both if not aim.reached(finals, "raft-1-twice", surely=True))
    assert (unsure.task, unsure.cost) == ("curriculum", "seconds")
    of_uniform = aim.beside(unsure, "raft-1-twice", aim.cheapest_uniform(unsure)).text
    assert f"but for the seconds of `{unsure.task}`: {of_uniform} of the cheapest uniform sampling." in page
    other = aim.cheapest_uniform(unsure)
    one, ours = (aim.beside(unsure, name, other, other).text for name in ("raft-1-twice", "first-right"))
    assert f"to 80 % of what that sampling gains itself it takes {one}, where `first-right` takes {ours}." in page
    assert (
        "(`raft-1-twice`) reaches both on all seven tasks, in seconds and in rollouts**, with the whole 95 % intervals"
        in page
    )


def test_pages_say_how_many_first_right_asks_at_most() -> None:
    page, decisions = (
        " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split()) for name in ("arena.md", "decisions.md")
    )
    both = [in_seconds(task) for task in ("graded", "hard")]
    four, sixteen, once = (
        [aim.beside(finals, name, "first-right") for finals in both]
        for name in ("first-right-4", "first-right-16", "first-right-once")
    )
    own, hard = four
    said = f"on `graded` ({own.low:.2f} to {own.high:.2f}) and {hard.cost:.2f} on `hard` ({hard.low:.2f} to"
    assert f"{own.cost:.2f} of `first-right` {said} {hard.high:.2f})" in page
    assert f"{own.cost:.2f} of that {said}" in decisions
    ends = {
        name: " and ".join(f"{end_of(task, name):.1f}" for task in ("graded", "hard"))
        for name in ("first-right", "first-right-4", "first-right-16")
    }
    for text in (page, decisions):
        assert f"{ends['first-right-4']} % right at the end instead of {ends['first-right']}" in text
    assert f"cost {sixteen[0].text} and {sixteen[1].text}, with {ends['first-right-16']} %." in page
    assert f"costs {once[0].cost:.2f} and {once[1].cost:.2f}." in page


def test_page_says_where_the_largest_learning_rate_is_best() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for task, name in product(TASKS, ("first-right", "raft-twice", "gvm-twice")):
        settings = in_seconds(task).settings
        assert name not in settings or settings[name][0] == (0.001 if task == "curriculum" else 0.003)
    assert "that is tried, 0.003, on all their tasks but `curriculum` (0.001)" in page


def test_first_right_has_most_right_at_the_end_but_on_one_task() -> None:
    """But for its own form with 16."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for task in TASKS:
        better = {name for name in in_seconds(task).runs if end_of(task, name) > end_of(task, "first-right")}
        others = {"unsolvable": {"raft-1-twice", "raft-2-twice", "raft-twice"}, "graded": {"gvm-4-twice"}}
        assert better - {"first-right-16"} == others.get(task, set())
    choosing = (ROOT / "docs" / "choosing.md").read_text()
    assert "on five of seven tasks more than every method that does not stop at a right answer." in choosing
    said = f"({end_of('graded', 'gvm-4-twice'):.1f} %, not {end_of('graded', 'first-right'):.1f})"
    assert f"end ahead of it: RAFT on `unsolvable`, and `gvm-4-twice` on `graded` {said}." in page
    compared = ("first-right", "raft-1-twice", "raft-twice", "grpo-4")
    ours, one, four, grpo = (f"{end_of('curriculum', name):.1f}" for name in compared)
    assert f"on `curriculum` {ours} %, with `raft-1-twice` {one}, with `raft-twice` {four}, with GRPO {grpo};" in page
    hard = [f"{end_of('hard', name):.1f}" for name in compared]
    assert f"on `hard` {listed(hard)}." in page
    for task in ("unsolvable", "many"):
        ours, one = (f"{end_of(task, name):.1f}" for name in compared[:2])
        assert f"has {one} % right at the end, not {ours}" in page
    assert aim.beside(in_seconds("many"), "first-right", "raft-1-twice").cost > 1
    readme, decisions = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "docs/decisions.md")
    )
    other = [f"{end_of('curriculum', name):.1f}" for name in compared]
    said = f"has {hard[0]} % right on `hard` and {other[0]} on `curriculum`, `raft-1-twice` {hard[1]} and {other[1]}."
    assert said in readme
    assert (
        f"{hard[0]} % are right on `hard` and {other[0]} on `curriculum`, not {hard[1]} and {other[1]}." in decisions
    )


def test_page_says_what_two_rollouts_of_raft_gain() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    one, two = ({task: end_of(task, name) for task in TASKS} for name in ("raft-1-twice", "raft-2-twice"))
    assert [task for task in TASKS if two[task] > one[task] + 1] == ["hard", "curriculum", "many", "varied"]
    said = f"on `hard` ({two['hard']:.1f} %, not {one['hard']:.1f}), `curriculum`, `many` and `varied`."
    assert f"`raft-2-twice` takes about as long, and has more right at the end {said}" in page


def test_page_tells_stopping_from_weight() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = [in_seconds(task) for task in ("graded", "hard")]
    same = "raft-8-as-first-right"

    stopping, weight = (
        [aim.beside(finals, *pair) for finals in found] for pair in (("first-right", same), (same, "raft-8-twice"))
    )
    took = listed(f"{beside.cost:.2f}" for beside in stopping)
    assert f"`first-right` takes {took} of it on `graded` and `hard`" in page
    assert f"`{same}` takes {listed(beside.text for beside in weight)} of `raft-8-twice`" in page
    assert max(beside.cost for beside in stopping) < 0.7 < min(beside.cost for beside in weight)


def test_page_says_what_gvm_takes_of_grpo_in_two_passes() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    run = [task for task in TASKS if "gvm-twice" in in_seconds(task).runs]
    assert f"takes {listed(beside_grpo(in_seconds(task), 'gvm-twice') for task in run)} of GRPO (`gvm-twice`" in page
    assert f"`gvm-twice`; {', '.join(f'`{task}`' for task in run)}" in page


def test_page_says_with_how_many_uniform_methods_and_how_far_from_raft_the_aim_is_reached() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for task in TASKS:
        finals = in_seconds(task)
        raft = aim.cheapest(finals, aim.RAFT)
        assert raft is not None and aim.beside(finals, "first-right", raft).cost > aim.AT_MOST["uniform"]
    assert "Beside the cheapest RAFT, `first-right` takes more than two thirds on every task" in page
    found: list[int] = []
    for of in (in_seconds, in_rollouts):
        run = {task: len(of(task).runs.keys() & set(aim.UNIFORM)) for task in TASKS}
        (most,), (few,) = {run.pop("graded"), run.pop("hard")}, set(run.values())
        found += [most, few]
    said = "{} methods on `graded` and `hard` and {} on the others in seconds, {} and {} in rollouts."
    assert said.format(*found) in page


def test_page_says_on_which_tasks_the_aim_is_reached() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    seconds, rollouts = (
        {
            name: {task for task in TASKS if name in of(task).runs and aim.reached(of(task), name)}
            for name in ("first-right", "counted")
        }
        for of in (in_seconds, in_rollouts)
    )
    assert seconds["first-right"] == set(TASKS) and rollouts["first-right"] == set(TASKS) - {"curriculum"}
    assert (
        "*`first-right`* reaches both bounds in seconds on all seven tasks, and with the whole 95 % intervals on six:"
        in page
    )
    assert "In rollouts it reaches them on six, with the whole intervals." in page
    tight = in_seconds("curriculum")
    of_uniform = aim.beside(tight, "first-right", aim.cheapest_uniform(tight)).text
    assert f"on six: on `curriculum` it takes {of_uniform} of the cheapest uniform sampling. In rollouts" in page
    most = max(
        aim.beside(of(task), name, aim.cheapest_uniform(of(task))).cost
        for of in (in_seconds, in_rollouts)
        for task in TASKS
        for name in ("first-right", "raft-1-twice")
    )
    assert f"Nowhere does either take more than {most:.2f} of the cheapest uniform sampling" in page
    control = aim.beside(in_seconds("graded"), "counted", "uniform-4-as-rated-pos")
    assert f"on `graded`: `counted` takes {control.text} of its seconds." in page
    for name, of in product(("first-right", "raft-1-twice"), (in_seconds, in_rollouts)):
        met = [task for task in TASKS if name in of(task).runs and aim.reached(of(task), name)]
        sure = {task for task in met if aim.reached(of(task), name, surely=True)}
        assert set(met) - sure == ({"curriculum"} if of is in_seconds else set())
    ours, others = seconds["counted"], rollouts["counted"]
    missed = names_of(task for task in TASKS if task not in ours)
    missed_too = names_of(task for task in TASKS if task not in others)
    assert f"in seconds on {NUMBERS[len(ours)]} of the seven, not on {missed}," in page
    assert f"and in rollouts on {NUMBERS[len(others)]}, not on {missed_too}." in page
    assert f"In both at once it reaches it on {names_of(task for task in TASKS if task in ours & others)}" in page


def test_page_says_what_first_right_takes_of_the_cheapest_raft() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    found = [(in_seconds(task), str(aim.cheapest(in_seconds(task), aim.RAFT))) for task in TASKS]
    assert {raft for _, raft in found} == {"raft-1-twice", "raft-2-twice"}
    to_target = listed(f"{aim.beside(finals, 'first-right', raft).cost:.2f}" for finals, raft in found)
    further = listed(f"{aim.beside(finals, 'first-right', raft, raft).cost:.2f}" for finals, raft in found)
    assert f"it takes {to_target} of it to the target (`graded` to `varied`), and {further} to 80 %" in page
    assert all(aim.reached(finals, "raft-1-twice") for finals, _ in found)


def test_counted_has_more_right_at_the_end_than_methods_that_train_wrong_answers_too() -> None:
    """But for its own forms on one task."""
    for task in TASKS:
        right_only = ("first-right", "raft", "gvm", "weighed-as-gvm")
        of = [name for name in in_seconds(task).runs if not name.startswith(right_only)]
        better = sorted(name for name in of if end_of(task, name) > end_of(task, "counted"))
        own = {
            "graded": ["counted-chosen", "counted-in-four", "counted-unrounded", "uniform-4-as-rated-pos"],
            "varied": ["uniform-4-twice-in-eight", "uniform-4-twice-skip"],
        }
        assert better == own.get(task, [])


def test_designs_that_lost_are_what_their_record_says() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "arena_designs.json").read_text())
    of = {name: np.mean(trials["seconds_to_target"]) for name, trials in kept["designs"]["hard"].items()}
    shares = {name: f"{seconds / of[REFERENCE]:.2f}" for name, seconds in of.items()}
    text = " ".join((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").split())
    by_chance, both = shares["a quarter, by chance"], shares["a quarter, by chance, eight updates"]
    assert f"loses more by noise than it saves: {by_chance}, and {both} in eight updates" in text
    assert f"Rounding at .2 takes {shares['rounding .2']}, and {shares['rounding .2, eight updates']} in eight" in text
    assert f"takes {shares['rated-pos, rounding .2']} instead of" in text
    small = kept["mean_accuracy_by_prompts_of_a_step"]["uniform-4-twice"]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{100 * small['4']:.1f} % on average with 4 and {100 * small['8']:.1f} with 8" in page


def test_variants_of_counted_are_what_their_record_says() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "arena_variants.json").read_text())
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    of = {
        (task, name.removeprefix("counted, "), int(prompts)): 100 * found["mean_accuracy"]
        for task, by_name in kept.items()
        for name, by_prompts in by_name.items()
        for prompts, found in by_prompts.items()
    }
    fast, slow, slowest, ratings = (
        of["graded", name, 8] for name in ("half-life 50", "half-life 200", "half-life 1000", "ratings")
    )
    assert f"{fast:.1f} % on average over 24,000 rollouts of `graded`, {slow:.1f} with 200 and {slowest:.1f}" in page
    assert f"learned less with them: {ratings:.1f} % there" in page
    for task, name, prompts in of:
        if name == "half-life 200":
            assert of[task, name, prompts] > max(of[task, other, prompts] for other in ("half-life 50", "ratings"))
            gain = of[task, "half-life 1000", prompts] - of[task, name, prompts]
            assert -0.1 < gain < 0.5 or prompts == 8, "half a point at most"
    many = {prompts: of["many", "uniform-4-twice-skip", prompts] for prompts in (512, 1024, 2048)}
    assert f"{many[1024]:.1f} % on average over two tuning worlds, {many[2048]:.1f} with 2,048 prompts" in page
    rates = [found["rate"] for task in ("many", "unsolvable") for found in kept[task]["uniform-4-twice-skip"].values()]
    assert set(rates) == {0.003}, "larger ones gave less"


DIVERSITY: dict[str, dict[str, dict[str, float]]] = json.loads(
    (ROOT / "benchmarks" / "results" / "arena_diversity.json").read_text()
)


def test_page_says_how_varied_answers_stay() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())

    def said(name: str, what: str) -> str:
        return " and ".join(f"{100 * DIVERSITY[task][name][what]:.1f}" for task in ("graded", "hard"))

    assert f"for {said('counted', 'eight')} % with `counted`, and for {said('grpo-4', 'eight')} with GRPO" in page
    assert f"one answer is right for {said('counted', 'one')} %, against {said('grpo-4', 'one')}." in page
    nats = {
        name: [f"{DIVERSITY[task][name]['entropy']:.2f}" for task in ("graded", "hard")]
        for name in ("counted", "grpo-4")
    }
    assert f"is {' and '.join(nats['counted'])} nats, with GRPO {' and '.join(nats['grpo-4'])}" in page
    assert f"has more of eight, {said('balance', 'eight')}, and less of one, {said('balance', 'one')};" in page
    for task, what in product(("graded", "hard"), ("one", "eight")):
        assert DIVERSITY[task][SLOWER][what] > DIVERSITY[task]["balance"][what]
    assert "`first-right` with a third of its rate is ahead in both" in page
    assert f"At the end of a step {said('counted', 'outside')} %" in page
    assert f"with GRPO {said('grpo-4', 'outside')}" in page
    ours, grpo = said("first-right", "eight"), said("grpo-4", "eight")
    assert f"about as often as with GRPO on `graded` and more often on `hard`: {ours} %, against {grpo}." in page
    for task in ("graded", "hard"):
        by_name = {name: found for name, found in DIVERSITY[task].items() if not name.startswith("first-right")}
        assert max(by_name, key=lambda name: by_name[name]["eight"]) == "balance"


def test_page_says_what_first_right_takes_with_other_costs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (header, *rows), page = next(tables(section(text, "What the seconds depend on"))), " ".join(text.split())
    costs = {spans(row[0])[0]: dict(zip(header, row, strict=True)) for row in rows}

    def said(cost: str, *others: str) -> list[str]:
        return [costs[name][cost] for name in ("first-right", *others)]

    ours, one, four, grpo = said("7B on A100", "raft-1-twice", "raft-twice", "grpo-4")
    of_all = "`first-right` takes {} of `uniform-8`, `raft-1-twice` {}, `raft-twice` {} and GRPO {}"
    tuned_for_others = f"settings that were tuned for 1.5B, {of_all.format(ours, one, four, grpo)} (geometric means"
    assert f"With the figures of 7B on A100, and {tuned_for_others} of all tasks;" in page
    pos, balance, counted = (costs[name]["7B on A100"] for name in ("pos", "balance", "counted"))
    assert f"with those figures `pos` costs {pos}, `balance` {balance} and `counted` {counted})." in page
    small = said("4 B prompts", "raft-1-twice", "raft-twice", "grpo-4")
    assert f"a step's fixed time counts more: {of_all.format(*small)}." in page
    ours, one = said("in rounds", "raft-1-twice")
    assert f"in rounds, where every wave waits for the last, it takes {ours}, and `raft-1-twice` {one}." in page
    decisions = " ".join((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8").split())
    assert f"`first-right` takes {ours} of `uniform-8` instead of {said('as above')[0]} (geometric means" in decisions


def test_pages_say_what_is_cheap_where_training_costs_more_than_sampling() -> None:
    """Tuned for the seconds of 7B on A100: there Reinforce-Ada pays, and ours more."""
    page, readme, choosing, decisions = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split())
        for name in ("docs/arena.md", "README.md", "docs/choosing.md", "docs/decisions.md")
    )
    found = [committed(task)["seconds-7b"] for task in ("graded", "hard")]

    def beside(name: str, other: str = REFERENCE) -> str:
        return " and ".join(f"{aim.beside(finals, name, other).cost:.2f}" for finals in found)

    ours, one, grpo, pos, balance, skip = (
        beside(name) for name in ("first-right", "raft-1-twice", "grpo-4", "pos", "balance", "grpo-4-skip")
    )
    said = f"`first-right` takes {ours} of `uniform-8` (`graded`, `hard`), `raft-1-twice` {one}, and GRPO {grpo}."
    assert f"Tuned for the seconds of 7B on A100, {said}" in page
    assert f"`pos` costs {pos} and `balance` {balance}, where GRPO costs {grpo}." in page
    pos_skip, balance_skip = (beside(name) for name in ("pos-skip", "balance-skip"))
    said = f"`pos` {pos_skip} (`pos-skip`), and `balance` {balance_skip} (`balance-skip`)."
    assert f"Then GRPO costs {skip} (`grpo-4-skip`), {said}" in page
    both = [
        " and ".join(aim.beside(finals, name, "grpo-4-skip").text for finals in found)
        for name in ("pos-skip", "balance-skip")
    ]
    assert f"Beside GRPO, both without computing zeros, `pos` takes {both[0]}, and `balance` {both[1]}." in page
    for name in ("pos", "balance"):
        of_skip = [aim.beside(finals, name, "grpo-4-skip") for finals in found]
        assert of_skip[0].cost > 1 and of_skip[1].high > 1, "they pay no more than skipping zeros does"
    assert "Where they compute zeros, they are not cheaper than `grpo-4-skip`." in page
    pos_of_grpo, balance_of_grpo = (beside(name, "grpo-4") for name in ("pos-skip", "balance-skip"))
    assert f"`pos` without computing zeros takes {pos_of_grpo}." in readme
    said = f"With `--ada_zeros skip` it takes {balance_of_grpo}, and `pos` {pos_of_grpo}."
    assert said.replace(" 0.", " .") in choosing
    said = (
        f"Without computing zeros `pos` costs {pos_skip}, `balance` {balance_skip} and GRPO {skip}: of that GRPO `pos`"
    )
    assert f"{said} takes {both[0]}, and `balance` {both[1]}." in decisions
    of_grpo, ours_of_grpo, skip_of_grpo = (
        beside(name, "grpo-4") for name in ("balance", "first-right", "grpo-4-skip")
    )
    assert f"without computing zeros it costs {skip_of_grpo} of itself there." in page
    skips = "GRPO [without computing zeros](docs/choosing.md#least-cost)"
    said = f"takes {of_grpo} of GRPO (`graded`, `hard`), {{}} {skip_of_grpo}, and `first-right` {ours_of_grpo}."
    assert f"`balance` {said.format(skips)}" in readme
    assert f"it {said.format('GRPO that skips zeros')}".replace("0.", ".") in choosing
    row = choosing[choosing.index("| GRPO as it is, for less |") :]
    assert f"It takes {skip_of_grpo} of GRPO's seconds with 7B on A100".replace("0.", ".") in row
    small = [aim.beside(in_seconds(task), "grpo-4-skip", "grpo-4").cost for task in ("graded", "hard")]
    assert " and ".join(f"{cost:.2f}" for cost in small).replace("0.", ".") + " with 1.5B." in row
    twice = beside("uniform-4-twice-skip", "grpo-4")
    assert f"less than two passes, which take {twice} |".replace("0.", ".") in row
    said = f"`grpo-4-skip` {skip} (`graded`, `hard`), `uniform-4-twice-skip` {beside('uniform-4-twice-skip')}."
    assert f"With the seconds of 7B one pass costs less: {said}" in page
    named = {
        spans(cells[0])[0]: spans(cells[3])[0]
        for cells in next(tables(method_page.render_methods()))[1:]
        if spans(cells[3])
    }
    more = set(f" {named['grpo-4-skip']}".split(" --")) - set(f" {spans(row)[0]}".split(" --"))
    assert more == {"rollout.n_samples_per_prompt 4", "ada_wave 4"}, "the command's own, and nothing where none stops"
    said = f"`pos` costs {pos} (`graded`, `hard`), `balance` {balance}, `grpo-4-skip` {skip}, GRPO {grpo}, and"
    assert f"tuned for the seconds of 7B on A100 {said} `first-right` {ours}." in decisions


SLOWER = "first-right at 0.001"


@pytest.mark.parametrize("page", ["README.md", "docs/arena.md", "docs/decisions.md"])
def test_pages_say_what_variety_first_right_costs(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    varied = DIVERSITY["varied"]
    ours = varied["first-right"]
    others = [found for name, found in varied.items() if not name.startswith("first-right")]

    def span(what: str, scale: float = 1.0) -> str:
        return f"{scale * min(of[what] for of in others):.1f} to {scale * max(of[what] for of in others):.1f}"

    assert f"falls from {ours['entropy_at_start']:.1f} nats to {ours['entropy']:.1f}" in text
    assert f"to {span('entropy')}" in text
    if page == "docs/arena.md":
        assert set(varied) == {"first-right", SLOWER, "raft-twice", "counted", "uniform-4-twice-skip", "grpo-4"}
        assert f"for {100 * ours['eight']:.1f} %, with the others for {span('eight', 100)}" in text
        assert f"({100 * ours['one']:.1f} %, with the others {span('one', 100)})" in text


def test_pages_say_what_a_smaller_learning_rate_keeps() -> None:
    pages = {
        name: " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("README.md", "docs/arena.md")
    }

    def said(name: str, what: str) -> str:
        return listed(f"{100 * of[name][what]:.1f}" for of in DIVERSITY.values())

    assert list(DIVERSITY) == ["graded", "hard", "varied"]
    kept = DIVERSITY["varied"][SLOWER]["entropy"]
    assert f"a third of the learning rate {kept:.1f} remain" in pages["README.md"]
    assert f"an answer keeps {kept:.1f} nats on `varied`" in pages["docs/arena.md"]
    assert f"right for {said(SLOWER, 'one')} % (with 0.003 {said('first-right', 'one')};" in pages["docs/arena.md"]
    assert f"one of eight for {said(SLOWER, 'eight')} %, more than" in pages["docs/arena.md"]
    for by_name in DIVERSITY.values():
        assert max(by_name, key=lambda name: by_name[name]["eight"]) == SLOWER
        assert by_name["first-right"]["one"] - by_name[SLOWER]["one"] < 0.03, "up to three points"


def host_of(n: int, estimator: str) -> Any:
    algo = SimpleNamespace(advantage=SimpleNamespace(estimator=estimator))
    return SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=n, batch_size=64), algo=algo)


@pytest.mark.parametrize("name", OF_PRESET)
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


@pytest.mark.parametrize("name", ["rated-pos", "first-right"])
def test_method_of_the_arena_is_the_preset(name: str) -> None:
    """But for the sizes of a step, which are tuned here, and the threshold of scores that are 0 or 1."""
    preset, ours = presets.METHODS[name].flags, METHODS_HERE[name]
    flags = {name.removeprefix("ada."): value for name, value in preset.items() if name.startswith("ada.")}
    assert flags == {name: value for name, value in ours.ada.items() if name != "k_pos"} | {"positive_threshold": 0.7}
    assert ours.ada["k_pos"] == ours.settings(8).k_pos == 1, "as by default"
    assert (ours.n, ours.passes) == (preset["rollout.n_samples_per_prompt"], preset["train.max_epochs"])
    assert ours.estimator == preset["algo.advantage.estimator"]


def test_counted_of_the_arena_is_the_preset() -> None:
    """But for the sizes of a step and the threshold; a wave is of all rollouts, and counts predict by default."""
    preset, ours = presets.METHODS["counted"].flags, METHODS_HERE["counted"]
    flags = {name.removeprefix("ada."): value for name, value in preset.items() if name.startswith("ada.")}
    assert flags | {"wave": 2} == ours.ada | {"positive_threshold": 0.7, "baseline": ours.settings(8).baseline}
    assert (ours.n, ours.passes) == (preset["rollout.n_samples_per_prompt"], preset["train.max_epochs"])
    assert ours.estimator == preset["algo.advantage.estimator"]
    assert ours.parts == preset["rollout.batch_size"] * ours.n / preset["train.batch_size"]
