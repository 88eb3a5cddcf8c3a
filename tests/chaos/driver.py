"""The program of a training, which prints its events too, so that a fault can be timed by them."""

import sys
from collections.abc import Mapping
from typing import Any

from openrlhf_ada.cli.main import main
from openrlhf_ada.reporting.progress import ProgressView

EVENT = "event: "

_handle = ProgressView.handle


def _handle_and_print(self: ProgressView, event: Mapping[str, Any]) -> None:
    _handle(self, event)
    sys.stderr.write(f"{EVENT}{event['type']} {event.get('text', event.get('step', ''))}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    ProgressView.handle = _handle_and_print  # type: ignore[method-assign]
    sys.exit(main())
