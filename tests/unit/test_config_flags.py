"""Command lines are read without their parser where a part of them is for another machine's."""

from __future__ import annotations

import shlex

from openrlhf_ada.config.flags import words_by_flag


def test_words_belong_to_the_flag_before_them() -> None:
    line = shlex.split("math500 /a=b --model x y --quiet --ada.mode=seq --n=1 --kl -0.1 --url= --model z")
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
