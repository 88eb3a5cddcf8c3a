"""Let the links of a text lead to files of a repository, for a page that is shown elsewhere, such as on PyPI.

python .github/absolute_links.py README.md https://github.com/OWNER/NAME v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(!?)(\[(?:[^\[\]`]|`[^`]*`)*\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")
"""A picture or a link to a file: mark, text, path, anchor. Addresses have a colon, so they are left alone."""


def absolute(text: str, repository: str, tag: str) -> str:
    """The text with whole addresses: pages of files, and pictures as they are."""
    return _LINK.sub(
        lambda m: f"{m[1]}{m[2]}{repository}/{'raw' if m[1] else 'blob'}/{tag}/{m[3].removeprefix('./')}{m[4]}", text
    )


if __name__ == "__main__":
    path, *where = sys.argv[1:]
    Path(path).write_text(absolute(Path(path).read_text(encoding="utf-8"), *where), encoding="utf-8")
