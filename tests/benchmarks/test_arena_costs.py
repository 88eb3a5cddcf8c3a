"""Seconds of a step: the formula beside the simulation, the fit beside published times, the curves by hand."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from benchmarks.arena import seconds
from benchmarks.arena.costs import (
    COSTS,
    MACHINES,
    OTHER_SECONDS,
    SCALE,
    WAVE_ROLLOUTS,
    WAVE_SECONDS,
    Machine,
    budget_of,
    mean_accuracy,
    rounds_seconds,
    sampling_seconds,
    spent_as,
    unit_of,
    wave_seconds,
)
from benchmarks.arena.methods import METHODS
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.simulation.step_seconds import ANSWER_TOKENS, PROMPT_TOKENS, STEP_MODELS
from openrlhf_ada.simulation.workload import SYNTHETIC


def test_one_wave_takes_what_the_engines_take() -> None:
    for rollouts in (300, 1500, 3000):
        simulated = seconds.wave(rollouts, replace(SYNTHETIC, seed=9))
        assert wave_seconds(rollouts) == pytest.approx(simulated, rel=0.05)


def test_mean_length_is_that_of_the_workload() -> None:
    lengths = [SYNTHETIC(Request(key, 0)).num_tokens for key in range(8000)]
    assert sum(lengths) / len(lengths) == pytest.approx(ANSWER_TOKENS, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exit_rule", "prompts", "alpha", "beta"),
    [("pos", 128, 0.8, 0.8), ("balance", 256, 0.5, 3.5), ("pos", 512, 3.0, 3.0)],
)
def test_waves_agree_with_the_simulation(exit_rule: str, prompts: int, alpha: float, beta: float) -> None:
    _agrees(exit_rule, prompts, alpha, beta)


@pytest.mark.slow
def test_rollouts_one_at_a_time_agree_with_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `first-success-8`, whose 8 waves shrink to single prompts."""
    monkeypatch.setattr(seconds, "policy", lambda _: METHODS["first-success-8"].policy(2048))
    _agrees("pos", 2048, 0.5, 3.5)


def _agrees(exit_rule: str, prompts: int, alpha: float, beta: float) -> None:
    """Single steps differ by a few percent from seed to seed, so three of them are averaged."""
    answers = [replace(SYNTHETIC, alpha=alpha, beta=beta, seed=seed) for seed in range(3)]
    steps = [[seconds.waves_of(exit_rule, prompts, answer)] for answer in answers]
    tolerance = 0.06 if prompts > 128 else 0.1
    for scheduler, formula in (("stream", sampling_seconds), ("rounds", rounds_seconds)):
        simulated = sum(seconds.step(exit_rule, prompts, scheduler, answer).seconds for answer in answers)
        assert sum(map(formula, steps)) == pytest.approx(simulated, rel=tolerance), scheduler


def test_replaced_prompts_wait_more_than_further_waves() -> None:
    first, later = [512, 4096], [100, 800]
    assert sampling_seconds([[first]]) < sampling_seconds([[first, later]]) < sampling_seconds([[first], [later]])
    assert sampling_seconds([[first], [later]]) < rounds_seconds([[first], [later]])


def test_table_goes_on_at_its_last_slope() -> None:
    slope = (WAVE_SECONDS[-1] - WAVE_SECONDS[-2]) / (WAVE_ROLLOUTS[-1] - WAVE_ROLLOUTS[-2])
    assert wave_seconds(2 * WAVE_ROLLOUTS[-1]) == pytest.approx(WAVE_SECONDS[-1] + slope * WAVE_ROLLOUTS[-1])
    assert wave_seconds(0) == 0


@pytest.mark.slow
def test_hardware_is_what_published_step_times_imply() -> None:
    """To what the corrected workload and even engines changed of them (docs/arena.md, Seconds): the settings were
    tuned by these."""
    sampling = seconds.published_sampling()
    for name, published in seconds.PUBLISHED.items():
        found, used = seconds.fitted(published, sampling), STEP_MODELS[name]
        assert used.sampling == pytest.approx(found.sampling, rel=0.03)
        assert used.per_token == pytest.approx(found.per_token, rel=0.09)
        assert used.fixed == pytest.approx(found.fixed, abs=2.5)


def test_training_of_a_token_takes_about_what_its_flops_say() -> None:
    assert STEP_MODELS["1.5b"].per_token == pytest.approx(seconds.physics("1.5b"), rel=0.02)
    assert STEP_MODELS["7b"].per_token == pytest.approx(seconds.physics("7b"), rel=0.25)


@pytest.mark.parametrize("name", STEP_MODELS)
def test_step_times_are_near_the_published_ones(name: str) -> None:
    """Uniform sampling, n = 4 and 8, 512 prompts."""
    machine = Machine(**asdict(STEP_MODELS[name]))
    for method, n in (("grpo-4", 4), ("est", 8)):
        found = machine.step_seconds([[[512, 512 * n]]], 512 * n)
        assert found == pytest.approx(seconds.PUBLISHED[name][method], rel=0.05)


def point(steps: int, rollouts: int, trained: int, batches: list[list[list[int]]]) -> dict[str, object]:
    return {"steps": steps, "rollouts": rollouts, "trained": trained, "batches": batches}


def test_seconds_are_those_of_the_steps_between_measurements() -> None:
    """Two steps of 32 x 8 that train all, then one that draws a second wave for half of its prompts and trains 4."""
    spent = [
        point(0, 0, 0, []),
        point(2, 512, 512, [[[64, 512]]]),
        point(2, 512, 512, [[[64, 512]]]),
        point(3, 896, 640, [[[96, 768], [16, 128]]]),
    ]
    hardware, s = MACHINES["seconds"], SCALE
    first = 2 * hardware.step_seconds([[[32 * s, 256 * s]]], 256 * s)
    second = hardware.step_seconds([[[32 * s, 256 * s], [16 * s, 128 * s]]], 128 * s)
    assert COSTS["seconds"](spent) == pytest.approx([0, first, first, first + second])
    assert COSTS["rollouts"](spent) == [0, 512, 512, 896]


def test_other_assumptions_change_seconds_as_they_should() -> None:
    spent = [point(0, 0, 0, []), point(1, 384, 128, [[[32, 256], [16, 128]]])]
    known = {name: spent_as(name, spent)[-1] for name in ("seconds", *OTHER_SECONDS)}
    assert known["4 B prompts"] < known["seconds"] < known["in rounds"] < known["64 B prompts"]
    assert known["seconds"] < known["7B on A100"]


def test_budget_of_seconds_is_what_plain_steps_take() -> None:
    assert budget_of(24_000, "rollouts") == budget_of(24_000, "tokens") == 24_000
    step = MACHINES["seconds"].step_seconds([[[512, 4096]]], 4096)
    assert budget_of(25_600, "seconds") == round(100 * step)
    assert (unit_of("tokens"), unit_of("seconds-7b")) == ("rollouts", "seconds-7b")


def test_prompts_count_as_tokens() -> None:
    hardware = MACHINES["seconds"]
    trained = hardware.step_seconds([[[1, 1]]], 1) - hardware.step_seconds([[[1, 1]]], 0)
    assert trained == pytest.approx(hardware.per_token * (PROMPT_TOKENS + ANSWER_TOKENS))
    read = hardware.step_seconds([[[1, 1]]], 0) - hardware.fixed - hardware.sampling * wave_seconds(1)
    assert read == pytest.approx(hardware.per_token * PROMPT_TOKENS / 4)


def test_mean_accuracy_by_hand() -> None:
    assert mean_accuracy([0, 10, 20], [0.0, 1.0, 1.0], 10) == pytest.approx(0.5)
    assert mean_accuracy([0, 10, 20], [0.0, 1.0, 1.0], 5) == pytest.approx(0.25)
    assert mean_accuracy([0, 10], [0.0, 1.0], 20) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="is empty"):
        mean_accuracy([0, 1], [0.0, 1.0], 0)
