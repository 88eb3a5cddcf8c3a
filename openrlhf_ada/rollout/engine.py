"""The rollout actor: OpenRLHF's, which also samples single rollouts, each with its own seed, and gives up those that
nobody needs any more. OpenRLHF's executors do the sampling: single turns, agents, remote rewards."""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from vllm.platforms import current_platform

from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.core.speculation import CPU_SPECULATION, GPU_SPECULATION
from openrlhf_ada.host.engine import HostRolloutActor, replace_rewards
from openrlhf_ada.host.engine_options import engine_arguments
from openrlhf_ada.host.model_code import check_model_code
from openrlhf_ada.host.vllm_engine import ended_cores, knows_request
from openrlhf_ada.platforms.nvml import wait_for_room
from openrlhf_ada.platforms.processes import how_it_ended
from openrlhf_ada.reward.returned import as_rewards
from openrlhf_ada.reward.reward_function import Grading, PooledReward, in_openrlhf_form, reward_files
from openrlhf_ada.reward.weighted_sum import CombinedReward
from openrlhf_ada.rollout.conversations import count_sampled_tokens
from openrlhf_ada.rollout.messages import Answer, Result, result_of
from openrlhf_ada.rollout.tracked_engine import (
    Job,
    Rollout,
    RolloutStopped,
    TrackedEngine,
    current_rollout,
    reads_tokens_only,
)
from openrlhf_ada.weights.engine_side import ReceivesWeights

WATCH_S = 0.5
"""Seconds between looks at whether vLLM's core lives."""

STUCK_S = 60.0
"""Seconds without such a look after which the log gets the stacks of all threads."""

GATHER_S = 0.01
"""Seconds; about a decoding step."""


@dataclass(frozen=True, slots=True)
class SamplingSetup:
    """What all rollouts of a run share. `timeout_s`: how long one may take, its reward included."""

    params: Any
    max_length: int
    tokenizer: Any
    timeout_s: float


async def _end_with(llm: Any) -> None:
    """End this process with vLLM's core: Ray can start it again. vLLM tells of the death in `generate` alone."""
    try:
        while not llm.errored:
            # A reward function that holds Python's lock stops this loop: the log then shows where it is.
            faulthandler.dump_traceback_later(STUCK_S, file=sys.__stderr__ or sys.stderr)
            await asyncio.sleep(WATCH_S)
    finally:
        faulthandler.cancel_dump_traceback_later()
    how = "".join(f" {name} {how_it_ended(code)}." for name, code in ended_cores(llm).items())
    # Nothing is flushed by what follows.
    sys.stderr.write(f"This process ends with its vLLM engine: {llm.dead_error}{how}\n")
    sys.stderr.flush()
    os._exit(1)


class AdaRolloutActor(HostRolloutActor, ReceivesWeights):
    """One engine. Rollouts are handed in with `submit` and `stop`; `answers` waits for those that have ended."""

    grading: Grading | None = None
    trusts_model_code = False
    engine_args: str | None = None
    shares_gpu = False
    """The policy lies on the same GPU."""

    async def __init__(self, *args: Any, remote_rm_url: str | Sequence[str] | None = None, **kwargs: Any) -> None:
        # Here, since this package may lie elsewhere on another node.
        named = [remote_rm_url] if isinstance(remote_rm_url, str) else remote_rm_url or []
        check_model_code("the engine's model", kwargs["model"], trusted=self.trusts_model_code)
        kwargs |= {"trust_remote_code": self.trusts_model_code, **engine_arguments(self.engine_args)}
        self._await_room(kwargs)
        await super().__init__(*args, remote_rm_url=reward_files(named), **self.with_receiver(kwargs))
        self.open_gate()
        self.llm = TrackedEngine(self.llm, self, tokens_only=reads_tokens_only(self.executor))
        count_sampled_tokens(self.executor)
        self._running: dict[Request, Rollout] = {}
        self._ended: asyncio.Queue[Answer] = asyncio.Queue()
        self._start_id = uuid.uuid4().hex
        _prepare_reward(self.executor, named, self.grading)
        self._watch = asyncio.create_task(_end_with(self.llm))

    def _await_room(self, arguments: dict[str, Any]) -> None:
        """After a death, beside the policy. Raises NoRoomError."""
        if not self.shares_gpu or current_platform.is_cpu():
            return
        if ray.get_runtime_context().was_current_actor_reconstructed:
            share, count = arguments["gpu_memory_utilization"], arguments["tensor_parallel_size"]
            wait_for_room(share, count, ray.get_gpu_ids())

    def prepare_environment(self) -> None:
        self.forbid_pickle()

    async def ready(self) -> str:
        """Which of the processes that Ray has started for this engine answers."""
        if self.llm.errored:
            # The watch ends this process, and the next one answers.
            await asyncio.Event().wait()
        return self._start_id

    async def reset(self) -> None:
        """Give up every rollout: nobody waits for them any more."""
        running = [rollout for rollout in self._running.values() if rollout.task is not None]
        await self.stop([rollout.job.request for rollout in running])
        await asyncio.gather(*(rollout.task for rollout in running if rollout.task is not None))
        self._ended = asyncio.Queue()

    async def capacity(self) -> tuple[int, int]:
        """Requests that vLLM decodes at a time, and up to how many it is worth to speculate."""
        slots = self.llm.vllm_config.scheduler_config.max_num_seqs
        return slots, min(CPU_SPECULATION if current_platform.is_cpu() else GPU_SPECULATION, slots)

    async def submit(self, jobs: Sequence[Job], setup: SamplingSetup) -> None:
        """Start sampling these; returns at once."""
        for job in jobs:
            rollout = self._running[job.request] = Rollout(job)
            rollout.task = asyncio.create_task(self._sample(rollout, setup))

    async def stop(self, requests: Sequence[Request]) -> None:
        """Abort these; each is answered, by what it was stopped at or, if it was faster, by its result."""
        for request in requests:
            rollout = self._running.get(request)
            if rollout is None or rollout.task is None:
                continue
            rollout.stopped = True
            if rollout.request_id is not None and knows_request(self.llm, rollout.request_id):
                await self.llm.abort(rollout.request_id)
            elif rollout.started:
                # Before, between or after its turns, or on the way into vLLM, where an abort would find nothing.
                rollout.task.cancel()

    async def generate_responses(
        self, *, prompt: str, label: Any, sampling_params: Any, num_samples: int = 1, **others: Any
    ) -> list[Any]:
        """As OpenRLHF's. If the parameters have a seed, as in an evaluation, it is a run's: each answer has its own,
        by prompt, label and index, on any engine and beside any others."""
        call = {"prompt": prompt, "label": label, "sampling_params": sampling_params, **others}
        if sampling_params.seed is None:
            return await super().generate_responses(**call, num_samples=num_samples)
        key = int.from_bytes(hashlib.sha256(repr((prompt, label)).encode()).digest()[:8], "big")
        ask = partial(super().generate_responses, **call, num_samples=1)

        async def answer(index: int) -> Any:
            # In a task of its own, whose context no other has.
            job = Job(Request(key, index), prompt, label, others.get("images"), sampling_params.seed)
            current_rollout.set(Rollout(job))
            return (await ask())[0]

        return await asyncio.gather(*map(answer, range(num_samples)))

    async def answers(
        self, stops: Sequence[Request] = (), jobs: Sequence[Job] = (), setup: SamplingSetup | None = None
    ) -> list[Answer]:
        """Wait until a rollout has ended; all that have, with those that follow within a moment.

        Before that, `submit` and `stop`: calls of their own take the driver as long as several rollouts.
        """
        # At once, since a later call may stop these. `stops` are of earlier ones.
        if setup is not None:
            await self.submit(jobs, setup)
        await self.stop(stops)
        # A reset puts another in its place.
        queue = self._ended
        found = [await queue.get()]
        # Rollouts that end in the same step get their rewards one after the other; a message each would cost more.
        await asyncio.sleep(GATHER_S)
        while not queue.empty():
            found.append(queue.get_nowait())
        return found

    async def _sample(self, rollout: Rollout, setup: SamplingSetup) -> None:
        current_rollout.set(rollout)
        result: Result | None = None
        error = ""
        job = rollout.job
        try:
            rollout.started = True
            if rollout.stopped:
                raise RolloutStopped
            async with asyncio.timeout(setup.timeout_s):
                response = await self.executor.execute(
                    prompt=job.prompt,
                    label=job.label,
                    # OpenRLHF's agents write into it, by prompt.
                    sampling_params=deepcopy(setup.params),
                    max_length=setup.max_length,
                    hf_tokenizer=setup.tokenizer,
                    llm_engine=self,
                    images=job.image,
                )
            error = rollout.reward_error or ("" if response else "the agent returned nothing")
            if not error:
                asked = setup.params.logprobs is not None
                result = result_of(response, max_length=setup.max_length, logprobs=asked, grade=rollout.grade)
        except asyncio.CancelledError:
            error = "" if rollout.stopped else "it was cancelled, and not by us"
        except TimeoutError:
            error = f"no answer and score within {setup.timeout_s:g} s"
            # A reward function that hangs keeps its thread. The pool has few, and others must not wait for it.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        except Exception as failure:  # noqa: BLE001 - told to the scheduler, which counts failures and repeats them
            error = f"{type(failure).__name__}: {failure}"
        del self._running[job.request]
        self._ended.put_nowait(Answer(job.request, rollout.num_tokens, self._versions_of(rollout), error, result))

    def _versions_of(self, rollout: Rollout) -> tuple[int, int]:
        """Of the weights at its first and at its last token."""
        first = self.version if rollout.first_version is None else rollout.first_version
        return first, first if rollout.last_version is None else rollout.last_version


def _prepare_reward(executor: Any, names: Sequence[str], grading: Grading | None) -> None:
    """Keep why a reward function failed, which OpenRLHF only logs, and the grades of our own."""
    function = getattr(executor, "reward_func", None)
    if isinstance(function, PooledReward):
        function.configure(grading or Grading())
        function.start()
    elif isinstance(function, CombinedReward):
        function.configure(names, grading or Grading())
    if function is not None:
        executor.reward_func = in_openrlhf_form(function)
    replace_rewards(executor, _noting)


def _noting(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _noted():
            result = function(*args, **kwargs)
        rollout = current_rollout.get()
        if rollout is not None and isinstance(result, dict):
            # OpenRLHF asks about one answer at a time.
            rollout.grade = next(iter(result.get("grades", ())), None)
        return result

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with _noted():
            return list(map(as_rewards, await function(*args, **kwargs)))

    return call_async if asyncio.iscoroutinefunction(function) else call


@contextmanager
def _noted() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (rollout := current_rollout.get()) is not None:
            rollout.reward_error = f"{type(error).__name__}: {error}"
        raise


def rollout_actor(restarts: int, **settings: Any) -> Any:
    """For Ray, which starts an engine whose process has died again this often. `settings`: the class's, by name."""
    return ray.remote(max_restarts=restarts)(type("AdaRolloutActor", (AdaRolloutActor,), settings))
