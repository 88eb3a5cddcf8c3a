"""Removes secrets from a configuration before it is written anywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.settings import Settings
from openrlhf_ada.config.visible import REMOVED, without_logins

FROM_ENVIRONMENT = "env"
"""The value of a flag that takes a key, if the key itself is passed as an environment variable."""

# Flags that name a dataset column, a metric, or the environment variable of a key.
_HARMLESS = frozenset({"input_key", "output_key", "label_key", "image_key", "best_metric_key", "api_key_env"})

# `token` in the singular: `max_new_tokens` is a count. Names are split at `_`, `.`, `-` and camelCase boundaries.
_SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"}
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def looks_secret(name: str) -> bool:
    """Whether a flag's name says that its value must not be written: `wandb.key`, `HF_TOKEN`, `adminPassword`."""
    leaf = name.lstrip("-").rsplit(".", 1)[-1]
    return leaf not in _HARMLESS and any(word.lower() in _SECRET_WORDS for word in _WORD.findall(leaf))


def redact(config: Mapping[str, object]) -> dict[str, object]:
    """A copy of a nested configuration without secrets.

    Removed, that is replaced by "<removed>": the value of a key that looks secret (None and booleans stay, they are
    worth knowing and hide nothing), the value after such a flag in a list of command-line arguments, and logins or
    keys inside URLs, wherever they stand.
    """
    return {
        name: REMOVED if looks_secret(str(name)) and not isinstance(value, bool | None) else _redact_value(value)
        for name, value in config.items()
    }


def redact_words(words: Sequence[str]) -> list[str]:
    """A command line without the values that `redact` would remove."""
    return [str(word) for word in _redact_list(list(words))]


SHORTEST_SECRET = 8
"""Characters. A shorter value, such as the `env` of `--logger.wandb.key env`, would take words out of any text."""


def secret_values(config: Mapping[str, object], environment: Mapping[str, str]) -> list[str]:
    """The values of all flags and variables whose names look secret: what no text that is kept may hold."""
    found: list[str] = []
    for name, value in (*config.items(), *environment.items()):
        if isinstance(value, Mapping):
            found += secret_values(value, {})
        elif looks_secret(name) and isinstance(value, str) and len(value) >= SHORTEST_SECRET:
            found.append(value)
    return found


def _redact_value(value: object) -> object:
    if isinstance(value, Mapping):
        return redact(value)
    if isinstance(value, list | tuple):
        return _redact_list(list(value))
    if isinstance(value, str):
        return without_logins(value)
    return value


def _redact_list(values: list[object]) -> list[object]:
    """A list may be a command line: `--x.key V` and `--x.key=V` lose V."""
    redacted: list[object] = []
    follows_secret_flag = False
    for value in values:
        flag, equals, _ = value.partition("=") if isinstance(value, str) else ("", "", "")
        secret_flag = flag.startswith("--") and looks_secret(flag)
        if secret_flag and equals:
            redacted.append(f"{flag}={REMOVED}")
        elif follows_secret_flag and not flag.startswith("--"):
            redacted.append(REMOVED)
        else:
            redacted.append(_redact_value(value))
        follows_secret_flag = secret_flag and not equals
    return redacted


NO_FLAGS = ("ada_events", "ada_origin")
"""What else stands beside the flags: the queue of events, and what checkpoints are known by."""


def plain(value: Any) -> Any:
    """Flags as OpenRLHF holds them, nested namespaces, as nested dicts; without what is not a flag."""
    if isinstance(value, Settings):
        return vars(value.given)
    if isinstance(value, SimpleNamespace):
        return {name: plain(inner) for name, inner in vars(value).items() if name not in NO_FLAGS}
    return value
