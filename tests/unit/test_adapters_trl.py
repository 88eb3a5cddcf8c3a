"""Under TRL's own trainers, on a CPU: pools, coefficients and books are the core's, and a checkpoint has them.

The synchronous trainer is TRL's own, whole, with generation by transformers. The asynchronous one needs a GPU in two
places: `trl_toys` stands in for the engine behind its HTTP interface, and for the attention kernel.
"""

from __future__ import annotations

import asyncio
import json
import math
import queue
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
import trl
import trl_toys
from nbclient import NotebookClient
from trl import GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutGroup, TrainingSequence

from openrlhf_ada.adapters.pools import Closed, Pools
from openrlhf_ada.adapters.supported import settings_for
from openrlhf_ada.adapters.trl import STATE, AdaGRPOTrainer
from openrlhf_ada.adapters.trl_async import AdaAsyncGRPOTrainer, _AdaRolloutLoop
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import make_policy, resolve
from openrlhf_ada.core.scheduling import Scheduler
from openrlhf_ada.core.types import PromptPool, Sample

ROOT = Path(__file__).parents[2]
BALANCE = AdaConfig(mode="seq", exit="balance", wave=4, max_samples=16)
ESTIMATED = AdaConfig(mode="est", budget=4)
GREEDY = AdaConfig(mode="seq", exit="pos", k_pos=1, wave=2, max_samples=8, baseline="estimator", correction="stratum")


class Watched(AdaGRPOTrainer):
    """Keeps of each step the rewards by prompt key and index, the rows, the groups and the advantages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps: list[Any] = []
        self._build, self.pools.build = self.pools.build, self._seen

    def _seen(self, visit: Any) -> Closed:
        rewards = {place: rollout.rewards for place, rollout in visit.payloads.items()}
        self.steps.append(SimpleNamespace(rewards=rewards, rows=visit.rows, closed=self._build(visit)))
        return self.steps[-1].closed

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            self.steps[-1].advantages = output["advantages"].tolist()
        return output


def coefficients_of_core(ada: AdaConfig, steps: list[Any], seed: int) -> list[list[float]]:
    """The core alone, with OpenRLHF's default scheduler, on the same outcomes, of which later ones arrive first."""
    settings = resolve(ada, n=4, advantage="dr_grpo", batch=4)
    policy, found = make_policy(settings), []
    for step in steps:
        pools = [PromptPool(key, row=row) for key, row in step.rows.items()]
        scheduler = Scheduler[None](policy, pools, settings.scheduler)
        while not scheduler.is_done:
            due = list(iter(scheduler.take_required, None))
            for request in reversed(due):
                score, extra = step.rewards[request[:2]]
                scheduler.finish(request, Sample(*request[:2], score, score + extra / 2, 3), None)
        assert sum(map(len, pools)) == len(step.rewards), "as many were drawn"
        groups = [policy.build(pool, np.random.default_rng([seed, pool.key])) for pool in pools]
        policy.observe(pools)
        found.append([c for group in groups for c in group.coefficients])
    return found


@pytest.mark.parametrize("ada", [BALANCE, ESTIMATED, GREEDY], ids=["balance", "est", "pos"])
def test_pools_and_coefficients_are_those_of_the_core(ada: AdaConfig, tmp_path: Path) -> None:
    """The first reward function decides; the weighted sum of both is trained."""
    rewards, weighted = [trl_toys.right, trl_toys.bonus], {"reward_weights": [1.0, 0.5]}
    trainer = trl_toys.synchronous(tmp_path, ada, rewards, Watched, **weighted)
    trainer.train()
    expected = coefficients_of_core(ada, trainer.steps, trainer.args.seed)
    assert [np.float32(step.advantages).tolist() for step in trainer.steps] == np.float32(expected).tolist()
    sizes = Counter(len(one.pool) for step in trainer.steps for one in step.closed.finished)
    assert len(sizes) > 1, "prompts get uneven numbers of rollouts"
    trained = {len(group.indices) for step in trainer.steps for group in step.closed.groups}
    assert len(trained) > 1 if ada is ESTIMATED else trained == {4}
    ledger, drawn = trainer.pools.ledger, sum(len(step.rewards) for step in trainer.steps)
    assert ledger.drawn == drawn == ledger.kept + ledger.unused + ledger.aborted
    assert ledger.kept == 4 * 16 and {len(step.advantages) for step in trainer.steps} == {16}
    logged = [row for row in trainer.state.log_history if "ada/drawn" in row]
    assert [row["ada/drawn"] for row in logged] == [len(step.rewards) for step in trainer.steps]
    first = trainer.pools.settings.first_scores
    fair = [[one for (_, i), one in step.rewards.items() if i < first] for step in trainer.steps]
    assert [row["rewards/right/mean"] for row in logged] == pytest.approx([np.mean(one, axis=0)[0] for one in fair])
    assert [row["reward"] for row in logged] == pytest.approx([np.mean(one, axis=0) @ [1.0, 0.5] for one in fair])


def test_uniform_sampling_is_trl_itself_bit_for_bit(tmp_path: Path) -> None:
    uniform = AdaConfig(mode="seq", exit="fixed", max_samples=4, select="all")
    without = lambda *args, ada, **options: GRPOTrainer(*args, **options)  # noqa: E731
    plain, ours = (trl_toys.synchronous(tmp_path, uniform, kind=kind, chat=True) for kind in (without, AdaGRPOTrainer))
    for trainer in (plain, ours):
        torch.manual_seed(1)
        trainer.train()
    assert weights(plain) == weights(ours)
    figures = ("loss", "reward", "reward_std", "rewards/right/std", "frac_reward_zero_std", "num_tokens")
    for theirs, own in zip(plain.state.log_history[:-1], ours.state.log_history[:-1], strict=True):
        assert [own[name] for name in figures] == pytest.approx([theirs[name] for name in figures])


def weights(trainer: Any) -> list[list[float]]:
    return [parameter.flatten().tolist() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("ada", [BALANCE, ESTIMATED], ids=["seq", "est"])
def test_resumed_run_is_the_run_that_was_not_interrupted(ada: AdaConfig, tmp_path: Path) -> None:
    whole, checkpoint = trl_toys.synchronous(tmp_path, ada), tmp_path / "checkpoint-2"
    whole.train()
    resumed = trl_toys.synchronous(tmp_path, ada)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.pools.state_dict() == whole.pools.state_dict()
    assert weights(resumed) == weights(whole)
    (checkpoint / STATE).unlink()
    with pytest.raises(ConfigError, match=STATE):
        resumed.train(resume_from_checkpoint=str(checkpoint))


def none_in_row_3(completion_ids: Any, share: list[float], **others: Any) -> list[float | None]:
    scores = trl_toys.right(completion_ids, share)
    return [None if most == 0.25 else score for score, most in zip(scores, share, strict=True)]


def test_prompt_without_a_score_trains_nothing_and_is_in_the_books(tmp_path: Path) -> None:
    trainer = trl_toys.synchronous(tmp_path, BALANCE, none_in_row_3, Watched, max_steps=3)
    trainer.train()
    (failed,) = [group for step in trainer.steps for group in step.closed.groups if step.rows[group.key] == 3]
    assert set(failed.coefficients) == {0.0} and len(failed.coefficients) == 4
    ledger = trainer.pools.ledger
    assert ledger.aborted == 4 and ledger.drawn == ledger.kept + ledger.unused + ledger.aborted
    strict = AdaConfig(mode="seq", max_no_score=0.0)
    with pytest.raises(RuntimeError, match="row 3 has no score"):
        trl_toys.synchronous(tmp_path, strict, none_in_row_3, max_steps=3).train()


def test_scores_outside_the_unit_need_a_threshold(tmp_path: Path) -> None:
    tenfold = lambda **columns: [10.0 * score - 3.0 for score in trl_toys.right(**columns)]  # noqa: E731
    with pytest.raises(ConfigError, match="reward_funcs"):
        trl_toys.synchronous(tmp_path, BALANCE, tenfold, max_steps=1).train()
    raw = AdaConfig(mode="seq", exit="balance", max_samples=16, scores="raw", positive_threshold=0.0)
    trainer = trl_toys.synchronous(tmp_path, raw, tenfold, Watched, max_steps=1)
    trainer.train()
    pools = [one.pool for one in trainer.steps[0].closed.finished]
    assert {score for pool in pools for score in pool.scores} == {0.0, 1.0}
    assert {reward for pool in pools for reward in pool.rewards} == {-3.0, 7.0}


@pytest.mark.parametrize(
    ("flag", "ada", "changes"),
    [
        ("num_iterations", BALANCE, {"num_iterations": 2}),
        ("steps_per_generation", BALANCE, {"steps_per_generation": 4}),
        ("scale_rewards", BALANCE, {"scale_rewards": "batch"}),
        ("multi_objective_aggregation", BALANCE, {"multi_objective_aggregation": "normalize_then_sum"}),
        ("remove_unused_columns", BALANCE, {"remove_unused_columns": True}),
        ("--ada_mode", AdaConfig(), {}),
        ("--ada_unresolved", AdaConfig(mode="seq", unresolved="refill"), {}),
        ("--ada_estimator", AdaConfig(mode="est", estimator="critic"), {}),
        ("--ada_select", AdaConfig(mode="seq", select="all"), {}),
        ("--ada_scores", AdaConfig(mode="seq", scores="raw"), {}),
        ("--ada_method", "reinforce-ada-est", {}),
        ("--ada_method", "reinforce-ada-balance", {"scale_rewards": "group"}),
    ],
)
def test_what_cannot_be_carried_out_is_refused(flag: str, ada: Any, changes: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        trl_toys.synchronous(tmp_path, ada, **changes)
    assert error.value.flag == flag and error.value.remedy


def test_other_versions_of_trl_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(ConfigError, match=r"trl is '1\.17\.0'"):
        trl_toys.synchronous(tmp_path, BALANCE)


def test_methods_by_name() -> None:
    settings = settings_for("reinforce-ada-balance", n=4, advantages=("dr_grpo",), batch=4)
    assert (settings.exit, settings.wave, settings.max_samples, settings.positive_above) == ("balance", 8, 32, 0.7)
    assert settings_for("hora", n=16, advantages=("group_norm",), batch=4).allocation == "hit"


def test_a_vllm_server_is_asked_for_every_rollout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer, asked = trl_toys.synchronous(tmp_path, BALANCE), []
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", lambda *args: asked.append(args[-1]))
    trainer.model.train()
    trainer._generate_single_turn([[5]], None, {}, 4)
    trainer.model.eval()
    trainer._generate_single_turn([[5]], None, {}, 4)
    assert asked == [1, 4]


# -- the asynchronous trainer -----------------------------------------------------------------------------------------


def loop(ada: AdaConfig, visit_size: int) -> _AdaRolloutLoop:
    settings = settings_for(ada, n=4, advantages=("dr_grpo",), batch=visit_size)
    value, nothing = SimpleNamespace(value=0), queue.Queue()
    ends = {"heartbeat_value": value, "failed_event": None, "exception_info_queue": nothing, "metrics_queue": nothing}
    own = {"ada": settings, "seed": 42, "visit_size": visit_size, "ada_state": None, "dataset_start_index": 0}
    model = {"model_name": "toy", "processing_class": trl_toys.tokenizer(), "eos_token_ids": [2]}
    return _AdaRolloutLoop(
        dataset=trl_toys.prompts(chat=True), reward_funcs=[trl_toys.right], rollout_buffer=nothing,
        model_version_value=value, **ends, **own, **model,
    )  # fmt: skip


def answered(group_id: int, row: dict[str, Any], token: int, version: int) -> RolloutGroup:
    sequence = TrainingSequence([5, token], [0, 1], [0.0, -1.0], "")
    known = {"share": [row["share"]], "completions_ids": [[token]]}
    rest = {"tool_call_counts": [0], "tool_failure_counts": [0], "env_rewards": [None], "rollout_rewards": [None]}
    return RolloutGroup(
        prompts=[row["prompt"]], completions=[[]], reward_kwargs={"share": known.pop("share")}, **known, **rest,
        completions_sequences=[[sequence]], model_version=version, group_id=group_id,
    )  # fmt: skip


@pytest.mark.parametrize(("ada", "visit"), [(BALANCE, 1), (ESTIMATED, 4)], ids=["seq", "est"])
def test_rollout_worker_gives_the_groups_of_the_core(ada: AdaConfig, visit: int) -> None:
    """Six rollouts are under way, and the latest is back first."""
    worker, rng, steps, samples = loop(ada, visit), np.random.default_rng(0), [], []
    build = worker._pools.build
    worker._pools.build = lambda v: steps.append(SimpleNamespace(rows=v.rows, closed=build(v))) or steps[-1].closed
    under_way, work = [], worker._repeat_iterator()
    while len(steps) < 24 // visit:
        under_way += [next(work) for _ in range(6 - len(under_way))]
        answer = answered(*under_way.pop(), int(rng.integers(64)), version=len(steps))
        samples += asyncio.run(worker._score_group(answer))
    steps.sort(key=lambda step: min(step.rows))
    for step in steps:
        pools = [one.pool for one in step.closed.finished]
        step.rewards = {(pool.key, i): (score, 0.0) for pool in pools for i, score in enumerate(pool.scores)}
    groups = {group.key: group for step in steps for group in step.closed.groups}
    trained = {key: [s.advantage for s in samples if s.group_id == key] for key in groups}
    assert trained == {key: list(group.coefficients) for key, group in groups.items()}
    # With a memory it depends on the order in which visits close.
    assert visit > 1 or list(trained.values()) == coefficients_of_core(ada, steps, 42)
    assert len({len(one.pool) for step in steps for one in step.closed.finished}) > 1
    assert all(len({s.model_version for s in samples if s.group_id == key}) == 1 for key in groups)
    books, keeper = worker._pools.ledger, Pools(worker._pools.settings, 42)
    for sample in samples:
        if closed := getattr(sample, "closed", None):
            keeper.record(closed)
    assert keeper.ledger == books and books.drawn == books.kept + books.unused + books.aborted


def asynchronous(folder: Path, url: str, ada: AdaConfig, **changes: Any) -> AdaAsyncGRPOTrainer:
    own = {"token_budget": 0, "vllm_server_base_url": url, "max_inflight_tasks": 8, "dtype": "float32"}
    args = AsyncGRPOConfig(str(folder), **trl_toys.SHARED | own | changes)
    return AdaAsyncGRPOTrainer(
        trl_toys.saved_model(folder / "model"), [trl_toys.right], args, trl_toys.prompts(chat=True), ada=ada,
        scale_rewards="none", processing_class=trl_toys.tokenizer(), weight_transfer=trl_toys.NO_TRANSFER,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("ada", [BALANCE, ESTIMATED], ids=["seq", "est"])
def test_asynchronous_training_and_resume(ada: AdaConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packing, "_flash_attn", lambda: trl_toys.KERNELS)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *device: None)
    with trl_toys.engine() as url:
        trainer = asynchronous(tmp_path, url, ada)
        trainer.train()
        state = json.loads((tmp_path / "checkpoint-2" / STATE).read_text())
        resumed = asynchronous(tmp_path, url, ada)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for books in (trainer.pools.ledger, resumed.pools.ledger):
        assert books.drawn == books.kept + books.unused + books.aborted and books.kept >= 4 * 8
    assert 16 <= state["ledger"]["kept"] < resumed.pools.ledger.kept and resumed.state.global_step == 4
    assert all(math.isfinite(row["loss"]) for row in resumed.state.log_history if "loss" in row)


# -- several processes, and the notebook ------------------------------------------------------------------------------

PROCESS = """
import json, sys, trl_toys
from openrlhf_ada.config.schema import AdaConfig
ada = AdaConfig(mode="seq", exit="balance", wave=3, max_samples=15)
trainer = trl_toys.synchronous(sys.argv[1], ada, per_device_train_batch_size=4, ddp_backend="gloo")
trainer.train()
weights = sum(float(p.sum()) for p in trainer.model.parameters())
print("done", json.dumps([trainer.pools.state_dict(), weights]))
"""


@pytest.mark.long
def test_two_processes_share_one_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROCESS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support"))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, other = (line for line in done.stdout.splitlines() if line.startswith("done"))
    books = json.loads(one.removeprefix("done "))[0]["ledger"]
    assert one == other and books["kept"] == 4 * 16
    assert books["drawn"] == books["kept"] + books["unused"] + books["aborted"] and books["aborted"] > 0


@pytest.mark.long
def test_notebook_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "trl.ipynb", as_version=4)
    assert len(notebook.cells) <= 8 and not [cell for cell in notebook.cells if cell.get("outputs")]
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "drawn = kept + unused + aborted" in "".join(notebook.cells[-1].outputs[0]["text"])
