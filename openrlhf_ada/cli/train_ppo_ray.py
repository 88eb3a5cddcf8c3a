"""Train: OpenRLHF's `train_ppo_ray` with adaptive sampling. Every host flag works, plus --ada_*.

    python -m openrlhf_ada.cli.train_ppo_ray --ada_mode seq --actor.model_name_or_path ... (or: openrlhf-ada train ...)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_ada.config import AdaConfig, ConfigError, add_flags, from_namespace
from openrlhf_ada.data.checks import DataError
from openrlhf_ada.platforms.resources import MissingResourcesError, required_slots
from openrlhf_ada.trainer.preflight import check_paths
from openrlhf_ada.upstream import HostError, HostFlagError, parse_host_arguments

PROG = "openrlhf-ada train"
USER_ERRORS = (ConfigError, DataError, HostError, HostFlagError, MissingResourcesError)


def parse(argv: Sequence[str]) -> tuple[SimpleNamespace, AdaConfig]:
    """Flags checked as far as that is possible without starting anything; raises one of USER_ERRORS."""
    args = parse_host_arguments(argv, add_flags, prog=PROG, description=__doc__ or "")
    config = from_namespace(args.ada)
    config.check_against_host(args)
    check_paths(args)
    return args, config


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2: bad input, 130: interrupted)."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        args, config = parse(sys.argv[1:] if argv is None else argv)
        return run(args, config)
    except USER_ERRORS as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted", file=sys.stderr)
        return 130


def run(args: SimpleNamespace, config: AdaConfig) -> int:
    """Train with checked flags."""
    from openrlhf_ada.platforms.session import ray_session
    from openrlhf_ada.trainer.launch import train

    args.ada_events = None
    with ray_session(args, required_slots(args), verbose=config.verbose):
        train(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
