"""What a GPU run needs to be installed, refused before Ray starts. A worker would say so minutes later, in its log."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

from openrlhf_ada.config.flags import ConfigError


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
                f"Install {package}; the README's set-up for GPUs brings what every run needs",
            )
