"""What several tests look at is made once, also where they run in several processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, as JSON, from whichever process of this test run asked first. `name`: unique."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / f"{name}.json"
    with FileLock(folder / f"{name}.lock"):
        if not kept.exists():
            kept.write_text(json.dumps(make()))
        return json.loads(kept.read_text())
