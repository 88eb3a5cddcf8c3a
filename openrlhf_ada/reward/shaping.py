"""What is added to a score to make the reward. The score itself, which decides and is reported, stays as it is.

Penalties for length in tokens are OpenRLHF's (`--reward.overlong_buffer_len`, `--reward.stop_properly_penalty_coef`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FORMATS = {
    "boxed": re.compile(r"\\boxed\s*\{"),
    "think": re.compile(r"\s*(?:<think>)?(?:(?!</?think>).)+</think>(?:(?!</?think>).)+", re.DOTALL),
    "answer": re.compile(r"(?:(?!</?answer>).)*<answer>(?:(?!</?answer>).)+</answer>\s*", re.DOTALL),
}
"""`boxed`: there is a box. `think`: thinking that ends, then an answer (chat templates may open it). `answer`: one
`<answer>...</answer>` at the end."""

LONGEST = 200_000
"""Characters: longer responses are in no format."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """`bonus` for a response in the format `format_name`, one of FORMATS, or "none"."""

    format_name: str = "none"
    bonus: float = 0.0

    def __call__(self, response: str) -> float:
        """The bonus of this response."""
        return self.bonus if self.format_name != "none" and has_format(response, self.format_name) else 0.0


def has_format(response: str, name: str) -> bool:
    if len(response) > LONGEST:
        return False
    pattern = FORMATS[name]
    return bool(pattern.search(response) if name == "boxed" else pattern.fullmatch(response))
