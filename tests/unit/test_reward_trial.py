"""A user's file that cannot be imported is refused before anything starts, with the line that is wrong."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from processes import command_line

from openrlhf_ada.reward import arithmetic, trial
from openrlhf_ada.reward.mixed import label_of
from openrlhf_ada.reward.trial import Row, Trials, Verdict, rows_for

pytestmark = pytest.mark.slow

FUNCTION = "\ndef reward_func(queries, prompts, labels):\n    return {}\n"


FLAG, ROW = "--reward.remote_url", Row("1+1=", "2</s>", "2")


def tried(name: str, *rows: Row) -> Verdict:
    with Trials(FLAG, [name]) as trials:
        (verdict,) = trials.verdicts({name: rows} if rows else {})
    return verdict


def refusal(verdict: Verdict, *, unit: bool = False) -> str:
    error = verdict.error(unit=unit)
    assert error is not None
    return str(error)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import math\nimport no_such_package", "No module named 'no_such_package', line 2)"),
        (
            "def load():\n    return open('/no/such/file')\nload()",
            "No such file or directory: '/no/such/file', line 2)",
        ),
        ("x: int =", "SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(0)", "it raises when it is imported (SystemExit: 0, line 2)"),
        ("print('loading')\nimport os\nos._exit(3)", "its import ends the process (status 3); loading"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "its import ends the process (status -11)"),
        ("raise ValueError('a\\nmessage of\\nlines')", "(ValueError: a message of lines, line 1)"),
    ],
)
@pytest.mark.parametrize("named", ["{file}", "{file}:reward_func"])
def test_a_file_that_raises_is_refused(tmp_path: Path, body: str, said: str, named: str) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(body + FUNCTION)
    error = refusal(tried(named.format(file=file)))
    assert said in error and error.startswith(f"{FLAG} is {named.format(file=file)!r}: ")


def test_an_agent_that_raises_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("1 / 0")
    with Trials(FLAG, []) as trials:
        trials.start("--train.agent_func_path", str(file))
        (verdict,) = trials.verdicts({})
    assert "--train.agent_func_path" in refusal(verdict) and "division by zero, line 1" in refusal(verdict)


def test_a_file_that_prints_and_has_imports_beside_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the working directory are found, as in the engine. What it starts delays nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("X = 1")
    file = tmp_path / "rewards.py"
    threads = "import os, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"
    threads += "\nif os.fork() == 0: time.sleep(600)"
    file.write_text(f"import beside\nprint('{{}}' * 100_000)\n{threads}{FUNCTION}")
    assert tried(str(file)).error() is None


def test_ours_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial.subprocess, "Popen", None)
    with Trials(FLAG, ["math", "mixed", arithmetic.__file__]) as trials:
        assert not trials.verdicts({})


def test_a_file_that_takes_long_is_left_to_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LIMIT_S", 0.5)
    file = tmp_path / "rewards.py"
    file.write_text(f"import time\ntime.sleep(600){FUNCTION}")
    before = time.monotonic()
    verdict = tried(str(file), ROW)
    assert verdict.error() is None and str(file) in verdict.note()
    assert time.monotonic() - before < 300
    commands = [command_line(child) for child in psutil.Process(os.getpid()).children()]
    assert not any(str(file) in command for command in commands), "its process has ended with the block"


# -- what it returns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('gold')", "KeyError: 'gold', line 2"),
        ("return [1.0, 0.0]", "2 numbers as reward"),
        ("return None", "returned no reward"),
        ("return {'correct': 1.0}", "no 'rewards', but 'correct'"),
        ("return {'rewards': [1.0, 0.0]}", "2 numbers as 'rewards'"),
        ("return {'rewards': ['1.0']}", "a list of str as 'rewards'"),
        ("return {'rewards': [1.0], 'scores': [None]}", "a list of NoneType as 'scores'"),
        ("return {'rewards': [float('nan')]}", "'rewards' nan"),
        ("return {'rewards': [1.0], 'extra_logs': [1]}", "'extra_logs'"),
        ("return {'rewards': [1.0], 'extra_logs': {'kind': 'good'}}", "extra_logs 'kind'"),
        ("import os; os._exit(4)", "ends the process (status 4)"),
        ("import sys; sys.exit()", "SystemExit"),
    ],
)
def test_what_no_training_can_use_is_refused(tmp_path: Path, body: str, said: str) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(f"def reward_func(queries, prompts, labels):\n    {body}\n")
    error = refusal(tried(str(file), ROW))
    assert said in error and "return {'rewards': [1.0]" in error


@pytest.mark.parametrize(
    "returned",
    [
        "0.5",
        "{'rewards': [0.5]}",
        "{'rewards': 0.5, 'scores': None, 'extra_logs': None}",
        "{'rewards': torch.tensor([9.0]), 'scores': torch.tensor([0.5], dtype=torch.bfloat16, requires_grad=True)}",
        "{'rewards': [torch.tensor(0.5)], 'extra_logs': {'a': torch.ones(3), 'b': 1}}",
    ],
)
def test_what_openrlhf_reads_is_a_score(tmp_path: Path, returned: str) -> None:
    """The query is prompt and answer, with the token that ends it."""
    file = tmp_path / "rewards.py"
    body = "assert queries == [prompts[0] + labels[0] + '</s>'] == ['1+1=2</s>']"
    load = "import torch\n" if "torch" in returned else ""
    file.write_text(f"{load}def reward_func(queries, prompts, labels):\n    {body}\n    return {returned}\n")
    verdict = tried(str(file), ROW)
    assert [grade.score for grade in verdict.grades] == [0.5] and verdict.error(unit=True) is None


@pytest.mark.parametrize(
    ("returned", "said"), [("'1'", "returned a str"), ("Grade(2.0)", "score 2,"), ("-1", "score -1,")]
)
def test_a_grader_that_returns_no_grade_is_refused(tmp_path: Path, returned: str, said: str) -> None:
    file = tmp_path / "graders.py"
    file.write_text(
        f"from openrlhf_ada.reward.grade import Grade\ndef good(response, label):\n    return {returned}\n"
    )
    error = refusal(tried(f"{file}:good", ROW))
    assert said in error and "docs/rewards.md" in error


def test_an_answer_of_no_use_is_tried_too(tmp_path: Path) -> None:
    """Penalties are scores that no right answer shows; and what fails on such answers is told."""
    file = tmp_path / "graders.py"
    file.write_text(
        "def penalty(response, label): return 1.0 if response else -1.0\n"
        "def verl(solution_str, ground_truth):\n"
        "    return {'score': 1.0 if solution_str else -1.0, 'acc': bool(solution_str)}\n"
        "def fails(response, label): return float(response.split()[-1] == label)\n"
        "def ends(response, label): return 1.0 if response else exit()\n"
    )
    row = Row("1+1=", "2", "2")
    assert "-1" in refusal(tried(f"{file}:penalty", row)) and "'reward'" in refusal(tried(f"{file}:penalty", row))
    assert (tried(f"{file}:verl", row).error(unit=True), tried(f"{file}:verl", row).note()) == (None, "")
    for name, cause in (("fails", "IndexError"), ("ends", "SystemExit")):
        verdict = tried(f"{file}:{name}", row)
        assert verdict.error(unit=True) is None
        assert "an empty answer" in verdict.note() and cause in verdict.note()


@pytest.mark.parametrize("named", ["{file}", "{file}:reward_func"])
def test_functions_of_other_trainers_are_tried_on_real_rows(tmp_path: Path, named: str) -> None:
    """One that lacks a column says so before a run; one that fails on some rows only is told of these alone."""
    file = tmp_path / "rewards.py"
    name = named.format(file=file)
    file.write_text("def reward_func(completions, answer, level, **kwargs):\n    return [6 / len(level[0]) / 2]\n")
    assert "answer, level" in refusal(tried(name, ROW))
    good, bad = ({"answer": "2", "level": level} for level in ("abc", ""))
    verdict = tried(name, ROW._replace(label=good), ROW._replace(label=bad))
    assert verdict.error(unit=True) is None
    assert "1 of the first 2 rows" in verdict.note() and "ZeroDivisionError" in verdict.note()


def test_some_rows_without_a_score_and_scores_of_any_size_are_told(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("def reward_func(queries, prompts, labels):\n    return {'rewards': [7 / int(labels[0])]}\n")
    verdict = tried(str(file), ROW, Row("0+0=", "0", "0"))
    assert verdict.error() is None and "1 of the first 2 rows" in verdict.note()
    assert "3.5" in refusal(verdict, unit=True) and "--ada_scores raw" in refusal(verdict, unit=True)


def test_rows_go_to_the_rewards_that_grade_them() -> None:
    """Three to each; a grader of a label gets the answer without the token that ends it."""
    plain = rows_for(["a.py", "b.py:f"], [(str(n), n) for n in range(5)], "</s>")
    assert plain["a.py"] == [Row(str(n), f"{n}</s>", n) for n in range(3)]
    assert plain["b.py:f"] == [Row(str(n), str(n), n) for n in range(3)]
    named = [("p", label_of("math", "1")), ("q", label_of("c.py:f", "2"))]
    assert rows_for(["mixed"], named) == {"math": [Row("p", "1", "1")], "c.py:f": [Row("q", "2", "2")]}


def test_servers_are_asked_once(tmp_path: Path) -> None:
    replies = iter([{"rewards": [0.5]}, [0.5], ["0.5"], None])

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked == {"query": ["1+1=2</s>"], "prompts": ["1+1="], "labels": ["2"]}
            reply = next(replies)
            self.send_response(500 if reply is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/get_reward"
        assert tried(url, ROW).grades[0].score == 0.5
        assert tried(url, ROW).grades[0].score == 0.5
        assert "a list of str" in refusal(tried(url, ROW))
        assert "500" in refusal(tried(url, ROW))
        server.shutdown()
    assert "Connect" in refusal(tried(url, ROW))
