"""What the driver prints is shown as before, and kept as text without control characters and without secrets."""

from __future__ import annotations

import io
import logging
import re
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from openrlhf_ada.reporting.output import Output, kept_output, plain
from openrlhf_ada.reporting.progress import ProgressView
from openrlhf_ada.reporting.redaction import secret_values

STAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", re.MULTILINE)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def logged(path: Path) -> list[str]:
    """Lines of a log, each of which must have its time in front."""
    text = path.read_text()
    assert len(STAMP.findall(text)) == len(text.splitlines())
    return STAMP.sub("", text).splitlines()


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("\x1b[2K\x1b[32mstep 1\x1b[0m", "step 1"),
        ("10%\r50%\rdone", "done"),
        ("done\r", "done"),
        ("\x1b]0;title\x07text\x1b[?25l", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("tab\tstays, bell\x07 does not", "tab\tstays, bell does not"),
        ("Größe 5 ± 1", "Größe 5 ± 1"),
    ],
)
def test_control_characters_are_left_out(line: str, kept: str) -> None:
    assert plain(line) == kept


def test_everything_printed_is_shown_and_kept(tmp_path: Path, terminal: Terminal) -> None:
    logger = logging.getLogger()
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    try:
        with redirect_stderr(terminal), kept_output() as log:
            say("before the folder is known")
            log.write_to(tmp_path / "run" / "log.txt", [])
            logger.warning("a warning")
            sys.stderr.write("half a ")
            sys.stderr.write("line\nno end")
    finally:
        logger.removeHandler(handler)
    assert terminal.getvalue() == "before the folder is known\na warning\nhalf a line\nno end"
    assert logged(tmp_path / "run" / "log.txt") == ["before the folder is known", "a warning", "half a line", "no end"]
    assert handler.stream is terminal


def test_live_line_is_not_in_the_log_and_lines_go_above_it(tmp_path: Path, terminal: Terminal) -> None:
    with redirect_stderr(terminal), kept_output() as log:
        log.write_to(tmp_path / "log.txt", [])
        with ProgressView() as view:
            view.handle({"type": "phase", "text": "loading"})
            say("printed meanwhile")
            view.handle({"type": "note", "text": "a note"})
        say("after")
    assert logged(tmp_path / "log.txt") == ["loading", "printed meanwhile", "a note", "after"]
    shown = terminal.getvalue()
    assert "\x1b[?25l" in shown, "the live line was there"
    assert [shown.count(line) for line in ("printed meanwhile\n", "a note\n", "after\n")] == [1, 1, 1]


def test_secrets_are_not_in_the_log(tmp_path: Path, terminal: Terminal) -> None:
    flags = {"logger": {"wandb": {"key": "canary-key-1"}}, "data": {"input_key": "question"}}
    variables = {
        "HF_TOKEN": "canary-token-22",
        "WANDB_API_KEY": "canary-key-1-longer",
        "SHORT_KEY": "env",
        "HOME": "/root",
    }
    with redirect_stderr(terminal), kept_output() as log:
        say("early canary-token-22")
        log.write_to(tmp_path / "log.txt", secret_values(flags, variables))
        say("canary-key-1-longer, canary-key-1, env, question")
        say("http://me:canary-pass@host/")
    text = (tmp_path / "log.txt").read_text()
    assert "canary" not in text
    assert logged(tmp_path / "log.txt")[1] == "<removed>, <removed>, env, question"


def test_failure_leaves_its_traceback_in_the_log(tmp_path: Path, terminal: Terminal) -> None:
    with pytest.raises(RuntimeError), redirect_stderr(terminal), kept_output() as log:
        log.write_to(tmp_path / "log.txt", [])
        raise RuntimeError("out of memory")
    lines = logged(tmp_path / "log.txt")
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "RuntimeError: out of memory")
    assert not isinstance(sys.stderr, Output)


def test_second_start_adds_to_the_log(tmp_path: Path, terminal: Terminal) -> None:
    for start in ("first", "second"):
        with redirect_stderr(terminal), kept_output() as log:
            log.write_to(tmp_path / "log.txt", [])
            say(start)
    assert logged(tmp_path / "log.txt") == ["first", "second"]


def test_output_is_otherwise_the_stream(terminal: Terminal) -> None:
    with redirect_stderr(terminal), kept_output():
        assert isinstance(sys.stderr, Output)
        assert sys.stderr.isatty() and sys.stderr.encoding == terminal.encoding
        assert sys.stderr.write("four") == 4


def test_full_disk_ends_the_log_and_not_the_output(terminal: Terminal) -> None:
    with redirect_stderr(terminal), kept_output() as log:
        say("before")
        log.write_to(Path("/dev/full"), [])
        say("one")
        say("two")
    lost = "/dev/full takes no more text (No space left on device): what follows is shown here alone"
    assert terminal.getvalue().splitlines() == ["before", "one", lost, "two"]
