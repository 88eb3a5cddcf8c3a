"""The moving average of the weights, from its formula to the checkpoint that it goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openrlhf_ada.weights.average import WeightAverage
from openrlhf_ada.weights.manifest import Manifest, TensorSpec

pytestmark = pytest.mark.rehearsal

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


def average_of(source: Any, *, beta: float = BETA, part: tuple[int, int] = (0, 1), **options: Any) -> WeightAverage:
    return WeightAverage(source, beta, *part, **options)


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
    """As OpenRLHF's does; the reason for one of our own."""
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


@pytest.mark.parametrize("count", [2, 3, 8])
def test_processes_average_their_parts(count: int) -> None:
    """Of 6 and 4 numbers; eight processes are more than there are numbers. What they have together is the whole."""
    source = Source()
    parts = [average_of(source, part=(rank, count)) for rank in range(count)]
    alone = average_of(source)
    for step in range(3):
        for tensor in source.weights.values():
            tensor.add_(torch.arange(tensor.numel()).view(tensor.shape) + step)
        for one in (*parts, alone):
            one.update()
    for name, whole in alone.tensors().items():
        assert torch.equal(torch.cat([part._tensors[name] for part in parts]), whole.view(-1))
        assert max(part._tensors[name].numel() for part in parts) == -(-whole.numel() // count)


class Operations(TorchDispatchMode):
    """Of all that is computed: where results are, their bytes, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: set[str] = set()
        self.bytes = self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.devices.add(result.device.type)
            self.bytes += result.nbytes
            self.count += 1
        return result


def test_step_stays_on_the_weights_device() -> None:
    """A weight in half precision becomes single, and moves the average: 4 + 4 bytes each. Nothing is read from the
    device, which stands for a GPU: it has no numbers to give."""
    source = Source(torch.bfloat16)
    source.weights = {name: torch.empty(64, 1024, dtype=torch.bfloat16, device="meta") for name in source.weights}
    source.manifest = Manifest(tuple(TensorSpec(name, "bfloat16", (64, 1024)) for name in source.weights))
    average = average_of(source, part=(3, 8))
    with Operations() as done:
        average.update()
    assert done.devices == {"meta"}
    assert done.bytes == 2 * (64 * 1024 // 8) * (4 + 4)
    assert done.count == 4


def test_an_average_in_main_memory_is_the_same() -> None:
    source = Source()
    on_device, in_main_memory = (average_of(source, in_main_memory=where) for where in (False, True))
    for _ in range(3):
        source.weights["a"].mul_(1.5)
        on_device.update()
        in_main_memory.update()
    for name, tensor in on_device.tensors().items():
        assert torch.equal(in_main_memory.tensors()[name], tensor)


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
    with pytest.raises(RuntimeError, match=r"average\.safetensors.*--train\.enable_ema"):
        average.load(path)
    other = Source()
    other.weights["b"] = torch.ones(5)
    other.manifest = Manifest((TensorSpec("a", "float32", (3, 2)), TensorSpec("b", "float32", (5,))))
    average_of(other).save(path)
    with pytest.raises(RuntimeError, match=r"average\.safetensors.*model"):
        average.load(path)
