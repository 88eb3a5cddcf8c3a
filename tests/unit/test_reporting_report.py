"""The figure and the report: they hold for every kind of run, embed everything and escape what models write."""

from __future__ import annotations

import base64
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.core.types import PromptPool, Sample, TrainingGroup
from openrlhf_ada.reporting import plots, report
from openrlhf_ada.reporting.histograms import allocation_by_pass_rate
from openrlhf_ada.reporting.plots import plot_run, running_mean
from openrlhf_ada.reporting.report import write_report
from openrlhf_ada.reporting.report_groups import escaped
from openrlhf_ada.reporting.run_log import RunLog, sample_records
from openrlhf_ada.reporting.run_record import Run, read_run

CONFIG = {"rollout": {"n_samples_per_prompt": 2}, "ada": {"mode": "seq", "positive_threshold": 0.5}, "seed": 42}
ATTACK = "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\x1b[31m\u202eabc"


def metrics(step: int) -> dict[str, Any]:
    return {
        "ada/prompts": 2,
        "ada/drawn": 6,
        "ada/kept": 4,
        "ada/unused": 2,
        "ada/aborted": step % 2,
        "ada/drawn_tokens": 1500,
        "ada/kept_tokens": 1000,
        "ada/unused_tokens": 500,
        "ada/aborted_tokens": 0,
        "ada/rollouts_per_prompt": 3.0,
        "ada/first_wave_metric_mean": 0.25,
        "ada/signal_share": 1.0,
        "ada/signal_share_uniform": 0.5,
        "ada/allocation_by_pass_rate": allocation_by_pass_rate([(4, 1), (2, 1)]),
        "ada/step_s": 30.0,
    }


def make_run(run_dir: Path, *, steps: int, evaluations: tuple[int, ...] = (), off: bool = False) -> Run:
    """Run with one recorded group per step: wrong, right, wrong, right; the first two are trained."""
    with RunLog(run_dir, CONFIG) as log:
        for step in range(steps + 1):
            if step > 0:
                pool = PromptPool(step, [Sample(step, i, float(i % 2), 0.5, 3) for i in range(4)])
                group = TrainingGroup(step, (0, 1), (-0.5, 0.5), (1.0, 1.0), resolved=True)
                texts = [ATTACK, "right", "wrong", "right"]
                log.log_samples(step, [] if off else sample_records("row", f"{ATTACK} {step}", pool, texts, group))
                log.log_step(step, {"policy_loss": 0.1} if off else metrics(step))
            if step in evaluations:
                accuracy = {"eval/accuracy": 0.25 + 0.1 * step, "eval/ci95": None if off else 0.05}
                log.log_evaluation(step, {**accuracy, "eval/accuracy/a&b": 0.25, "eval/accuracy/c": 0.25})
    return read_run(run_dir)


class Tags(HTMLParser):
    """Tags and attributes of a page; fails on a tag that is closed out of order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second; the figure has tests of its own."""
    monkeypatch.setattr(report, "plot_run", lambda run, path: path.write_bytes(b"png") and path)


# -- the figure ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "evaluations", "off"), [(20, (0, 10, 20), False), (1, (), False), (3, (3,), True), (0, (), False)]
)
def test_figure_is_drawn_for_every_kind_of_run(
    tmp_path: Path, steps: int, evaluations: tuple[int, ...], off: bool
) -> None:
    run = make_run(tmp_path / "run", steps=steps, evaluations=evaluations, off=off)
    png = plot_run(run, tmp_path / "run.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (2400, 1640)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4, 20])
def test_accuracies_are_written_beside_the_curve(tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def keep(axes: Any, run: Run) -> None:
        drawn.append(axes)
        draw(axes, run)

    draw = plots._draw_accuracy
    monkeypatch.setattr(plots, "_draw_accuracy", keep)
    run = make_run(tmp_path / "run", steps=steps, evaluations=(0, steps))
    plot_run(run, tmp_path / "run.png")
    (axes,) = drawn
    left, right = (text.get_window_extent().transformed(axes.transData.inverted()) for text in axes.texts)
    low, high = axes.get_xlim()
    assert low < left.x0 < left.x1 < 0 and steps < right.x0 < right.x1 < high
    assert all(0 <= tick <= steps for tick in axes.get_xticks())


def test_running_mean_is_centred_and_shrinks_at_the_ends() -> None:
    assert running_mean([0, 3, 6, 0], window=3) == [1.5, 3.0, 3.0, 3.0]
    assert running_mean([1.0], window=5) == [1.0]


# -- the report ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_report_embeds_the_figure(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "run", steps=2), tmp_path / "report.html").read_text(encoding="utf-8")
    images = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 1
    assert base64.b64decode(images[0]).startswith(b"\x89PNG")


@pytest.mark.usefixtures("no_figure")
def test_report_has_the_headline_the_steps_and_the_flags(tmp_path: Path) -> None:
    run = make_run(tmp_path / "my-run", steps=4, evaluations=(0, 4))
    page = Tags(write_report(run, tmp_path / "report.html").read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    assert "25.0% → 65.0%" in text and "+40.0 points (95% interval ±5.0, then ±5.0)" in text
    assert "50.0% → 100.0%uniform sampling with 2 per prompt → this run with 3.0" in text
    assert "Rollouts24" in text and "6,000 tokens" in text and "2.0 min" in text
    assert "evaluation after step 4: 65.0 ± 5.0% (a&b 25.0%, c 25.0%)" in text
    assert "4 drawn, 2 right, 2 trained, coefficients -0.50 +0.50" in text
    assert "ada.positive_threshold0.5" in text and "seed42" in text
    assert "my-run" in text and "mode seq · n = 2 · 4 steps" in text


@pytest.mark.usefixtures("no_figure")
def test_recorded_summary_has_the_last_word(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", {}) as log:
        log.write_summary({"rollouts": 7, "tokens": 70})
    text = write_report(read_run(tmp_path / "run"), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<b>7</b>" in text


@pytest.mark.usefixtures("no_figure")
def test_model_output_is_escaped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<b>run</b>", steps=3)
    page = Tags(write_report(run, tmp_path / "report.html").read_text(encoding="utf-8"))
    tags = {tag for tag, _ in page.seen}
    assert tags.isdisjoint({"script", "iframe", "link", "object", "form", "b>"})
    assert [attrs["src"] for tag, attrs in page.seen if tag == "img"] == ["data:image/png;base64,cG5n"]
    assert not any(name.startswith("on") or name == "href" for _, attrs in page.seen for name in attrs)
    assert "<script>alert(1)</script>" in page.text, "shown as text"
    assert "\x1b" not in page.text and "\u202e" not in page.text
    policy = next(attrs["content"] for _, attrs in page.seen if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.usefixtures("no_figure")
@pytest.mark.parametrize(
    ("steps", "evaluations", "off", "expected"),
    [
        (0, (), False, "No step has been recorded yet."),
        (1, (), False, "· 1 step"),
        (0, (0,), False, "±5.0, before training"),
        (2, (2,), True, "no interval, after training"),
    ],
)
def test_report_of_an_incomplete_run(
    tmp_path: Path, steps: int, evaluations: tuple[int, ...], off: bool, expected: str
) -> None:
    run = make_run(tmp_path / "run", steps=steps, evaluations=evaluations, off=off)
    assert expected in Tags(write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")).text


@pytest.mark.usefixtures("no_figure")
def test_sample_groups_are_few_and_from_the_whole_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=160)
    page = write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    shown = [int(step) for step in re.findall(r'class="step">step (\d+)<', page)]
    assert shown == list(range(1, 161, 10))


@pytest.mark.usefixtures("no_figure")
def test_large_pool_is_cut_after_the_trained_answers(tmp_path: Path) -> None:
    with RunLog(tmp_path / "run", CONFIG) as log:
        pool = PromptPool(1, [Sample(1, i, 0.0, 0.0, 3) for i in range(100)])
        group = TrainingGroup(1, (0, 99), (0.0, 0.0), (1.0, 1.0), resolved=False)
        log.log_samples(1, sample_records("row", "word " * 100, pool, [f"answer-{i}." for i in range(100)], group))
    page = Tags(write_report(read_run(tmp_path / "run"), tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "100 drawn, 0 right, 2 trained, no signal" in page.text and "+36" in page.text
    assert "answer-99." in page.text and "answer-22." in page.text and "answer-23." not in page.text
    assert "76 more unused answers are in samples.jsonl" in page.text


def test_escaping_keeps_lines_and_shows_control_characters() -> None:
    assert escaped("a\n\t<&>\"'") == "a\n\t&lt;&amp;&gt;&quot;&#x27;"
    assert escaped("\x00\x1b\x7f\u202e\udc80") == "␀␛␡��"


def test_raw_scores_were_compared_before_they_were_recorded(tmp_path: Path) -> None:
    """--ada_positive_threshold is in units of the score then; the recorded metric is 0 or 1."""
    config = CONFIG | {"ada": {"mode": "seq", "scores": "raw", "positive_threshold": -7.0}}
    pool = PromptPool(1, [Sample(1, i, metric, -6.0, 3) for i, metric in enumerate([0.0, 1.0, 0.0])])
    with RunLog(tmp_path / "run", config) as log:
        log.log_samples(1, sample_records("row", "prompt", pool, ["a", "b", "c"], None, (), [-9.5, -6.0, -8.0]))
        log.log_step(1, metrics(1))
    run = read_run(tmp_path / "run")
    assert [row["raw_score"] for row in run.samples()] == [-9.5, -6.0, -8.0]
    write_report(run, tmp_path / "report.html")
    assert "3 drawn, 1 right" in (tmp_path / "report.html").read_text()
