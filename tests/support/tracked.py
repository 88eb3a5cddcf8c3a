"""Logs a small run to trackers through OpenRLHF's loggers, in a process of its own, and reads a page back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS: dict[int, dict[str, Any]] = {
    number: {
        "policy_loss": 0.25 * number,
        "actor_grad_norm": None,
        "ada/drawn": 6,
        "ada/drawn_tokens": 60,
        "ada/first_wave_metric_mean": 0.5,
        "ada/draws_histogram": {"4": 3, "8": 1},
        "ada/allocation_by_pass_rate": {"0": {"prompts": 1, "rollouts": 8}, "0.4-0.6": {"prompts": 3, "rollouts": 12}},
        "ada/effective_weight": {"0": 3.5, "0.4-0.6": 1.0},
        "ada/causes": {"no \\boxed answer": 2},
        "ada/total_drawn": 6 * number,
        "ada/total_drawn_tokens": 60 * number,
        "ada/step_s": 2.5,
        "ada/wall_clock_s": 3.0 * number,
    }
    for number in (1, 2, 3)
}
EVALUATION: dict[str, Any] = {"eval/accuracy": 0.5, "eval/ci95": None, "eval/pass@8": 0.75, "eval/tokens": 12.0}


def numbers(prefix: str, row: dict[str, Any]) -> dict[str, float]:
    """Every number of a row of metrics.jsonl, by the name that trackers give it; without `tracking.flat`."""
    found: dict[str, float] = {}
    stack = [(prefix, row)]
    while stack:
        above, values = stack.pop()
        for name, value in values.items():
            if isinstance(value, dict):
                stack.append((f"{above}{name}/", value))
            elif isinstance(value, int | float):
                found[above + name] = float(value)
    return found


def wandb_history(folder: Path, run_id: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows logged, configuration) of all offline parts of one run, from the files that wandb wrote."""
    from wandb.proto import wandb_internal_pb2

    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    for path in sorted((folder / "wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")):
        for data in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                rows.append(_values(record.history.item))
            for part in (record.run.config, record.config):
                config |= _values(part.update)
    return rows, config


BLOCK, FILE_HEAD, RECORD_HEAD = 32768, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def _records(content: bytes) -> Iterator[bytes]:
    """wandb's offline file is a log of LevelDB's format: records in blocks, cut where a block ends. Each part begins
    with a checksum of 4 bytes, its length and its kind."""
    at, record = FILE_HEAD, b""
    while at + RECORD_HEAD <= len(content):
        left = BLOCK - at % BLOCK
        if left < RECORD_HEAD:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        record += content[at + RECORD_HEAD : at + RECORD_HEAD + length]
        at += RECORD_HEAD + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def _values(items: Any) -> dict[str, Any]:
    """Of a record. An object comes in parts, each with the names that lead to it."""
    values: dict[str, Any] = {}
    for item in items:
        *above, name = item.nested_key or [item.key]
        inside = values
        for part in above:
            inside = inside.setdefault(part, {})
        inside[name] = json.loads(item.value_json)
    return values
