"""What the host's single-turn executor reads of an answer, and no more.

vLLM's process of the rollout actor does the rest in Python, once per token of every running request, so it limits how
fast an engine can be (benchmarks/engine_host.py).
"""

from __future__ import annotations

from typing import Any

from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.logprobs import FlatLogprobs


def reads_tokens_only(executor: Any) -> bool:
    """Does this executor read token ids and their log-probabilities alone?

    The host's single-turn one does, and makes the text for rewards from the token ids with a tokenizer of its own. An
    agent may read anything.
    Contract: test_engine_output.test_single_turn_executor_reads_tokens_alone
    """
    return type(executor) is SingleTurnAgentExecutor


def ask_for_tokens_only(params: Any) -> None:
    """Change sampling parameters in place; the tokens that are sampled stay the same."""
    # Stop strings are looked for in the text.
    params.detokenize = bool(params.stop)
    if params.logprobs is not None:
        # 0: of the sampled token alone. Nobody reads the most probable token's.
        params.logprobs = 0
        params.flat_logprobs = True


class OutputError(ValueError):
    """vLLM returned something other than what it was asked for."""


def check_logprobs(completion: Any, asked: int | None) -> None:
    """Raises OutputError if one is missing: the host would fill in 0, the log-probability of certainty."""
    if asked is None:
        return
    tokens, found = completion.token_ids, completion.logprobs
    if found is None or len(found) != len(tokens):
        raise OutputError(f"vLLM gave {0 if found is None else len(found)} log-probabilities of {len(tokens)} tokens")
    if not _all_sampled(tokens, found):
        raise OutputError("vLLM gave no log-probability of a token that it has sampled")


def _all_sampled(tokens: Any, found: Any) -> bool:
    if isinstance(found, FlatLogprobs) and found.token_ids == list(tokens):
        # One log-probability per token. An object for each position would take ten times as long.
        return found.end_indices == list(range(1, len(tokens) + 1))
    return all(token in of_position for token, of_position in zip(tokens, found, strict=True))
