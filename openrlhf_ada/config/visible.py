"""Text of prompts, answers and errors as it may be shown: nothing in it moves the cursor, hides or reorders."""

from __future__ import annotations

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
