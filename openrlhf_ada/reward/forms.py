"""Reward functions as verl, TRL, ms-swift and `verifiers` call them. What they take is known by its name."""

from __future__ import annotations

import asyncio
import dis
import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from openrlhf_ada.reward.grade import Grade, Grader, UnusableLabelError
from openrlhf_ada.reward.returned import reward_and_score, within

LISTS, SINGLE = {"completions", "solution_strs", "queries"}, {"completion", "solution_str"}
"""By one of these a form is known: values in lists, or single ones."""
LABELS = ("ground_truth", "label", "answer", "solution", "target", "gold", "reference", "expected_answer")
"""Parameters with a default, and keywords, that stand for the whole label."""
NONE_IF_UNREAD = {"data_source", "data_sources", "extra_info", "extra_infos"}
"""verl gives these to all, and most do not read them. A default would be what the function does not expect."""
NO_COLUMNS = NONE_IF_UNREAD.union(("completion_ids", "trainer_state", "log_extra", "log_metric", "parser", "task"))


def as_grader(function: Any) -> Grader:
    """Of a function of any form. It raises what the function raises; UnusableLabelError for a label without what the
    function takes; NoScoreError for what is no score."""
    function = made(function)
    ask, takes_prompt = asker(function), "prompt" in parameters_of(function)

    def grade(response: str, label: Any, prompt: str = "") -> Grade:
        positional = (response, label, prompt) if takes_prompt else (response, label)
        returned = ask(response, label, prompt) if ask else awaited(function(*positional))
        if not hasattr(returned, "score"):
            reward, score = reward_and_score(returned)
            returned = Grade(score, reward=reward)
        return returned

    return grade


def made(function: Any) -> Any:
    """An object of a class whose objects are called, as ms-swift has rewards; else what it was."""
    return function() if inspect.isclass(function) and "__call__" in vars(function) else function


def asker(function: Any) -> Callable[[str, Any, str], Any] | None:
    """(response, label, prompt) -> what the function returns; None where it has no parameter of LISTS or SINGLE."""
    if not hasattr(function, "add_reward_func"):
        return _ByName(function, {}) if parameters_of(function).keys() & (LISTS | SINGLE) else None
    # A rubric, which would itself make zeros of errors: the first function is the score, the weighted sum the reward.
    old = "" if hasattr(function, "funcs") else "reward_"
    asks = [_ByName(one, function.class_objects) for one in getattr(function, f"{old}funcs")]
    weights = getattr(function, f"{old}weights")

    def ask(*asked: Any) -> dict[str, float]:
        scores = [reward_and_score(one(*asked))[0] for one in asks]
        return {"rewards": sum(w * score for w, score in zip(weights, scores, strict=True)), "scores": scores[0]}

    return ask


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """By name; none of what is built in or cannot be called."""
    with suppress(TypeError, ValueError):
        return inspect.signature(function).parameters
    return {}


_lock, _loops = threading.Lock(), list[asyncio.AbstractEventLoop]()


def awaited(value: Any) -> Any:
    """The value, or what it comes to. All are awaited in one loop, to which clients of servers are bound."""
    if not inspect.iscoroutine(value):
        return value
    with _lock:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(value, _loops[0]).result()


class _ByName:
    """Calls a function with what it names. Completions are text; or chat messages, once text is not what it reads."""

    def __init__(self, function: Any, known: Mapping[str, Any]) -> None:
        self._function, self._known, self._in_messages = function, known, False

    def __call__(self, response: str, label: Any, prompt: str) -> Any:
        said, asked = {"role": "assistant", "content": response}, {"role": "user", "content": prompt}
        if not self._in_messages:
            try:
                return self._call(response, prompt, response, label, prompt)
            except (TypeError, AttributeError, IndexError):
                with suppress(Exception):
                    returned = self._call([said], [asked], response, label, prompt)
                    # An empty text can be the reason itself.
                    self._in_messages = bool(response)
                    return returned
                raise
        return self._call([said], [asked], response, label, prompt)

    def _call(self, completion: Any, asked: Any, response: str, label: Any, prompt: str) -> Any:
        parameters, columns = parameters_of(self._function), within(label)
        columns = dict(columns) if isinstance(columns, Mapping) else {}
        in_lists = bool(parameters.keys() & LISTS)
        values = {"completion": completion, "prompt": asked, "solution_str": response}
        others = {"info": columns, "state": values | {"answer": label}}
        known = {**({"queries": prompt + response} if in_lists else others), **self._known, **columns, **values}
        named = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        keys = {p.name: p.name.removesuffix("s") if in_lists and p.name not in known else p.name for p in named}
        given = {name: known[key] for name, key in keys.items() if key in known}
        left = {p.name: p.default is p.empty for p in named if p.name not in given}
        unread = {name for name in left.keys() & NONE_IF_UNREAD if not _reads(self._function, name)}
        missing = [
            name for name, demanded in left.items() if (demanded or name in NONE_IF_UNREAD) and name not in unread
        ]
        if len(missing) > 1 or set(missing) & NO_COLUMNS:
            raise UnusableLabelError(
                f"the reward takes {', '.join(missing)}, which are no keys of the label: name these columns as labels "
                f"(--data.label_key or --label_key {','.join(missing)}), or write a function that does without them"
            )
        takers = missing or [name for name in left if keys[name] in LABELS][:1]
        given |= dict.fromkeys(unread) | dict.fromkeys(takers, label)
        if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            given = (columns or dict.fromkeys(LABELS, label)) | given
        return awaited(self._function(**({name: [value] for name, value in given.items()} if in_lists else given)))


@lru_cache
def _reads(function: Any, name: str) -> bool:
    """Is the parameter read? Taken for granted where there is no code to look at."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is None or any(i.opname.startswith("LOAD") and name in i.argrepr for i in dis.get_instructions(code))
