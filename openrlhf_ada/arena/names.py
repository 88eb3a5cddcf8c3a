"""Names that a user gives the arena."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from openrlhf_ada.config.nearest import did_you_mean


def check_names(flag: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raises ValueError for none, and for one that is not known."""
    all_known = f"Known are {', '.join(known)}"
    if not names:
        raise ValueError(f"{flag} names nothing. {all_known}")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"{flag} {','.join(unknown)}: there is no such name.{did_you_mean(unknown[0], known)} {all_known}"
        )
