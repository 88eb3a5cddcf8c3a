"""What every refusal of a command line must say."""

from __future__ import annotations

from openrlhf_ada.config.flags import ConfigError


def check_refusal(error: Exception, head: str, rule: str, remedy: str) -> None:
    """It begins with flag and value, names the rule, and says what to do."""
    assert isinstance(error, ConfigError)
    assert str(error).startswith(head + ":")
    assert rule in str(error)
    assert remedy in str(error)
