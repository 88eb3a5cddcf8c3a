"""OpenRLHF's own reading of data sets, and the prompts that it makes of rows, before anything heavy is imported.

Contract: test_openrlhf_objects.test_data_sets_and_prompts_are_read_as_the_host_does
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.host.parser import load_by_path

LOADER, PROMPTS = "openrlhf.datasets.utils", "openrlhf.datasets.prompts_dataset"


def load_blended(spec: str, *, max_count: int, split: str, use_ms: bool = False) -> Any:
    """What OpenRLHF trains on for this list of data sets, one after the other, as a `datasets.Dataset`.

    Raises whatever OpenRLHF and `datasets` raise.
    """
    strategy = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=SimpleNamespace(use_ms=use_ms))
    try:
        return load_by_path(LOADER).blending_datasets(spec, None, strategy, max_count=max_count, dataset_split=split)
    except AttributeError as error:
        if "DatasetDict" in str(error):
            # OpenRLHF goes on with all splits where the one that it looks for is not there.
            raise ValueError(f"it has no split {split!r}") from None
        raise


def prompt_maker(input_template: str | None, chat_template: Callable[..., str] | None) -> Callable[[Any], str]:
    """A function from the question of a row to the prompt that OpenRLHF samples from. `chat_template`: the tokenizer's
    `apply_chat_template` where that is used."""
    make = load_by_path(PROMPTS).preprocess_data
    return lambda question: make({"q": question}, input_template, "q", None, chat_template)[0]
