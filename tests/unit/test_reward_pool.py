"""Scores from a process pool: whatever a grader does costs one score, at most its time limit, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import poison_grader
import psutil
import pytest
from processes import has_ended

from openrlhf_ada.reward.grade import TimedGrade
from openrlhf_ada.reward.pool import TOO_COSTLY, GraderError, GraderPool, GradingLimits

GRADER = f"{poison_grader.__file__}:grade"
LIMITS = GradingLimits(seconds=1.0, memory_mib=64)
"""So little memory is exhausted well within the second, on a busy machine too."""

SLOW = ("spin", "sleep", "one long C call")
CAUSES = {
    "spin": "time limit (1 s)",
    "sleep": "time limit (1 s)",
    "one long C call": "time limit (1 s)",
    "memory": "memory limit",
    "many small pieces of memory": "memory limit",
    "segfault": "its process was killed (SIGSEGV)",
    "exit": "its process ended (3)",
    "recursion": "recursion limit",
    "raise": "KeyError: 'x'",
    "not a number": "ValueError: the grader gave the score nan, which is not in [0, 1]",
    "above one": "ValueError: the grader gave the score 2.0, which is not in [0, 1]",
    "stop": "time limit (1 s)",
    "half a message": "time limit (1 s)",
    "no message": "its process sent something that is no grade",
    "bad label": "unusable label: nothing to compare with",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    with GraderPool(GRADER, LIMITS, workers=2) as pool:
        yield pool


OF_THE_ANSWER = (
    "spin",
    "sleep",
    "one long C call",
    "memory",
    "many small pieces of memory",
    "recursion",
    "stop",
    "half a message",
)
"""Limits, which an answer exceeds by itself. Everything else is a fault of the grader or of the machine."""


@pytest.mark.slow
def test_answer_has_the_whole_limit_after_its_label() -> None:
    """Together they take longer than the limit."""
    seconds = 1.5 * poison_grader.SLOW_S
    with GraderPool(GRADER, GradingLimits(seconds, 1024), 1) as pool:
        # The first answer of a process is slow on a busy machine.
        pool.grade("4", "4")
        assert pool.grade(f"{poison_grader.SLOW_LABEL}4", "4").score == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("poison", CAUSES)
def test_an_answer_beyond_a_limit_is_wrong_once_the_label_is_read(pool: GraderPool, poison: str) -> None:
    grade = pool.grade(f"{poison_grader.READABLE}{poison}", "4")
    assert (grade.score, grade.cause) == (0.0 if poison in OF_THE_ANSWER else None, CAUSES[poison])
    # What was said of one label holds for no other.
    assert pool.grade("recursion", "4").score is None


def test_right_and_wrong_answers_have_a_score_and_a_time(pool: GraderPool) -> None:
    right, wrong = pool.grade("4", "4"), pool.grade("5", "4")
    assert (right.score, right.cause, wrong.score, wrong.cause) == (1.0, "", 0.0, "wrong answer")
    assert 0.0 < right.seconds < LIMITS.seconds


@pytest.mark.slow
def test_fifty_poisons_among_five_hundred_answers() -> None:
    """R5: with two workers all good scores are right, no poison takes half a second more than its limit, this
    process does not grow, and the end is clean."""
    # Two burn a second of processor time each time: twice is enough of them.
    dear = ["spin", "one long C call"]
    cheap = [name for name in CAUSES if name not in dear]
    poisons = 2 * dear + [cheap[i % len(cheap)] for i in range(50 - 2 * len(dear))]
    answers = [(str(i), str(i - i % 3)) for i in range(450)] + [(poison, "4") for poison in poisons]
    random.Random(0).shuffle(answers)
    others = set(psutil.Process().children())
    pool = GraderPool(GRADER, LIMITS, workers=2)
    pool.grade("4", "4")
    before = psutil.Process().memory_info().rss
    with ThreadPoolExecutor(8) as threads:
        grades = list(threads.map(lambda answer: pool.grade(*answer), answers))
    grown = psutil.Process().memory_info().rss - before
    workers = set(psutil.Process().children()) - others
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 3.0
    assert len(workers) == 2
    assert not any(worker.is_running() for worker in workers)
    assert grown < 32 << 20
    for (response, label), grade in zip(answers, grades, strict=True):
        if response in CAUSES:
            assert (grade.score, grade.cause) == (None, CAUSES[response])
            assert grade.seconds < LIMITS.seconds + 0.5
        else:
            assert grade.score == float(response == label)


@pytest.mark.slow
def test_the_score_is_the_same_from_everywhere(pool: GraderPool) -> None:
    async def from_asyncio() -> list[TimedGrade]:
        return await asyncio.gather(*(asyncio.to_thread(pool.grade, response, "4") for response in ("4", "sleep")))

    def scores(grades: list[TimedGrade]) -> list[tuple[float | None, str]]:
        return [(grade.score, grade.cause) for grade in grades]

    with ThreadPoolExecutor(1) as thread:
        threaded = list(thread.map(pool.grade, ("4", "sleep"), ("4", "4")))
    here = [pool.grade(response, "4") for response in ("4", "sleep")]
    assert scores(here) == scores(threaded) == scores(asyncio.run(from_asyncio()))


@pytest.mark.parametrize("text", ["", "\x00", "\ud800 half a pair", "é" * 1_000_000, "𝔸\u202e\r\n"])
def test_any_text_crosses_the_border_unharmed(pool: GraderPool, text: str) -> None:
    assert pool.grade(text, text).score == 1.0
    assert pool.grade(text, [text]).score == 0.0


@pytest.mark.slow
def test_costly_answers_never_hold_up_the_others() -> None:
    with GraderPool(GRADER, GradingLimits(60.0, 256), workers=1) as pool, ThreadPoolExecutor(4) as threads:
        costly = [threads.submit(pool.grade, "put off", "4") for _ in range(4)]
        assert [pool.grade("4", "4").score for _ in range(20)] == [1.0] * 20
        assert not any(answer.done() for answer in costly)
        pool.close()


@pytest.mark.slow
def test_costly_answers_are_wrong_and_cost_no_process(pool: GraderPool) -> None:
    def processes() -> set[str]:
        with ThreadPoolExecutor(2) as threads:
            return set(threads.map(lambda _: pool.grade("pid", "4").cause, range(20)))

    before = processes()
    for poison in ("spin", "spin on"):
        grade = pool.grade(f"{poison_grader.COSTLY}{poison}", "4")
        assert (grade.score, grade.cause) == (0.0, TOO_COSTLY)
    assert pool.grade(f"{poison_grader.COSTLY}4", "4").score == 1.0
    assert len(before | processes()) == 2


@pytest.mark.slow
def test_child_processes_end_with_the_grader() -> None:
    with GraderPool(GRADER, LIMITS, workers=1) as pool:
        child = psutil.Process(int(pool.grade("a child", "").cause))
        assert child.is_running()
        pool.grade("sleep", "")
        child.wait(5)


@pytest.mark.slow
def test_large_answer_to_stopped_process_times_out() -> None:
    with GraderPool(GRADER, LIMITS, workers=1) as pool:
        pid = int(pool.grade("pid", "").cause)
        psutil.Process(pid).suspend()
        assert pool.grade("x" * 5_000_000, "").cause == "time limit (1 s)"
        assert pool.grade("4", "4").score == 1.0


@pytest.mark.slow
def test_failed_process_start_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with GraderPool(GRADER, LIMITS, workers=1) as pool:
        pool.grade("4", "4")
        with monkeypatch.context() as full:
            full.setattr(subprocess, "Popen", _no_memory)
            assert pool.grade("sleep", "4").cause == "time limit (1 s)"
            for _ in range(2):
                grade = pool.grade("4", "4")
                assert (grade.score, grade.cause) == (
                    None,
                    "its process cannot be started (Cannot allocate memory)",
                )
        assert pool.grade("4", "4").score == 1.0


def _no_memory(*args: object, **options: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_an_idle_process_that_dies_costs_one_score(pool: GraderPool) -> None:
    dead = int(pool.grade("pid", "").cause)
    psutil.Process(dead).kill()
    grades = [pool.grade("pid", "") for _ in range(4)]
    assert [grade.cause for grade in grades].count("its process was killed (SIGKILL)") <= 1
    assert str(dead) not in {grade.cause for grade in grades[-2:]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grader", "problem"),
    [
        ("no.such.module:grade", "ModuleNotFoundError"),
        ("openrlhf_ada.reward.grade:no_such_name", "AttributeError"),
        ("/no/such/file.py:grade", "FileNotFoundError"),
    ],
)
def test_a_grader_that_cannot_be_loaded_is_no_missing_score(grader: str, problem: str) -> None:
    with GraderPool(grader, LIMITS, workers=1) as pool:
        for _ in range(2):
            with pytest.raises(GraderError, match=f"{problem}"):
                pool.grade("4", "4")


@pytest.mark.slow
def test_closing_wakes_waiting_callers() -> None:
    pool = GraderPool(GRADER, GradingLimits(60.0, 256), workers=1)
    pool.grade("4", "4")
    ends: list[str] = []

    def ask() -> None:
        try:
            ends.append(pool.grade("sleep", "4").cause)
        except GraderError as error:
            ends.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    pool.close()
    for thread in threads:
        thread.join(10)
    killed, *closed = sorted(ends)
    assert "SIGKILL" in killed and len(closed) == 2 and all("closed" in end for end in closed)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_no_process_outlives_its_parent(end: str, tmp_path: Path) -> None:
    script = (
        "import os, threading, time\n"
        "from openrlhf_ada.reward.pool import GraderPool, GradingLimits\n"
        f"pool = GraderPool({GRADER!r}, GradingLimits(1.0, 256), 2)\n"
        "print(pool.grade('pid', '').cause, flush=True)\n"
        "threading.Thread(target=pool.grade, args=('spin', ''), daemon=True).start()\n"
        f"time.sleep(0.2)\n{end}\n"
    )
    mark = {"STARTED_BY": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | mark, capture_output=True, text=True, timeout=60, check=False
    )
    pid = int(done.stdout)
    # The one that spins has a limit on CPU time of its own.
    deadline = time.monotonic() + 20
    while any(mark.items() <= _environment(process).items() for process in psutil.process_iter()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert has_ended(pid)


def _environment(process: psutil.Process) -> dict[str, str]:
    """Empty for one that has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}
