"""How a training step goes through its micro-batches: in an order of its own, and with the gradients of all.

With --train.dynamic_batch_enable the host tells DeepSpeed that every backward pass is a whole step, and leaves out the
calls of `step()` in between. ZeRO stages 1 and 2 then begin anew with each backward pass: of a step only its last
micro-batch would be trained, the others without a trace (tests/contract/test_dynamic_batches.py).
"""

from __future__ import annotations

from typing import Any

import torch

STRIDE = 1_000_003
"""Runs of neighbouring seeds share no step's numbers."""


def seed_step(args: Any, version: int) -> None:
    """Random numbers of a process of policy or critic in the step that makes this version: the order of its
    micro-batches, dropout. OpenRLHF's go on from the last step's, so a resumed run has others; mode off keeps that.
    """
    if args.ada.mode != "off":
        torch.manual_seed(args.train.seed + STRIDE * version)


def mark_boundary(trainer: Any, engine: Any, step: int) -> None:
    """To be called before micro-batch `step` of a pass over the replay buffer: does an optimizer step end with it?

    `trainer`: the host's, of policy or critic; `engine`: its DeepSpeed engine.
    """
    if trainer.args.train.dynamic_batch_enable:
        engine.set_gradient_accumulation_boundary(bool(trainer.replay_buffer.dynamic_optimizer_step[step]))
