"""Names that a user gives the arena."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence


def check_names(flag: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raises ValueError for none, and for one that is not known."""
    all_known = f"Known are {', '.join(known)}"
    if not names:
        raise ValueError(f"{flag} names nothing. {all_known}")
    unknown = [name for name in names if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"{flag} {','.join(unknown)}: there is no such name.{hint} {all_known}")
