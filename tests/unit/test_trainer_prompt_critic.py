"""A critic's value of a prompt is its value at the last prompt token, however prompts are padded and dealt out.

The critic is OpenRLHF's model, two layers small, on this machine; its Ray group is OpenRLHF's, without Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import Remote
from openrlhf.models.model import _get_critic_model
from openrlhf.trainer.ray.launcher import BaseModelActor, RayActorGroup
from transformers import LlamaConfig, LlamaModel, LlamaPreTrainedModel

from openrlhf_ada.demo import toy
from openrlhf_ada.trainer.prompt_critic import PromptCritic

pytestmark = pytest.mark.usefixtures("without_ray")

PROMPTS = ["1+1=", "12+7=", "5+5=", "19+18=", "0+3=", "7+7=", "2+2="]


@lru_cache
def tokenizer() -> Any:
    return toy._build_tokenizer()


class Actor:
    """One process of the critic: OpenRLHF's batched calls, its model, and what was appended for training."""

    execute_batch = BaseModelActor.execute_batch
    strategy = SimpleNamespace(is_rank_0=lambda: False)  # no progress bars

    def __init__(self, critic: torch.nn.Module) -> None:
        self.critic = critic
        self.appended: list[dict[str, torch.Tensor]] = []

    @torch.no_grad()
    def forward(self, sequences: Any, action_mask: Any, attention_mask: Any) -> torch.Tensor:
        return self.critic(sequences, action_mask=action_mask, attention_mask=attention_mask)

    def append_prompts(self, rows: dict[str, torch.Tensor]) -> None:
        self.appended.append(rows)

    def fit_pass_rates(self) -> dict[str, float]:
        return {"loss": 0.25, "lr": 1e-3, "grad_norm": 2.0}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer()), **sizes)
    config.normalize_reward = False
    return _get_critic_model(LlamaPreTrainedModel, LlamaModel)(config).eval()


def make_critic(
    model: torch.nn.Module, folder: str, *, processes: int = 1, copies: int = 1, micro_batch: int = 4, **sizes: int
) -> tuple[PromptCritic, list[Actor]]:
    """`copies`: processes that see the same data (ring attention, tensor parallelism)."""
    plain = {"batch_size": 8, "max_epochs": 1, "max_len": 64, "max_new_tokens": 8} | sizes
    args = SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path=folder),
        critic=SimpleNamespace(num_nodes=1, num_gpus_per_node=processes * copies),
        data=SimpleNamespace(disable_fast_tokenizer=False, max_len=plain["max_len"]),
        ds=SimpleNamespace(ring_attn_size=copies, tensor_parallel_size=1, enable_sleep=False),
        rollout=SimpleNamespace(
            micro_batch_size=micro_batch, n_samples_per_prompt=2, max_new_tokens=plain["max_new_tokens"]
        ),
        train=SimpleNamespace(
            micro_batch_size=micro_batch, batch_size=plain["batch_size"], max_epochs=plain["max_epochs"]
        ),
    )
    actors = [Actor(model) for _ in range(processes * copies)]
    group = object.__new__(RayActorGroup)
    group.duplicate_actors = copies
    group._actor_handlers = [
        SimpleNamespace(execute_batch=Remote(a.execute_batch), fit_pass_rates=Remote(a.fit_pass_rates)) for a in actors
    ]
    return PromptCritic(group, args), actors


def value_alone(model: Any, prompt: str) -> float:
    """Value head on the last token's hidden state of the prompt by itself, without padding."""
    tokens = torch.tensor([tokenizer()(prompt, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        return float(model.score(model.model(tokens)["last_hidden_state"][0, -1]))


@pytest.fixture(scope="module")
def alone(model: torch.nn.Module) -> list[float]:
    return [value_alone(model, prompt) for prompt in PROMPTS]


# -- values -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 16])
@pytest.mark.parametrize(("processes", "copies"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_value_is_that_of_the_last_prompt_token(
    model: torch.nn.Module, alone: list[float], model_folder: str, processes: int, copies: int, micro_batch: int
) -> None:
    critic, _ = make_critic(model, model_folder, processes=processes, copies=copies, micro_batch=micro_batch)
    for count in (1, 2, len(PROMPTS)):
        assert critic.values(PROMPTS[:count]) == pytest.approx(alone[:count], abs=1e-5)
    assert len(set(critic.values(PROMPTS))) == len(PROMPTS), "the prompts can be told apart"


def test_prompt_is_cut_as_the_engines_cut_it(model: torch.nn.Module, model_folder: str) -> None:
    """Four tokens have room: of `12+7=` the engines read `2+7=`."""
    critic, _ = make_critic(model, model_folder, max_len=12, max_new_tokens=8)
    assert critic.values(["12+7="]) == pytest.approx([value_alone(model, "2+7=")], abs=1e-5)


# -- fitting ------------------------------------------------------------------------------------------------------

DRAWS, POSITIVES = [2, 8, 4, 16, 2, 8, 4], [1, 0, 4, 4, 0, 8, 1]


def prompts_in(rows: dict[str, torch.Tensor]) -> list[str]:
    """The prompts of a micro-batch, read back from its tokens."""
    lengths = rows["attention_mask"].sum(dim=1).tolist()
    sequences = zip(rows["sequences"].tolist(), lengths, strict=True)
    return [tokenizer().decode(tokens[: length - 1]) for tokens, length in sequences]


def updates_of(actors: Sequence[Actor]) -> list[list[dict[str, torch.Tensor]]]:
    """Micro-batches by optimiser step, over all processes; every process ends each step with its last one."""
    updates: list[list[dict[str, torch.Tensor]]] = []
    for actor in actors:
        ends = [i + 1 for i, rows in enumerate(actor.appended) if bool(rows["ends_update"])]
        assert ends and ends[-1] == len(actor.appended), "nothing waits for a step that never comes"
        for step, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            updates += [[]] * (step == len(updates))
            updates[step] = [*updates[step], *actor.appended[start:end]]
    return updates


@pytest.mark.parametrize("micro_batch", [1, 2, 16])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_prompt_counts_once_per_sample(
    model: torch.nn.Module, model_folder: str, processes: int, micro_batch: int, steps: int
) -> None:
    critic, actors = make_critic(model, model_folder, processes=processes, micro_batch=micro_batch)
    critic.fit(PROMPTS, DRAWS, POSITIVES, updates=steps)
    assert len({len(actor.appended) for actor in actors}) == 1, "no process waits for another"
    updates = updates_of(actors)
    assert len(updates) == steps
    seen: list[str] = []
    for rows in updates:
        shares: dict[str, float] = {}
        for row in rows:
            for prompt, weight, target in zip(prompts_in(row), row["weight"], row["target"], strict=True):
                place = PROMPTS.index(prompt)
                assert float(target) == pytest.approx(POSITIVES[place] / DRAWS[place])
                shares[prompt] = shares.get(prompt, 0.0) + float(weight)
        total = sum(DRAWS[PROMPTS.index(prompt)] for prompt in shares)
        assert shares == {p: pytest.approx(DRAWS[PROMPTS.index(p)] / total) for p in shares}
        seen += shares
    assert sorted(seen) == sorted(PROMPTS)


def test_epochs_repeat_the_steps(model: torch.nn.Module, model_folder: str) -> None:
    critic, actors = make_critic(model, model_folder, max_epochs=3)
    critic.fit(PROMPTS, DRAWS, POSITIVES, updates=2)
    assert len(updates_of(actors)) == 3 * 2


def test_status_has_the_names_of_the_hosts_critic(model: torch.nn.Module, model_folder: str) -> None:
    critic, _ = make_critic(model, model_folder)
    status = critic.fit(PROMPTS, DRAWS, POSITIVES, updates=1)
    assert status == {"critic_loss": 0.25, "critic_lr": 1e-3, "critic_grad_norm": 2.0}
