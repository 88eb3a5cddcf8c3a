"""The memory that buckets are copied into. What travels by it: test_weights_sender.py."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_ada.weights.transport import Buffers


@given(st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(0, 5), max_size=3)), max_size=30))
def test_nobodys_memory_changes_under_their_hands(turns: list[tuple[int, list[int]]]) -> None:
    """Some keep what they got, or a view of a part in another type, until others have long got theirs."""
    buffers = Buffers()
    held: list[tuple[torch.Tensor, int]] = []
    for number, (size, released) in enumerate(turns):
        tensor = buffers.get(4 * size)
        assert tensor.shape == (4 * size,)
        tensor.fill_(number)
        view = tensor.view(torch.int32)[size // 2 :] if number % 2 else tensor
        held.append((view, number))
        del tensor, view
        for index in released:
            if index < len(held):
                del held[index]
        for kept, value in held:
            assert bool((kept.view(torch.uint8) == value).all())


def test_memory_is_used_again_once_no_view_is_left() -> None:
    buffers = Buffers()
    first = buffers.get(64)
    place, part = first.data_ptr(), first[8:].view(torch.bfloat16)
    del first
    other = buffers.get(64)
    assert other.data_ptr() != place
    del part
    assert buffers.get(32).data_ptr() == place


def test_who_comes_while_two_are_in_use_gets_memory_of_their_own() -> None:
    buffers = Buffers()
    tensors = [buffers.get(16) for _ in range(5)]
    assert len({tensor.data_ptr() for tensor in tensors}) == 5
