"""docs/choosing.md: tables and figures are what the core computes, and every recommendation is a run that starts."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from documents import ROOT, blocks, command_lines, section, spans, tables

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.settings import make_policy
from openrlhf_ada.core.policies import Sequential

TEXT = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


@pytest.fixture
def choosing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import choosing

    return choosing


@pytest.mark.slow
def test_the_table_is_made_anew(choosing: ModuleType) -> None:
    assert choosing.written(TEXT) == TEXT, "make it anew: python benchmarks/choosing.py"


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
        rates = choosing.pass_rates(*shape, parts=400)
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


RECOMMENDED = [
    spans(row[1])[0]
    for name in ("Which method", "Special needs")
    for table in tables(section(TEXT, name))
    for row in table[1:]
]


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
