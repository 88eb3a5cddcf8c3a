"""Published methods that need more than the package's policies: each has a policy of the arena's own."""

from __future__ import annotations

from benchmarks.arena.peers.base import Rules
from benchmarks.arena.peers.dppo import Dppo
from benchmarks.arena.peers.ngu import Ngu
from benchmarks.arena.peers.splits import Cero, Duet
from benchmarks.arena.peers.spo import Spo

PEERS: tuple[tuple[str, int, str, Rules], ...] = (
    ("spo", 1, "flash_reinforce", Spo()),
    ("ngu-at-once", 4, "dr_grpo", Ngu(over_steps=False)),
    ("ngu", 4, "dr_grpo", Ngu()),
    ("ngu-late", 4, "dr_grpo", Ngu(late=True)),
    ("duet", 8, "group_norm", Duet()),
    ("cero", 8, "group_norm", Cero()),
    ("dppo", 8, "group_norm", Dppo()),
)
"""(name, n, --algo.advantage.estimator, rules)."""
