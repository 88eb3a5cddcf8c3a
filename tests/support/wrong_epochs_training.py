"""Two epochs over a step, with wrong answers in the first of them only (--ada_wrong_epochs): a program of its own.

    python wrong_epochs_training.py FOLDER

See dynamic_training.py, whose models, rollouts and output it has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dynamic_training import LENGTHS, main

RIGHT = (10, 12)
"""Both are trained by the first process in micro-batches of fixed size: the second has nothing to train in the end."""

ONCE: dict[str, Any] = {
    "kind": "fixed",
    "stage": 0,
    "loss": "token-mean",
    "batch": len(LENGTHS),
    "epochs": 2,
    "wrong_epochs": 1,
    "right": RIGHT,
}

CASES: dict[str, dict[str, Any]] = {
    f"micro {micro}, {zeros}": ONCE | {"micro": micro, "zeros": zeros}
    for micro in (1, 4)
    for zeros in ("computed", "skipped")
} | {
    "by tokens": ONCE | {"kind": "dynamic", "zeros": "skipped"},
    "sequence-constant": ONCE | {"micro": 4, "zeros": "skipped", "ada_loss": "sequence-constant"},
    "ZeRO 3": ONCE | {"micro": 1, "stage": 3, "zeros": "skipped"},
    "in all epochs": ONCE | {"micro": 4, "zeros": "skipped", "wrong_epochs": 0},
    "in two of two": ONCE | {"micro": 4, "zeros": "skipped", "wrong_epochs": 2},
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), CASES)
