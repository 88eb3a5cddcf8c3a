"""Command lines are read without their parser where a part of them is for another machine's."""

from __future__ import annotations

import shlex

import pytest

from openrlhf_ada.config.flags import ConfigError, words_by_flag
from openrlhf_ada.data.files import DataError


def test_words_belong_to_the_flag_before_them() -> None:
    line = shlex.split("math500 /a=b --model x y --quiet --ada_mode=seq --n=1 --kl -0.1 --url= --model z")
    assert list(words_by_flag(line)) == [
        ("", ["math500", "/a=b"]),
        ("--model", ["x", "y"]),
        ("--quiet", []),
        ("--ada_mode", ["seq"]),
        ("--n", ["1"]),
        ("--kl", ["-0.1"]),
        ("--url", [""]),
        ("--model", ["z"]),
    ]
    assert list(words_by_flag([])) == [("", [])]


@pytest.mark.parametrize("error", [ConfigError("--x", 1, "it has \x1b[2J", "Do\r"), DataError("row 1: \x1b[2J\r")])
def test_what_an_error_quotes_cannot_move_the_cursor(error: ValueError) -> None:
    assert "␛[2J" in str(error) and "␍" in str(error)
