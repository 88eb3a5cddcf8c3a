"""The report's sample groups: all rollouts of a few prompts, which were trained, and their coefficients."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from openrlhf_ada.reporting.run_record import Row, Run

MAX_GROUPS = 16
"""Groups in the report; when more have texts, they are taken evenly from the whole run."""
MAX_STRIP = 64
"""Samples drawn as symbols; a larger pool ends in a count."""
MAX_ANSWERS = 24
"""Answers shown in full per group: the trained ones first, then in the order of dispatch."""
PROMPT_TAIL = 130
"""Characters of the prompt in a group's line. The end of a prompt says more than its start, often a template."""

# Control characters and line-direction overrides become visible symbols; newline and tab stay.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), 0xFFFD)

_LEGEND = """\
<div class="legend"><span><i class="s right kept"></i>right, trained</span>
<span><i class="s right"></i>right, unused</span>
<span><i class="s wrong kept"></i>wrong, trained</span><span><i class="s wrong"></i>wrong, unused</span></div>"""


def escaped(text: str) -> str:
    """HTML-escaped (quotes too, so that it may stand in an attribute), with nothing that hides or reorders text."""
    return html.escape(text.translate(_VISIBLE), quote=True)


@dataclass(slots=True)
class _Group:
    """The recorded samples of one prompt visit."""

    step: int
    rows: list[Row] = field(default_factory=list)


def groups_section(run: Run) -> str:
    """The section's HTML; a sentence if no texts were recorded."""
    threshold = run.flag("ada.positive_threshold")
    # The default of --ada_positive_threshold, for records of runs without the flag (mode off).
    threshold = 0.5 if threshold is None else threshold
    groups = _chosen_groups(run)
    if not groups:
        return '<h2>Sample groups</h2><p class="note">No samples with text have been recorded.</p>'
    items = "".join(_group(group, threshold) for group in groups)
    return (
        f'<h2>Sample groups</h2><p class="note">{len(groups)} prompts from the whole run, each with its pool in the '
        f"order of dispatch. Open one to read the answers.</p>{_LEGEND}"
        f'<div class="groups">{items}</div>'
    )


def _chosen_groups(run: Run) -> list[_Group]:
    """At most MAX_GROUPS groups with text, evenly over the run. Two passes, so that memory stays small however many
    samples were recorded."""
    keys = [(row["step"], row["key"]) for row in run.samples() if "prompt" in row]
    spacing = max(1.0, len(keys) / MAX_GROUPS)
    chosen = {keys[int(i * spacing)] for i in range(min(MAX_GROUPS, len(keys)))}
    groups: dict[tuple[int, int], _Group] = {}
    for row in run.samples():
        identity = (row["step"], row["key"])
        if identity in chosen:
            groups.setdefault(identity, _Group(step=row["step"])).rows.append(row)
    for group in groups.values():
        group.rows.sort(key=lambda row: row["index"])
    return [groups[identity] for identity in sorted(groups)]


def _group(group: _Group, threshold: float) -> str:
    prompt = group.rows[0]["prompt"]
    one_line = " ".join(prompt.split())
    if len(one_line) > PROMPT_TAIL:
        one_line = f"… {one_line[-PROMPT_TAIL:]}"
    shown = sorted(group.rows, key=lambda row: (not row["kept"], row["index"]))[:MAX_ANSWERS]
    rows = "".join(_answer(row, threshold) for row in sorted(shown, key=lambda row: row["index"]))
    more = len(group.rows) - len(shown)
    rest = f'<p class="counts">{more} more unused answers are in samples.jsonl</p>' if more else ""
    return (
        f'<details><summary><div class="group"><span class="step">step {group.step}</span>'
        f'<span class="prompt text">{escaped(one_line)}</span><span>{_strip(group.rows, threshold)}'
        f'<span class="counts">{_counts(group.rows, threshold)}</span></span></div></summary>'
        f'<div class="inside"><div class="text">{escaped(prompt)}</div>'
        f'<table><thead><tr><th>#</th><th></th><th class="left">answer</th><th>metric</th><th>reward</th>'
        f"<th>tokens</th><th>coefficient</th></tr></thead><tbody>{rows}</tbody></table>{rest}</div></details>"
    )


def _strip(rows: list[Row], threshold: float) -> str:
    symbols = "".join(_symbol(row, threshold) for row in rows[:MAX_STRIP])
    more = f'<span class="counts">+{len(rows) - MAX_STRIP}</span>' if len(rows) > MAX_STRIP else ""
    return f'<span class="pool">{symbols}{more}</span>'


def _symbol(row: Row, threshold: float) -> str:
    outcome = "right" if _is_right(row, threshold) else "wrong"
    fate = "trained" if row["kept"] else "unused"
    kept = " kept" if row["kept"] else ""
    return f'<i class="s {outcome}{kept}" title="#{row["index"]}: {outcome}, {fate}"></i>'


def _is_right(row: Row, threshold: float) -> bool:
    # The threshold was of the raw score, where a row has one; its metric is 0 or 1 by then.
    return row["metric"] > (0.5 if "raw_score" in row else threshold)


def _counts(rows: list[Row], threshold: float) -> str:
    """drawn, right, and the coefficients of what is trained: one per outcome, as they repeat within an outcome."""
    right = sum(_is_right(row, threshold) for row in rows)
    kept = [row for row in rows if row["kept"]]
    distinct = sorted({f"{row['coefficient']:+.2f}" for row in kept if row["coefficient"]}, key=float)
    weights = f"coefficients {' '.join(distinct[:4])}" if distinct else "no signal"
    more = " …" if len(distinct) > 4 else ""
    return f"{len(rows)} drawn, {right} right, {len(kept)} trained, {weights}{more}"


def _answer(row: Row, threshold: float) -> str:
    response = row.get("response")
    text = "(text not recorded)" if response is None else response
    coefficient = "" if row["coefficient"] is None else f"{row['coefficient']:+.3f}"
    answer = f'<div class="text">{escaped(text)}</div>'
    return (
        f'<tr><td>{row["index"]}</td><td>{_symbol(row, threshold)}</td><td class="left">{answer}</td>'
        f"<td>{row['metric']:g}</td><td>{row['reward']:g}</td><td>{row['tokens']}</td><td>{coefficient}</td></tr>"
    )
