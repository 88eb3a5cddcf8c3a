"""Who may ask the server of a followed run, what for, and what a page says of a prompt's number of rollouts."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from recorded_runs import CONFIG, log_pools, make_run

from openrlhf_ada.cli.report import main
from openrlhf_ada.reporting.follow import server_of
from openrlhf_ada.reporting.reasons import reasons
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.reporting.run_record import read_run
from openrlhf_ada.reporting.visits import read_visits


@pytest.fixture
def served(tmp_path: Path) -> Iterator[http.client.HTTPConnection]:
    make_run(tmp_path / "run", steps=1)
    with server_of(tmp_path / "run", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "host", "status"),
    [
        ("/", "127.0.0.1:1", 200),
        ("/version", "localhost", 200),
        ("/config.json", "127.0.0.1", 404),
        ("/../../etc/passwd", "127.0.0.1", 404),
        ("/", "evil.example", 403),
    ],
)
def test_only_its_page_is_served_and_only_here(
    served: http.client.HTTPConnection, path: str, host: str, status: int
) -> None:
    served.request("GET", path, headers={"Host": host})
    answer = served.getresponse()
    assert answer.status == status
    assert (b"Samples" in answer.read()) == (path == "/" and status == 200)


def test_a_damaged_record_is_said_and_the_server_goes_on(tmp_path: Path, served: http.client.HTTPConnection) -> None:
    record = tmp_path / "run" / "metrics.jsonl"
    whole = record.read_bytes()
    for content, status in ((b"{}\n" + whole, 500), (whole, 200)):
        record.write_bytes(content)
        served.request("GET", "/")
        answer = served.getresponse()
        assert answer.status == status and (b"metrics.jsonl" in answer.read()) == (status == 500)


@pytest.mark.parametrize("more", [("{run}", "{run}"), ("{run}", "--out", "x.html")])
def test_one_run_is_followed(more: tuple[str, ...], tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=1)
    with pytest.raises(ValueError, match="--follow is for one run"):
        main([*(word.format(run=tmp_path / "run") for word in more), "--follow", "0"])


def reason(tmp_path: Path, scores: list[float], **ada: Any) -> str:
    with RunLog(tmp_path / "run", CONFIG | {"ada": CONFIG["ada"] | ada}) as log:
        log_pools(log, 1, [scores])
    run = read_run(tmp_path / "run")
    visits = [replace(visit, predicted=0.25) for visit in read_visits(run)]
    return "".join(reasons(run, visits))


@pytest.mark.parametrize(
    ("scores", "ada", "said"),
    [
        ([0, 1], {}, "Closed after 2, with at least 1 right and 1 wrong"),
        ([1, 1, 1, 1], {}, "Closed at the most of 4, without 1 right and 1 wrong"),
        ([0, 0], {"exit": "pos"}, "Ended after 2 of at most 4, without 1 right"),
        ([0, 1, 0, 1], {"exit": "fixed"}, "Every prompt gets 4"),
        ([0, 1, 0, 0], {"exit": "gate", "pilot": 2, "wave": 2}, "1 of the first 2 are right"),
        (
            [0, 1, 0],
            {"mode": "est", "exit": "balance", "wave": None},
            "3 of the step's rollouts were its part for the",
        ),
        ([0, 1], {"flag_of_another_version": 1}, ""),
        ([0, 1], {"policy": "mine.py"}, ""),
    ],
)
def test_why_a_prompt_got_so_many(scores: list[float], ada: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = reason(tmp_path, scores, **ada)
    assert found.startswith(said) and bool(found) == bool(said)
