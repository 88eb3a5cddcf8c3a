"""The adaptive generator with its engines replaced by a table of outcomes, and OpenRLHF's loop around it.

Data set, loader, experiences and everything between them are the real ones.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from openrlhf.datasets import PromptDataset
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from torchdata.stateful_dataloader import StatefulDataLoader

from openrlhf_ada.core.batches import BatchPlan
from openrlhf_ada.core.fleet import DispatchLimits, Failed, Finished
from openrlhf_ada.core.policies import Policy
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.types import PromptKey
from openrlhf_ada.rollout import messages
from openrlhf_ada.rollout.messages import Result
from openrlhf_ada.rollout.prompts import PromptRequest
from openrlhf_ada.rollout.records import RolloutBatch
from openrlhf_ada.rollout.responses import ResponseReader
from openrlhf_ada.rollout.samples_generator import AdaptiveSamplesGenerator, SamplingOptions

GENERATE = {"max_len": 16, "max_new_tokens": 4}
BATCH, N = 2, 2

Outcome = Callable[[PromptRequest, int], float]
"""(prompt visit, index of the sample) -> score and reward."""


def make_args(*, batch: int = BATCH, model: str = "model", **train: Any) -> SimpleNamespace:
    return SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path=model),
        rollout=SimpleNamespace(batch_size=batch, n_samples_per_prompt=N, max_new_tokens=4),
        train=SimpleNamespace(**({"num_episodes": 1, "seed": 42} | train)),
        vllm=SimpleNamespace(enable_sleep=False),
        reward=SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None, clip_range=(-10, 10)),
        data=SimpleNamespace(max_len=16, input_key="input", label_key="label", disable_fast_tokenizer=False),
    )


def settings(**changes: Any) -> SimpleNamespace:
    """What the generator reads of `args.ada`."""
    plain: dict[str, Any] = {"refills": True, "refill_limit": 0, "max_no_score": 0.0, "log_texts": 0}
    plain |= {"scheduler": "rounds", "speculation": None, "timeout": 60.0, "logprob_steps": 0, "first_scores": 1}
    plain |= {"sampling_args": None}
    plain |= {"measures_factor": False, "reads_critic": False, "own_critic": False, "positive_above": 0.5}
    return SimpleNamespace(**plain | changes)


def make_loader(rows: int, args: SimpleNamespace, *, shuffle: bool = False) -> StatefulDataLoader:
    """OpenRLHF's data set and loader, as PPOTrainer builds them (without a process group)."""
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    data = [{"input": f"{i}+1=", "label": str(i + 1), "datasource": "sums"} for i in range(rows)]
    dataset = PromptDataset(data, None, strategy)
    return StatefulDataLoader(dataset, batch_size=1, shuffle=shuffle, collate_fn=dataset.collate_fn)


def response(prompt: str, reward: float | None, score: float | None = None, tokens: int = 2) -> dict[str, Any]:
    """What an engine returns for one sample: two prompt tokens, then the answer."""
    return {
        "prompt": prompt,
        "label": "",
        "observation_tokens": [5, 6, *[7] * tokens],
        "action_ranges": [(2, 2 + tokens)],
        "rollout_log_probs": None,
        "truncated": tokens >= 4,
        "reward": reward,
        "scores": reward if score is None else score,
    }


def result_of(response: dict[str, Any], *, max_length: int = GENERATE["max_len"], logprobs: bool = False) -> Result:
    """What the driver gets of an engine's response."""
    return pickle.loads(pickle.dumps(messages.result_of(response, max_length=max_length, logprobs=logprobs)))


def table(outcomes: Mapping[int, Sequence[float]]) -> Outcome:
    """The k-th sample of row r is `outcomes[r][k]`, at every visit."""
    return lambda request, index: outcomes[request.row][index]


class TableGenerator(AdaptiveSamplesGenerator):
    """Answers as the table says, sample k with k + 1 tokens.

    `max_no_score`: a number of prompts. `asked`: what it was asked for, (row, count). `consumed`: prompts that it
    reported to OpenRLHF, in all.
    """

    def __init__(
        self, args: SimpleNamespace, loader: Any, policy: Policy, outcome: Outcome, plan: BatchPlan, **options: Any
    ) -> None:
        # What a test gives of the flags; the rest is no flag.
        given = {name: options.pop(name) for name in list(options) if name in vars(settings())}
        given["max_no_score"] = given.get("max_no_score", 0) / args.rollout.batch_size
        args = SimpleNamespace(**vars(args) | {"ada": settings(**given)})
        host = SamplesGenerator(SimpleNamespace(args=args), loader, None, None, [])
        super().__init__(host, policy, SamplingOptions(plan=plan, restore_engine=lambda engine: [], **options))
        self.outcome = outcome
        self.asked: list[tuple[int, int]] = []
        self.consumed = 0

    def generate_samples(self, **generate_kwargs: Any) -> tuple[RolloutBatch, None, int, bool]:
        batch, rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        self.consumed += consumed
        return batch, rate, consumed, exhausted

    def fleet(self, requests: Mapping[PromptKey, PromptRequest], generate_kwargs: dict[str, Any]) -> Any:
        return TableFleet(self, requests, self._reader(generate_kwargs))

    @property
    def _limits(self) -> DispatchLimits:
        return DispatchLimits(slots=10**6, speculative=10**6)

    def answer(self, reader: ResponseReader, request: Request, score: float, prompt: str) -> Any:
        """(sample, result) of a rollout; None: no score."""
        tokens = request.index + 1
        answer = response(prompt, score, tokens=tokens)
        if self.settings.measures_factor:
            answer["rollout_log_probs"] = [-1.0 / (1.0 + request.key % 3 + score)] * (2 + tokens)
        result = result_of(answer)
        return reader.sample(request, result, (0, 0)), result


class TableFleet:
    """One engine that finishes everything at once."""

    num_engines = 1

    def __init__(
        self, generator: TableGenerator, requests: Mapping[PromptKey, PromptRequest], reader: ResponseReader
    ) -> None:
        self.generator, self.requests, self.reader = generator, requests, reader
        self.sent: list[Request] = []

    def submit(self, engine: int, requests: Sequence[Request]) -> None:
        self.sent += requests
        for key, count in Counter(request.key for request in requests).items():
            self.generator.asked.append((self.requests[key].row, count))

    def abort(self, engine: int, requests: Sequence[Request]) -> None:
        raise AssertionError("nothing is running")

    def wait(self) -> list[Finished[Result] | Failed]:
        sent, self.sent = self.sent, []
        return [self._answer(request) for request in sent]

    def _answer(self, request: Request) -> Finished[Result] | Failed:
        prompt = self.requests[request.key]
        score = self.generator.outcome(prompt, request.index)
        answer = self.generator.answer(self.reader, request, score, prompt.prompt)
        return Failed(request, 0, "the test says so") if answer is None else Finished(request, *answer)


@dataclass(frozen=True)
class Step:
    """One training step's batch, the prompts consumed for it, and the states that a checkpoint after it holds."""

    batch: RolloutBatch
    states: dict[str, Any]

    @property
    def visits(self) -> list[tuple[PromptKey, int]]:
        """(key, row) of every prompt that was sampled, in the order of keys."""
        record = self.batch.record
        return [] if record is None else sorted((group.pool.key, group.row) for group in record.all_groups)


INITIAL_STATES: dict[str, Any] = {
    "episode": 0,
    "global_step": 0,
    "total_consumed_prompts": 0,
    "data_loader_state_dict": {},
}


def train(generator: AdaptiveSamplesGenerator, states: dict[str, Any]) -> Iterator[Step]:
    """OpenRLHF's loop (PPOTrainer.fit) with everything but the training, from a checkpoint's states on."""
    loader = generator.prompts_dataloader
    generator.restore(states)
    if states["data_loader_state_dict"]:
        loader.load_state_dict(states["data_loader_state_dict"])
    consumed, global_step = states["total_consumed_prompts"], states["global_step"]
    for episode in range(states["episode"], generator.args.train.num_episodes):
        exhausted = False
        while not exhausted:
            batch, _, prompts, exhausted = generator.generate_samples(**GENERATE)
            consumed += prompts
            if batch:
                global_step += 1
                position = {"total_consumed_prompts": consumed, "data_loader_state_dict": loader.state_dict()}
                yield Step(batch, {"episode": episode, "global_step": global_step} | position | batch.checkpoint)
