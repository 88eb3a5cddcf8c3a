"""The first hour on a machine with GPUs: checks the installation, runs a test for each path, and measures.

One file has all of it, and `openrlhf-ada plan --machine FILE` reads it. The same call goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import figures  # noqa: E402
from figures import ENGINES, FULL, REHEARSAL, TRAININGS, Bench, FailedError  # noqa: E402

from openrlhf_ada.config.installed import stack_versions  # noqa: E402
from openrlhf_ada.platforms.gpu import VISIBLE, hides_all, trouble  # noqa: E402
from openrlhf_ada.platforms.gpu_paths import read_gpu_paths  # noqa: E402
from openrlhf_ada.platforms.machine_check import ERROR, usable_gpus  # noqa: E402
from openrlhf_ada.platforms.nvml import read_driver  # noqa: E402

PATH_S, TRAINING_S, ENGINE_S, REHEARSED_S = 100, 300, 240, 60
"""Seconds of a part, for the estimate: a test took 70 to 105 on an H200; the others are not measured yet."""

CORES = 4
"""Of the processor, for each test that runs beside another."""

PASS, FAIL = "pass", "FAIL"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """A test or a measurement. `needs`: GPUs; `run` gets them as CUDA_VISIBLE_DEVICES names them, and returns what is
    kept: "result" and more."""

    name: str
    kind: str
    needs: int
    seconds: int
    run: Callable[[Sequence[str]], Record]


def main(argv: Sequence[str]) -> int:
    args = build_parser().parse_args(argv)
    devices = ["0"] if args.rehearse else visible_gpus()
    if not devices:
        return _fail(f"no NVIDIA GPU can be used here. {trouble() or 'None is there, or none is shown'}\n"
                     "Without a GPU, run make gpu-rehearsal.")  # fmt: skip
    bench = bench_of(args, devices)
    try:
        parts = [part for part in parts_of(bench, devices) if args.only in (None, part.kind)]
    except FailedError as error:
        return _fail(str(error))
    if args.dry_run:
        show_plan(parts, devices)
        return 0
    absent = [name for name in ("pytest", "hypothesis", "gguf") if find_spec(name) is None]
    if absent and any(part.kind == "paths" for part in parts):
        return _fail(f"the tests need {', '.join(absent)}: {sys.executable} -m pip install {' '.join(absent)}")
    if not args.rehearse and not installation_is_right():
        return _fail("the installation is not complete: see above (openrlhf-ada doctor)")
    record = open_record(args.out, machine(args.rehearse, len(devices)))
    show_plan(parts, devices)
    try:
        run_all(parts, devices, record, args.out, bench)
    except KeyboardInterrupt:
        print(f"\nfirst_run: interrupted; the same call goes on. {args.out} has what was done", file=sys.stderr)
        return 130
    print(report(record))
    print(f"first_run: all of it is in {args.out}. Please put both into an issue, whatever they say.", file=sys.stderr)
    results = [row["result"] for row in record["parts"].values()]
    if PASS not in results and FAIL not in results:
        return _fail("nothing was run: everything was skipped, and the report says why")
    return int(FAIL in results)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="first_run.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--dry-run", action="store_true", help="say what would run, and for how long")
    add("--only", choices=("paths", "figures"), help="tests alone, or measurements alone (a GPU of 40 GB or more)")
    add("--out", type=Path, default=Path("gpu-machine.json"), metavar="FILE", help="default gpu-machine.json")
    add("--work", type=Path, metavar="DIR", help="for runs and their logs (default: beside --out, FILE.work)")
    add("--rehearse", action="store_true", help="on a CPU: measure a tiny model, to see that all of it runs")
    return parser


def _fail(why: str) -> int:
    print(f"first_run: {why}", file=sys.stderr)
    return 1


# -- the machine ------------------------------------------------------------------------------------------------------


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them, up to the first entry that names none; empty where torch cannot use them."""
    if trouble() is not None:
        return []
    visible = os.environ.get(VISIBLE)
    names = None if visible is None else list(takewhile(lambda entry: not hides_all(entry), visible.split(",")))
    count = usable_gpus()
    return [str(index) for index in range(count)] if names is None else names[:count]


def installation_is_right() -> bool:
    """As `openrlhf-ada doctor` says, whose findings are shown where they are no plain `ok`."""
    command = [sys.executable, "-m", "openrlhf_ada.cli.main", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        print(done.stderr, file=sys.stderr)
        return False
    found = json.loads(done.stdout)
    for finding in found["findings"]:
        if finding["level"] != "ok":
            print(f"{finding['level']:8} {finding['check']}: {finding['what']}. {finding['remedy']}", file=sys.stderr)
    return not found[ERROR]


def machine(rehearses: bool, gpus: int) -> Record:
    """What figures depend on besides the code. No names, no addresses."""
    driver = None if rehearses else read_driver()
    return {
        "gpus": [f"{gpu.name}, {gpu.total >> 30} GiB" for gpu in driver.gpus] if driver else [],
        "used": gpus,
        "driver": driver.version if driver else "",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "versions": {"python": platform.python_version()} | stack_versions(),
    }


def commit() -> str:
    """Of this copy of the source; each part has its own, as a later call may go on with a newer one."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def open_record(file: Path, here: Record) -> Record:
    """What an earlier call has kept. Raises SystemExit for a file of something else."""
    if not file.exists():
        return {"machine": here, "parts": {}}
    found = json.loads(file.read_text(encoding="utf-8"))
    if found.get("machine") != here:
        raise SystemExit(
            f"first_run: --out {file}: it is of another machine or other versions. Name another, or remove it"
        )
    return found


# -- what there is to do ----------------------------------------------------------------------------------------------


def bench_of(args: argparse.Namespace, devices: Sequence[str]) -> Bench:
    folder = (args.work or args.out.with_suffix(".work")).absolute()
    return Bench(REHEARSAL if args.rehearse else FULL, folder, len(devices))


def parts_of(bench: Bench, devices: Sequence[str]) -> Iterator[Part]:
    """Tests first; what shows the least comes first. Raises FailedError for a command line that is refused."""
    rehearses, everywhere = bench.load is REHEARSAL, len(devices)
    for number, path in enumerate(read_gpu_paths() if not rehearses else ()):
        if path.test:
            run = partial(run_test, path.test, bench.folder / f"test{number}.log")
            yield Part(path.name, "paths", path.gpus, PATH_S, run)
    for training in TRAININGS:
        needs = max(2 if training.is_apart and not rehearses else 1, everywhere)
        if needs <= everywhere:
            bench.flags(training)
        run = partial(measured, partial(bench.train, training), bench)
        yield Part(training.name, "figures", needs, REHEARSED_S if rehearses else TRAINING_S, run)
    for name in ENGINES:
        run = partial(measured, partial(bench.calibrate, name), bench)
        yield Part(name, "figures", everywhere, ENGINE_S, run)


def run_test(test: str, log: Path, gpus: Sequence[str]) -> Record:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-rs", "-p", "no:cacheprovider", "-m", "gpu"]
    status = figures.run_logged([*command, f"tests/gpu/{test}"], log, os.environ | {VISIBLE: ",".join(gpus)})
    said = log.read_text(encoding="utf-8", errors="replace")
    if status:
        return {"result": FAIL, "said": "\n".join([f"status {status}", *figures.last_lines(log)])}
    if " passed" in said:
        return {"result": PASS}
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    return {"result": "skipped", "said": skipped[0].partition(": ")[2] if skipped else "by pytest"}


def measured(measure: Callable[[], Record], bench: Bench, gpus: Sequence[str]) -> Record:
    """On all of `gpus`."""
    try:
        bench.prepare()
        return {"result": PASS, "figures": measure()}
    except FailedError as error:
        return {"result": FAIL, "said": str(error)}


def show_plan(parts: Sequence[Part], devices: Sequence[str]) -> None:
    beside = side_by_side(devices)
    runs = [part for part in parts if part.needs <= len(devices)]
    seconds = sum(part.seconds / (beside // part.needs if part.kind == "paths" else 1) for part in runs)
    for part in parts:
        why = f"needs {part.needs} GPUs, here is {len(devices)}"
        print(f"run      {part.name}" if part in runs else f"skipped  {part.name}: {why}", file=sys.stderr)
    print(f"{len(devices)} GPUs, {len(runs)} parts: about {seconds / 60:.0f} minutes", file=sys.stderr)


def side_by_side(devices: Sequence[str]) -> int:
    """GPUs that tests may use at a time: as many as the processor has cores for."""
    return max(1, min(len(devices), len(os.sched_getaffinity(0)) // CORES))


# -- the run ----------------------------------------------------------------------------------------------------------


def run_all(parts: Sequence[Part], devices: Sequence[str], record: Record, out: Path, bench: Bench) -> None:
    """What has not passed yet: tests side by side on GPUs of their own, measurements one after the other on all."""
    left = [part for part in parts if record["parts"].get(part.name, {}).get("result") != PASS]
    tests = [part for part in left if part.kind == "paths"]
    # The first one compiles what the others load.
    for some in (tests[:1], tests[1:]):
        for part, row in run_beside(some, devices):
            keep(part, row, record, out)
    for part in left:
        if part.kind == "figures":
            row = timed(part, devices) if part.needs <= len(devices) else too_few(part, devices)
            keep(part, row, record, out)
    figures_of = {name: row["figures"] for name, row in record["parts"].items() if "figures" in row}
    if found := figures.machine_file(figures_of, len(devices)):
        record.update(found, model=bench.load.shown)
        write(out, record)
        record["planned_s"] = figures.planned(out, bench)
        write(out, record)


def run_beside(parts: Sequence[Part], devices: Sequence[str]) -> Iterator[tuple[Part, Record]]:
    """Each on GPUs of its own."""
    waiting, free = list(parts), list(devices)
    most = side_by_side(devices)
    at_work: dict[Future[Record], tuple[Part, list[str]]] = {}
    with ThreadPoolExecutor(max(len(devices), 1)) as pool:
        while waiting or at_work:
            for part in list(waiting):
                taken = len(devices) - len(free)
                if part.needs > len(devices):
                    waiting.remove(part)
                    yield part, too_few(part, devices)
                elif part.needs <= len(free) and (not taken or taken + part.needs <= most):
                    waiting.remove(part)
                    gpus, free = free[: part.needs], free[part.needs :]
                    at_work[pool.submit(timed, part, gpus)] = part, gpus
            done, _ = wait(at_work, return_when=FIRST_COMPLETED)
            for future in done:
                part, gpus = at_work.pop(future)
                free += gpus
                yield part, future.result()


def timed(part: Part, gpus: Sequence[str]) -> Record:
    start = time.monotonic()
    row = part.run(gpus)
    return row | {"seconds": round(time.monotonic() - start)}


def too_few(part: Part, devices: Sequence[str]) -> Record:
    return {"result": "skipped", "said": f"needs {part.needs} GPUs, here is {len(devices)}"}


def keep(part: Part, row: Record, record: Record, out: Path) -> None:
    record["parts"][part.name] = {"kind": part.kind, "gpus": part.needs, "commit": commit()} | row
    write(out, record)
    said = row.get("said", "").splitlines()[-1:] or [""]
    print(f"{part.name:60.60} {row['result']}, {row.get('seconds', 0)} s {said[0]}", file=sys.stderr, flush=True)


def write(file: Path, record: Record) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    fresh.replace(file)


# -- the report -------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> str:
    """In Markdown."""
    here, parts = record["machine"], record["parts"]
    gpus = sorted({f"{here['gpus'].count(name)} x {name}" for name in here["gpus"]})
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    lines = [
        "### openrlhf_ada on GPUs", "",
        f"- GPUs: {'; '.join(gpus) or 'none: a rehearsal'}; {here['used']} used; driver {here['driver'] or 'none'}",
        f"- Machine: {here['cores']} processor cores, {here['memory_gib']} GiB of memory",
        f"- Versions: {versions}; commit {', '.join(sorted({row['commit'] for row in parts.values()}))}", "",
    ]  # fmt: skip
    tests = [
        [name, str(row["gpus"]), outcome(row), str(row.get("seconds", ""))]
        for name, row in parts.items()
        if row["kind"] == "paths"
    ]
    if tests:
        lines += [*table(["Path", "GPUs", "Result", "Seconds"], tests), ""]
    lines += [*figure_tables(record), *failures(parts)]
    return "\n".join(lines)


def figure_tables(record: Mapping[str, Any]) -> Iterator[str]:
    measured_parts = {name: row for name, row in record["parts"].items() if row["kind"] == "figures"}
    names = {"step_s": "step", **{name: name.removesuffix("_s") for name in figures.PARTS}}
    rows: list[list[str]] = []
    for training in TRAININGS:
        if (row := measured_parts.get(training.name)) is None:
            continue
        found = row.get("figures", {})
        cells = [f"{found[name]:.3g} s" if name in found else "" for name in names]
        plan_s = record.get("planned_s", {}).get(training.name)
        peak = max(found.get("peak_gib", [0.0]))
        rows.append([training.name, outcome(row), *cells, f"{plan_s:.3g} s" if plan_s else "", f"{peak:.1f} GiB"])
    if rows:
        if record.get("step", {"per_token": 1.0})["per_token"] == 0:
            yield "**Seconds by the token could not be told from fixed ones**: `plan` gives all trainings the same."
            yield ""
        if "model" in record:
            yield f"{record['model']}."
            yield ""
        yield from table(["Training", "Result", *names.values(), "step by `plan`", "peak memory"], rows)
        yield ""
    engines = {name: measured_parts[name] for name in ENGINES if "figures" in measured_parts.get(name, {})}
    if engines:
        sizes = sorted({size for row in engines.values() for size in row["figures"]["batch_sizes"]})
        yield from table(["Tokens per second of an engine, at a batch of", *map(str, sizes)], [
            [name, *(speed(row["figures"], size) for size in sizes)] for name, row in engines.items()
        ])  # fmt: skip
        yield ""


def speed(engine: Mapping[str, Any], size: int) -> str:
    at = dict(zip(engine["batch_sizes"], engine["step_seconds"], strict=True))
    return f"{size / at[size]:,.0f}" if size in at else ""


def failures(parts: Mapping[str, Any]) -> Iterator[str]:
    for name, row in parts.items():
        if row["result"] == FAIL:
            yield from (f"**{name}**", "", "```", row.get("said", ""), "```", "")


def outcome(row: Mapping[str, Any]) -> str:
    return f"skipped: {row['said']}" if row["result"] == "skipped" else row["result"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
