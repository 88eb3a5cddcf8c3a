"""The console script `openrlhf-ada`."""

from __future__ import annotations

import logging
import sys

from openrlhf_ada.cli.verbs import VERBS, list_verbs
from openrlhf_ada.config.installed import missing_package, versions


def main() -> int:
    """Entry point; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: openrlhf-ada <command> [options]\n\n{list_verbs()}")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print("\n".join(versions()))
        return 0
    name, *rest = arguments
    if name not in VERBS:
        print(f"openrlhf-ada: error: no command {name!r}. {list_verbs()}", file=sys.stderr)
        return 2
    verb = VERBS[name]
    try:
        return verb.run(rest)
    except ModuleNotFoundError as error:
        print(f"openrlhf-ada {name}: error: {missing_package(error)}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        if verb.answers_for_errors:
            raise
        print(f"openrlhf-ada {name}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
