"""Programs with many tests, with partial credit, with modules, and what they may write."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import command_line
from sandboxed import cause, output

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.reward.grade import CodeRules, Grade, listen
from openrlhf_ada.reward.pool import GraderError, GraderPool, GradingLimits, limits_of
from openrlhf_ada.reward.programs import limits as code_time
from openrlhf_ada.reward.programs import template as sandbox_template
from openrlhf_ada.reward.programs.answers import grade
from openrlhf_ada.reward.programs.limits import ProgramLimits, TestTime
from openrlhf_ada.reward.programs.sandbox import RunResult, Sandbox, run_program
from openrlhf_ada.reward.programs.template import SandboxError

CODE = "openrlhf_ada.reward.programs:grade"
PARTIAL = CodeRules(partial=True)
SQUARES = {"inputs": [str(i) for i in range(200)], "outputs": [str(i * i) for i in range(200)]}
ASSERTS = {"tests": [f"assert f({i}) == {i * i}" for i in range(200)]}


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def graded(program: str, label: Any, rules: CodeRules = PARTIAL, limits: ProgramLimits | None = None) -> Grade:
    return grade(fenced(program), label, limits, rules)


# Time.


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(code_time, "time", clock)
    return clock


@pytest.mark.parametrize(("tests", "seconds"), [(1, 8), (10, 8), (20, 16), (200, 160), (1000, 800), (5000, 800)])
def test_time_for_all_tests_grows_with_their_number(clock: Clock, tests: int, seconds: float) -> None:
    time = TestTime(ProgramLimits(seconds=6, seconds_in_all=8), tests)
    assert (time.left(), time.limit()) == (seconds, 6)
    clock.now += seconds - 2
    assert (time.left(), time.limit(), time.is_over) == (2, 2, False)
    clock.now += 2
    assert (time.limit(), time.is_over) == (0, True)


def test_a_test_that_takes_too_long_halves_the_limit_of_the_next(clock: Clock) -> None:
    time = TestTime(ProgramLimits(seconds=6, seconds_in_all=8), 100)
    found = []
    for ended in ("time limit", "wrong output", "time limit", ""):
        found.append(time.limit())
        time.count(ended)
    assert [*found, time.limit()] == [6, 3, 3, 1.5, 1.5]


def test_grading_process_learns_that_there_is_more_time() -> None:
    told: list[float | None] = []
    listen(told.append)
    time = TestTime(ProgramLimits(seconds=6, seconds_in_all=8), 10)
    assert told == []
    for _ in range(190):
        time.add()
    assert (told[-1] or 0.0) >= 160 * 1.25
    assert len(told) < 10, "not a message a test"
    listen(lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "label"),
    [
        ("import time; time.sleep(0.01); print(int(input()) ** 2)", SQUARES),
        ("import time\ndef f(x):\n    time.sleep(0.01)\n    return x * x", ASSERTS),
        ("import time\ndef f(x):\n    time.sleep(0.01)\n    return x * x",
         {"fn_name": "f", "inputs": [[i] for i in range(200)], "outputs": [i * i for i in range(200)]}),
    ],
    ids=["stdin", "asserts", "calls"],
)  # fmt: skip
def test_two_hundred_tests_of_a_right_program_take_longer_than_one(program: str, label: Any) -> None:
    """200 x 0.01 s are beyond 1 s, the limit of an answer with few tests."""
    with GraderPool(CODE, GradingLimits(seconds=1.0), workers=1) as pool:
        found = pool.grade(fenced(program), label)
    assert (found.score, found.cause) == (1.0, "")
    assert found.seconds > 2


@pytest.mark.slow
def test_program_that_never_ends_costs_the_time_of_two_tests() -> None:
    limits = ProgramLimits(seconds=3, seconds_in_all=8)
    program = "x = int(input())\nwhile x % 50 == 7: pass\nprint(x * x)"
    assert graded(program, SQUARES, limits=limits) == Grade(196 / 200, "time limit")
    with GraderPool(CODE, GradingLimits(seconds=1.0, code=PARTIAL), workers=1) as pool:
        found = pool.grade(fenced("while True: pass"), SQUARES)
    assert (found.score, found.cause) == (0.0, "time limit")
    assert found.seconds < 60, "200 tests of 0.6 s would take 120 s"


@pytest.mark.slow
def test_calls_of_a_loop_that_waits_for_the_program_are_limited() -> None:
    label = {"tests": "while not done():\n    pass\nassert done()"}
    assert graded("def done(): return False", label) == Grade(0.0, "too many calls")


@pytest.mark.slow
def test_limits_of_an_answer_are_not_those_of_the_template() -> None:
    """It would end after so many seconds of CPU in all."""
    sandbox_template.close_templates()
    with GraderPool(CODE, GradingLimits(seconds=5.0, memory_mib=256), workers=1) as pool:
        assert pool.grade(fenced("print(1)"), {"inputs": [""], "outputs": ["1"]}).score == 1.0
        processes = psutil.Process().children(recursive=True)
        templates = [one for one in processes if "programs/child.py" in command_line(one) and one.name() != "bwrap"]
        assert len(templates) == 1
        for kind in (psutil.RLIMIT_CPU, psutil.RLIMIT_AS):
            assert templates[0].rlimit(kind) == (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY)


# Partial credit.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "label", "score"),
    [
        ("print(min(int(input()) ** 2, 99 ** 2))", SQUARES, 100 / 200),
        ("def f(x): return min(x * x, 99 ** 2)", ASSERTS, 100 / 200),
        ("def f(x): return x * x", {"fn_name": "f", "inputs": [[2], [3], [4]], "outputs": [4, 9, 17]}, 2 / 3),
        ("def f(x):\n    if x > 1: exit()\n    return x * x", {"tests": ASSERTS["tests"][:4]}, 2 / 4),
        ("import os\ndef f(x):\n    if x == 1: os._exit(0)\n    return x * x", {"tests": ASSERTS["tests"][:4]}, 3 / 4),
        ("def f(x): return x", {"tests": "def check(f):\n    for x in range(5):\n        assert f(x) == x * x\n",
                                "entry_point": "f"}, 2 / 5),
        ("def f(x): return 1 / x", {"tests": "def check(f):\n    assert f(1) == 1\n    y = f(0)\n    assert y == 1\n"
                                    "    assert f(2) == 0.5\n", "entry_point": "f"}, 1 / 3),
        ("def f(x): return x", {"tests": "from solution import f\ndef test_a():\n    assert f(1) == 1\n"
                                "def test_b():\n    assert f(2) == 4\n"}, 1 / 2),
        ("def f(x: return x", ASSERTS, 0.0),
        ("def g(x): return x", {"tests": ASSERTS["tests"][:2]}, 0.0),
    ],
)  # fmt: skip
def test_partial_credit_is_the_share_of_tests_that_pass(program: str, label: Any, score: float) -> None:
    found = graded(program, label)
    assert found.score == score
    assert found.cause and graded(program, label, CodeRules()).score == 0.0


def test_after_a_hard_exit_the_program_starts_anew() -> None:
    program = (
        "import os\ncalls = []\ndef f(x):\n    calls.append(x)\n    if x == 1: os._exit(0)\n    return len(calls)"
    )
    label = {"tests": ["assert f(0) == 1", "assert f(1)", "assert f(2) == 1", "assert f(3) == 2"]}
    assert graded(program, label) == Grade(3 / 4, "ended early")


def test_program_that_is_gone_fails_a_test_that_catches_everything() -> None:
    label = {"tests": ["try:\n    f(1)\nexcept:\n    pass\nassert True", "try:\n    assert f(2)\nexcept:\n    pass"]}
    for rules in (PARTIAL, CodeRules()):
        assert graded("import os\ndef f(x): os._exit(0)", label, rules).score < 1.0


# Modules.

NUMPY = Sandbox(("numpy",))


@pytest.mark.slow
def test_numpy_can_be_allowed() -> None:
    product = "import numpy as np\nprint(int((np.ones((300, 300)) @ np.ones((300, 300))).sum()))"
    assert NUMPY.run_program(product, "").stdout == b"27000000\n"
    assert cause("import numpy") == "raised ModuleNotFoundError"
    assert NUMPY.run_program("import torch", "").cause == "raised ModuleNotFoundError"
    assert NUMPY.run_program("import numpy.polynomial as p; print(p.Polynomial([1, 2])(3))", "").stdout == b"7.0\n"


@pytest.mark.slow
def test_numpy_is_within_the_limits() -> None:
    small = ProgramLimits(memory_mib=256)
    assert NUMPY.run_program("import numpy as np; np.ones(1 << 27)", "", small).cause == "memory limit"
    assert NUMPY.run_program("import numpy as np; print(np.ones(1 << 24).sum())", "", small).stdout == b"16777216.0\n"
    draws = {NUMPY.run_program("import numpy as np; print(np.random.rand())", "").stdout for _ in range(3)}
    assert len(draws) == 3


@pytest.mark.slow
def test_arrays_are_plain_data() -> None:
    rules = CodeRules(("numpy",))
    program = "import numpy as np\ndef f(x): return np.array(x) * 2"
    tests = "import numpy as np\nassert (f([1, 2]) == np.array([2, 4])).all()\nassert f([3])[0] == 6"
    assert graded(program, {"tests": tests}, rules) == Grade(1.0)
    assert graded(program, {"fn_name": "f", "inputs": [[[1, 2]]], "outputs": [[2, 4]]}, rules) == Grade(1.0)


@pytest.mark.slow
def test_pandas_can_be_allowed() -> None:
    pytest.importorskip("pandas")
    program = (
        "import pandas as pd\nprint(pd.DataFrame({'a': [1, 2, 3], 'b': list('xyx')}).groupby('b').a.sum().to_dict())"
    )
    assert Sandbox(("pandas",)).run_program(program, "") == RunResult("", b"{'x': 4, 'y': 2}\n")


def test_a_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--ada_code_imports is 'numpy,no_such_module': each of these must be"):
        AdaConfig(code_imports="numpy,no_such_module")
    with pytest.raises(ConfigError, match=r"--ada_code_imports is 'os\.path'"):
        AdaConfig(code_imports="os.path")
    config = AdaConfig(code_imports="numpy, json", code_partial=True)
    assert limits_of(config).code == CodeRules(("numpy", "json"), partial=True)
    with pytest.raises(SandboxError, match="no_such_module is not installed here"):
        Sandbox(("no_such_module",)).run_program("", "")


def test_sandbox_that_cannot_work_is_an_error_of_the_grader() -> None:
    limits = GradingLimits(code=CodeRules(("no_such_module",)))
    with GraderPool(CODE, limits, workers=1) as pool:  # noqa: SIM117
        with pytest.raises(
            GraderError, match=r"cannot be used: SandboxError: the module no_such_module is not installed"
        ):
            pool.grade("no code", {"tests": "assert f()"})


@pytest.mark.slow
def test_flags_reach_the_grading_process() -> None:
    limits = GradingLimits(20.0, code=CodeRules(("numpy",), partial=True))
    with GraderPool(CODE, limits, workers=1) as pool:
        found = pool.grade(
            fenced("import numpy as np\nprint(np.int64(input()))"),
            {"inputs": ["1", "2"], "outputs": ["1", "3"]},
        )
        marked = pool.grade("no code", {"tests": "assert f() == open('a').read()"})
    assert (found.score, found.cause, found.forgeable) == (0.5, "wrong output", False)
    assert (marked.score, marked.forgeable) == (0.0, True)


# Files.


@pytest.fixture(params=["own", "bubblewrap"])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where folders of programs are, with and without bubblewrap."""
    program = sandbox_template.bubblewrap()
    if request.param == "bubblewrap" and program is None:
        pytest.skip("needs bwrap")
    monkeypatch.setattr(sandbox_template, "bubblewrap", lambda: program if request.param == "bubblewrap" else None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


FULL = ("file limit", "raised OSError")
"""Found by the watch, or by a file system that is full."""


@pytest.mark.slow
def test_what_a_program_writes_in_all_is_limited(folder: Path) -> None:
    """Without a limit, it is 2.5 GB in 6 s."""
    seen, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(sum(file.stat().st_blocks * 512 for file in folder.glob("*/*") if file.exists()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    block = "data = bytes(15 << 20)\ni = 0\nwhile True:\n    open(str(i), 'wb').write(data)\n    i += 1"
    found = run_program(block, "").cause
    done.set()
    watcher.join()
    assert found in FULL
    assert max(seen) < 1 << 30
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("make", ["open(str(i), 'w').close()", "os.symlink('..', str(i))"])
def test_number_of_files_is_limited(folder: Path, make: str) -> None:
    assert run_program(f"import os\ni = 0\nwhile True:\n    {make}\n    i += 1", "").cause in FULL
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_long_chains_of_links_are_cleared_away(folder: Path) -> None:
    code = "import os\nfor i in range(200): os.symlink(f'{i + 1}/' + '../' * 50, str(i))\n"
    code += "os.symlink('/', 'root')\nprint(1)"
    assert output(code) == "1\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "f = open('a', 'wb'); import os; os.unlink('a')",
        "import os; os.open('.', os.O_TMPFILE | os.O_RDWR)",
        "import os; open('a', 'w'); open('b', 'w'); os.rename('a', 'b')",
        "import os; open('a', 'w'); os.link('a', 'b')",
        "import os; os.mkdir('a')",
    ],
)
def test_files_cannot_be_hidden_from_the_watch(folder: Path, code: str) -> None:
    assert cause(code) == "raised PermissionError"
    assert list(folder.iterdir()) == []
