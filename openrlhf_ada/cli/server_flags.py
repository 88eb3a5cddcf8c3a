"""Flags of `eval` for a server that runs already, and what it is asked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from openrlhf_ada.cli.sampling_flags import Sampling, as_messages
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.config.passed_on import arguments_of
from openrlhf_ada.config.visible import REMOVED, without_logins
from openrlhf_ada.data.problems import Problem
from openrlhf_ada.data.questions import rendered
from openrlhf_ada.eval.answers import as_text
from openrlhf_ada.eval.openai_server import OpenAIServer

KEY_NAME = "OPENAI_API_KEY"

OF_ENGINES = ("engines", "tensor_parallel_size", "gpu_memory_utilization", "cluster_wait", "engine_args", "max_len")
"""Flags of engines that `eval` starts itself."""

OF_SERVER = ("api_key_env", "concurrency")


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a server that runs already")
    add = group.add_argument
    add(
        "--base_url",
        metavar="URL",
        help="ask this OpenAI-compatible server (http://host:8000/v1) instead of starting engines; --model then takes "
        "its names of models. With --no_chat: the completions endpoint, else chat completions",
    )
    add(
        "--api_key_env",
        metavar="NAME",
        help=f"environment variable with the server's key (default {KEY_NAME}); the key is written nowhere",
    )
    add("--concurrency", type=int, default=32, metavar="N", help="requests to the server at a time (default 32)")


def check_server_flags(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Raises ConfigError for values that are wrong, or without effect."""
    rule, remedy = "it goes with --base_url", "Give both or neither"
    if args.base_url is not None:
        _check_url(args.base_url)
        rule, remedy = "it is for engines that this command starts, without --base_url", "Leave one of them out"
    for name in OF_SERVER if args.base_url is None else OF_ENGINES:
        if getattr(args, name) != parser.get_default(name):
            raise ConfigError(f"--{name}", getattr(args, name), rule, remedy)
    if args.base_url is None:
        return
    if args.concurrency < 1:
        raise ConfigError("--concurrency", args.concurrency, "at least one request is sent at a time", "Try 32")
    if args.system and args.no_chat:
        raise ConfigError("--system", args.system, "there is no chat template for it", "Put it into --template")
    _key(args)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    # The value is not repeated: it may hold a key.
    if without_logins(url) != url or "@" in url or "?" in url:
        rule = "it has a login or a query, which would be written"
        raise ConfigError("--base_url", REMOVED, rule, f"Put the key into {KEY_NAME}")
    if not is_address:
        raise ConfigError("--base_url", url, "it is not the address of a server", "Try http://localhost:8000/v1")


def _key(args: argparse.Namespace) -> str:
    """The key; "" where there is none. Raises ConfigError."""
    name = args.api_key_env or KEY_NAME
    key = os.environ.get(name, "").strip()
    if args.api_key_env and not key:
        raise ConfigError("--api_key_env", name, "this environment variable is not set", "Set it, or export it")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("--api_key_env", name, "its value is no key", "Set it to the key")
    return key


def base_url_of(url: str) -> str:
    """Without an endpoint at its end, which others want there."""
    url = url.rstrip("/")
    for endpoint in ("/completions", "/chat"):
        url = url.removesuffix(endpoint)
    return url.rstrip("/")


def server_of(model: str, args: argparse.Namespace, sampling: Sampling, note: Callable[[str], None]) -> OpenAIServer:
    """What is sent is what was asked for; values that change nothing are left out, as not every server knows them."""
    parameters: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_new_tokens}
    if sampling.top_p != 1:
        parameters["top_p"] = sampling.top_p
    if sampling.top_k != -1:
        parameters["top_k"] = sampling.top_k
    ends, template = arguments_of(sampling.sampling_args), arguments_of(sampling.chat_template_args)
    parameters |= {"include_stop_str_in_output": True, **ends} if ends else {}  # as in training
    parameters |= {"chat_template_kwargs": template} if template else {}
    key, name = _key(args), args.api_key_env or KEY_NAME
    return OpenAIServer(base_url_of(args.base_url), model, not args.no_chat, key, name, args.timeout, parameters, note)


def server_prompts(problems: list[Problem], args: argparse.Namespace) -> dict[str, Any]:
    """By problem id: messages, to which the server applies its chat template, or with --no_chat text."""
    if args.no_chat:
        return {p.id: rendered(p.prompt, as_text, f"{p.source} {p.place}") for p in problems}
    return {p.id: as_messages(p.prompt, args.system) for p in problems}
