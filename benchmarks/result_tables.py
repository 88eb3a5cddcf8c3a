"""Tables of measured figures in the pages, from the saved results of the benchmarks.

python benchmarks/result_tables.py      writes them into docs/, each between its marks
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests" / "support")]

from model_shapes import MODELS  # noqa: E402

from benchmarks.weight_memory import update_memory  # noqa: E402
from benchmarks.weight_nodes import GPUS, WAYS, Layout, update_s  # noqa: E402
from openrlhf_ada.platforms.gpu_paths import read_gpu_paths  # noqa: E402
from openrlhf_ada.weights.manifest import Manifest  # noqa: E402

DOCS = Path(__file__).parents[1] / "docs"

Rows = Iterable[Iterable[str]]


def main() -> None:
    for page in sorted({page for page, _ in TABLES}):
        path = DOCS / page
        path.write_text(written(path.read_text(encoding="utf-8"), page), encoding="utf-8")


def written(text: str, page: str) -> str:
    """The page with its tables made anew. Raises ValueError where it has no marks for one."""
    for (of_page, name), table in TABLES.items():
        if of_page == page:
            before, first, rest = text.partition(f"<!-- table: {name} -->")
            _, last, after = rest.partition("<!-- end -->")
            if not first or not last:
                raise ValueError(f"{page} has no place for the table {name}")
            text = f"{before}{first}\n\n{markdown(*table())}\n\n{last}{after}"
    return text


def saved(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "results" / f"{name}.json").read_text())


def markdown(head: Iterable[str], rows: Rows) -> str:
    first, *lines = ["| " + " | ".join(row) + " |" for row in [list(head), *rows]]
    return "\n".join([first, f"|{'---|' * len(list(head))}", *lines])


# -- scheduling.md ----------------------------------------------------------------------------------------------------


def _workload(name: str) -> tuple[str, str]:
    """(pass rates, share of length by prompt) of "Beta(3, 3), 50% of length by prompt"."""
    found = re.fullmatch(r"(Beta\(.*\)), (\d+%) of length by prompt", name)
    assert found, name
    return found[1], {"0%": "none", "50%": "half"}[found[2]]


def step_of_balance() -> tuple[list[str], Rows]:
    head = ["Pass rates, length by prompt", "rollouts per prompt", "rounds", "waves", "stream", "stream / rounds"]
    return [*head, "stream / ideal", "aborted", "step / GRPO"], _step_rows()


def _step_rows() -> Iterator[list[str]]:
    for row in saved("scheduler")["simulated"]:
        seconds = [f"{row['seconds'][name]:.0f} s" for name in ("rounds", "waves", "stream")]
        ratios = [f"{row[name]:.2f}" for name in ("stream_over_rounds", "stream_over_work")]
        whole = [f"{100 * row['waste_share']:.0f} %", f"{row['step_over_grpo']['stream']:.2f}"]
        yield [", ".join(_workload(row["workload"])), f"{row['rollouts_per_prompt']:.1f}", *seconds, *ratios, *whole]


def filled() -> tuple[list[str], Rows]:
    """Of engines with 1,024 slots, pass rates Beta(1.5, 1.5)."""
    up_to = (0, 128, 256, 1024)
    return ["filled up to", *(f"{slots:,}" for slots in up_to)], _filled_rows(up_to)


def _filled_rows(up_to: tuple[int, ...]) -> Iterator[list[str]]:
    steps = [
        step for step in saved("speculation")["steps"] if _workload(step["workload"]) == ("Beta(1.5, 1.5)", "none")
    ]
    for prompts in dict.fromkeys(step["prompts"] for step in steps):
        cells = {
            (step["slots"], step["filled"]): f"{step['seconds']:.0f} s, {100 * step['waste_share']:.0f} %"
            for step in steps
            if step["prompts"] == prompts
        }
        yield [f"{prompts:,} prompts", *(cells[1024, slots] for slots in up_to)]


def even_loads() -> tuple[list[str], Rows]:
    head = ["Prompts x tokens", "step: before", "now", "bound", "tail: before", "now", "bound"]
    result = saved("balance")
    names = ("before", str(result["figures"]["chosen"]), "bound")
    return head, (
        [f"{row['prompts']:,} x {row['tokens']}", *(f"{row[n][part]:.1f}" for part in ("step", "tail") for n in names)]
        for row in result["steps"]
        if row["prompts"] > 128
    )


def driver() -> tuple[list[str], Rows]:
    rows = {
        "lognormal": ["730 tokens on average", "64"],
        "4096": ["4,096 tokens", "64"],
        "lognormal, messages of 16": ["730 tokens on average", "16"],
    }
    results = saved("driver")["results"]
    columns = ("us_python", "us_not_kept", "us_process")
    head = ["Answers of", "in a message", "Python's thread", "of these, before it is known what is trained"]
    body = ([*cells, *(f"{results[name][column]:.0f}" for column in columns)] for name, cells in rows.items())
    return [*head, "with Ray's threads"], body


def shared_gpus() -> tuple[list[str], Rows]:
    names = {
        "shared GPUs": "shared, in turns (`--train.colocate_all`)",
        "apart": "separate, one after the other",
        "apart, asynchronous": "separate, asynchronous (off-policy)",
    }
    of_steps = saved("overlap")["seconds_of_a_step"]
    columns = [of_steps[size][method] for size in ("1.5B", "7B") for method in ("grpo-4", "balance")]
    seconds = {
        name: [column[name][0] if isinstance(column[name], list) else column[name] for column in columns]
        for name in names
    }
    head = ["", "1.5B: GRPO n = 4", "`balance`", "7B: GRPO n = 4", "`balance`"]
    return head, ([text, *(f"{value:.0f}" for value in seconds[name])] for name, text in names.items())


# -- cpu.md, gpu.md, weights.md ---------------------------------------------------------------------------------------


def cpu_choices() -> tuple[list[str], Rows]:
    results = saved("cpu_step_choice")["seconds"]
    rows = {
        "default": ["reference", ""],
        "each row with its own prompt": ["each row with its own prompt", "each prompt once"],
        "freed memory kept": ["freed memory kept (glibc's `MALLOC_*`)", "default"],
        "threads spin briefly": ["threads spin for 0.1 ms before they sleep (`GOMP_SPINCOUNT`)", "default"],
        "ZeRO stage 0": ["`--ds.zero_stage 0`", "in the demo"],
        "no prefix caching": ["no prefix caching in the engine", "caching is on in the demo"],
        "one thread": ["one training thread, as Ray would give it", "one per core"],
        "micro-batch 16": ["micro-batches of 16 instead of 64", "use the whole batch"],
    }
    parts = ("generation", "ppo_train", "step_total")
    body = ([what, *(f"{results[name][part]:.1f} s" for part in parts), now] for name, (what, now) in rows.items())
    best = saved("cpu_step_quick")["seconds"]["default"]
    last = ["**all defaults of today**", *(f"{best[part]:.1f} s" for part in parts), ""]
    return ["Choice", "generation", "training", "step", "Now"], [*body, last]


def cpu_precision() -> tuple[list[str], Rows]:
    return ["forward pass, 64 x 28 tokens", "seconds"], (
        [dtype, f"{seconds:.1f}"] for dtype, seconds in saved("cpu_step_choice")["forward_seconds"].items()
    )


def cpu_engine() -> tuple[list[str], Rows]:
    rows = {
        "default": "as our runs start it",
        "blocks of 128": "with blocks of 128 tokens (vLLM's default) instead of 32",
        "worker process": "with another process for the model (vLLM's default)",
        "no seeds": "without a seed per request",
    }
    seconds = saved("cpu_engine")["figures"]["seconds"]
    return ["64 answers of 16 tokens", "seconds"], ([text, f"{seconds[name]:.1f}"] for name, text in rows.items())


def soak() -> tuple[list[str], Rows]:
    figures = {name: row for name, row in saved("soak")["figures"].items() if name.endswith(": MiB")}
    body = ([name.removesuffix(": MiB"), f"{row['early']:.0f}", f"{row['late']:.0f}"] for name, row in figures.items())
    return ["", "MiB, steps 401 to 600", "MiB, steps 1,801 to 2,000"], body


def engine_host() -> tuple[list[str], Rows]:
    figures = saved("engine_host")["figures"]
    rows = {"us_per_token": "tokens", "us_per_token_logprobs": "tokens and log-probabilities"}
    return ["vLLM's output processor", "OpenRLHF's settings", "ours"], (
        [text, f"{figures[name + '_host']:.1f}", f"{figures[name]:.1f}"] for name, text in rows.items()
    )


def moments() -> tuple[list[str], Rows]:
    head = ["Model, weights", "policy, ZeRO-2", "ZeRO-3", "engine, T = 1", "T = 8", "shared, T = 1", "T = 8"]
    return [*head, "OpenRLHF's", "its calls"], (_moments(name, shapes.manifest()) for name, shapes in MODELS.items())


def _moments(name: str, manifest: Manifest) -> Iterator[str]:
    parameters: dict[str, int] = defaultdict(int)
    for tensor in manifest.tensors:
        parameters[tensor.source or tensor.name] += tensor.num_bytes
    apart, shared = (
        {(t, z): update_memory(manifest, backend=way, tensor_parallel=t, zero_stage=z) for t in (1, 8) for z in (2, 3)}
        for way in ("nccl", "ipc")
    )
    policy = [apart[1, zero].policy for zero in (2, 3)]
    engine = [apart[workers, 2].engine for workers in (1, 8)]
    both = [shared[workers, 2].policy + shared[workers, 2].engine for workers in (1, 8)]
    yield f"{name}, {sum(parameters.values()) / 1e9:.0f} GB"
    yield from (f"{size / 1e9:.1f}" for size in [*policy, *engine, *both, max(parameters.values())])
    yield str(len(parameters))


def nodes() -> tuple[list[str], Rows]:
    models = {"7B": ("Qwen2.5-7B", 1), "30B": ("Qwen3-30B-A3B (experts)", 2), "70B": ("Llama-3.1-70B", 8)}
    return ["Model, nodes", *WAYS], (
        [f"{size}, {text}", *(f"{max(_over_nodes(name, way, n, t) for n in counts):.2g}" for way in WAYS)]
        for size, (name, t) in models.items()
        for text, counts in {"1": [1], "2 or 4": [2, 4]}.items()
    )


def _over_nodes(name: str, way: str, count: int, workers: int) -> float:
    """Half of one node has no room for an engine of 8 GPUs."""
    return update_s(MODELS[name].manifest(), way, Layout(count, workers if count > 1 else min(workers, GPUS // 2)))


def gpu_paths() -> tuple[list[str], Rows]:
    """One home for this list: openrlhf_ada/platforms/gpu_paths.toml."""
    body = (
        [
            path.name,
            f"`{path.flags}`" if path.flags else "",
            str(path.gpus) if path.test else "",
            "; ".join(path.passed),
        ]
        for path in read_gpu_paths()
    )
    return ["Path", "Flags", "GPUs", "Passed on"], body


def weight_sync() -> tuple[list[str], Rows]:
    rows = {
        "host": "OpenRLHF's: one call per parameter",
        "ours, buckets of 32 MiB": "ours, buckets of 32 MiB",
        "ours, verified": "ours, with checksums",
    }
    results = saved("weight_sync")["results"]
    seconds = [results[f"{engines} engines"]["seconds"] for engines in (1, 2)]
    medians = [results[f"{engines} engines"]["medians"] for engines in (1, 2)]
    return ["", "one engine", "two engines"], (
        [text, *(f"{median[name]:.2f} s ({min(of[name]):.2f})" for median, of in zip(medians, seconds, strict=True))]
        for name, text in rows.items()
    )


TABLES: dict[tuple[str, str], Callable[[], tuple[list[str], Rows]]] = {
    ("scheduling.md", "a step of balance"): step_of_balance,
    ("scheduling.md", "how far to fill"): filled,
    ("scheduling.md", "even loads"): even_loads,
    ("scheduling.md", "the driver"): driver,
    ("scheduling.md", "shared or separate"): shared_gpus,
    ("cpu.md", "choices"): cpu_choices,
    ("cpu.md", "precision"): cpu_precision,
    ("cpu.md", "engine"): cpu_engine,
    ("cpu.md", "memory"): soak,
    ("gpu.md", "what an update takes"): moments,
    ("gpu.md", "an update over nodes"): nodes,
    ("gpu.md", "an engine's process"): engine_host,
    ("gpu.md", "paths"): gpu_paths,
    ("weights.md", "seconds of an update"): weight_sync,
}
"""By page and name."""

if __name__ == "__main__":
    main()
