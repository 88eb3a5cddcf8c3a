"""Scores of finished answers from OpenRLHF's reward model, while the engines go on sampling."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ray.launcher import RayActorGroup
from ray.exceptions import GetTimeoutError, RayActorError


class RewardModel:
    """OpenRLHF's Ray group of reward actors, as a function from answers to scores.

    Every answer gets a forward pass of its own. In a padded batch its score would depend, by rounding, on the answers
    that happen to end at the same time, and the schedulers would no longer give the same pools.
    """

    def __init__(self, group: RayActorGroup, args: Any) -> None:
        self._group = group
        self._copies = args.ds.ring_attn_size * args.ds.tensor_parallel_size
        self._processes = args.reward.num_nodes * args.reward.num_gpus_per_node // self._copies
        self._max_len = args.data.max_len
        self._timeout_s = args.ada.timeout

    def __call__(self, answers: Sequence[Sequence[int]]) -> list[float]:
        """One score per answer (the tokens of prompt and response), in order: any number, or NaN. Raises RuntimeError
        where a process of the model has died, or does not answer within --ada_timeout."""
        # Models in parts (ZeRO 3) need every process to make equally many passes.
        padded = [*answers, *[answers[-1]] * (-len(answers) % self._processes)]
        # Through numpy: element by element, torch would take a thousand times as long.
        sequences = [
            torch.from_numpy(np.asarray(tokens[: self._max_len], dtype=np.int64)).unsqueeze(0) for tokens in padded
        ]
        refs = self._group.async_run_method_batch(
            "forward",
            sequences=sequences,
            attention_mask=[torch.ones_like(sequence) for sequence in sequences],
            pad_sequence=[True] * len(sequences),
        )
        try:
            results = ray.get(refs, timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise RuntimeError(
                f"the reward model scored {len(answers)} answers for more than {self._timeout_s:g} s (--ada_timeout); "
                f"raise it, or check what else its GPU does"
            ) from error
        except RayActorError as error:
            raise RuntimeError(f"a process of the reward model died while it scored answers: {error}") from error
        scores = itertools.chain.from_iterable(results[:: self._copies])
        return [float(score) for score in itertools.islice(scores, len(answers))]
