"""Sampling n answers per problem from a server that runs already, and grading them here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openrlhf_ada.core.scheduling import rollout_seed
from openrlhf_ada.eval.answers import Asked, Sampled, as_text
from openrlhf_ada.eval.openai_server import NoReplyError, OpenAIServer, Reply, ServerError
from openrlhf_ada.reward.grade import NoScoreError
from openrlhf_ada.reward.returned import reward_and_score
from openrlhf_ada.reward.reward_function import Grading, PooledReward, is_url
from openrlhf_ada.reward.weighted_sum import load_reward

GIVE_UP_AFTER = 20
"""Answers in a row without a reply, after which a server counts as lost."""


class Grader:
    """Grades answers as an engine would: our rewards in processes with limits, others as OpenRLHF asks them. A context
    manager. `reward`: a grader of labels, a file, or URLs with commas; `timeout_s`: for rewards that are not ours."""

    def __init__(self, reward: str, grading: Grading, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._is_server = is_url(reward)
        if self._is_server:
            # It imports all of OpenRLHF, which takes many seconds.
            from openrlhf_ada.host.rewards import HostReward

            self._ask: Any = HostReward(reward.split(","))
        else:
            self._ask = load_reward(reward, grading)
        self._pool = self._ask if isinstance(self._ask, PooledReward) else None

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pool is not None:
            self._pool.close()

    async def grade(self, asked: Asked, reply: Reply) -> Sampled:
        """The reply with its score, or with why it has none."""
        common = (reply.text, reply.tokens, reply.truncated)
        if self._pool is not None:
            grade = await asyncio.to_thread(self._pool.grade, reply.text, asked.label, as_text(asked.prompt))
            return Sampled(*common, grade.score, grade.cause, round(grade.seconds, 6))
        prompt = as_text(asked.prompt)
        try:
            async with asyncio.timeout(self._timeout_s):
                lists = [prompt + reply.text], [prompt], [asked.label]
                found = await (self._ask(*lists) if self._is_server else asyncio.to_thread(self._ask, *lists))
            score = reward_and_score(found)[1]
        except TimeoutError:
            # A function that hangs keeps its thread. The pool has few, and others must not wait for it.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
            return Sampled(*common, None, f"no score within {self._timeout_s:g} s")
        except NoScoreError as error:
            return Sampled(*common, None, str(error))
        except Exception as error:  # noqa: BLE001 - a user's own function; recorded, counted, and asked again later
            return Sampled(*common, None, f"the reward failed: {type(error).__name__}: {error}")
        return Sampled(*common, score)


def sample_from_server(
    wanted: Sequence[Asked],
    server: OpenAIServer,
    grader: Grader,
    *,
    seed: int,
    concurrency: int,
    on_answer: Callable[[Asked, Sampled], None],
) -> None:
    """Sample all, `concurrency` at a time; `on_answer` gets each as soon as it is there, in no particular order.

    An answer's seed depends on (seed, set, problem, index) only. An answer without a reply has no score. Raises
    ServerError: the server refuses the requests, or was lost on the way.
    """
    waiting = deque(wanted)
    in_a_row = 0

    async def work() -> None:
        nonlocal in_a_row
        while waiting:
            asked = waiting.popleft()
            try:
                reply = await server.reply(asked.prompt, rollout_seed(seed, asked.request))
            except NoReplyError as error:
                in_a_row += 1
                on_answer(asked, Sampled("", None, False, None, str(error)))
                if in_a_row >= GIVE_UP_AFTER:
                    raise ServerError(
                        f"{in_a_row} answers in a row have no reply, the last: {error}. Repeat the command to resume"
                    ) from error
                continue
            in_a_row = 0
            on_answer(asked, await grader.grade(asked, reply))

    async def sample() -> None:
        async with server:
            await server.check()
            tasks = [asyncio.create_task(work()) for _ in range(min(concurrency, len(waiting)))]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(sample())
