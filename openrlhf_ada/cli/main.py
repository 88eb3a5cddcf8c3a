"""The console script `openrlhf-ada`."""

from __future__ import annotations

import logging
import sys

from openrlhf_ada.cli.config_file import expanded
from openrlhf_ada.cli.verbs import VERBS, list_verbs
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.installed import MissingPackagesError, missing_package, stack_versions
from openrlhf_ada.config.nearest import did_you_mean
from openrlhf_ada.config.visible import error_text
from openrlhf_ada.host.parser import HostError
from openrlhf_ada.platforms.signals import TerminatedError, status_of

CONFIG_HELP = """every command:
  --config FILE  flags from a YAML file, or from the config.json of a run; flags on the command line win
  --help         all flags of a command
  --version      versions of this package and of what it runs on (without a command)"""


def main() -> int:
    """Entry point; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: openrlhf-ada <command> [--config FILE] [options]\n\n{list_verbs()}\n{CONFIG_HELP}")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print("\n".join(f"{name} {version}" for name, version in stack_versions().items()))
        return 0
    name, *rest = arguments
    if name not in VERBS:
        said = f"openrlhf-ada: error: no command {name!r}.{did_you_mean(name, VERBS)}"
        print(f"{said}\n\n{list_verbs()}", file=sys.stderr)
        return 2
    verb = VERBS[name]
    try:
        has_config = any(word.startswith("--config") for word in rest) and not verb.reads_config
        return verb.run(expanded(name, rest) if has_config else rest)
    except TerminatedError as error:
        print(f"openrlhf-ada {name}: terminated", file=sys.stderr)
        return status_of(error)
    except (MissingPackagesError, ModuleNotFoundError, HostError, OSError, ValueError) as error:
        # HostError: of a bare installation, since what reads the flags of --config is OpenRLHF's parser.
        if verb.answers_for_errors and isinstance(error, OSError | ValueError) and not isinstance(error, ConfigError):
            raise
        said = missing_package(error) if isinstance(error, ModuleNotFoundError) else error_text(error)
        print(f"openrlhf-ada {name}: error: {said}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
