"""A process that tries a reward: `python -m openrlhf_ada.reward.trial_child FILE|FILE:NAME|URL <rows>`.

It loads the file, waits for the end of its input, reads rows ([prompt, answer, label], as JSON) from the descriptor
`rows` and asks the reward as OpenRLHF or a grading process would. Its output has one object of JSON in a line: how
loading went ("raised", with the cause, or nothing), then for each row a score and a cause.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from openrlhf_ada.config.visible import as_told
from openrlhf_ada.reward.returned import score_of
from openrlhf_ada.reward.reward_function import file_and_function, is_url
from openrlhf_ada.reward.worker import load_file, valid_score

Ask = Callable[[str, str, Any], tuple[float | None, str]]
"""(prompt, answer, label) -> (the score, "") or (None, why there is none)."""


def main(name: str, rows: int) -> None:
    go, result = os.dup(0), os.dup(1)
    # What the file prints goes to stderr, and it reads nothing.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def say(line: dict[str, Any]) -> None:
        os.write(result, json.dumps(line).encode() + b"\n")

    try:
        ask = asked_at(name) if is_url(name) else asked_of(name)
    except BaseException as error:  # noqa: BLE001 - a file may raise anything, also SystemExit
        say({"raised": told(error, name)})
    else:
        say({})
        while os.read(go, 1 << 16):
            pass
        for row in json.loads(os.fdopen(rows).read() or "[]"):
            try:
                score, cause = ask(*row)
            except BaseException as error:  # noqa: BLE001 - as above
                score, cause = None, told(error, name)
            say({"score": score, "cause": cause})
    # Threads that the file has started delay nothing.
    os._exit(0)


def told(error: BaseException, name: str) -> str:
    """In one line, with the last line of the user's file that it passed."""
    file = os.path.abspath((file_and_function(name) or (name,))[0])
    stack = traceback.TracebackException.from_exception(error).stack
    lines = [frame.lineno for frame in stack if frame.filename == file]
    place = f", line {lines[-1]}" if lines else ""
    return as_told(f"{' '.join(f'{type(error).__name__}: {error}'.split())}{place}")


def asked_of(name: str) -> Ask:
    """A file with `reward_func`, or a grader in one; raises what the file raises."""
    named = file_and_function(name)
    module = load_file(named[0] if named else name)
    if named is None:
        return lambda prompt, answer, label: score_of(module.reward_func([prompt + answer], [prompt], [label]))
    return lambda prompt, answer, label: (valid_score(getattr(module, named[1])(answer, label)), "")


def asked_at(url: str) -> Ask:
    """A server, with OpenRLHF's request, once."""
    import aiohttp

    async def post(prompt: str, answer: str, label: Any) -> Any:
        body = {"query": [prompt + answer], "prompts": [prompt], "labels": [label]}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            response.raise_for_status()
            return await response.json()

    return lambda prompt, answer, label: score_of(asyncio.run(post(prompt, answer, label)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
