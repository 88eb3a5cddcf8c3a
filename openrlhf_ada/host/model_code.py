"""Code that a model's folder brings along runs only where the user asked for it.

OpenRLHF loads every configuration, tokenizer and model with `trust_remote_code=True`: what `auto_map` names would run
in the driver, the trainer, the policy and the engines. Such a folder is refused before anything is loaded from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import ConfigError

FLAG = "--trust_remote_code"

_CONFIGS = (
    *("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json"),
    *("video_preprocessor_config.json", "generation_config.json"),
)
"""Where transformers and vLLM look for the key `auto_map`."""

_ADAPTER = "adapter_config.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def check_model_code(flag: str, model: str, *, trusted: bool) -> None:
    """Refuse what would run, or could run, code of the model's own. `model`: a folder or a hub id.

    Raises:
        ConfigError: a configuration names code, or there are pickled weights alone; or nothing can be read.
    """
    if trusted:
        return
    for name in _CONFIGS:
        for code in _named_code(read_config(flag, model, name)):
            raise ConfigError(
                flag,
                model,
                f"its {name} names code of its own ({code}), which would run here",
                f"Read that code. If you trust it, give {FLAG}",
            )
    # An adapter's base model is loaded as well.
    adapter = read_config(flag, model, _ADAPTER)
    if adapter is None and read_config(flag, model, "config.json") is None:
        raise _unknown(flag, model, "neither the hub nor the cache has its config.json")
    _check_weights(flag, model)
    base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    if isinstance(base, str) and base != model:
        check_model_code(f"{flag}, base model of {model}", base, trusted=False)


def _named_code(config: Any) -> Iterator[str]:
    """What `auto_map` names, anywhere in a configuration: parts of it are configurations too."""
    if isinstance(config, dict):
        for key, value in config.items():
            if key == "auto_map" and value:
                yield ", ".join(map(str, value.values())) if isinstance(value, dict) else str(value)
            yield from _named_code(value)
    elif isinstance(config, list):
        for value in config:
            yield from _named_code(value)


def read_config(flag: str, model: str, name: str = "config.json") -> Any:
    """The JSON of one file of a folder or of the hub; None where there is no such file. Raises ConfigError."""
    path = Path(model) / name if os.path.isdir(model) else _hub_file(flag, model, name)
    if path is None or not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(flag, str(path), f"it cannot be read ({error.strerror})", "Check its permissions") from error
    except ValueError as error:
        raise ConfigError(flag, str(path), f"it is not valid JSON ({error})", "Fix the file") from error


def _unknown(flag: str, model: str, reason: str) -> ConfigError:
    return ConfigError(flag, model, f"it is no folder, and no model of the hub ({reason})", "Check name and network")


def _hub_file(flag: str, model: str, name: str) -> Path | None:
    """From the cache or the hub. Without an answer of either there is no way to know."""
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(model, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise _unknown(flag, model, " ".join(str(error).split())) from error
    return Path(found) if found else None


def _check_weights(flag: str, model: str) -> None:
    names = _file_names(flag, model)
    pickled = [name for name in names if name.endswith(_PICKLED)]
    if pickled and not any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        raise ConfigError(
            flag,
            model,
            f"its weights are pickled ({pickled[0]}), and loading them can run code",
            f"Save them as safetensors. If you trust the file, give {FLAG}",
        )


def _file_names(flag: str, model: str) -> list[str]:
    """Of the top folder."""
    if os.path.isdir(model):
        return sorted(os.listdir(model))
    from huggingface_hub import constants, list_repo_files

    if not constants.HF_HUB_OFFLINE:
        return [name for name in list_repo_files(model) if "/" not in name]
    config = _hub_file(flag, model, "config.json")
    return sorted(os.listdir(config.parent)) if config else []
