"""How the user calls this program: what a printed command begins with."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "openrlhf-ada"


def called(*, elsewhere: bool = False) -> str:
    """NAME where the shell finds this installation by it, else the program's path, quoted for a shell.

    `elsewhere`: the printed command will be typed in another folder.
    """
    path = _path()
    if path is None:
        return NAME
    found = shutil.which(NAME)
    if found is not None and os.path.samefile(found, path):
        return NAME
    return shlex.quote(str(path.absolute() if elsewhere else path))


def _path() -> Path | None:
    """Of the program that runs, else of the one beside this interpreter, as in a notebook."""
    own = Path(sys.argv[0])
    beside = Path(sys.executable).parent / NAME
    return next((path for path in (own, beside) if path.name == NAME and path.is_file()), None)
