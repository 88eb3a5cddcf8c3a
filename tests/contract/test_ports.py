"""Where the processes of a model meet: a port that nobody else gets by chance."""

from __future__ import annotations

import inspect
import socket
from pathlib import Path

import pytest
from openrlhf.trainer.ray.launcher import BaseDistributedActor

from openrlhf_ada.host import models, ports
from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.trainer.policy import RayAdaPolicyActor, RayReferenceActor, RayRewardActor
from openrlhf_ada.trainer.prompt_critic import RayPassRateCritic

OURS = [*map(unwrap_ray_class, (RayAdaPolicyActor, RayReferenceActor, RayRewardActor, RayPassRateCritic))]


def test_processes_of_models_meet_at_the_chosen_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "else self._get_free_port()" in inspect.getsource(BaseDistributedActor.__init__)
    monkeypatch.setattr(ports, "free_port", lambda: 20_007)
    for actor in (*OURS, models.HostCriticActor):
        assert issubclass(actor, BaseDistributedActor)
        assert actor._get_free_port() == 20_007


def test_port_is_free_and_not_given_to_whoever_asks() -> None:
    lowest = int(ports.EPHEMERAL.read_text().split()[0])
    for port in {ports.free_port() for _ in range(20)}:
        assert ports.FIRST <= port < ports.LAST and (port < lowest or lowest < ports.FIRST + ports.TRIES)
        with socket.socket() as sock:
            sock.bind(("", port))


def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also on a machine that gives away ports from 1024 on."""
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    first = ports.free_port()
    with socket.socket() as sock:
        sock.bind(("", first))
        monkeypatch.setattr(ports.random.SystemRandom, "sample", lambda self, *_: [first, first])
        with pytest.raises(OSError, match="are all taken"):
            ports.free_port()
        monkeypatch.setattr(ports.random.SystemRandom, "sample", lambda self, *_: [first, 20_011])
        assert ports.free_port() == 20_011
