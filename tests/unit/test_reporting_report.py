"""The page of a run: it holds for every kind of run, embeds everything, and shows what models write as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import ATTACK, CONFIG, balanced_group, log_pools, make_run, pool_of

from openrlhf_ada.reporting import visits as pools
from openrlhf_ada.reporting.page import as_script_json, escaped
from openrlhf_ada.reporting.report import write_report
from openrlhf_ada.reporting.run_log import RunLog, sample_records
from openrlhf_ada.reporting.run_record import Run, read_run
from openrlhf_ada.reporting.visits import page_samples, read_visits


class Tags(HTMLParser):
    """Tags and attributes of a page; fails on a tag that is closed out of order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input"):
            self._open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self._open[-1:] != ["style"]:
            self.text += data


def page_of(run: Run, folder: Path) -> Tags:
    write_report(run, folder / "report.html")
    return Tags((folder / "report.html").read_text(encoding="utf-8"))


def data_of(page: Tags) -> dict[str, Any]:
    return json.loads(page.scripts[0])


def test_head_has_figures_steps_and_flags(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "my-run", steps=4, evaluations=(0, 4)), tmp_path)
    text = " ".join(page.text.split())
    assert "25.0% → 65.0%" in text and "±5.0 before" in text and "±5.0 after" in text
    assert "Groups with signal100.0%" in text and "8 trained groups" in text
    assert "Rollouts24" in text and "6,000 tokens" in text and "2.0 min" in text
    assert "accuracya&bc025.0% ±5.025.0%25.0%465.0% ±5.0" in text, "the table of evaluations, by datasource"
    assert "ada.positive_threshold0.5" in text and "train.seed42" in text
    assert all(part in text for part in ("my-run", "mode seq", "exit balance", "n = 2", "4 steps", "not finished"))


def test_sentences_on_payoff_are_those_of_the_demo(tmp_path: Path) -> None:
    from openrlhf_ada.reporting.payoff import payoff, payoff_lines

    with RunLog(tmp_path / "run", CONFIG) as log:
        log_pools(log, 1, [[0, 1], [1, 1, 0, 1], [0, 0, 0, 0]])
    run = read_run(tmp_path / "run")
    text = page_of(run, tmp_path).text
    for _, sentence in payoff_lines(payoff(run, read_visits(run))):  # pyright: ignore[reportArgumentType]
        assert sentence in text


def test_every_question_has_its_charts(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", steps=4, evaluations=(0, 4)), tmp_path)
    charts = data_of(page)["charts"]
    assert list(charts) == [
        *("pay_signal", "score", "signal", "allocation"),
        *("waste", "brier", "phases", "length"),
    ]  # fmt: skip
    assert [name for tag, a in page.seen if (name := a.get("data-chart"))] == list(charts), "each has its place"
    assert len(charts["allocation"]["series"]) == 2, "by the pass rate seen, and by the one predicted"
    assert charts["score"]["series"][0]["x"]["rollouts"] == [6, 12, 18, 24]
    assert data_of(page)["axes"].keys() == {"steps", "rollouts", "tokens", "seconds"}
    phases = {series["name"]: series["y"][0] for series in charts["phases"]["series"]}
    assert phases == {"generation": 20, "ppo train": 8, "other": 2}


def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    """A content policy names their hashes; nothing is loaded, and the page is small."""
    run = make_run(tmp_path / "<b>run</b>", steps=3)
    page = page_of(run, tmp_path)
    policy = next(a["content"] for _, a in page.seen if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    data, script = page.scripts
    assert len(data) + len(script) < 100_000
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert "<" not in data, "no text can end the element"
    assert not any(name in ("src", "href") or name.startswith("on") for _, attrs in page.seen for name in attrs)
    assert {tag for tag, _ in page.seen}.isdisjoint({"iframe", "link", "object", "img", "b>"})
    assert "<b>run" in page.text, "shown as text"


def test_samples_have_prompt_reference_and_answers(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", steps=2), tmp_path)
    samples = data_of(page)["samples"]
    visit = samples["visits"][0]
    assert samples["prompts"]["row-1"] == [f"{ATTACK} 1", f"label {ATTACK}"]
    assert visit["a"]["0"] == ATTACK and visit["a"]["1"] == "right"
    assert (visit["m"], visit["k"], visit["q"]) == ([0, 1, 0, 1], {"0": -0.5, "1": 0.5}, 0.4)
    assert (samples["total"], len(samples["visits"])) == (2, 2)


def test_prompts_without_recorded_answers_are_there_too(tmp_path: Path) -> None:
    """--ada_log_texts 1: the second prompt has its text and reference answer, but no responses."""
    with RunLog(tmp_path / "run", CONFIG, text_prompts_per_step=1) as log:
        records = [
            sample_records(f"row-{key}", f"prompt {key}", pool := pool_of([0, 1], key), ["a", "b"], None, label="7")
            for key in (0, 1)
        ]
        assert pool.key == 1
        log.log_samples(1, [row for rows in records for row in rows])
    run = read_run(tmp_path / "run")
    samples = page_samples(run, read_visits(run))
    assert samples["prompts"] == {"row-0": ["prompt 0", "7"], "row-1": ["prompt 1", "7"]}
    assert ["a" in visit for visit in samples["visits"]] == [True, False]


def test_large_runs_are_thinned_evenly_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """9 visits of 4 samples with their texts, 5 of which fit."""
    run = make_run(tmp_path / "run", steps=9)
    visits = read_visits(run)
    size = visits[0].num_chars + pools.SAMPLE_CHARS * visits[0].drawn
    monkeypatch.setattr(pools, "MOST_CHARS", 5 * size)
    samples = page_samples(run, visits)
    assert [visit["s"] for visit in samples["visits"]] == [1, 2, 4, 6, 8]
    assert samples["prompts"].keys() == {f"row-{step}" for step in (1, 2, 4, 6, 8)} and samples["total"] == 9


@pytest.mark.parametrize(
    ("steps", "evaluations", "off", "expected"),
    [
        (0, (), False, "· 0 steps ·"),
        (1, (), False, "· 1 step ·"),
        (0, (0,), False, "±5.0 before training"),
        (2, (2,), True, "no interval after training"),
    ],
)
def test_page_of_an_incomplete_run(
    tmp_path: Path, steps: int, evaluations: tuple[int, ...], off: bool, expected: str
) -> None:
    run = make_run(tmp_path / "run", steps=steps, evaluations=evaluations, off=off)
    assert expected in page_of(run, tmp_path).text


def test_recorded_summary_has_the_last_word(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", {}) as log:
        log.write_summary({"rollouts": 7, "tokens": 70})
    assert "Rollouts770 tokens" in page_of(read_run(tmp_path / "run"), tmp_path).text


def test_what_was_positive_is_recorded(tmp_path: Path) -> None:
    """A run that is resumed may have another --ada_positive_threshold. Older records know 0.5 alone."""
    pool = pool_of([0.25, 0.5, 0.75], 1)
    with RunLog(tmp_path / "run", CONFIG) as log:
        for step, above in enumerate((0.1, 0.5, 0.7), start=1):
            log.log_samples(
                step, sample_records("row", "prompt", pool, ["a"] * 3, None, (), [-9.5, -6, -8], positive_above=above)
            )
    run = read_run(tmp_path / "run")
    assert [row["raw_score"] for row in run.samples()][:3] == [-9.5, -6.0, -8.0]
    assert [visit.positive.tolist() for visit in read_visits(run)] == [
        [True] * 3,
        [False, False, True],
        [False, False, True],
    ]
    visits = page_samples(run, read_visits(run))["visits"]
    assert [visit.get("o") for visit in visits] == [[1, 1, 1], None, None]
    samples = tmp_path / "run" / "samples.jsonl"
    samples.write_text(samples.read_text().replace(' "positive": true,', ""))
    assert read_visits(run)[0].positive.tolist() == [False, False, True]


def test_partial_credit_and_shaped_rewards_are_kept(tmp_path: Path) -> None:
    pool = pool_of([0.25, 1.0], 1)
    with RunLog(tmp_path / "run", CONFIG) as log:
        rows = sample_records("row", "prompt", pool, ["a", "b"], None)
        log.log_samples(1, rows)
    text = (tmp_path / "run" / "samples.jsonl").read_text().replace('"reward": 0.25', '"reward": -1.5')
    (tmp_path / "run" / "samples.jsonl").write_text(text)
    run = read_run(tmp_path / "run")
    (visit,) = page_samples(run, read_visits(run))["visits"]
    assert (visit["m"], visit["r"], visit["k"]) == ([0.25, 1], [-1.5, 1], {})
    assert balanced_group(pool_of([0, 1], 1)).coefficients == (-0.5, 0.5)


def test_escaping_keeps_lines_and_shows_control_characters() -> None:
    assert escaped("a\n\t<&>\"'") == "a\n\t&lt;&amp;&gt;&quot;&#x27;"
    assert escaped("\x00\x1b\x7f\u202e\udc80") == "␀␛␡��"


def test_json_of_a_script_holds_every_text() -> None:
    text = "</script><!--\u2028\udc80&"
    encoded = as_script_json([text])
    assert not re.search("[<>&\u2028\udc80]", encoded)
    assert json.loads(encoded) == [text.replace("\udc80", "?")]
