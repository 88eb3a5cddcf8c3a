"""How token losses are averaged: what would change the objective of a correction is refused, or said at the start.

Every case runs the real parser, OpenRLHF's flags and validation included.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
from refusals import check_refusal

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.loss_rules import loss_warnings
from openrlhf_ada.trainer.training_step import loss_length

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

ESTIMATOR = "--algo.advantage.estimator"
OFF, SEQ = {"--ada_mode": "off"}, {"--ada_mode": "seq", ESTIMATOR: "dr_grpo"}
EST, PPO = {"--ada_mode": "est", ESTIMATOR: "dr_grpo"}, {"--ada_mode": "seq", ESTIMATOR: "gae"}
MEANS = {"--actor.loss_agg_mode": "seq-mean-token-mean"}
GSPO = {"--actor.policy_loss_type": "gspo"}
CONSTANT = {"--ada_loss": "sequence-constant"}
CORRECTIONS = {
    "stratum": SEQ | {"--ada_correction": "stratum", "--ada_objective": "linear"},
    "paper": SEQ | {"--ada_correction": "paper"},
    "positives": SEQ | {"--ada_correction": "positives"},
    "paper, by default in est": EST,
    "stratum, by default in est": EST | {"--ada_budget": "6"},
    "stratum of PPO": PPO | {"--ada_correction": "stratum"},
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrections_refuse_losses_per_sample_length(refusal: Callable[[Flags], Exception], name: str) -> None:
    correction = name.split()[0].strip(",")
    for flags, head in (
        (MEANS, "--actor.loss_agg_mode is 'seq-mean-token-mean'"),
        (GSPO, "--actor.policy_loss_type is 'gspo'"),
    ):
        error = refusal(CORRECTIONS[name] | flags)
        check_refusal(error, head, "--ada_loss sequence-constant")
        figures = ("1.48", "0.9", "0.52") if correction != "positives" else ("quarter", "100")
        assert all(figure in str(error) for figure in figures)


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("flags", [{}, CONSTANT, CONSTANT | GSPO], ids=["token-mean", "constant", "GSPO, constant"])
def test_recommended_flags_are_accepted_without_warning(argv_with: ArgvWith, name: str, flags: Flags) -> None:
    assert warnings_of(argv_with(CORRECTIONS[name] | flags)) == []


def warnings_of(argv: list[str]) -> list[str]:
    args = parse(argv)
    return loss_warnings(args.ada, args)


@pytest.mark.parametrize("mode", [SEQ, PPO, EST | {"--ada_correction": "none"}], ids=["seq", "PPO", "est"])
@pytest.mark.parametrize("flags", [MEANS, GSPO], ids=["seq-mean", "GSPO"])
def test_adaptive_mode_without_correction_warns_once(argv_with: ArgvWith, mode: Flags, flags: Flags) -> None:
    (line,) = warnings_of(argv_with(mode | flags))
    (name, value) = next(iter(flags.items()))
    assert line.startswith(f"{name} {value}: ")
    assert "by 1.48 and one of 0.9 by 0.52" in line
    assert "--ada_loss sequence-constant" in line


@pytest.mark.parametrize("flags", [{}, CONSTANT, GSPO | CONSTANT], ids=" ".join)
def test_other_losses_need_no_warning(argv_with: ArgvWith, flags: Flags) -> None:
    assert warnings_of(argv_with(SEQ | flags)) == []


@pytest.mark.parametrize("flags", [MEANS, GSPO, CONSTANT], ids=" ".join)
def test_mode_off_takes_losses_of_samples(argv_with: ArgvWith, flags: Flags) -> None:
    assert warnings_of(argv_with(OFF | flags)) == []


@pytest.mark.parametrize(("epochs", "wrong", "said"), [(2, 1, False), (2, 2, True), (1, 1, True), (1, 0, False)])
def test_wrong_answers_in_all_epochs_are_told_of(argv_with: ArgvWith, epochs: int, wrong: int, said: bool) -> None:
    lines = warnings_of(argv_with(SEQ | {"--ada_wrong_epochs": str(wrong), "--train.max_epochs": str(epochs)}))
    assert len(lines) == said
    assert all(f"--ada_wrong_epochs: without effect, since --train.max_epochs is {epochs}" in line for line in lines)


@pytest.mark.parametrize("mode", [OFF, SEQ], ids=["off", "seq"])
def test_two_ways_to_average_are_one_too_many(refusal: Callable[[Flags], Exception], mode: Flags) -> None:
    head = "--actor.loss_agg_mode is 'seq-mean-token-mean'"
    check_refusal(refusal(mode | MEANS | CONSTANT), head, "")


@pytest.mark.parametrize(
    ("flags", "length"),
    [
        ({"--data.max_len": "900"}, 900),
        ({"--data.max_len": "900", "--rollout.max_new_tokens": "700"}, 700),
        ({"--rollout.max_new_tokens": "700", "--ada_loss_length": "128"}, 128),
    ],
)
def test_the_constant_is_the_generation_limit_unless_given(argv_with: ArgvWith, flags: Flags, length: int) -> None:
    args = parse(argv_with(SEQ | CONSTANT | flags))
    assert loss_length(args) == length


def test_the_start_shows_the_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from openrlhf_ada.cli import train_ppo_ray

    monkeypatch.setattr(train_ppo_ray, "parse", lambda argv: MagicMock())
    monkeypatch.setattr(train_ppo_ray, "without_effect", lambda settings: ["first"])
    monkeypatch.setattr(train_ppo_ray, "loss_warnings", lambda settings, args: ["second"])
    monkeypatch.setattr(train_ppo_ray, "objective_notes", lambda settings: ["third"])
    monkeypatch.setattr(train_ppo_ray, "threshold_notes", lambda args: [])
    monkeypatch.setattr(train_ppo_ray, "engine_notes", lambda args: [])
    monkeypatch.setattr(train_ppo_ray, "check_this_machine", lambda args: None)
    monkeypatch.setattr(train_ppo_ray, "check_hub_models", lambda args: None)
    monkeypatch.setattr(train_ppo_ray, "prepare", lambda args, resume: iter(["fourth"]))
    monkeypatch.setattr(train_ppo_ray, "check_free", lambda args: None)
    monkeypatch.setattr(train_ppo_ray, "already_complete", lambda args, run_dir: "")
    monkeypatch.setattr(train_ppo_ray, "run", lambda *given: 0)
    with caplog.at_level("WARNING"):
        assert train_ppo_ray.main([]) == 0
    assert caplog.messages == ["first", "second", "third", "fourth"]
