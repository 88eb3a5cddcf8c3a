"""What workers of a run get of their driver."""

from __future__ import annotations

import pytest

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms import session, without_gpu
from openrlhf_ada.platforms.session import HOOK_KEY, runtime_env


def test_variables_of_the_job_are_not_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would refuse them."""
    monkeypatch.setattr(session, "job_runtime_env", lambda: {"env_vars": {"NCCL_DEBUG": "INFO"}})
    chosen = runtime_env(False, on_cpu=False)
    assert chosen.keys() == {"env_vars"} and "NCCL_DEBUG" not in chosen["env_vars"]
    assert (
        chosen["env_vars"]["TQDM_DISABLE"] == "1" and "TQDM_DISABLE" not in runtime_env(True, on_cpu=False)["env_vars"]
    )


def test_workers_without_gpu_are_adapted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "job_runtime_env", dict)
    chosen = runtime_env(False, on_cpu=True, num_engines=2)
    assert chosen[HOOK_KEY] == "openrlhf_ada.platforms.without_gpu.activate"
    assert chosen["env_vars"][without_gpu.ENGINES_VARIABLE] == "2"
    monkeypatch.setattr(session, "job_runtime_env", lambda: {HOOK_KEY: "its.own"})
    with pytest.raises(ConfigError, match=HOOK_KEY):
        runtime_env(False, on_cpu=True)
