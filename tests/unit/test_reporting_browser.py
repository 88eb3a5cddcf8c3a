"""The page as a reader sees it, in headless Chromium: charts, filters, dark and narrow screens, hostile texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from browser import CHROMIUM, Page, browser
from recorded_runs import CONFIG, log_pools, make_run

from openrlhf_ada.reporting.comparison import write_comparison
from openrlhf_ada.reporting.follow import server_of
from openrlhf_ada.reporting.report import write_report
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reporting.run_record import read_run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(make_run(folder / "run", steps=60, evaluations=(0, 60)), folder / "report.html")
    return folder / "report.html"


def opened(tab: Page, path: Path, width: int = 1200, *, dark: bool = False) -> Page:
    tab.look(width, 900, dark=dark)
    tab.open(path.as_uri())
    tab.wait_for("document.documentElement.dataset.ready == 'yes'")
    return tab


def draw_all(tab: Page) -> int:
    """Scroll through the page; returns the number of charts without a drawing."""
    tab.evaluate("""(async () => {
        for (const plot of document.querySelectorAll('.plot')) {
            plot.scrollIntoView();
            await new Promise((done) => setTimeout(done, 60));
        }
    })()""")
    tab.wait_for("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))")
    return tab.evaluate("[...document.querySelectorAll('.plot')].filter((p) => !p.querySelector('svg')).length")


INK = (("body", "color"), (".plot text:not(.quiet)", "fill"))


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_page_draws_everything_without_a_complaint(tab: Page, report: Path, width: int, dark: bool) -> None:
    opened(tab, report, width, dark=dark)
    assert draw_all(tab) == 0
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 24, 28)" if dark else "rgb(255, 255, 255)")
    ink, text = (tab.evaluate(f"getComputedStyle(document.querySelector('{of}')).{what}") for of, what in INK)
    assert ink == text, "charts are as light or dark as the page"


def test_the_table_of_runs_fits_a_laptop(tab: Page, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, steps=20, evaluations=(0, 20)) for name in ("a", "b")]
    write_comparison(runs, tmp_path / "both.html")
    opened(tab, tmp_path / "both.html")
    assert tab.evaluate("(t => t.scrollWidth - t.clientWidth)(document.querySelector('.runs').parentElement)") == 0


def test_texts_of_models_are_shown_and_never_run(tab: Page, report: Path) -> None:
    opened(tab, report)
    tab.evaluate("document.querySelector('#visits details summary').click()")
    text = tab.wait_for("document.querySelector('#visits .inside')?.innerText")
    assert "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>␛[31m�abc" in text
    assert "Reference answer\nlabel <script>" in text
    assert "Predicted pass rate\n0.4" in text
    assert tab.evaluate("document.querySelectorAll('#visits img, #visits script').length") == 0
    assert tab.complaints == []


FOUND = [
    ("step", "7", "1 prompts with 4 samples"),
    ("prompt", "row-9", "1 prompts with 4 samples"),
    ("kept", "signal", "60 prompts with 240 samples"),
    ("kept", "dropped", "0 prompts with 0 samples"),
    ("score", "mixed", "60 prompts with 240 samples"),
    ("score", "wrong", "0 prompts with 0 samples"),
    ("text", "onerror=ALERT(1)>", "60 prompts with 240 samples"),
    ("text", "abc 13", "1 prompts with 4 samples"),
    ("text", "nowhere to be found", "0 prompts with 0 samples"),
]


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, True)])
def test_a_followed_run_takes_its_steps_without_a_reload(tab: Page, tmp_path: Path, width: int, dark: bool) -> None:
    tab.look(width, 900, dark=dark)
    with RunLog(tmp_path / "run", CONFIG) as log:
        with server_of(tmp_path / "run", 0) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            tab.open(f"http://127.0.0.1:{server.server_port}/")
            tab.wait_for("document.documentElement.dataset.following == 'yes'")
            tab.evaluate("window.opened = 1")
            log_pools(log, 1, [[0, 1], [0, 0, 0, 0]])
            tab.wait_for("document.getElementById('subtitle').textContent.includes('1 step ')")
            tab.evaluate("document.querySelectorAll('#visits details')[1].open = true")
            log_pools(log, 2, [[0, 1], [1, 1, 0]], first_key=2)
            tab.wait_for("document.getElementById('subtitle').textContent.includes('2 steps')")
            assert tab.evaluate("document.querySelectorAll('#visits details').length") == 4
            assert draw_all(tab) == 0
            assert tab.evaluate("window.opened") == 1 and tab.complaints == []
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            opened = tab.wait_for("document.querySelector('#visits details[open] .inside')?.innerText")
            assert "Why 4 rollouts\nClosed at the most of 4, without 1 right and 1 wrong (exit balance)." in opened
            server.shutdown()
        tab.wait_for("document.documentElement.dataset.following == 'no'")


def test_samples_are_found(tab: Page, report: Path) -> None:
    opened(tab, report)
    for field, value, found in FOUND:
        for text, shown in ((value, found), ("", "60 prompts with 240 samples")):
            tab.evaluate(f"""(() => {{
                const field = document.querySelector('#filters [name={field}]');
                field.value = {text!r};
                field.dispatchEvent(new Event('input', {{ bubbles: true }}));
            }})()""")
            tab.wait_for(f"document.getElementById('found').textContent == {shown!r}")


def test_a_single_step_is_seen_in_stacked_charts(tab: Page, tmp_path: Path) -> None:
    write_report(make_run(tmp_path / "run", steps=1), tmp_path / "report.html")
    opened(tab, tmp_path / "report.html")
    assert draw_all(tab) == 0
    assert tab.evaluate("document.querySelectorAll('.plot[data-chart=phases] .mark').length") == 3


def test_reader_chooses_the_axis(tab: Page, report: Path) -> None:
    opened(tab, report)
    assert draw_all(tab) == 0
    tab.evaluate("document.querySelector('[data-axis=tokens]').click()")
    tab.wait_for("document.querySelector('.plot[data-chart=score] .xtitle')?.textContent == 'tokens drawn'")


def test_comparison_draws_everything(tab: Page, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, steps=4, evaluations=(0, 4), config=CONFIG | {"train": {"seed": seed}, "x": x})
        for name, seed, x in (("a", 1, 0), ("b", 2, 0), ("c", 1, 1))
    ]
    write_comparison(runs, tmp_path / "comparison.html")
    opened(tab, tmp_path / "comparison.html", 390)
    assert draw_all(tab) == 0 and tab.complaints == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_run_of_500_steps_is_small_and_there_at_once(tab: Page, tmp_path: Path) -> None:
    """Under 5 MB. The limit of 3 s is for a machine without other work; benchmarks/report_page.py measures it."""
    with RunLog(tmp_path / "run", CONFIG) as log:
        for step in range(1, 501):
            pools = [[0, 1]] * 8 + [[1, 1, 0, 1]] * 4 + [[0, 0, 0, 0]] * 4
            log_pools(log, step, pools, first_key=16 * step)
    path = tmp_path / "report.html"
    write_report(read_run(tmp_path / "run"), path)
    assert path.stat().st_size < 5e6
    opened(tab, path)
    assert tab.evaluate("document.getElementById('found').textContent") == "8,000 prompts with 24,000 samples"
    assert draw_all(tab) == 0 and tab.complaints == []


POINTER = """((place, ...events) => {
    const svg = place.querySelector('svg'), box = svg.getBoundingClientRect();
    for (const [type, x] of events) svg.dispatchEvent(
        new PointerEvent(type, { pointerType: 'mouse', clientX: box.left + x, clientY: box.top + 60, bubbles: true }));
    return place.innerText;
})(document.querySelector('.plot[data-chart=waste]'), %s)"""


def test_reader_points_at_a_chart_and_zooms(tab: Page, report: Path) -> None:
    opened(tab, report)
    assert draw_all(tab) == 0
    assert "trained: " in tab.evaluate(POINTER % "['pointermove', 200]")
    whole, part, back = (
        tab.evaluate(POINTER % events)
        for events in (
            "['pointerleave', 0]",
            "['pointerdown', 100], ['pointermove', 200], ['pointerup', 200]",
            "['dblclick', 100]",
        )
    )
    assert whole != part and whole == back
