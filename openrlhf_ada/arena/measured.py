"""What the arena measured, for any machine: the same trials, counted in its seconds."""

from __future__ import annotations

from dataclasses import replace

from openrlhf_ada.arena.costs import StepModel
from openrlhf_ada.arena.methods import FEWER_UPDATES, OF_PRESET
from openrlhf_ada.arena.page import PACKED, unpack
from openrlhf_ada.arena.tables import ranks
from openrlhf_ada.arena.tasks import TASKS


def seconds_to_target(machine: StepModel) -> dict[str, float]:
    """Seconds to the target over those of uniform sampling with 8 (geometric mean), by preset of --ada_method.

    Of those that were run on every task with their own updates of a step. Learning rates and sizes of steps are those
    tuned for the page's seconds.
    """
    files = [file for task in TASKS if (file := PACKED / f"{task}.jsonl.gz").exists()]
    by_task = [finals["seconds"] for finals in map(unpack, files) if "seconds" in finals]
    found = {rank.method: rank.cost for rank in ranks([replace(finals, cost=machine) for finals in by_task])}
    as_here = OF_PRESET.keys() - FEWER_UPDATES.keys()
    return {preset: found[OF_PRESET[preset]] for preset in as_here if OF_PRESET[preset] in found}
