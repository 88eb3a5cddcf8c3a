"""The moving average of the weights, from its formula to the checkpoint that it goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from openrlhf_ada.weights.average import AverageError, WeightAverage
from openrlhf_ada.weights.manifest import Manifest, TensorSpec

BETA = 0.992


class Source:
    """Two tensors, gathered one by one."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.weights = {"a": torch.ones(3, 2, dtype=dtype), "b": torch.ones(4, dtype=dtype)}
        specs = [TensorSpec(n, str(dtype).removeprefix("torch."), tuple(t.shape)) for n, t in self.weights.items()]
        self.manifest = Manifest(tuple(specs), bucket_bytes=1)

    @contextmanager
    def gathered(self, batch: Sequence[TensorSpec]) -> Iterator[list[torch.Tensor]]:
        yield [self.weights[spec.name] for spec in batch]


def average_of(source: Any, *, is_first: bool = True, beta: float = BETA) -> WeightAverage:
    return WeightAverage(source, beta, is_first=is_first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_average_is_its_formula_whatever_the_weights_are_in(dtype: torch.dtype) -> None:
    """They rise by an eighth, once: 200 steps later the average has made four fifths of the way."""
    source = Source(dtype)
    average = average_of(source)
    for tensor in source.weights.values():
        tensor.mul_(1.125)
    for _ in range(200):
        average.update()
    expected = 1.125 - 0.125 * BETA**200
    for name, tensor in average.tensors().items():
        assert tensor.dtype == dtype
        assert torch.allclose(tensor.double(), torch.full_like(source.weights[name], expected).double(), rtol=1e-5)


def test_half_precision_average_would_stand_still() -> None:
    """As the host's does; the reason for one of our own."""
    weight, average = torch.tensor(1.125).bfloat16(), torch.tensor(1.0).bfloat16()
    for _ in range(1000):
        average.copy_((1 - BETA) * weight + BETA * average)
    assert average == 1.0


def test_average_starts_at_the_weights_and_follows() -> None:
    source = Source()
    average = average_of(source, beta=0.5)
    assert all(torch.equal(t, source.weights[name]) for name, t in average.tensors().items())
    expected = {name: tensor.clone() for name, tensor in source.weights.items()}
    for step in range(10):
        for name, tensor in source.weights.items():
            tensor.copy_(torch.full_like(tensor, float(step)))
            expected[name] = 0.5 * expected[name] + 0.5 * tensor
        average.update()
    assert all(torch.allclose(t, expected[name]) for name, t in average.tensors().items())


def test_other_processes_hold_no_average(tmp_path: Path) -> None:
    source = Source()
    average = average_of(source, is_first=False)
    average.update()
    average.save(tmp_path / "average.safetensors")
    average.load(tmp_path / "average.safetensors")
    assert average.tensors() == {}
    assert not list(tmp_path.iterdir())


def test_average_continues_from_a_checkpoint(tmp_path: Path) -> None:
    path, source = tmp_path / "_average" / "global_step2.safetensors", Source()
    average = average_of(source)
    source.weights["a"].add_(1)
    average.update()
    average.save(path)
    resumed = average_of(source)
    resumed.load(path)
    for one in (average, resumed):
        one.update()
    assert all(torch.equal(t, resumed.tensors()[name]) for name, t in average.tensors().items())


def test_foreign_or_missing_average_is_refused(tmp_path: Path) -> None:
    path, source = tmp_path / "average.safetensors", Source()
    average = average_of(source)
    with pytest.raises(AverageError, match=r"is missing: the checkpoint was made without --train\.enable_ema"):
        average.load(path)
    source.weights["b"] = torch.ones(5)
    average_of(source).save(path)
    with pytest.raises(AverageError, match="holds the average of another model"):
        average.load(path)
