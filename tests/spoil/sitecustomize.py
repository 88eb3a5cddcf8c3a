"""Python imports this in every process of a run with faults (PYTHONPATH): one tensor goes wrong on its way.

SPOIL has one or more of these words. `arrives`: the engine's worker receives other values than were sent. `loads`: it
receives the right ones, and loads others, which no checksum of what arrives can know. Both after two right updates.
`leaves`: worker 1 of an engine is killed as the second update begins, once: it then makes the file SPOIL_MARK, and a
restarted engine has one more that is right. All workers that begin an update have left their number beside that file.
Buckets are so small that most tensors of the toy model are cut.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from wrapt import register_post_import_hook

NAME = "model.layers.0.mlp.down_proj.weight"
UPDATES: list[int] = []
FIRST_RIGHT = 2


def has(fault: str) -> bool:
    """Asked late: what forks these processes has imported this before."""
    return fault in os.environ["SPOIL"].split(",")


def leave(worker: int, mark: Path) -> None:
    mark.with_suffix(f".{worker}").touch()
    if worker == 1 and len(UPDATES) == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def spoil(receiver: Any) -> None:
    load = receiver.WeightReceiver._load
    start = receiver.WeightReceiver.start_weight_update

    def counting(self: Any) -> None:
        UPDATES.append(1)
        if has("leaves"):
            leave(self.parallel_config.rank, Path(os.environ["SPOIL_MARK"]))
        start(self)

    def spoiled(self: Any, bucket: Any, tensors: Any, *, sums: bool) -> None:
        for spec, tensor in zip(bucket, tensors, strict=True):
            if spec.name == NAME and len(UPDATES) > FIRST_RIGHT + has("leaves"):
                if has("loads"):
                    self.sums += receiver.checksums(tensors) if sums else []
                    sums = False
                tensor.mul_(-8.0)
        load(self, bucket, tensors, sums=sums)

    receiver.WeightReceiver._load = spoiled
    receiver.WeightReceiver.start_weight_update = counting


def cut(manifest: Any) -> None:
    if has("leaves"):
        manifest.BUCKET_BYTES = 5000


register_post_import_hook(spoil, "openrlhf_ada.weights.receiver")
register_post_import_hook(cut, "openrlhf_ada.weights.manifest")
