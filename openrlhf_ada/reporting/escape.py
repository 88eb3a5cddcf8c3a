"""Text of models and datasets, made safe to stand in a page."""

from __future__ import annotations

import html

# Control characters and line-direction overrides become visible symbols; newline and tab stay.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), 0xFFFD)


def escaped(text: str) -> str:
    """HTML-escaped (quotes too, so that it may stand in an attribute), with nothing that hides or reorders text."""
    return html.escape(text.translate(_VISIBLE), quote=True)
