"""What the flags come to: every default that depends on another flag, and the policy that follows from all of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import pool_of
from run_flags import settings_with

from openrlhf_ada.config.choosing import make_chooser
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.objective_notes import weights_of
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.settings import Settings, make_policy
from openrlhf_ada.core.exact import sequential_weight
from openrlhf_ada.core.grouping import GroupBuilder
from openrlhf_ada.core.objectives import Objective
from openrlhf_ada.core.policies import Estimated, Sequential
from openrlhf_ada.core.selection import Selection
from openrlhf_ada.core.stopping import ExitRule

ESTIMATORS = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline", "gae")


# -- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "n", "counts"),
    [
        ({"exit": "pos"}, 4, (1, 0)),
        ({"exit": "pos", "k_pos": 3}, 4, (3, 0)),
        ({}, 4, (2, 2)),
        ({}, 5, (2, 3)),  # the half is rounded down for positives, as in the selection
        ({}, 2, (1, 1)),
        ({}, 1, (1, 1)),
        ({"k_pos": 1}, 8, (1, 4)),
        ({"k_neg": 1}, 8, (4, 1)),
        ({"k_pos": 3, "k_neg": 1}, 8, (3, 1)),
        ({"exit": "fixed"}, 8, (0, 0)),
    ],
)
def test_exit_counts(flags: dict[str, Any], n: int, counts: tuple[int, int]) -> None:
    settings = settings_with(mode="seq", n=n, **flags)
    assert (settings.k_pos, settings.k_neg) == counts


@pytest.mark.parametrize(
    ("mode", "flags", "budget", "bounds"),
    [
        ("off", {}, 4.0, (4, 32)),
        ("seq", {}, 4.0, (4, 32)),
        ("seq", {"max_samples": 12}, 4.0, (4, 12)),
        ("est", {}, 4.0, (2, 16)),
        ("est", {"budget": 6.0}, 6.0, (4, 24)),
        ("est", {"budget": 6.1}, 6.1, (4, 25)),
        ("est", {"budget": 4.0}, 4.0, (2, 16)),
        ("est", {"select": "balanced"}, 4.0, (4, 16)),
        ("est", {"select": "all"}, 4.0, (2, 16)),
        ("est", {"min_samples": 3, "max_samples": 5}, 4.0, (3, 5)),
    ],
)
def test_budget_and_bounds(mode: str, flags: dict[str, Any], budget: float, bounds: tuple[int, int]) -> None:
    """In est the cap is four times the budget; where groups are down-sampled, every prompt needs its n."""
    settings = settings_with(mode=mode, n=4, **flags)
    assert (settings.budget, (settings.min_samples, settings.max_samples)) == (budget, bounds)


def test_refill_limit_is_a_batch_unless_given() -> None:
    assert settings_with(mode="seq", batch=6).refill_limit == 6
    assert settings_with(mode="seq", batch=6, refill_limit=2).refill_limit == 2


# -- selection, baseline, correction ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "flags", "select"),
    [
        ("off", {}, "balanced"),
        ("seq", {}, "balanced"),
        ("est", {}, "all"),
        ("est", {"budget": 4.0}, "all"),
        ("est", {"budget": 8.0}, "balanced"),
        ("est", {"select": "random"}, "random"),
        ("seq", {"select": "max_variance"}, "max_variance"),
    ],
)
def test_budget_equal_to_group_trains_all(mode: str, flags: dict[str, Any], select: str) -> None:
    assert settings_with(mode=mode, n=4, **flags).select == select


@pytest.mark.parametrize("advantage", ESTIMATORS)
def test_default_correction_is_none_in_seq_paper_in_est(advantage: str) -> None:
    """Division by the group's standard deviation is an objective of its own: nothing to correct."""
    assert settings_with(mode="off", advantage=advantage).correction == "none"
    assert settings_with(mode="seq", advantage=advantage).correction == "none"
    assert settings_with(mode="est", advantage=advantage).correction == (
        "none" if advantage == "group_norm" else "paper"
    )
    assert settings_with(mode="seq", advantage=advantage, correction="stratum").correction == "stratum"
    assert settings_with(mode="est", advantage=advantage, correction="none").correction == "none"


@pytest.mark.parametrize(
    ("advantage", "own", "predicting"),
    [
        ("group_norm", "pool", "pool"),
        ("dr_grpo", "pool", "estimator"),
        ("reinforce_baseline", "pool", "estimator"),
        ("rloo", "loo", "estimator"),
        ("gae", "critic", "critic"),
    ],
)
def test_baseline_is_the_prediction_if_there_is_one(advantage: str, own: str, predicting: str) -> None:
    for mode in ("off", "seq"):
        assert settings_with(mode=mode, advantage=advantage).baseline == own
    assert settings_with(mode="est", advantage=advantage).baseline == predicting
    for mode, correction in (("est", None), ("seq", "stratum")):
        settings = settings_with(mode=mode, advantage=advantage, estimator="critic", correction=correction)
        assert settings.baseline == (predicting if predicting == own else "critic")
    assert settings_with(mode="est", advantage=advantage, baseline="unbiased").baseline == "unbiased"


def test_stratum_keeps_counts_and_uses_their_prediction() -> None:
    """Log objective, right predictions: 1 / p down to the floor, in both modes, without a further flag."""
    for settings in (settings_with(mode="seq", correction="stratum"), settings_with(mode="est", budget=8.0)):
        assert settings.remembers
        assert (settings.correction, settings.baseline) == ("stratum", "estimator")
        assert [round(w.effective, 6) for w in weights_of(settings)] == [50.0, 10.0, 2.0, round(1 / 0.9, 6)]
    linear = settings_with(mode="seq", correction="stratum", objective="linear", exit="pos")
    assert [w.effective for w in weights_of(linear)] == pytest.approx([1.0] * 4)


def test_ppo_takes_every_weight_at_a_prediction() -> None:
    """At its own pass rate an all-wrong pool would weigh most, and has no positive to learn from."""
    for correction, remembers in (("none", False), ("paper", True), ("stratum", True)):
        assert settings_with(mode="seq", advantage="gae", correction=correction).remembers is remembers


# -- another run's weight as the objective ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinforce-ada-balance", "reinforce-ada-pos", "grpo", "raft", "ppo"])
def test_uniform_can_have_another_methods_weight(name: str) -> None:
    """f' of the method by enumeration; between the entries of its table it is off by less than 0.1 %."""
    flags = METHODS[name].flags
    ours = {key.removeprefix("ada."): value for key, value in flags.items() if key.startswith("ada.")}
    method = settings_with(mode=ours.pop("mode"), advantage=flags["algo.advantage.estimator"], **ours)
    control = settings_with(
        mode="seq", exit="fixed", max_samples=8, correction="stratum", objective=f"matched:{name}", floor=0.001
    )
    for p in (0.002, 0.013, 0.11, 0.37, 0.5, 0.93, 0.99):
        if method.mode == "seq":
            wanted = sequential_weight(_sequential_of(method), p).effective
        else:
            wanted = {"grpo": 1.5, "ppo": 1.0}[name] if p < 0.003 or name == "ppo" else control.target.weight(p)
        assert control.target.weight(p) == pytest.approx(wanted, rel=2e-3)
        assert sequential_weight(_sequential_of(control), p).effective == pytest.approx(wanted, rel=2e-3)


def _sequential_of(settings: Settings) -> Sequential:
    policy = make_policy(settings)
    assert isinstance(policy, Sequential)
    return policy


OWN = """flags:
  ada_mode: seq
  ada_exit: pos
  ada_wave: 4
  ada_max_samples: 12
  rollout.n_samples_per_prompt: 6
  rollout.batch_size: 8
  algo.advantage.estimator: dr_grpo
"""


@pytest.mark.slow
def test_weight_of_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(OWN, encoding="utf-8")
    other = settings_with(mode="seq", n=6, exit="pos", wave=4, max_samples=12)
    name = f"matched:{file}"
    settings = pickle.loads(pickle.dumps(settings_with(mode="seq", correction="stratum", objective=name)))
    file.unlink()  # Other machines do not have it, and need not: the table goes with the settings.
    for p in (0.05, 0.4, 0.8):
        assert settings.target.weight(p) == pytest.approx(
            sequential_weight(_sequential_of(other), p).effective, rel=1e-3
        )


@pytest.mark.parametrize(
    ("line", "changed", "named"),
    [
        ("  rollout.batch_size: 8", "", "batch_size"),
        ("prompt: 6", "prompt: many", "many"),
        ("wave: 4", "wave: four", "str"),
        ("exit: pos", "exit: nonsense", "--ada_exit is 'nonsense'"),
        ("samples: 12", "samples: 12\n  ada_waves: 3", "waves"),
        ("samples: 12", "samples: 12\n  actor.policy_loss_type: gspo", "loss"),
        ("samples: 12", "samples: 12\n  ada_scores: raw", "--ada_exit"),
        ("samples: 12", "samples: 12\n  ada_correction: stratum\n  ada_objective: matched:grpo", "matched:grpo"),
        ("samples: 12", "samples: 12\n  ada_candidates: 4", "batch"),
        ("flags:", "flag:", "flags"),
    ],
)
def test_methods_without_a_weight_are_refused(line: str, changed: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(OWN.replace(line, changed), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        settings_with(mode="seq", correction="stratum", objective=f"matched:{file}")
    assert (refused.value.flag, refused.value.value) == ("--ada_objective", f"matched:{file}")
    assert named in str(refused.value)


@pytest.mark.parametrize("name", ["reinforce-ada-est", "no-such-method", ""])
def test_weights_that_cannot_be_tabulated_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_with(mode="seq", correction="stratum", objective=f"matched:{name}")
    assert (refused.value.flag, refused.value.value) == ("--ada_objective", f"matched:{name}")
    assert "reinforce-ada-balance" in refused.value.remedy


# -- what is predicted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "flags", "estimator"),
    [
        ("dr_grpo", {}, "ema"),
        ("dr_grpo", {"baseline": "estimator"}, "ema"),
        ("dr_grpo", {"baseline": "critic"}, "critic"),
        ("dr_grpo", {"baseline": "critic", "estimator": "ema"}, "ema"),  # refused later: method_rules
        ("dr_grpo", {"estimator": "critic"}, "critic"),
        ("gae", {}, "ema"),
        ("gae", {"baseline": "critic"}, "ema"),  # the baseline of every PPO run, and no predictor
        ("gae", {"estimator": "critic"}, "critic"),
    ],
)
def test_predictor_is_counts_unless_a_critic_is_asked_for(
    advantage: str, flags: dict[str, Any], estimator: str
) -> None:
    for mode in ("seq", "est"):
        assert settings_with(mode=mode, advantage=advantage, **flags).estimator == estimator


@pytest.mark.parametrize(
    ("mode", "flags", "remembers"),
    [
        ("off", {"baseline": "estimator"}, False),
        ("seq", {}, False),
        ("seq", {"estimator": "critic"}, False),
        ("seq", {"baseline": "unbiased"}, False),
        ("seq", {"baseline": "estimator"}, True),
        ("seq", {"baseline": "critic"}, True),
        ("est", {}, True),
        ("seq", {"candidates": 1}, False),
        ("seq", {"candidates": 2}, True),
    ],
)
def test_pass_rates_are_remembered_where_needed(mode: str, flags: dict[str, Any], remembers: bool) -> None:
    assert settings_with(mode=mode, **flags).remembers is remembers


def test_sequential_ppo_remembers_nothing() -> None:
    """Its baseline is the critic's value of each token; no pass rate enters anything."""
    assert not settings_with(mode="seq", advantage="gae").remembers
    assert settings_with(mode="seq", advantage="gae", candidates=2).remembers


def test_choosing_prompts_starts_no_critic() -> None:
    """Counts say what a pass rate may be; a critic gives no distribution."""
    settings = settings_with(mode="seq", candidates=2, estimator="critic")
    assert (settings.remembers, settings.predicts, settings.reads_critic) == (True, False, False)


@pytest.mark.parametrize("flags", [{"mode": "seq"}, {"mode": "est"}, {"mode": "est", "allocation": "hit"}])
def test_chooser_draws_from_what_the_policy_remembers(flags: dict[str, Any]) -> None:
    settings = settings_with(candidates=4, **flags)
    policy = make_policy(settings)
    policy.load_prior_counts([400] * 8, [200] * 2 + [0] * 6)
    chooser = make_chooser(settings, policy, 8, seed=0)
    chosen = [choice for _ in range(40) for choice in chooser.take(2)]
    mixed, hopeless = ([c.chance for c in chosen if (c.row < 2) is is_mixed] for is_mixed in (True, False))
    assert min(mixed) > 5 * max(hopeless)


def test_chooser_needs_a_policy_that_remembers() -> None:
    settings = settings_with(mode="seq", candidates=2)
    with pytest.raises(TypeError, match="--ada_candidates needs pass rates, and Sequential has no memory of them"):
        make_chooser(settings, make_policy(settings_with(mode="seq")), 8, seed=0)


@pytest.mark.parametrize(
    ("mode", "advantage", "flags", "reads", "owns"),
    [
        ("off", "dr_grpo", {"estimator": "critic"}, False, False),
        ("seq", "dr_grpo", {"estimator": "critic"}, False, False),
        ("seq", "dr_grpo", {"baseline": "critic"}, True, True),
        ("est", "dr_grpo", {}, False, False),
        ("est", "dr_grpo", {"estimator": "critic"}, True, True),
        ("est", "gae", {}, False, False),
        ("est", "gae", {"estimator": "critic"}, True, False),
    ],
)
def test_own_critic_only_for_critic_free_training(
    mode: str, advantage: str, flags: dict[str, Any], reads: bool, owns: bool
) -> None:
    settings = settings_with(mode=mode, advantage=advantage, **flags)
    assert (settings.reads_critic, settings.own_critic) == (reads, owns)


def test_refilling_needs_an_adaptive_mode_and_the_flag() -> None:
    refills = {
        (mode, u): settings_with(mode=mode, unresolved=u).refills
        for mode in ("off", "seq")
        for u in ("keep", "refill")
    }
    assert refills == {
        ("off", "keep"): False,
        ("off", "refill"): False,
        ("seq", "keep"): False,
        ("seq", "refill"): True,
    }


# -- the policy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ({}, ExitRule(2, 2, 0.5)),
        ({"exit": "pos"}, ExitRule(1, 0, 0.5)),
        ({"exit": "fixed"}, ExitRule(0, 0, 0.5)),
        ({"k_pos": 3, "k_neg": 1, "positive_threshold": 0.0}, ExitRule(3, 1, 0.0)),
    ],
)
def test_flags_of_seq_become_the_policy(flags: dict[str, Any], rule: ExitRule) -> None:
    policy = make_policy(settings_with(mode="seq", advantage="rloo", wave=3, max_samples=17, **flags))
    assert isinstance(policy, Sequential)
    assert (policy.rule, policy.wave, policy.max_samples, policy.memory) == (rule, 3, 17, None)
    assert policy.builder.selection == Selection("balanced", 4, rule.threshold)
    assert (policy.builder.estimator, policy.builder.baseline, policy.builder.correction) == ("rloo", "loo", "none")
    assert not policy.reads_critic


@pytest.mark.parametrize(
    ("outcomes", "unbiased"),
    [((0, 1), 1 / 2), ((0, 0, 0, 1), 0.0)],
    ids=["stopped after the first wave", "stopped in the second wave, whose positive was waited for"],
)
def test_unbiased_baseline_uses_the_stopping_plan(outcomes: tuple[int, ...], unbiased: float) -> None:
    policy = make_policy(settings_with(mode="seq", n=2, wave=2, max_samples=4, exit="pos", baseline="unbiased"))
    group = policy.build(pool_of(outcomes), np.random.default_rng(0))
    assert sorted(group.coefficients) == [-unbiased, 1 - unbiased]


@pytest.mark.parametrize("estimator", ["ema", "critic"])
def test_flags_of_est_become_the_policy(estimator: str) -> None:
    memory = {"half_life": 7.0, "give_up": 5, "trust_steps": 2}
    flags = {
        "budget": 6.0,
        "min_samples": 4,
        "max_samples": 9,
        "allocation": "odds",
        "floor": 0.1,
        "objective": "sqrt",
    }
    policy = make_policy(settings_with(mode="est", estimator=estimator, positive_threshold=0.7, **memory, **flags))
    assert isinstance(policy, Estimated)
    assert (policy.budget, policy.min_samples, policy.max_samples) == (6.0, 4, 9)
    assert (policy.allocation, policy.floor, policy.memory.threshold) == ("odds", 0.1, 0.7)
    builder: GroupBuilder = policy.builder
    assert (builder.selection, builder.objective) == (Selection("balanced", 4, 0.7), Objective("sqrt"))
    assert (builder.baseline, builder.correction, builder.floor) == (
        "critic" if estimator == "critic" else "estimator",
        "stratum",
        0.1,
    )
    assert builder.allocated(0.2) == pytest.approx(2.0), "√(0.8 / 0.2)"
    counts = policy.memory.counts
    assert (counts.half_life, counts.prior_mean, counts.prior_strength, counts.give_up) == (7.0, 0.5, 2.0, 5)
    assert policy.reads_critic is (estimator == "critic")
    if policy.memory.calibration is not None:
        assert policy.memory.calibration.window == 2


@pytest.mark.parametrize(("baseline", "reads"), [("estimator", False), ("critic", True)])
def test_seq_remembers_what_its_baseline_needs(baseline: str, reads: bool) -> None:
    policy = make_policy(settings_with(mode="seq", baseline=baseline))
    assert isinstance(policy, Sequential)
    assert policy.memory is not None
    assert policy.reads_critic is reads
