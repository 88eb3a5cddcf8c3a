"""Code that a model's folder brings along runs only where the user asked for it.

OpenRLHF loads every configuration, tokenizer and model with `trust_remote_code=True`: such code would run in the
driver, the trainer, the policy and the engines. A model that has any is refused before anything is loaded from it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from openrlhf_ada.config.flags import ConfigError

FLAG = "--trust_remote_code"

_ADAPTER = "adapter_config.json"
_GENERATE = "custom_generate/generate.py"
"""transformers runs this file, which nothing names."""
_NAMES_CODE = ("auto_map", "custom_pipelines")
_NAMES_KERNELS = ("attn_implementation", "experts_implementation")
"""Keys of configurations. A value such as "org/kernel" is a program of the hub."""
_NAMES_WEIGHTS = "transformers_weights"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_SAFE = ".safetensors"
_INDEX = ".safetensors.index.json"
_WEIGHTS = {"config.json": "model.safetensors", _ADAPTER: "adapter_model.safetensors"}
"""What transformers loads beside each configuration, if it is there, rather than a pickle."""


EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Where a model's config.json says how many experts a layer has: the names that vLLM reads."""

_bar = {"code": False}


def check_model_code(flag: str, model: str, *, trusted: bool) -> None:
    """Refuse what would run, or could run, code of the model's own. `model`: a folder or a hub id.

    Raises:
        ConfigError: there is code, or a file names code; or weights are pickled; or nothing can be read.
    """
    _bar["code"] = not trusted
    bar_code()
    if trusted:
        return
    names = _file_names(flag, model)
    if not _WEIGHTS.keys() & set(names):
        raise _unknown(flag, model, "neither the hub nor the cache has its config.json")
    for code in _code_in(flag, model, names):
        raise ConfigError(
            flag, model, f"its {code}, which would run here", f"Read that code. If you trust it, give {FLAG}"
        )
    for weights in _unsafe_weights(flag, model, names):
        raise ConfigError(
            flag,
            model,
            f"its weights are pickled ({weights}), and loading them can run code",
            f"Save them as safetensors. If you trust the file, give {FLAG}",
        )
    # An adapter's base model is loaded as well.
    adapter = read_config(flag, model, _ADAPTER)
    base = adapter.get("base_model_name_or_path") if isinstance(adapter, dict) else None
    if isinstance(base, str) and base != model:
        check_model_code(f"{flag}, base model of {model}", base, trusted=False)


def bar_code() -> None:
    """As the last check said: what comes too late for it, or by a way that it does not know. transformers has one
    function for it all. To be called where transformers has been imported since.

    A hub page can change after the check, and a folder, too.
    """
    if "transformers" not in sys.modules:
        # The driver's checks are to answer at once, and import nothing of that size.
        return
    original = _code_runner()
    # The module of generation has a name of its own for it, if it is imported already.
    for module in ("transformers.dynamic_module_utils", "transformers.generation.utils"):
        if module in sys.modules:
            vars(sys.modules[module])["get_class_in_module"] = _refuse_code if _bar["code"] else original


@lru_cache
def _code_runner() -> Callable[..., Any]:
    """The function of transformers, as it was at the first call."""
    from transformers.dynamic_module_utils import get_class_in_module

    return get_class_in_module


def _refuse_code(class_name: str, module_path: str, **_: Any) -> Any:
    raise ConfigError(
        "the model", str(module_path), "it is code of its own", f"Read that code. If you trust it, give {FLAG}"
    )


def _code_in(flag: str, model: str, names: Collection[str]) -> Iterator[str]:
    """Files with code, and what configurations name."""
    if _GENERATE in names:
        yield f"{_GENERATE} is code of its own"
    for name in names:
        if name.endswith("config.json"):
            for code in _named_code(read_config(flag, model, name)):
                yield f"{name} names {code}"


def _named_code(config: Any) -> Iterator[str]:
    """Anywhere in a configuration: parts of it are configurations too."""
    if not isinstance(config, dict | list):
        return
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        if key in _NAMES_CODE and value:
            yield f"code of its own ({', '.join(_texts(value))})"
        elif str(key).strip("_").removesuffix("_internal") in _NAMES_KERNELS:
            yield from (f"a kernel of the hub ({text})" for text in _texts(value) if "/" in text)
        else:
            yield from _named_code(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
    else:
        yield str(value)


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


def _unsafe_weights(flag: str, model: str, names: Collection[str]) -> Iterator[str]:
    """Files that would be loaded and are, or may be, pickles."""
    top = [name for name in names if "/" not in name]
    safe = {name for name in top if name.endswith(_SAFE)}
    for name in top:
        content = read_config(flag, model, name) if name.endswith(("config.json", _INDEX)) else None
        if not isinstance(content, dict):
            continue
        parts = set(_texts(content.get("weight_map", [])))
        named = _texts(content.get(_NAMES_WEIGHTS, []))
        yield from (part for part in (*sorted(parts), *named) if not part.endswith((_SAFE, _INDEX)))
        if parts and parts <= safe:
            safe.add(name.removesuffix(".index.json"))
    if not {weights for config, weights in _WEIGHTS.items() if config in top} <= safe:
        yield from (name for name in top if name.endswith(_PICKLED))


def _file_names(flag: str, model: str) -> list[str]:
    """Of the top folder and those in it."""
    folder = Path(model)
    if not folder.is_dir():
        listed = _listed_by_hub(flag, model)
        config = None if listed else _hub_file(flag, model, "config.json") or _hub_file(flag, model, _ADAPTER)
        if config is None:
            return listed
        folder = config.parent
    files = [path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in files)


def _listed_by_hub(flag: str, model: str) -> list[str]:
    """Empty where the hub is not reached, so that the cache is what would be loaded."""
    from httpx import TransportError
    from huggingface_hub import constants, list_repo_files

    if constants.HF_HUB_OFFLINE:
        return []
    try:
        return sorted(name for name in list_repo_files(model) if name.count("/") < 2)
    except TransportError:
        return []
    except (OSError, ValueError) as error:
        raise _unknown(flag, model, " ".join(str(error).split())) from error


def has_experts(config: Mapping[str, Any]) -> bool:
    """Is a model a mixture of experts? `config`: its config.json."""
    text: Any = config.get("text_config") or config
    # Models whose layers differ say it per layer.
    sections: list[Any] = [text, *(text.get("block_configs") or [])]
    return any(section.get(name) for section in sections for name in EXPERTS)
