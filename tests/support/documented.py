"""Names of metrics in docs/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path

_LINES = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
METRIC_CELLS = [line.strip("| ").split(" | ") for line in _LINES if line.startswith(("| `ada/", "| `eval/"))]
METRIC_ROWS = [name for cells in METRIC_CELLS for name in re.findall(r"`([^`]+)`", cells[0])]
DOCUMENTED = set(METRIC_ROWS)


def is_documented(name: str) -> bool:
    """Of a name in a record; some are completed with a data set or a number of answers. OpenRLHF's are not ours."""
    ours = name.startswith(("ada/", "eval/"))
    return not ours or name in DOCUMENTED or name.startswith(("eval/accuracy/", "eval/pass@", "eval/all_equal@"))
