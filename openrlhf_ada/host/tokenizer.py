"""A tokenizer that travels in remote calls by name.

OpenRLHF sends its tokenizer with every prompt. Pickled, that is the whole vocabulary: a large part of a second to
load, per prompt and wave, in the engine's own process. By name it is loaded once per process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from openrlhf.utils import get_tokenizer

from openrlhf_ada.host.model_code import bar_code


@lru_cache(maxsize=4)
def load_tokenizer(model: str, use_fast: bool) -> Any:
    """OpenRLHF's own tokenizer of a model, once per process."""
    bar_code()
    return get_tokenizer(model, None, "left", None, use_fast=use_fast)


class SharedTokenizer:
    """Pickles as `load_tokenizer(model, use_fast)`; what is unpickled is the tokenizer itself."""

    def __init__(self, model: str, use_fast: bool) -> None:
        self._arguments = (model, use_fast)

    def load(self) -> Any:
        """The tokenizer itself."""
        return load_tokenizer(*self._arguments)

    def __reduce__(self) -> tuple[Any, tuple[str, bool]]:
        return load_tokenizer, self._arguments
