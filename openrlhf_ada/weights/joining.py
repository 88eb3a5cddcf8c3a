"""Which way weights take between processes."""

from __future__ import annotations

import torch

from openrlhf_ada.weights.gloo import GlooGroup
from openrlhf_ada.weights.transport import Group, Membership


def join(membership: Membership, device: torch.device) -> Group:
    """Blocks until all members have joined. `device`: where this process's weights are."""
    if membership.backend == "nccl":
        from openrlhf_ada.weights.nccl import NcclGroup

        return NcclGroup(membership, device)
    return GlooGroup(membership, device)
