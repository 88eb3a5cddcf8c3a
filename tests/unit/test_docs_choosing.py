"""docs/choosing.md: tables and figures are what the core computes, and every recommendation is a run that starts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from documents import ROOT, blocks, command_lines, section, spans, tables

from openrlhf_ada.cli.simulate import main as simulate
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.settings import make_policy
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.core.stopping_paths import StoppingPlan

TEXT = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import choosing

    return choosing


@pytest.mark.parametrize(
    "table", ["rollouts_by_pass_rate", "signal_by_pass_rate", "by_data_set", "noise_by_pass_rate"]
)
def test_tables_match_the_benchmark(table: str, choosing: ModuleType) -> None:
    assert getattr(choosing, table)() in TEXT, "print them anew: python benchmarks/choosing.py"


def test_signal_by_hand(choosing: ModuleType) -> None:
    """Uniform: 1 - p^n - (1-p)^n; `balance`, which goes on to 32 while one outcome is missing, the same with 32."""
    for n, p in ((4, 0.1), (8, 0.3), (16, 0.9)):
        uniform = choosing.plan({"exit": "fixed", "max_samples": n})
        assert choosing.signal(uniform, p) == pytest.approx(1 - p**n - (1 - p) ** n)
    for flags in ({"exit": "balance"}, {"exit": "balance", "k_pos": 1, "k_neg": 1, "wave": 4}):
        assert choosing.signal(choosing.plan(flags), 0.05) == pytest.approx(1 - 0.05**32 - 0.95**32)


def test_means_over_a_data_set_by_hand(choosing: ModuleType) -> None:
    """Uniform, 4 of Beta(1/2, 7/2): E p^4 = (1 3 5 7) / (8 10 12 14) and E (1 - p)^4 = (7 9 11 13) / (8 10 12 14)."""
    signal = 1 - (1 * 3 * 5 * 7 + 7 * 9 * 11 * 13) / (8 * 10 * 12 * 14)
    uniform = choosing.plan({"exit": "fixed", "max_samples": 4})
    assert choosing.sequential(uniform, 0.5, 3.5) == pytest.approx((4, signal), abs=1e-12)


@pytest.mark.slow
def test_data_set_means_equal_means_of_many_prompts(choosing: ModuleType) -> None:
    for shape in choosing.DATA_SETS.values():
        rates = choosing.pass_rates(*shape, parts=1000)
        for flags in choosing.SEQUENTIAL.values():
            rule = choosing.plan(flags)
            assert sum(choosing.outcomes(rule, *shape).values()) == pytest.approx(1, abs=1e-12)
            summed = np.mean([(rule.expected_draws(p), choosing.signal(rule, p)) for p in rates], axis=0)
            assert choosing.sequential(rule, *shape) == pytest.approx(summed, rel=1e-3)


def test_pass_rates_have_the_moments_of_their_distribution(choosing: ModuleType) -> None:
    for a, b in choosing.DATA_SETS.values():
        rates = choosing.pass_rates(a, b)
        assert rates.mean() == pytest.approx(a / (a + b), abs=1e-6)
        assert rates.var() == pytest.approx(a * b / (a + b) ** 2 / (a + b + 1), rel=1e-4)


@pytest.mark.parametrize("allocation", ["inverse_sqrt", "std"])
def test_est_figures_converge_with_number_of_prompts(allocation: str, choosing: ModuleType) -> None:
    for shape in choosing.DATA_SETS.values():
        once, twice = (choosing.pass_rates(*shape, parts=choosing.PARTS * times) for times in (1, 2))
        draws, signal = choosing.estimated(once, allocation)
        assert choosing.estimated(twice, allocation) == pytest.approx((draws, signal), abs=1e-5)
        assert choosing.cell(draws, signal) == choosing.cell(*choosing.estimated(twice, allocation))


def test_est_has_the_bounds_of_its_flags(choosing: ModuleType) -> None:
    """4 of a mean of 8 are trained, so no prompt gets fewer than 4."""
    policy = choosing.estimated_by("inverse_sqrt")
    assert (policy.budget, policy.min_samples, policy.max_samples, policy.floor) == (8, 4, 32, 0.02)


@pytest.mark.parametrize(
    ("words", "name", "data_set"),
    [
        ("70 % of the groups have signal, for 16.5 rollouts per prompt", "`balance`, 1 and 1, M = 4", "most wrong"),
        ("`balance`'s 22.7", "`balance`", "most wrong"),
        ("98 % of the groups for 6.9 rollouts per prompt", "`balance`, 1 and 1, M = 4", "mixed"),
        ("the published counts take 12.7", "`balance`", "mixed"),
        ("uniform sampling of 8 gives 85 %", "uniform, 8", "mixed"),
        ("70 % instead of", "`balance`, 1 and 1, M = 4", "most right"),
        ("the 46 % of `pos`", "`pos`", "most right"),
        ("6.0 (mixed)", "uniform, 4", "mixed"),
        ("12.4 (most wrong)", "uniform, 4", "most wrong"),
        ("against 13.0", "`balance`", "mixed"),
        ("and 32.7 of `balance`", "`balance`", "most wrong"),
        ("39 % of its groups have signal", "Ada-Est, 8 on average, `inverse_sqrt`", "most wrong"),
        ("where uniform sampling of 8 has 46 %", "uniform, 8", "most wrong"),
    ],
)
def test_data_set_figures_in_text_are_in_the_table(words: str, name: str, data_set: str) -> None:
    assert words in " ".join(TEXT.split())
    head, *rows = next(table for table in tables(section(TEXT, "Rollouts and signal")) if "Beta" in table[0][1])
    (row,) = (row for row in rows if row[0] == name)
    column = next(i for i, title in enumerate(head) if title.startswith(data_set))
    draws, share, price = row[column].split(", ")
    for figure in re.findall(r"\d+\.\d|\d+ %", words):
        assert figure.replace(" ", "") in (draws, share, price)


def test_one_of_each_takes_its_share_of_samples(choosing: ModuleType) -> None:
    plans = [choosing.plan(choosing.SEQUENTIAL[name]) for name in ("`balance`, 1 and 1, M = 4", "`balance`")]
    few, many = ([choosing.sequential(rule, *shape)[0] for shape in choosing.DATA_SETS.values()] for rule in plans)
    ratios = [100 * a / b for a, b in zip(few, many, strict=True)]
    assert "the same groups with signal for 54 to 73 % of the rollouts" in " ".join(TEXT.split())
    assert (round(min(ratios)), round(max(ratios))) == (54, 73)


def costs(p: float, k_pos: int, k_neg: int, wave: int = 8, cap: int = 32) -> tuple[float, float]:
    """(expected rollouts, chance of both outcomes)."""
    plan = StoppingPlan(k_pos, k_neg, wave, wave, cap)
    both = sum(chance for (drawn, positives), chance in plan.outcomes(p).items() if 0 < positives < drawn)
    return plan.expected_draws(p), both


@pytest.mark.parametrize(
    ("words", "figures"),
    [
        ("92 % of the groups instead of 48 %", [100 * costs(0.02, 1, 0, cap=128)[1], 100 * costs(0.02, 1, 0)[1]]),
        ("49.6 rollouts instead of 25.5", [costs(0.02, 1, 0, cap=128)[0], costs(0.02, 1, 0)[0]]),
        ("there are 1.5 instead of 2.6", [costs(0.1, 2, 2, wave=16)[0] / 16, costs(0.1, 2, 2)[0] / 8]),
        ("24.2 rollouts instead of 21.0", [costs(0.1, 2, 2, wave=16)[0], costs(0.1, 2, 2)[0]]),
        ("19 % of its visits, not in 81 %", [100 * (1 - 0.05**4 - 0.95**4), 100 * costs(0.05, 2, 2)[1]]),
        ("29.7 rollouts at p = .1 (n = 4: 21.0)", [costs(0.1, 4, 4)[0], costs(0.1, 2, 2)[0]]),
        ("14.0 at .5 (8.6)", [costs(0.5, 4, 4)[0], costs(0.5, 2, 2)[0]]),
        ("27.5 at p = .01", [(1 - 0.99**32) / 0.01]),
    ],
)
def test_figures_within_the_text(words: str, figures: list[float]) -> None:
    assert words in " ".join(TEXT.split())
    for figure in figures:
        decimals = 0 if "%" in words else 1
        assert f"{figure:.{decimals}f}" in words


def test_weights_of_the_published_counts_and_of_one_each(
    choosing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import algorithm_figures

    flags = choosing.SEQUENTIAL
    assert "3.95 at p = .1 against 2.39" in TEXT
    weights = [
        algorithm_figures.weight_at(choosing.policy_of(flags[name]), 0.1)
        for name in ("`balance`", "`balance`, 1 and 1, M = 4")
    ]
    assert weights == [pytest.approx(3.95, abs=0.005), pytest.approx(2.39, abs=0.005)]


def test_weights_with_division_by_the_standard_deviation(choosing: ModuleType) -> None:
    import algorithm_figures as figures

    policies = [figures.sequential("fixed", max_samples=4, advantage="group_norm")]
    policies += [figures.sequential(name, advantage="group_norm") for name in ("pos", "balance")]
    (table,) = (t for t in tables(TEXT) if t[0][0] == "`group_norm`, p")
    for policy, (_, *cells) in zip(policies, table[1:], strict=True):
        weights = [figures.weight_at(policy, float(p)) for p in table[0][1:]]
        assert cells == [f"{weight:.2f}" for weight in weights]


def test_count_errors_are_as_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "estimators.json").read_text())["rmse_by_half_life"]
    (table,) = tables(section(TEXT, "What predicts"))
    for steps, *cells in table[1:]:
        row = measured[f"{steps} steps per episode, logits +0.3 per 100 steps"]
        assert cells == [f"{row[name]:.3f}" for name in ("25", "50", "200", "rating", "last group")]


def test_unsolvable_shares_are_as_measured() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "give_up.json").read_text())["shares"]
    table, _ = tables(section(TEXT, "Prompts that are never right"))
    expected = [
        [name.split()[0], *(f"{100 * row[key]:.1f} %" for key in ("prompts", "whole", "late"))]
        for name, row in measured.items()
    ]
    assert table[1:] == expected


def test_odds_of_giving_up_are_exact(choosing: ModuleType) -> None:
    import give_up

    _, table = tables(section(TEXT, "Prompts that are never right"))
    assert [float(row[0]) for row in table[1:]] == list(give_up.RATES)
    for p, *cells in table[1:]:
        odds = give_up.odds(float(p))
        assert cells == [
            f"{odds['given up']:.1%}".replace("%", " %"),
            *(f"{odds[k]:.1f}" for k in ("visits", "rollouts")),
        ]


@pytest.fixture
def coefficients(choosing: ModuleType) -> ModuleType:
    import coefficients

    return coefficients


WEIGHTS = section(TEXT, "How much one rollout can weigh")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "cases"),
    [
        ("Ada-Seq, `none` (default)", ("seq", None, "seq, gae")),
        ("Ada-Seq, `paper`", ("seq, paper", None, None)),
        ("Ada-Seq, `stratum`", ("seq, stratum, pool", "seq, stratum", "seq, stratum, gae")),
        ("Ada-Est, all trained, `paper` (default)", ("est, all, pool", "est, all", "est, all, gae")),
        (
            "Ada-Est, all trained, `stratum`",
            ("est, all, stratum, pool", "est, all, stratum", "est, all, stratum, gae"),
        ),
        (
            "Ada-Est, 4 of 8 trained, `stratum` (default)",
            ("est, 4 of 8, pool", "est, 4 of 8", "est, 4 of 8, gae"),
        ),
    ],
)
def test_largest_coefficients_match_the_enumeration(
    title: str, cases: tuple[str | None, ...], coefficients: ModuleType
) -> None:
    (table,) = tables(WEIGHTS)
    (cells,) = (row[1:] for row in table[1:] if row[0] == title)
    for cell, name in zip(cells, cases, strict=True):
        if name is None:
            assert cell == "–"
            continue
        settings = coefficients.settings_of(coefficients.CASES[name])
        said, _, said_given_up = cell.partition(", given up ")
        decimals = len(said.partition(".")[2])
        assert f"{coefficients.largest(settings):.{decimals}f}" == said
        given_up = coefficients.largest(settings, given_up=True) if settings.args.ada.mode == "est" else 0.0
        assert given_up <= float(said_given_up or said) + 0.05


@pytest.mark.slow
def test_largest_coefficients_in_the_text(coefficients: ModuleType) -> None:
    for name, figure in (("seq, group_norm", 5.5), ("est, all, group_norm", 5.5), ("est, all, rloo, loo", 5.7)):
        assert coefficients.largest(coefficients.settings_of(coefficients.CASES[name])) == pytest.approx(
            figure, abs=0.05
        )
    assert "`group_norm` has 5.5 in both modes, `loo` 5.7 in Ada-Est" in WEIGHTS
    settings = coefficients.settings_of(coefficients.CASES["est, all, stratum"])
    assert coefficients.largest(settings, given_up=True) == pytest.approx(200)


@pytest.mark.slow
def test_times_match_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = section(TEXT, "How long it takes")
    ((_, verb, *arguments),) = command_lines(blocks(part)[0].text)
    assert verb == "simulate"
    assert simulate([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    (table,) = tables(part)
    schedulers = [cell.strip("`") for cell in table[0][3:]]
    for name, rollouts, signal, *seconds in table[1:]:
        policy = name.strip("`").split(",")[0]
        found = {row["scheduler"]: row for row in rows if row["policy"] == policy}
        in_rounds = found["rounds"]
        assert float(rollouts) == pytest.approx(in_rounds["rollouts_per_prompt"], rel=0.005)
        assert signal == f"{100 * in_rounds['signal_share']:.0f} %"
        assert seconds == [f"{found.get(s, in_rounds)['seconds']:.3g} s" for s in schedulers]


# -- recommendations --------------------------------------------------------------------------------------------------


@pytest.fixture
def base_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that the flags go behind; with prompts, and others as `prepare-data` writes them."""
    rows = [{"input": f"{i}+1=", "label": str(i + 1), "ada_draws": 16, "ada_positives": 3} for i in range(2048)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "data" / "all").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data" / "all" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    ((_, verb, *arguments),) = command_lines(blocks(section(TEXT, "A command to start from"))[0].text)
    assert verb == "train"
    return arguments


RECOMMENDED = [spans(row[1])[0] for table in tables(section(TEXT, "Which method")) for row in table[1:]]


@pytest.mark.parametrize("flags", RECOMMENDED)
def test_every_recommendation_starts_and_has_effect(
    flags: str, base_command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    from openrlhf_ada.config.method_rules import without_effect

    args = parse([*base_command, *flags.split()])
    settings = args.ada
    assert without_effect(settings) == []
    policy = make_policy(settings)
    assert isinstance(policy, Sequential) == (args.ada.mode != "est")


def test_other_named_flags_work_as_described(base_command: list[str]) -> None:
    for extra in (
        "--ada_method reinforce-ada-est --ada_allocation std --ada_correction stratum",
        "--algo.advantage.estimator gae --critic.num_gpus_per_node 8",
        "--rollout.n_samples_per_prompt 8 --ada_k_pos 1 --ada_k_neg 1",
    ):
        parse([*base_command, *extra.split()])
    shared = ("--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep")
    apart = [word for word in base_command if word not in shared]
    for extra in (
        "--train.partial_rollout_enable --algo.advantage.is_correction_level token",
        "--ds.zero_stage 3 --ada_engine_restarts 0",
    ):
        words = f"--actor.num_gpus_per_node 4 --vllm.num_engines 4 --train.async_enable {extra}".split()
        parse([*apart, *words])


def test_signal_of_the_group_sizes() -> None:
    text = " ".join(TEXT.split())
    shares = [1 - 0.1**n - 0.9**n for n in (4, 8, 16)]
    assert "34 % at p = .1 with 4, 57 % with 8, 81 % with 16" in text
    assert np.round(100 * np.array(shares)).tolist() == [34, 57, 81]
