"""What every refusal of a command line must say."""

from __future__ import annotations

from openrlhf_ada.config.flags import ConfigError


def check_refusal(error: Exception, head: str, remedy: str) -> None:
    """It begins with flag and value, and names the flag of the remedy, if that is one."""
    assert isinstance(error, ConfigError)
    assert str(error).startswith(head + ":")
    assert remedy in str(error)
