"""What is added around OpenRLHF's training step: honest names, our figures, the record, and the state to go on from.

OpenRLHF's step itself, its models and its Ray groups are left out; the batches are real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import sequential
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from rollouts import GENERATE, N, TableGenerator, make_args, make_loader, table

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.types import Ledger
from openrlhf_ada.eval.held_out import HeldOut
from openrlhf_ada.eval.measures import Answered
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.rollout.records import RolloutBatch
from openrlhf_ada.trainer import recorded_training
from openrlhf_ada.trainer.experience_maker import CRITIC_WEIGHT
from openrlhf_ada.trainer.recorded_training import RecordedTraining, ScoredLogs

pytestmark = pytest.mark.usefixtures("without_ray")

Flags = dict[str, str | None]
ArgvWith = Callable[[Flags], list[str]]

HOST_STATUS = {"policy_loss": 0.1, "reward": 0.5, "return": 0.25, CRITIC_WEIGHT: 1.0, "rollout/reward_mean": 0.5}


class Actor:
    """Stands for the policy's Ray group, and remembers the versions it was told of."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.commits: list[Any] = []
        first = SimpleNamespace(commit_checkpoints=SimpleNamespace(remote=self.commits.append))
        self._actor_handlers = [first]

    def async_run_method(self, method_name: str, version: int) -> list[Any]:
        assert method_name == "begin_step"
        self.versions.append(version)
        return []


class HostTrainer(BasePPOTrainer):
    """OpenRLHF's base class where a step needs no models: remembers what it saw and saved."""

    def __init__(self, args: SimpleNamespace, critic: Any = None) -> None:
        self.args, self.actor_model_group, self.critic_model_group = args, Actor(), critic
        strategy = SimpleNamespace(args=args)
        self.experience_maker = RemoteExperienceMaker(
            None, critic, None, None, FixedKLController(0.0), strategy, SimpleNamespace(pad_token_id=0)
        )
        self.best_eval_metric_key = args.ckpt.best_metric_key or ""
        self.wandb_logger = self.tensorboard_logger = None
        self.critic_in_step: Any = "no step yet"
        self.saved: list[tuple[int, dict[str, Any], dict[str, Any]]] = []

    def train_step(self, rollout_samples: Any, global_step: int) -> tuple[dict[str, Any], int]:
        self.critic_in_step = self.critic_model_group
        return dict(HOST_STATUS), global_step + 1

    def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
        self.saved.append((global_step, logs_dict, client_states))

    def fit(self, global_step: int = 0) -> None:
        raise NotImplementedError


class Trainer(RecordedTraining, HostTrainer):
    """Mixed as in AdaPPOTrainer."""


START = {"global_step": 0}


@pytest.fixture
def make_trainer(argv_with: ArgvWith) -> Callable[..., Trainer]:
    def make(changes: Flags | None = None, critic: Any = None) -> Trainer:
        args = parse(
            argv_with({"--rollout.n_samples_per_prompt": str(N), "--train.batch_size": "4"} | (changes or {}))
        )
        args.ada_events, args.ada_origin = None, "origin"
        trainer = Trainer(args, critic)
        trainer.open_record(START, num_steps=3)
        return trainer

    return make


def adaptive_batch(wrong: float = 0) -> RolloutBatch:
    """Row 0 is mixed in the first wave, row 1 in the second: six rollouts, four of them trained. `wrong`: score and
    reward of wrong ones."""
    args = make_args()
    policy = sequential(1, 1, n=N, wave=2, cap=4)
    outcomes = table({0: [1, wrong], 1: [wrong] * 3 + [1]})
    generator = TableGenerator(args, make_loader(2, args), policy, outcomes, BatchPlan(2, N, 4, 2, 1))
    return generator.generate_samples(**GENERATE)[0]


def test_selected_means_are_named_so(make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    monkeypatch.setitem(HOST_STATUS, "reward_style_brevity", 0.75)  # of several rewards
    status, next_step = trainer.train_step(adaptive_batch(), 4)
    assert status["trained/reward_style_brevity"] == 0.75 and "reward_style_brevity" not in status
    assert (next_step, trainer.actor_model_group.versions) == (5, [5])
    assert (status["trained/reward"], status["trained/return"]) == (0.5, 0.25)
    assert not {"reward", "return", CRITIC_WEIGHT} & status.keys()
    assert status["rollout/reward_mean"] == 0.25, "one of the first two of each prompt, not half by construction"
    assert (status["ada/prompts"], status["ada/staleness_mean"], status["ada/group_scale"]) == (2, 4.0, 1.0)


WITHOUT: Flags = {"--algo.advantage.estimator": "dr_grpo", "--ada_baseline": "none"}
WITH_FACTOR: Flags = WITHOUT | {
    "--ada_baseline": "estimator",
    "--ada_correction": "stratum",
    "--ada_baseline_factor": "least_noise",
}


@pytest.mark.parametrize(
    ("flags", "wrong", "told"),
    [
        (WITHOUT, 0.25, "--ada_baseline none"),
        (WITH_FACTOR, 0.25, "factor"),
        (WITHOUT, 0, ""),
        (WITH_FACTOR, 0, ""),
        (WITH_FACTOR | {"--ada_baseline_factor": "one"}, 0.25, ""),
    ],
)
def test_wrong_answers_with_a_reward_are_told_once(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, flags: Flags, wrong: float, told: str
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(recorded_training, "note", lambda args, text: notes.append(text))
    trainer = make_trainer(flags)
    for step in range(2):
        trainer.train_step(adaptive_batch(wrong), step)
    assert len(notes) == bool(told) and all(told in text and text.startswith("50%") for text in notes)


def test_step_is_recorded_and_saved_with_its_state(
    make_trainer: Callable[..., Trainer],
) -> None:
    trainer, batch = make_trainer(), adaptive_batch()
    status, step = trainer.train_step(batch, 0)
    batch.checkpoint["ada_policy"] = {"learned": 1}
    trainer.save_logs_and_checkpoints(step, status | {"generated_samples": ["1", 1.0]}, {"episode": 0})
    run = read_run(trainer.recorder.run_dir)
    (row,) = run.steps
    assert (row["step"], row["ada/drawn"], row["ada/kept"], row["ada/unused"]) == (1, 6, 4, 2)
    assert (row["ada/draws_histogram"], row["policy_loss"]) == ({"2": 1, "4": 1}, 0.1)
    assert "generated_samples" not in row
    assert len(list(run.samples())) == 6
    ((saved_step, logged, states),) = trainer.saved
    assert (saved_step, states) == (1, {"episode": 0, "ada_policy": {"learned": 1}})
    assert {name: logged[name] for name in row if name != "step"} == {k: v for k, v in row.items() if k != "step"}
    assert logged["generated_samples"] == ["1", 1.0]
    assert trainer.actor_model_group.commits == ["origin"], "when OpenRLHF's processes have written"


def test_mode_off_keeps_host_figures_and_adds_the_ledger(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer({"--ada_mode": "off"})
    assert type(trainer.experience_maker) is RemoteExperienceMaker
    status, step = trainer.train_step(RolloutBatch([], Ledger(drawn=6, kept=4, unused=2)), 0)
    assert status == HOST_STATUS
    trainer.save_logs_and_checkpoints(step, status, {"episode": 0})
    run = read_run(trainer.recorder.run_dir)
    assert (run.steps[0]["ada/drawn"], run.steps[0]["reward"]) == (6, 0.5)
    assert list(run.samples()) == []
    ((saved_step, logged, states),) = trainer.saved
    assert (saved_step, states) == (1, {"episode": 0})
    added = logged.keys() - HOST_STATUS.keys()
    assert HOST_STATUS.items() <= logged.items()
    assert {"ada/drawn", "ada/drawn_tokens", "ada/total_drawn", "ada/step_s"} <= added


def test_adaptive_batch_without_record_is_an_error(make_trainer: Callable[..., Trainer]) -> None:
    with pytest.raises(RuntimeError, match="record"):
        make_trainer().train_step(RolloutBatch(), 0)


class Critic:
    """Stands for the Ray group, and remembers what it is fitted to."""

    def __init__(self) -> None:
        self.fitted: list[tuple[Any, ...]] = []

    def fit(self, *columns: Any, updates: int) -> dict[str, float]:
        self.fitted.append((*columns, updates))
        return {"critic_loss": 0.3}


def test_own_critic_is_hidden_and_fitted_to_all_drawn(
    make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, critic = object(), Critic()
    monkeypatch.setattr("openrlhf_ada.trainer.recorded_training.PromptCritic", lambda *arguments: critic)
    flags = {
        "--ada_baseline": "critic",
        "--algo.advantage.estimator": "dr_grpo",
        "--critic.num_gpus_per_node": "1",
    }
    trainer = make_trainer(flags, group)
    status, _ = trainer.train_step(adaptive_batch(), 0)
    assert trainer.critic_in_step is None
    assert trainer.experience_maker.critic_model_group is None
    assert trainer.critic_model_group is group, "it is there again: checkpoints are written from it"
    assert critic.fitted == [(["0+1=", "1+1="], [2, 4], [1, 1], 1)], "as many steps as the policy makes"
    assert status["timing/critic_fit"] >= 0
    assert status["critic_loss"] == 0.3


def test_ppos_critic_stays_with_the_hosts_step(make_trainer: Callable[..., Trainer]) -> None:
    group = Actor()
    trainer = make_trainer({"--algo.advantage.estimator": "gae", "--critic.num_gpus_per_node": "1"}, group)
    trainer.train_step(adaptive_batch(), 0)
    assert group.versions == [1], "its random numbers are those of the step"
    assert trainer.critic_in_step is group
    assert trainer.experience_maker.critic_model_group is group


@pytest.mark.parametrize(("ends", "expected"), [("", True), (None, False)])
def test_evaluation_at_the_ends_only_on_request(
    make_trainer: Callable[..., Trainer], ends: str | None, expected: bool
) -> None:
    trainer = make_trainer({"--ada_eval_ends": ends, "--eval.dataset": "org/heldout"})
    assert (trainer.evaluates_start(), trainer.evaluates_end()) == (expected, expected)
    status, step = trainer.train_step(adaptive_batch(), 0)
    trainer.save_logs_and_checkpoints(step, status, {})
    assert (trainer.evaluates_start(), trainer.evaluates_end()) == (False, expected), "not before a resumed run"


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [({}, "accuracy"), ({"--ckpt.best_metric_key": "pass@4"}, "pass@4"), ({"--ada_mode": "off"}, "")],
)
def test_best_checkpoint_is_by_accuracy_by_default(flags: Flags, chosen: str, argv_with: ArgvWith) -> None:
    trainer = Trainer(parse(argv_with(flags)))
    assert trainer.best_eval_metric_key == chosen


def test_evaluation_with_few_scores_chooses_no_checkpoint(argv_with: ArgvWith, tmp_path: Path) -> None:
    flags: Flags = {"--ada_run_dir": str(tmp_path / "run"), "--ckpt.best_metric_key": "accuracy"}
    args = parse(argv_with(flags))
    args.ada_events = None
    trainer = Trainer(args)
    trainer.open_record({"global_step": 0}, num_steps=1)
    answers = {"sums": [Answered([1.0], [1], [False])]}

    def logs(no_score: int) -> ScoredLogs:
        return ScoredLogs({"eval_sums_pass1": 1.0}, HeldOut(1, answers, no_score), 1, 0.5)

    assert trainer._fit_to_choose(logs(0))["accuracy"] == 1.0
    assert trainer._fit_to_choose(logs(1)) == {}
    trainer.best_eval_metric_key = "accuracy/typo"
    with pytest.raises(ConfigError, match=r"--ckpt.best_metric_key is 'accuracy/typo': the evaluation has accuracy, "):
        trainer._fit_to_choose(logs(0))
