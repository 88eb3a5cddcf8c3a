"""Questions and labels of rows, and prompts made of them. No part of a message is lost without a word."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from openrlhf_ada.data.files import DataError
from openrlhf_ada.reward.returned import within

ANSWERING = ("assistant", "model", "gpt")
"""Roles that a model speaks in."""

_KEYS, _SHAREGPT = {"role", "content"}, {"from", "value"}

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}

IMAGE_MARK = "<image>"
"""What OpenRLHF reads as the place of an image where it applies a chat template."""

_LOOK_LIKE_MESSAGES = re.compile(r"""\s*\[?\s*\{\s*(['"])(?:role|content|from)\1\s*:""")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a row are used. `chat`: a prompt may be chat messages; `needs_label`: no label is refused;
    `flags`: how the flags begin that name the columns."""

    input_key: str
    label_key: str | None
    chat: bool = False
    needs_label: bool = False
    flags: str = "--data."

    @property
    def keys(self) -> list[str]:
        """Those that every row has."""
        return [key for key in (self.input_key, self.label_key) if key]


def question_and_label(row: Any, columns: Columns) -> tuple[Any, Any]:
    """The question, text or chat messages, and the label; raises UnfitError, in words that follow the row."""
    if not isinstance(row, dict):
        raise UnfitError(
            f"is {type_name(row)}, expected an object with the key {columns.input_key!r}: write one object per row"
        )
    for key, name in ((columns.input_key, "input_key"), (columns.label_key, "label_key")):
        if key is not None and value_at(row, key) is MISSING:
            has = "the keys " + ", ".join(map(repr, row)) if row else "no keys"
            raise UnfitError(f"has no key {key!r}; it has {has}: set {columns.flags}{name} to one, or add the key")
    key = columns.input_key
    try:
        question = _question(value_at(row, key))
        if isinstance(question, list) and not columns.chat:
            raise UnfitError(
                "holds chat messages, which need a template: add --data.apply_chat_template, or write text"
            )
        key = columns.label_key or ""
        if not key:
            return question, None
        label = value_at(row, key)
        if columns.needs_label and (label in (None, [], {}) or (isinstance(label, str) and not label.strip())):
            raise UnfitError(f"is {json.dumps(label)}, expected a label: fill it in")
        return question, plain(label)
    except UnfitError as error:
        raise UnfitError(f": {key!r} {error}") from error


def _question(value: Any) -> Any:
    value = _from_bytes(value) if isinstance(value, bytes) else value
    if not isinstance(value, str | list | None):
        raise UnfitError(
            f"is {type_name(value)} ({str(value)[:40]}), expected text or chat messages: name the column of the prompt"
        )
    if value is None or not (value.strip() if isinstance(value, str) else value):
        raise UnfitError(f"is {json.dumps(value)}, expected a prompt: fill it in or remove the row")
    value = _messages_in(text_of(value)) if isinstance(value, str) else value
    return value if isinstance(value, str) else _checked_messages(value)


def _messages_in(text: str) -> Any:
    """The messages that a text column holds; any other text as it is. Raises UnfitError."""
    found = within(text)
    found = [found] if isinstance(found, dict) else found
    if isinstance(found, list) and found and all(map(_is_message, found)):
        return found
    if _LOOK_LIKE_MESSAGES.match(text):
        raise UnfitError(
            f"is {text[:60]!r}, like chat messages, but no JSON: write a list of objects with 'role' and 'content'"
        )
    return text


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and (value.keys() >= _KEYS or value.keys() >= _SHAREGPT)


def _checked_messages(value: Sequence[Any]) -> list[Any]:
    """The messages, with parts of text joined; raises UnfitError, in words that follow the name of the column."""
    if all(isinstance(m, dict) and m.keys() >= _SHAREGPT for m in value):
        value = [{"role": _ROLES.get(m["from"], m["from"]), "content": m["value"], **m} for m in value]
    for message in value:
        fits = isinstance(message, dict) and isinstance(message.get("role"), str)
        if not fits or not isinstance(message.get("content"), str | list):
            shown = json.dumps(value, default=str)[:80]
            raise UnfitError(f"is {shown}, expected messages with 'role' and 'content', both text: correct the row")
    if value[-1]["role"].lower() in ANSWERING:
        raise UnfitError(
            f"ends with a message of the {value[-1]['role']}: remove it, or name the column of the prompt alone"
        )
    return [plain({**message, "content": _content(message["content"])}) for message in value]


def _content(content: str | list[Any]) -> Any:
    """Text; a list where places of images are among it."""
    if isinstance(content, str):
        return content
    lost = next((part for part in content if not (_is_text(part) or _is_image(part))), None)
    if lost is not None:
        raise UnfitError(
            f"has a part of a message that is not text ({json.dumps(lost, default=str)[:60]}) and would be lost: "
            f'remove it, or write {{"type": "text", "text": ...}}'
        )
    return "".join(part["text"] for part in content) if all(map(_is_text, content)) else content


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _is_image(part: Any) -> bool:
    """A place for an image of the row. An image that the part itself names would be read by nobody."""
    return isinstance(part, dict) and {key: v for key, v in part.items() if v is not None} == {"type": "image"}


def has_image(question: Any, *, marked: bool = False) -> bool:
    """Has the question a place for an image? `marked`: IMAGE_MARK is one."""
    contents = [question] if isinstance(question, str) else [message["content"] for message in question]
    return any(isinstance(one, list) or (marked and IMAGE_MARK in one) for one in contents)


def rendered(question: Any, make: Callable[[Any], str], where: str) -> str:
    """The prompt of a question. `make`: from question to prompt, with a chat template or without. Raises DataError:
    the template refuses the messages, or leaves a part of them out. `where`: the row."""
    from jinja2 import TemplateError

    try:
        prompt = make(question)
    except TemplateError as error:
        raise DataError(
            f"{where}: the model's chat template refuses its messages ({error}): correct their roles"
        ) from error
    for part, others in _parts_to_find(question, prompt):
        try:
            is_ignored = make(others) == prompt
        except (TemplateError, TypeError, KeyError, ValueError):  # it is missed
            continue
        if is_ignored:
            raise DataError(f"{where}: the prompt would not hold {part}: write it into the user's message")
    return prompt


def _parts_to_find(question: Any, prompt: str) -> Iterator[tuple[str, Any]]:
    """(what the prompt may not hold, the question with something else in its place)."""
    if isinstance(question, str):
        if question.strip() not in prompt:
            yield "the question", f"{question} x"
        return
    for number, message in enumerate(question):
        # Calls of tools and the like; a single word beside the content is none.
        changes = {key: None for key, v in message.items() if key != "content" and isinstance(v, Mapping | list) and v}
        said = message["content"]
        if isinstance(said, str) and said.strip() not in prompt:
            changes |= {"content": f"{said} x"}
        for part, change in changes.items():
            other = {key: v for key, v in {**message, part: change}.items() if v is not None}
            changed = [*question[:number], other, *question[number + 1 :]]
            yield f"{part!r} of message {number + 1}, of the {message['role']}", changed


# -- values that mean the same in every format of file ----------------------------------------------------------------

MISSING = object()
"""In place of the value of a key that a row does not have."""

_INT64 = 1 << 63


class UnfitError(ValueError):
    """A value that no run can use. The message is what follows the row: the rule, and after a colon the remedy."""

    def at(self, where: str) -> str:
        """The whole message. `where`: flag, file and row."""
        return f"{where}{self}" if str(self).startswith(":") else f"{where} {self}"


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """The value of a key, or MISSING. Dots lead into nested objects, also into those of a text, and commas make an
    object of several; unless the row has the very key."""
    if key in row:
        return row[key]
    if "," in key:
        values = {part.strip().rpartition(".")[2]: value_at(row, part.strip()) for part in key.split(",")}
        return MISSING if any(value is MISSING for value in values.values()) else values
    value: Any = row
    for part in key.split("."):
        value = within(value)
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


DEEPEST = 100


def plain(value: Any, depth: int = 0) -> Any:
    """A label, or a part of one, as JSON has it, with all its digits: decimals and dates are text. `depth`: how many
    lists and objects are around it. Raises UnfitError: NaN, infinity, binary data, broken text, a type that has no
    text, too many lists in each other."""
    if depth > DEEPEST:
        raise UnfitError(f"has more than {DEEPEST} lists and objects within each other: correct the row")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int):
        # What OpenRLHF's tables cannot hold stays exact as text.
        return value if -_INT64 <= value < _INT64 else str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UnfitError(f"is {value}, expected a number or text: correct the row")
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, depth + 1) for inner in value]
    return _other(value)


def _other(value: Any) -> str:
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return _from_bytes(value)
    raise UnfitError(f"is {type_name(value)} ({str(value)[:40]!r}), expected text or a number: write it as text")


def _from_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UnfitError("is binary, expected text: write it as text, or name another column") from error


def text_of(value: str) -> str:
    """The text; raises UnfitError for what is none."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnfitError(
            f"holds half of a surrogate pair (character {error.start + 1}), which is no text: correct the row"
        ) from error
    return value


def type_name(value: Any) -> str:
    """As a reader of the file says."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    numbers = (int, float, Decimal)
    if isinstance(value, numbers) or type(value) in names:
        return f"a JSON {names.get(type(value), 'number')}"
    return f"a {type(value).__name__}"
