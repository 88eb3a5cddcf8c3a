"""What the arena measured, for any machine: the same trials, counted in its seconds."""

from __future__ import annotations

from dataclasses import replace

from openrlhf_ada.arena.costs import StepModel
from openrlhf_ada.arena.methods import OF_PRESET
from openrlhf_ada.arena.page import PACKED, unpack
from openrlhf_ada.arena.tables import ranks
from openrlhf_ada.arena.tasks import TASKS


def seconds_to_target(machine: StepModel) -> dict[str, float]:
    """By preset of --ada_method that was run on every task: seconds to the target over those of uniform sampling with
    8 (geometric mean). Learning rates and sizes of steps are those tuned for the page's seconds."""
    files = [file for task in TASKS if (file := PACKED / f"{task}.jsonl.gz").exists()]
    by_task = [finals["seconds"] for finals in map(unpack, files) if "seconds" in finals]
    found = {rank.method: rank.cost for rank in ranks([replace(finals, cost=machine) for finals in by_task])}
    return {preset: found[name] for preset, name in OF_PRESET.items() if name in found}
