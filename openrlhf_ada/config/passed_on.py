"""Flags that are JSON objects, whose parts are passed on: to a chat template, and to vLLM's `SamplingParams`."""

from __future__ import annotations

import json
import logging
import re
from functools import partial
from typing import Any

from openrlhf_ada.config.flags import Allowed, ConfigError

PASSED_ON = ("chat_template_args", "sampling_args")


def arguments_of(text: str | None) -> Any:
    """By name; none of a flag that is not given. Raises ValueError for what is no JSON."""
    return json.loads(text or "{}", object_pairs_hook=once_each)


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a key that comes twice."""
    names = [name for name, _ in pairs]
    if len(row := dict(pairs)) < len(pairs):
        raise ValueError(f"the key {max(names, key=names.count)!r} comes twice in an object")
    return row


def _are_arguments(text: str) -> bool:
    try:
        return isinstance(arguments_of(text), dict)
    except ValueError:
        return False


def _is_end(name: str, value: Any) -> bool:
    if kind := {"stop": str, "stop_token_ids": int}.get(name):
        return value.__class__ is list and all(type(one) is kind and one != "" for one in value)
    return name == "include_stop_str_in_output" and isinstance(value, bool)


ARGUMENTS: Allowed = (_are_arguments, "it must be a JSON object", """Try '{"enable_thinking": false}'""")
ENDS: Allowed = (
    lambda text: _are_arguments(text) and all(_is_end(*item) for item in arguments_of(text).items()),
    "it must be a JSON object with stop (texts), stop_token_ids (numbers) or include_stop_str_in_output (true, false)",
    """Try '{"stop": ["</answer>"]}'""",
)


def check_known(tokenizer: Any, args: Any, prefix: str) -> Any:
    """The template's arguments, of flags in `args` that are spelt with `prefix`. Warns of those that change nothing.
    Raises ConfigError for what the template would ignore, or vLLM refuse minutes later."""
    text, template = args.chat_template_args, str(tokenizer.chat_template)
    messages = [{"role": "user", "content": "?"}]
    render = partial(tokenizer.apply_chat_template, messages, tokenize=False, add_generation_prompt=True)
    for name in (given := arguments_of(text)):
        if name in ("messages", "add_generation_prompt") or not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(f"{prefix}chat_template_args", text, f"the template takes no {name}", "Leave it out")
        if render(**given) == render(**{key: given[key] for key in given if key != name}):
            logging.getLogger(__name__).warning("%schat_template_args: %s changes nothing", prefix, name)
    for token in arguments_of(text := args.sampling_args).get("stop_token_ids", ()):
        if token not in range(size := len(getattr(tokenizer, "tokenizer", tokenizer))):
            raise ConfigError(f"{prefix}sampling_args", text, f"of {size} tokens none is {token}", "Correct it")
    return given
