"""Keep the trials of a finished campaign in one small file for each task, which git and RESULTS.md can hold."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arena import costs
from benchmarks.arena.campaign import TRIAL_VERSION, Setting, Trials, final_cells, made_with, tuned
from benchmarks.arena.folders import Result
from benchmarks.arena.methods import METHODS
from benchmarks.arena.tables import REFERENCE, Finals
from benchmarks.arena.tasks import WHOLE

PACKED = Path(__file__).parent / "results"

PACKED_COSTS = ("rollouts", "seconds", "seconds-7b")
"""What methods are tuned for and compared by in the results that are kept."""


def main(prog: str, argv: Sequence[str]) -> None:
    """Raises ValueError where there is nothing to keep, or what is kept was made otherwise."""
    args = build_parser(prog).parse_args(argv)
    pack_all(Trials(args.folder), args.results, args.seeds, args.budget)


def build_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("folder", type=Path, help="of a campaign")
    add("--results", type=Path, default=PACKED, metavar="DIR", help="small files (default: those of this repository)")
    add("--seeds", type=int, default=10, metavar="N", help="of that campaign (default 10)")
    add("--budget", type=int, default=24_000, metavar="N", help="rollouts of its trials (default 24000)")
    return parser


def pack_all(trials: Trials, out: Path, seeds: int, budget: int) -> None:
    """One file per task, with all methods that are finished. Raises ValueError where there is none."""
    packed = 0
    for task in WHOLE:
        names = dict.fromkeys(cell.method for cell in trials.by_cell if cell.task == task)
        methods: dict[str, list[str]] = {}
        for cost in PACKED_COSTS:
            done = [name for name in names if is_finished(trials, task, name, seeds, budget, cost)]
            for name in names.keys() - set(done):
                print(f"{task}, {cost}: {name} is not finished and left out", file=sys.stderr)
            if REFERENCE in done:
                methods[cost] = done
        if methods:
            pack(trials, task, methods, seeds, budget, out / f"{task}.jsonl.gz")
            packed += 1
    if not packed:
        raise ValueError(
            f"{trials.folder}: {REFERENCE} is not finished on any task with --seeds {seeds} and --budget {budget}. "
            f"Run python -m benchmarks.arena campaign --cost {','.join(PACKED_COSTS)} --out {trials.folder}"
        )


def is_finished(trials: Trials, task: str, method: str, seeds: int, budget: int, cost: str) -> bool:
    """Are all trials there, tuning included?"""
    try:
        return not trials.missing(final_cells(trials, [task], [method], seeds, budget, cost))
    except KeyError:
        return False


def cost_model() -> dict[str, Any]:
    """The figures that seconds are computed from, as JSON has them. Settings tuned for seconds depend on them."""
    figures = {name: asdict(machine) for name, machine in costs.MACHINES.items()}
    names = ("PROMPT_TOKENS", "ANSWER_TOKENS", "WAVE_SECONDS", "STREAM_WAIT", "REFILL_WAIT")
    return json.loads(json.dumps(figures | {name: getattr(costs, name) for name in names}))


# -- one file ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Kept:
    """What a file holds. `plans`: settings of each method, by the cost tuned for. `trials`: of the task, by key.

    `made`: what each method was made with.
    """

    plans: dict[str, dict[str, Setting]] = field(default_factory=dict[str, dict[str, Setting]])
    trials: dict[tuple[Any, ...], Result] = field(default_factory=dict[tuple[Any, ...], Result])
    made: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


def pack(trials: Trials, task: str, methods: Mapping[str, Sequence[str]], seeds: int, budget: int, file: Path) -> None:
    """Write the trials of a task that count: each once, in differences. `methods`: by the cost tuned for.

    What the file holds of other methods and costs stays, and so does its reference: another processor rounds
    otherwise, and the ratios of all methods would move. Raises ValueError where its seeds, budget or seconds differ,
    or the reference has changed; KeyError for a trial that has not ended.
    """
    header = {"task": task, "seeds": seeds, "budget": budget, "version": TRIAL_VERSION, "cost model": cost_model()}
    kept = Kept()
    if file.exists():
        theirs, kept = _read(file)
        for name in header:
            if theirs[name] != header[name]:
                raise ValueError(
                    f"{file} has results with another {name} ({theirs[name]} there, {header[name]} here). Remove it, "
                    "or run the campaign as it was run"
                )
        if changed := change(REFERENCE, task, kept.made[REFERENCE]):
            raise ValueError(f"{file}: its trials of {REFERENCE} were made otherwise ({changed}). Remove the file")
    _add(kept, trials, task, methods, seeds, budget)
    planned = [
        (method, *setting, seed, costs.unit_of(cost))
        for cost, settings in kept.plans.items()
        for method, setting in settings.items()
        for seed in range(seeds)
    ]
    lines: list[dict[str, Any]] = [header, {"made with": kept.made}]
    lines += [{"cost": cost, "settings": settings} for cost, settings in kept.plans.items()]
    lines += [kept.trials[key] for key in dict.fromkeys(planned)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Without a time, so that the same results give the same file.
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _add(kept: Kept, trials: Trials, task: str, methods: Mapping[str, Sequence[str]], seeds: int, budget: int) -> None:
    """What a method was with other settings is left out, at all costs."""
    for name in {name for names in methods.values() for name in names} - {REFERENCE}:
        if name in kept.made and change(name, task, kept.made[name]):
            for settings in kept.plans.values():
                settings.pop(name, None)
    for cost, names in methods.items():
        known = kept.plans.setdefault(cost, {})
        new = [name for name in dict.fromkeys([REFERENCE, *names]) if name != REFERENCE or name not in known]
        known |= {name: tuned(trials, task, name, budget, cost) for name in new}
        kept.made |= {name: _made_with(name, task) for name in new}
        for cell in final_cells(trials, [task], new, seeds, budget, cost):
            kept.trials[_key(asdict(cell))] = asdict(cell) | _columns(trials.by_cell[cell])


def unpack(file: Path) -> dict[str, Finals]:
    """By cost. Raises ValueError for a file of another cost model, whose settings were tuned for other seconds."""
    header, kept = _read(file)
    runs = {key: _restored(line) for key, line in kept.trials.items()}
    return {
        cost: Finals(
            header["task"],
            cost,
            settings,
            {
                method: [runs[method, *setting, seed, costs.unit_of(cost)] for seed in range(header["seeds"])]
                for method, setting in settings.items()
            },
        )
        for cost, settings in kept.plans.items()
    }


def changes(file: Path) -> dict[str, str]:
    """Methods that are no longer what the trials of this file were made with, and how."""
    header, kept = _read(file)
    return {name: found for name, made in kept.made.items() if (found := change(name, header["task"], made))}


def change(method: str, task: str, theirs: Mapping[str, Any]) -> str:
    """Which setting of the method is another one now; empty where none is. Only what it had and has is compared."""
    if method not in METHODS:
        return "there is no such method now"
    ours = _made_with(method, task)
    names = (name for name, value in theirs.items() if ours.get(name, value) != value)
    return next((f"{name}: {theirs[name]} there, {ours[name]} here" for name in names), "")


_made_with = cache(made_with)


def _read(file: Path) -> tuple[dict[str, Any], Kept]:
    """(header, the rest)."""
    header, *lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    theirs, ours = header["cost model"], cost_model()
    for name in {**theirs, **ours}:
        if theirs.get(name) != ours.get(name):
            raise ValueError(
                f"{file} was tuned with another cost model ({name}: {theirs.get(name)} there, {ours.get(name)} here). "
                "Run the campaign again with its folder, which keeps all trials that still count, and pack it anew"
            )
    kept = Kept()
    for line in lines:
        if "made with" in line:
            kept.made = line["made with"]
        elif "settings" in line:
            kept.plans[line["cost"]] = {name: tuple(setting) for name, setting in line["settings"].items()}
        else:
            kept.trials[_key(line)] = line
    return header, kept


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of a trial among those of one task."""
    return line["method"], line["rate"], line["prompts"], line["seed"], line["unit"]


# -- one trial --------------------------------------------------------------------------------------------------------


def _columns(result: Result) -> Result:
    accuracy = [round(value, 4) for value in result["accuracy"]]
    points = result["spent"]
    columns = {
        name: np.diff([point[name] for point in points], prepend=0).tolist() for name in points[0] if name != "batches"
    }
    shape = [len(waves) for waves in points[-1]["batches"]]
    flat = [[count for wave in _padded(point["batches"], shape) for count in wave] for point in points]
    return {
        "accuracy": accuracy,
        "spent": columns,
        "shape": shape,
        "batches": np.diff(flat, axis=0, prepend=0).tolist(),
    }


def _padded(batches: Sequence[Sequence[Sequence[int]]], shape: Sequence[int]) -> Iterator[Sequence[int]]:
    """All waves one after the other, 0 where there was none yet."""
    for batch, waves in enumerate(shape):
        for wave in range(waves):
            known = batch < len(batches) and wave < len(batches[batch])
            yield batches[batch][wave] if known else (0, 0)


def _restored(line: dict[str, Any]) -> Result:
    columns = {name: np.cumsum(steps).tolist() for name, steps in line["spent"].items()}
    spent: list[dict[str, Any]] = []
    for at, flat in enumerate(np.cumsum(line["batches"], axis=0).tolist()):
        left = map(list, zip(flat[::2], flat[1::2], strict=True))
        batches = [[next(left) for _ in range(waves)] for waves in line["shape"]]
        spent.append({name: column[at] for name, column in columns.items()} | {"batches": batches})
    return {"accuracy": line["accuracy"], "spent": spent}
