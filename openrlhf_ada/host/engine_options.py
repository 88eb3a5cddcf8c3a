"""--ada_engine_args: options of vLLM's engine that have no flag. vLLM's own parser says which there are, and what each
takes; engine_options.yaml which are refused, and why.

Contract: test_engine_options.test_every_option_of_vllms_engine_is_taken_or_refused
"""

from __future__ import annotations

import json
from argparse import ArgumentError
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from openrlhf_ada.config.flags import ConfigError, actions_of
from openrlhf_ada.config.nearest import did_you_mean
from openrlhf_ada.config.passed_on import arguments_of, once_each
from openrlhf_ada.config.yaml_file import read_yaml

FLAG = "--ada_engine_args"

DRAFTS = {"speculative_config", "spec_method", "spec_model"}

CORRECTION = "--algo.advantage.is_correction_level token"


@lru_cache
def reasons(part: str) -> dict[str, str]:
    """By option, what the file's part says of it."""
    table = read_yaml(Path(__file__).with_suffix(".yaml"), FLAG, typed=True)[0]
    return {name: why for why, names in table[part].items() for name in names.split()}


def options_of(text: str | None, flag: str = FLAG) -> dict[str, Any]:
    """By name, of JSON or of a YAML or JSON file. Raises ConfigError for what is never taken."""
    if not text:
        return {}
    try:
        given = arguments_of(text) if text.lstrip().startswith("{") else read_yaml(Path(text), flag, typed=True)[0]
        options = once_each([(name.replace("-", "_"), value) for name, value in given.items()])
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(flag, text, f"it is not valid: {error}", "Mend it, or name a file") from error
    drafts = options.get("speculative_config", {})
    if not isinstance(drafts, dict):
        raise ConfigError(flag, f"speculative_config: {drafts}", "it has names and values", "Mend it")
    for name, value in (options | drafts).items():
        why = reasons("denied").get(name) if name in options else None
        if why := why or reasons("denied_values").get(f"{name}={value}".lower()):
            raise ConfigError(flag, name, why, "Leave it out")
    return options


def check_stops(options: Mapping[str, Any], stops: Any, flag: str = FLAG) -> None:
    """Raises ConfigError for drafts with stop texts: vLLM looks for them after a whole step, and what it had drafted
    behind one would be trained."""
    if stops and (drafts := options.keys() & DRAFTS):
        rule = "answers may go on behind a stop text, by the rest of a draft"
        raise ConfigError(flag, min(drafts), rule, "Leave it out, or stop at tokens (stop_token_ids)")


def check_in_training(host: SimpleNamespace) -> None:
    """Raises ConfigError for what vLLM does not take, or a training cannot go with."""
    options = engine_arguments(host.ada.engine_args)
    check_stops(options, arguments_of(host.ada.sampling_args).get("stop"))
    is_seen = host.ada.logprob_steps or host.algo.advantage.is_correction_level != "off"
    if not is_seen and (changed := options.keys() & reasons("changed")):
        rule = f"with {FLAG} {min(changed)}, nothing would show how far the engines are off the policy"
        raise ConfigError("--ada_logprob_steps", 0, rule, f"Leave it out, or add {CORRECTION}")


def recorded(text: str | None, flag: str = FLAG) -> str | None:
    """The same as JSON, whatever becomes of a file."""
    return json.dumps(options, sort_keys=True) if (options := options_of(text, flag)) else None


def engine_arguments(text: str | None, flag: str = FLAG) -> dict[str, Any]:
    """For `AsyncEngineArgs`. Raises ConfigError for a name that it has not, and for a value that it does not take."""
    found: dict[str, Any] = {}
    for name, value in options_of(text, flag).items():
        try:
            found[name] = _read(name, value)
        except (ArgumentError, ValueError) as error:
            rule = f"vLLM does not take it ({' '.join(str(error).split())})"
            raise ConfigError(flag, f"{name}: {value}", rule, "Mend it, or leave it out") from error
    return found


@lru_cache
def _parser() -> tuple[Any, dict[str, Any]]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(add_help=False, exit_on_error=False))
    return parser, {action.dest: action for action in actions_of(parser)}


def _read(name: str, value: Any) -> Any:
    from pydantic import TypeAdapter
    from vllm import config
    from vllm.config.quantization import ONLINE_QUANT_SHORTHAND_NAMES

    parser, actions = _parser()
    action = _of(actions, name)
    if value is None or (action.nargs == 0) != isinstance(value, bool):
        raise ValueError("it is true or false" if action.nargs == 0 else "it is another kind of value")
    words = [option for option in action.option_strings if option.startswith("--no-") == (value is False)][:1]
    parts = value if action.nargs and isinstance(value, list) else [value] * (action.nargs != 0)
    words += [part if isinstance(part, str) else json.dumps(part) for part in parts]
    parsed = getattr(parser.parse_args(words if action.nargs is not None else ["=".join(words)]), name)
    # What vLLM's parser leaves to the start of an engine.
    if name == "attention_backend":
        config.AttentionConfig(backend=parsed)
    if name == "quantization" and parsed not in (taken := ("fp8", *ONLINE_QUANT_SHORTHAND_NAMES)):
        raise ValueError(f"it must make its weights of each update by itself: {', '.join(taken)}")
    # Ranges are those of the configuration, after which vLLM names a group of options.
    home = config.SpeculativeConfig if name == "speculative_config" else getattr(config, action.container.title, None)
    fields = getattr(home, "__pydantic_fields__", {})
    has_range = name in fields and fields[name].metadata
    for inner, of_inner in parsed.items() if name == "speculative_config" else [(name, parsed)] * bool(has_range):
        field = _of(fields, inner)
        kind: Any = Annotated[field.annotation, "", *field.metadata]  # pyright: ignore[reportInvalidTypeForm]
        TypeAdapter(kind).validate_python(of_inner)
    return parsed


def _of(known: Mapping[str, Any], name: str) -> Any:
    if name not in known:
        raise ValueError(f"there is no {name}.{did_you_mean(name, known)}".removesuffix("."))
    return known[name]


def engine_notes(host: SimpleNamespace) -> Iterator[str]:
    """What a run is told of its engines."""
    options, weightless = options_of(host.ada.engine_args), ("ngram", "ngram_gpu", "suffix")
    if changed := ", ".join(name for name in options if name in reasons("changed")):
        # With it they are compared in mode off, and of agents, too.
        more = f", and add {CORRECTION}" if host.algo.advantage.is_correction_level == "off" else ""
        yield f"{FLAG} {changed}: engines' log-probabilities may be off the policy's. Watch ada/logprob_gap_mean{more}"
    method = options.get("spec_method") or options.get("speculative_config", {}).get("method", "draft_model")
    if options.keys() & DRAFTS and method not in weightless:
        yield (
            f"{FLAG} {method}: no update reaches the weights that draft tokens. Answers stay the policy's, but the "
            f"further it moves, the fewer drafts are accepted. Without weights: {', '.join(weightless)}"
        )
