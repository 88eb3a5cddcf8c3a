"""Results in small files, the pages that are made from them, and methods beside the presets they stand for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.arena import costs, grid_page, packed, page
from benchmarks.arena.__main__ import main
from benchmarks.arena.campaign import RUNGS, Cell, Trials, made_with
from benchmarks.arena.methods import AS_IT_RAN, GIVES_UP, OF_PRESET, OTHERWISE_AS_IT_RAN
from benchmarks.arena.methods import METHODS as METHODS_HERE
from benchmarks.arena.packed import PACKED_COSTS, changes, pack, unpack
from benchmarks.arena.tables import REFERENCE, finals_of
from benchmarks.arena.trial import Spent
from openrlhf_ada.config import presets
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import resolve

BUDGET, SEEDS, SETTING = 8000, 6, (1e-3, 32)
METHODS = {cost: ["pos"] for cost in PACKED_COSTS}


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
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Of one setting, so that tuning is short."""
    monkeypatch.setattr("benchmarks.arena.campaign.RATES", SETTING[:1])
    monkeypatch.setattr("benchmarks.arena.campaign.PROMPTS", SETTING[1:])
    found = Trials(tmp_path / "campaign")
    for method, pace in ((REFERENCE, 0.01), ("pos", 0.015)):
        for cost, seed in product(PACKED_COSTS, range(SEEDS)):
            found.add(cell(method, seed, BUDGET, cost), curve(pace, seed))
        for cost, rung in product(PACKED_COSTS, RUNGS):
            found.add(cell(method, rung.seed, BUDGET // rung.part, cost), curve(pace, rung.seed))
    return found


def test_packed_results_say_what_the_trials_say(results: Trials, tmp_path: Path) -> None:
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    kept = unpack(file)
    assert set(kept) == set(PACKED_COSTS)
    for cost, finals in kept.items():
        whole = results.by_cell[cell("pos", 3, BUDGET, cost)]
        assert finals.runs["pos"][3]["spent"][-1] == whole["spent"][-1], cost
        exact = costs.COSTS[cost](whole["spent"])
        assert costs.COSTS[cost](finals.runs["pos"][3]["spent"]) == pytest.approx(exact)
        assert finals.settings == {REFERENCE: SETTING, "pos": SETTING}
        whole_rows = finals_of(results, "graded", ["pos"], SEEDS, BUDGET, cost).rows
        assert list(finals.rows) == list(whole_rows)
        for ours, all_of_it in zip(finals.rows.values(), whole_rows.values(), strict=True):
            assert (ours.cost.mean, ours.final) == pytest.approx((all_of_it.cost.mean, all_of_it.final), rel=0.001)
    pack(results, "graded", METHODS, SEEDS, BUDGET, tmp_path / "again.gz")
    assert (tmp_path / "again.gz").read_bytes() == file.read_bytes()


def test_results_of_another_cost_model_are_refused(
    results: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    monkeypatch.setattr(costs, "STREAM_WAIT", 0.5)
    with pytest.raises(ValueError, match=r"another cost model \(STREAM_WAIT: 0.16 there, 0.5 here\).*pack it anew"):
        unpack(file)


def test_changed_methods_are_named_and_packed_anew(
    results: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that has gone, or that has other settings than its trials. A new setting changes nothing."""
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    now = {name: made_with(name, "graded") for name in (REFERENCE, "pos")}
    monkeypatch.setattr(packed, "_made_with", lambda name, task: now[name] | {"new": 1})
    assert not changes(file)
    now["pos"]["epochs"] = 2
    assert changes(file) == {"pos": "epochs: 1 there, 2 here"}
    pack(results, "graded", {"seconds": ["pos"]}, SEEDS, BUDGET, file)
    assert [cost for cost, finals in unpack(file).items() if "pos" in finals.runs] == ["seconds"] and not changes(file)
    now[REFERENCE]["updates"] = 8
    with pytest.raises(ValueError, match=r"uniform-8 were made otherwise \(updates: 4 there, 8 here\)"):
        pack(results, "graded", METHODS, SEEDS, BUDGET, file)
    now[REFERENCE]["updates"] = 4
    monkeypatch.setattr(packed, "METHODS", {REFERENCE: METHODS_HERE[REFERENCE]})
    assert changes(file) == {"pos": "there is no such method now"}


def test_finished_methods_are_packed_in_one_command(
    results: Trials, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results.add(cell("est", 0, BUDGET, "rollouts"), curve(0.01, 0))
    argv = ["pack", str(results.folder), "--results", str(tmp_path / "packed"), "--budget", str(BUDGET)]
    assert main([*argv, "--seeds", str(SEEDS)]) == 0
    assert "graded, seconds: est is not finished" in capsys.readouterr().err
    kept = unpack(tmp_path / "packed" / "graded.jsonl.gz")
    assert tuple(kept) == PACKED_COSTS and all(finals.runs.keys() == {REFERENCE, "pos"} for finals in kept.values())
    assert main([*argv, "--seeds", "20"]) == 2
    assert "uniform-8 is not finished on any task with --seeds 20" in capsys.readouterr().err


@pytest.mark.slow
def test_pages_made_anew_are_the_same() -> None:
    """Of the committed results: make arena-docs."""
    _, trials = page.kept_grid()
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.inserted(text, grid_page.summary(trials)) == text
    assert grid_page.render(trials) == page.GRID.read_text(encoding="utf-8")
    assert page.render(page.kept()) == page.RESULTS.read_text(encoding="utf-8")


def test_packing_keeps_other_methods_and_costs(results: Trials, tmp_path: Path) -> None:
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


def test_packing_keeps_the_reference(results: Trials, tmp_path: Path) -> None:
    """Of a campaign on another processor: with another reference the ratios of all methods would move."""
    file = tmp_path / "graded.jsonl.gz"
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    before = unpack(file)["rollouts"].runs[REFERENCE]
    for seed in range(SEEDS):
        results.add(cell(REFERENCE, seed, BUDGET, "rollouts"), curve(0.02, seed))
    pack(results, "graded", {"rollouts": ["pos"]}, SEEDS, BUDGET, file)
    assert unpack(file)["rollouts"].runs[REFERENCE] == before


MENDED = AS_IT_RAN.keys() | OTHERWISE_AS_IT_RAN.keys()
"""Their presets are no longer what ran."""


@pytest.mark.parametrize("name", [name for name in OF_PRESET if name not in MENDED])
def test_every_method_that_stands_for_a_preset_resolves_as_it_does(name: str) -> None:
    """But for the threshold of scores that are 0 or 1. `grpo` has none of our flags."""
    preset, ours = presets.METHODS[name].flags, METHODS_HERE[OF_PRESET[name]]
    flags = {flag.removeprefix("ada."): value for flag, value in preset.items() if flag.startswith("ada.")}
    n, advantage = preset["rollout.n_samples_per_prompt"], preset["algo.advantage.estimator"]
    same = ours.settings(64)
    assert (ours.epochs, advantage) == (preset["train.max_epochs"], ours.estimator)
    if name == "grpo":
        assert flags == {"mode": "off"} and (same.group_size, same.baseline, same.correction) == (4, "pool", "none")
        return
    if flags["mode"] == "est":
        assert flags.pop("give_up", 0) == 0
        flags |= GIVES_UP
    theirs = resolve(AdaConfig(**flags), n=n, advantage=advantage, batch=64)
    # Thresholds of scores that are 0 or 1, and waves of a fixed number, make no difference.
    same_but = {name: getattr(same, name) for name in ("positive_threshold", "wave", "given")}
    assert replace(theirs, **same_but) == same
