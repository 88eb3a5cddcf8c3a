"""OpenRLHF's own trainer on the CPU platform: the other side of the parity test."""

from __future__ import annotations

import sys

import host_weight_sync

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.session import ray_session

if __name__ == "__main__":
    without_gpu.SETUP_HOOK = f"{host_weight_sync.__name__}.activate"
    host_weight_sync.activate()
    args = parse(sys.argv[1:])
    with ray_session(args, verbose=False):
        from openrlhf.cli import train_ppo_ray

        train_ppo_ray.train(args)
