"""Text of prompts, answers and errors as it may be shown: nothing in it moves the cursor, hides or reorders. What
the program itself says has no login in a URL either."""

from __future__ import annotations

import re

REMOVED = "<removed>"

# Up to the last @: a password may hold one, or a slash.
_URL_LOGIN = re.compile(r"(?<=://)[^\s?#'\",]*@")
_URL_QUERY = re.compile(
    r"([?&][\w.-]*(?:key|token|passw|pwd|secret|sig|credential|auth|access)[\w.-]*=)[^&\s#'\"),]+", re.IGNORECASE
)

# Newline and tab stay.
_CONTROL = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)} | {0x7F: 0x2421}
# Control sequences in one character, overrides of the direction, halves of surrogate pairs.
_HIDING = (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))
_SHOWN = _CONTROL | dict.fromkeys(_HIDING, 0xFFFD)


def error_text(error: Exception) -> str:
    """What a user is told: of the system's errors the file and the reason, without their number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def visible(text: str) -> str:
    """With control characters as symbols, and as the replacement character what has none."""
    return text.translate(_SHOWN)


def as_told(text: str) -> str:
    """Of an error, a note or a finding: visible, without logins."""
    return visible(without_logins(text))


def without_logins(text: str) -> str:
    """A text without logins and keys inside URLs."""
    return _URL_QUERY.sub(rf"\1{REMOVED}", _URL_LOGIN.sub(f"{REMOVED}@", text)) if "://" in text else text
