"""Gradients of all micro-batches of an optimizer step, where the host makes micro-batches by tokens.

With --train.dynamic_batch_enable the host tells DeepSpeed that every backward pass is a whole step, and leaves out the
calls of `step()` in between. ZeRO stages 1 and 2 then begin anew with each backward pass: of a step only its last
micro-batch would be trained, the others without a trace (tests/contract/test_dynamic_batches.py).
"""

from __future__ import annotations

from typing import Any


def mark_boundary(trainer: Any, engine: Any, step: int) -> None:
    """To be called before micro-batch `step` of a pass over the replay buffer: does an optimizer step end with it?

    `trainer`: the host's, of policy or critic; `engine`: its DeepSpeed engine.
    """
    if trainer.args.train.dynamic_batch_enable:
        engine.set_gradient_accumulation_boundary(bool(trainer.replay_buffer.dynamic_optimizer_step[step]))
