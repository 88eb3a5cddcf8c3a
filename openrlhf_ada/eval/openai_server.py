"""A client of servers that speak OpenAI's protocol: one response a request, repeated where that may help, in a bounded
time."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from openrlhf_ada.config.visible import REMOVED

ATTEMPTS = 8
"""Of a request that a later attempt may answer: with the waits between them about two minutes."""

TIMEOUT_ATTEMPTS = 2
"""Of a request that runs into its time limit. Each costs all of it."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Between two attempts, doubled each time. A server that names a time (Retry-After) gets it, up to the longest."""

CONNECT_S, CHECK_S = 15.0, 30.0
LONGEST_BODY = 64 << 20
"""Bytes of a reply."""

REPEATABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Status codes after which another attempt may succeed."""

SECRET_FROM = 16
"""Characters from which a key is taken out of responses too. Shorter ones are placeholders, such as EMPTY."""


class ServerError(ValueError):
    """No request can succeed; the message says why, and what to do."""


class NoReplyError(Exception):
    """One request had no usable reply, at its last attempt."""


class _FailedAttemptError(Exception):
    """`wait_s`: what the server asked for. `attempts`: how many are worth it; None for ATTEMPTS."""

    def __init__(self, cause: str, wait_s: float | None = None, attempts: int | None = None) -> None:
        super().__init__(cause)
        self.wait_s = wait_s
        self.attempts = ATTEMPTS if attempts is None else attempts


@dataclass(frozen=True, slots=True)
class Reply:
    """`text`: with what a reasoning model thought before it, between <think> tags. `tokens`: None where the server
    does not say."""

    text: str
    tokens: int | None
    truncated: bool


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base_url`: ends in /v1, mostly. `model`: its name at the server. `chat`: messages, else plain text. `key`: ""
    for none; `key_name`: the environment variable that it is from. `timeout_s`: for one request."""

    base_url: str
    model: str
    chat: bool
    key: str
    key_name: str
    timeout_s: float


class OpenAIServer:
    """An asynchronous context manager.

    Args:
        parameters: `temperature` and the others that every request has.
        note: gets what a user should read.
    """

    def __init__(self, endpoint: Endpoint, parameters: Mapping[str, Any], note: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._parameters = dict(parameters)
        self._note = note
        self._url = f"{endpoint.base_url}/{'chat/completions' if endpoint.chat else 'completions'}"
        self._sends_seeds = True
        self._proxy = _proxy_of(endpoint.base_url)

    async def __aenter__(self) -> OpenAIServer:
        key = self._endpoint.key
        self._session = aiohttp.ClientSession(
            # Requests wait in no queue of their own: the caller limits how many there are.
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def check(self) -> None:
        """Is a server there, and does it take the key? Raises ServerError."""
        url = self._endpoint.base_url
        try:
            status, body, _ = await self._exchange("GET", f"{url}/models", None, CHECK_S)
        except TimeoutError:
            raise ServerError(f"{url} does not answer within {CHECK_S:g} s. Is it a model's server?") from None
        except aiohttp.ClientError as error:
            raise ServerError(
                f"nothing answers at {url} ({_cause(error)}). Start the server, or check the address"
            ) from error
        if status in (401, 403):
            raise ServerError(self._refused_key(status, body))

    async def reply(self, prompt: Any, seed: int) -> Reply:
        """The response to one prompt (text, or messages for a chat).

        Raises:
            ServerError: the server refuses such requests.
            NoReplyError: no attempt had a usable reply.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._attempt(prompt, seed)
            except _FailedAttemptError as error:
                if attempt >= error.attempts:
                    raise NoReplyError(f"{error} (attempts: {attempt})") from error
                await asyncio.sleep(_wait(attempt, error.wait_s))

    async def _attempt(self, prompt: Any, seed: int) -> Reply:
        request = self._request(prompt, seed)
        limit = self._endpoint.timeout_s
        try:
            status, body, retry_after = await self._exchange("POST", self._url, request, limit)
        except aiohttp.ConnectionTimeoutError:
            raise _FailedAttemptError(f"no connection within {CONNECT_S:g} s") from None
        except TimeoutError:
            raise _FailedAttemptError(f"no reply within {limit:g} s", attempts=TIMEOUT_ATTEMPTS) from None
        except aiohttp.ClientError as error:
            raise _FailedAttemptError(f"the connection failed: {_cause(error)}") from error
        if status == 200:
            return self._read(body)
        said = self._error_text(body)
        if status in REPEATABLE and "insufficient_quota" not in body:
            raise _FailedAttemptError(f"the server replied {status}: {said}", retry_after)
        if status in (400, 422) and self._adapts(request, said):
            return await self._attempt(prompt, seed)
        raise ServerError(await self._refusal(status, body))

    def _request(self, prompt: Any, seed: int) -> dict[str, Any]:
        content = {"messages": prompt} if self._endpoint.chat else {"prompt": prompt}
        # Not every server takes more than 31 bits.
        seeds = {"seed": seed & 0x7FFFFFFF} if self._sends_seeds else {}
        return {"model": self._endpoint.model, **content, **self._parameters, **seeds}

    def _adapts(self, request: Mapping[str, Any], said: str) -> bool:
        """Can the same be asked in the words of this server? Only where that changes no answer's distribution."""
        if "max_completion_tokens" in said and "max_tokens" in request:
            if "max_tokens" in self._parameters:
                self._parameters["max_completion_tokens"] = self._parameters.pop("max_tokens")
            return True
        if "seed" in said and "seed" in request:
            if self._sends_seeds:
                self._sends_seeds = False
                self._note(f"{self._endpoint.base_url} takes no seeds: the same answers cannot be sampled again")
            return True
        return False

    async def _exchange(self, method: str, url: str, content: Any, limit_s: float) -> tuple[int, str, float | None]:
        """Status, body, and how long the server asks to wait. Raises TimeoutError and aiohttp.ClientError."""
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_S)
        async with self._session.request(
            # A key is for this address, not for one that it leads to.
            method, url, json=content, timeout=timeout, proxy=self._proxy, allow_redirects=False
        ) as response:  # fmt: skip
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > LONGEST_BODY:
                    raise aiohttp.ClientPayloadError(f"the reply is longer than {LONGEST_BODY >> 20} MiB")
            text = body.decode("utf-8", errors="replace")
            if 300 <= response.status < 400:
                text = f"it redirects to {response.headers.get('Location', 'another address')}"
            return response.status, self._without_key(text, SECRET_FROM), _seconds(response.headers.get("Retry-After"))

    def _read(self, body: str) -> Reply:
        try:
            reply = json.loads(body)
        except ValueError:
            raise _FailedAttemptError(f"the reply is not JSON: {self._error_text(body)}") from None
        if isinstance(reply, dict) and reply.get("error"):
            raise _FailedAttemptError(f"the server replied with an error: {self._error_text(body)}")
        try:
            choice = reply["choices"][0]
            text = _chat_text(choice["message"]) if self._endpoint.chat else choice["text"]
            tokens = (reply.get("usage") or {}).get("completion_tokens")
            if not isinstance(text, str) or not isinstance(tokens, int | None):
                raise TypeError
            return Reply(text, tokens, choice.get("finish_reason") == "length")
        except (LookupError, TypeError, AttributeError):
            raise _FailedAttemptError(f"the reply has no response: {self._error_text(body)}") from None

    async def _refusal(self, status: int, body: str) -> str:
        endpoint, said = self._endpoint, self._error_text(body)
        if status in (401, 403):
            return self._refused_key(status, body)
        if status == 404:
            names = await self._models()
            if names and endpoint.model not in names:
                return f"{endpoint.base_url} has no model {endpoint.model!r} (404): it has {', '.join(names[:20])}"
            hint = "" if urlsplit(endpoint.base_url).path.strip("/") else f". Try --base_url {endpoint.base_url}/v1"
            return f"{self._url} is not there, or has no model {endpoint.model!r} (404: {said}){hint}"
        return f"{self._url} refuses the request ({status}: {said})"

    async def _models(self) -> list[str]:
        """The server's names of models; none where it does not tell them."""
        try:
            _, body, _ = await self._exchange("GET", f"{self._endpoint.base_url}/models", None, CHECK_S)
            return [str(model["id"]) for model in json.loads(body)["data"]]
        except (TimeoutError, aiohttp.ClientError, ValueError, LookupError, TypeError):
            return []

    def _refused_key(self, status: int, body: str) -> str:
        name, url = self._endpoint.key_name, self._endpoint.base_url
        sent = f"refuses the key of {name}" if self._endpoint.key else f"wants a key, and {name} is not set"
        refusal = f"{url} {sent} ({status}: {self._error_text(body)})"
        return f"{refusal}. Set {name}, or name another variable with --api_key_env"

    def _error_text(self, body: str) -> str:
        """What the server says is wrong, shortened."""
        said = body
        try:
            content = json.loads(body)
            if isinstance(content, dict):
                said = content.get("error") or content.get("detail") or content.get("message") or body
                said = said.get("message") or body if isinstance(said, dict) else said
        except ValueError:
            pass
        text = " ".join((said if isinstance(said, str) else json.dumps(said)).split())
        return self._without_key(text[:300], least=4) or "nothing more"

    def _without_key(self, text: str, least: int) -> str:
        """Some servers repeat the key that they refuse."""
        key = self._endpoint.key
        return text.replace(key, REMOVED) if len(key) >= least else text


def _chat_text(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or "" for part in content)
    thought = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(thought, str):
        return "" if content is None else content
    # Cut off while it thinks, it has no answer yet.
    return f"<think>{thought}" + ("" if content is None else f"</think>{content}")


def _wait(attempt: int, asked: float | None) -> float:
    if asked is not None:
        return min(asked, LONGEST_WAIT_S)
    # Not all at the same moment.
    return min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S) * random.uniform(0.5, 1.0)


def _seconds(retry_after: str | None) -> float | None:
    """Of a header that gives a number. A date is left out: the usual wait does as well."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _cause(error: aiohttp.ClientError) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        # asyncio's own text repeats the address instead.
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else str(error.os_error)
    return str(error) or type(error).__name__


def _proxy_of(url: str) -> str | None:
    """Of the environment, as other programs use it."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
