"""What workers of a run get of their driver."""

from __future__ import annotations

import pytest

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms import session, without_gpu
from openrlhf_ada.platforms.session import HOOK_KEY, runtime_env


def test_variables_of_the_job_are_not_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would refuse them."""
    monkeypatch.setattr(session, "job_runtime_env", lambda: {"env_vars": {"A": "3"}})
    chosen = runtime_env({"A": "1", "B": "2"}, on_cpu=False)
    assert chosen.keys() == {"env_vars"} and chosen["env_vars"]["B"] == "2" and "A" not in chosen["env_vars"]


def test_workers_without_gpu_are_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "job_runtime_env", dict)
    chosen = runtime_env({}, on_cpu=True, num_engines=2)
    assert chosen[HOOK_KEY] == "openrlhf_ada.platforms.without_gpu.activate"
    assert chosen["env_vars"][without_gpu.ENGINES_VARIABLE] == "2"
    monkeypatch.setattr(session, "job_runtime_env", lambda: {HOOK_KEY: "its.own"})
    with pytest.raises(ConfigError, match=HOOK_KEY):
        runtime_env({}, on_cpu=True)
