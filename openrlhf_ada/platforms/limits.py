"""Refuses, before Ray starts, OpenRLHF flags that ask for something this machine does not have.

Otherwise a worker would fail minutes later, with the reason in its log.
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError

_ABSENT = "this machine has no GPU, and on a CPU "


def check_cpu_limits(args: SimpleNamespace) -> None:
    """Raises ConfigError for the first flag that needs a GPU. `args`: the host's namespace, nested by dots."""
    limits = [
        ("--ds.packing_samples", args.ds.packing_samples, False, "there is no flash-attn to pack samples with"),
        (
            "--train.dynamic_batch_enable",
            args.train.dynamic_batch_enable,
            False,
            "there is no flash-attn to pack with",
        ),
        ("--ds.ring_attn_size", args.ds.ring_attn_size, 1, "there is no flash-attn for ring attention"),
        ("--ds.load_in_4bit", args.ds.load_in_4bit, False, "there are no 4-bit kernels"),
        ("--vllm.enable_sleep", args.vllm.enable_sleep and args.train.colocate_all, False, "engines cannot sleep"),
    ]
    for flag, value, expected, reason in limits:
        if value != expected:
            raise ConfigError(flag, value, _ABSENT + reason, "Leave the flag out")
    if args.ds.attn_implementation not in ("sdpa", "eager"):
        raise ConfigError(
            "--ds.attn_implementation",
            args.ds.attn_implementation,
            _ABSENT + "there is no flash-attn",
            "Use --ds.attn_implementation sdpa",
        )
    if args.vllm.sync_backend != "gloo":
        raise ConfigError(
            "--vllm.sync_backend",
            args.vllm.sync_backend,
            _ABSENT + "weights reach the engines through gloo",
            "Use --vllm.sync_backend gloo",
        )


def check_gpu_limits(args: SimpleNamespace) -> None:
    """Raises ConfigError for the first flag whose package is missing. `args`: the host's namespace, nested by dots."""
    ds = args.ds
    needs = [
        # OpenRLHF imports it at module top, whatever attention is used.
        ("--ds.attn_implementation", ds.attn_implementation, True, "flash_attn", "OpenRLHF needs"),
        ("--ds.ring_attn_size", ds.ring_attn_size, ds.ring_attn_size > 1, "ring_flash_attn", "it needs"),
        ("--ds.load_in_4bit", ds.load_in_4bit, ds.load_in_4bit, "bitsandbytes", "it needs"),
        ("--ds.use_liger_kernel", ds.use_liger_kernel, ds.use_liger_kernel, "liger_kernel", "it needs"),
    ]
    for flag, value, is_used, package, who in needs:
        if is_used and importlib.util.find_spec(package) is None:
            raise ConfigError(
                flag,
                value,
                f"on GPUs {who} the package {package}, which is not installed",
                f"Install {package}; docs/install.md says how to install what every run needs",
            )
