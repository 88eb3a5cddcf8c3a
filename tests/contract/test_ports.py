"""Where the processes of a model meet: a port that nobody else gets by chance."""

from __future__ import annotations

import errno
import inspect
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from openrlhf.trainer.ray.launcher import BaseDistributedActor
from torch.distributed import TCPStore
from vllm.distributed.utils import StatelessProcessGroup

from openrlhf_ada.host import models, ports
from openrlhf_ada.host.classes import unwrap_ray_class
from openrlhf_ada.trainer.policy import RayAdaPolicyActor, RayReferenceActor, RayRewardActor
from openrlhf_ada.trainer.prompt_critic import RayPassRateCritic

OURS = [*map(unwrap_ray_class, (RayAdaPolicyActor, RayReferenceActor, RayRewardActor, RayPassRateCritic))]


def test_processes_of_models_meet_at_the_chosen_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "else self._get_free_port()" in inspect.getsource(BaseDistributedActor.__init__)
    monkeypatch.setattr(models, "free_port", lambda: 20_007)
    for actor in (*OURS, models.HostCriticActor):
        assert issubclass(actor, BaseDistributedActor)
        assert actor._get_free_port() == 20_007


def test_port_is_not_given_to_whoever_asks() -> None:
    chosen = {ports.free_port() for _ in range(20)}
    assert len(chosen) == 20
    assert all(ports.FIRST <= port < ports.LAST for port in chosen)


IN_ANOTHER_PROCESS = """
import socket, sys
from openrlhf_ada.host import ports
port = int(sys.argv[1])
ports.random.SystemRandom.sample = lambda *_: [port, 20_013]
print(ports.free_port())
with socket.socket() as sock:
    try:
        sock.bind(("", port))
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.parametrize("use_libuv", [True, False])
def test_nobody_takes_a_port_before_its_processes_meet_there(use_libuv: bool) -> None:
    """A run ended that way (EADDRINUSE): seconds lie between."""
    port = ports.free_port()
    other = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(port)], capture_output=True, text=True, check=True
    )
    assert other.stdout.split() == ["20013", str(errno.EADDRINUSE)]
    store = TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=20), use_libuv=use_libuv)
    store.set("rank 0", "is here")
    assert store.get("rank 0") == b"is here"


def test_group_of_the_weights_meets_at_a_held_port() -> None:
    port = ports.free_port()
    group = StatelessProcessGroup.create("127.0.0.1", port, 0, 1)
    assert group.world_size == 1


def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_port()
    monkeypatch.setattr(ports.random.SystemRandom, "sample", lambda self, *_: [first, first])
    with pytest.raises(OSError, match="are all taken"):
        ports.free_port()
    with socket.socket() as sock:
        sock.bind(("", 0))
        other = sock.getsockname()[1]
        monkeypatch.setattr(
            ports.random.SystemRandom, "sample", lambda self, *_: [first, other, *range(20_000, 20_050)]
        )
        assert 20_000 <= ports.free_port() < 20_050
