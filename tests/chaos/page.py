"""docs/reliability.md from the outcomes of chaos.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

HEAD = """# Reliability

What happens to a run when one of its processes is killed (SIGKILL), stopped (SIGSTOP) or asked to end (SIGTERM), or
when something around it fails. Each column is what the run was doing at that moment. `make chaos` tries this on real
runs of the toy model and writes this page. [What is guaranteed](operations.md#what-is-guaranteed) lists the tests
behind it.

- **goes on**: the run ends well, and every rollout is that of an undisturbed run.
- **ends**: the run ends with the command that resumes it, and nothing wrong is recorded. It ends within {limit:.0f} s
  of the fault, or of a limit: `--ada_dead_after` for a stopped process, `--ada_timeout` and two minutes for a stopped
  engine, twice `--ada_timeout` for a reward that hangs. No process and no shared memory is left.
- **–**: not tried, or the run was over first.

One in eight of the runs that end is resumed from its last checkpoint, and every one that its surroundings ended. It
then has the rollouts of an undisturbed run. A driver that is killed can say nothing; a stopped one is continued after
five seconds. Not tried, since nobody watches for it: SIGSTOP to Ray's own processes or while one is loading, and
SIGTERM to Ray's GCS, after which its process stays.
"""

SURROUNDINGS = """## Around the run

After the run has ended, the disk has room again and the server works again, and the run is resumed. The clock is
Python's. With an unusable label in the data its prompt is replaced, so rollouts are not compared.
"""

WORDS = {"continued": "goes on", "stopped": "ends", "late": "–"}


def page(
    rows: Sequence[Mapping[str, Any]],
    victims: Sequence[str],
    kinds: Mapping[str, Sequence[str]],
    moments: Sequence[str],
    limit: float,
) -> str:
    """`rows`: outcomes as chaos.py keeps them. `kinds`: of what is around, and what befalls it. `limit`: seconds until
    a run must have ended."""
    tried = [row for row in rows if row["end"] != "late" or row["failures"]]
    failed = [row for row in tried if row["failures"]]
    ended = [row["seconds"] for row in tried if row["end"] == "stopped" and row["fault"]["sent"] != "SIGSTOP"]
    parts = [HEAD.format(limit=limit)]
    parts.append(
        f"Tried: {len(tried)} faults. **{len(tried) - len(failed)} passed, {len(failed)} failed.** "
        + (
            f"Runs that ended after SIGKILL or SIGTERM took {median(ended):.0f} s (median) to do so.\n"
            if ended
            else "\n"
        )
    )
    for sent in ("SIGKILL", "SIGTERM", "SIGSTOP"):
        parts.append(f"## {sent}\n")
        named = {
            (row["fault"]["victim"], row["fault"]["moment"]): row for row in tried if row["fault"]["sent"] == sent
        }
        parts.append(_table(named, victims, moments))
    parts.append(SURROUNDINGS)
    named = {(f"{row['fault']['victim']} {row['fault']['sent']}", row["fault"]["moment"]): row for row in tried}
    parts.append(_table(named, [f"{kind} {what}" for kind in kinds for what in kinds[kind]], moments))
    if failed:
        parts.append("## What failed\n")
        parts += [f"- {' '.join(row['fault'].values())}: {'; '.join(row['failures'])}" for row in failed]
        parts.append("")
    return "\n".join(parts)


def _table(cells: Mapping[tuple[str, str], Mapping[str, Any]], victims: Sequence[str], moments: Sequence[str]) -> str:
    lines = [f"| | {' | '.join(moments)} |", f"|---{'|---' * len(moments)}|"]
    for victim in victims:
        words = [_cell(cells.get((victim, moment))) for moment in moments]
        lines.append(f"| {victim} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    return "**failed**" if row["failures"] else WORDS[row["end"]]
