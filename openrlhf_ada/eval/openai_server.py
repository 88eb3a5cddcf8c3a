"""Responses of a server that speaks OpenAI's protocol, by OpenAI's own client, in a bounded time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from openrlhf_ada.config.visible import REMOVED

RETRIES = 10
"""Of a request that a later attempt may answer: about a minute, or as long as the server asks for (Retry-After)."""

CHECK_S = 30.0

SECRET_FROM = 16
"""Characters from which a key is taken out of responses too. Shorter ones are placeholders, such as EMPTY."""


class ServerError(ValueError):
    """No request can succeed; the message says why, and what to do."""


class NoReplyError(Exception):
    """One request had no usable reply."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`text`: with what a reasoning model thought before it, between <think> tags. `tokens`: None where the server
    does not say."""

    text: str
    tokens: int | None
    truncated: bool


@dataclass
class OpenAIServer:
    """An asynchronous context manager.

    `base_url`: ends in /v1, mostly. `model`: its name at the server. `chat`: messages, else plain text. `key`: "" for
    none; `key_name`: the environment variable that it is from. `timeout_s`: for one request, with its repeats.
    `parameters`: `temperature` and the others that every request has. `note`: gets what a user should read.
    """

    base_url: str
    model: str
    chat: bool
    key: str = field(repr=False)
    key_name: str
    timeout_s: float
    parameters: dict[str, Any]
    note: Callable[[str], None]
    _sends_seeds: bool = True

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    async def __aenter__(self) -> OpenAIServer:
        # Imported in seconds.
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self._client: Any = AsyncOpenAI(
            base_url=self.base_url,
            api_key=self.key or "EMPTY",
            max_retries=RETRIES,
            timeout=self.timeout_s,
            # A key is for this address, not for one that it leads to.
            http_client=DefaultAsyncHttpxClient(follow_redirects=False, timeout=self.timeout_s),
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.close()

    async def check(self) -> None:
        """Is a server there, and does it take the key? Raises ServerError."""
        import openai

        url = self.base_url
        try:
            await self._client.with_options(max_retries=0, timeout=CHECK_S).get("/models", cast_to=str)
        except openai.APITimeoutError:
            raise ServerError(f"{url} does not answer within {CHECK_S:g} s. Is it a model's server?") from None
        except openai.APIConnectionError as error:
            raise ServerError(f"nothing answers at {url}. Start the server, or check the address") from error
        except openai.APIStatusError as error:
            if error.status_code in (401, 403):
                raise ServerError(self._refusal(error)) from error

    async def reply(self, prompt: Any, seed: int) -> Reply:
        """The response to one prompt (text, or messages for a chat). Raises ServerError where the server
        refuses such requests, NoReplyError where no attempt had a usable reply."""
        import openai

        content = {"messages": prompt} if self.chat else {"prompt": prompt}
        # Not every server takes more than 31 bits.
        seeds = {"seed": seed & 0x7FFFFFFF} if self._sends_seeds else {}
        request = {"model": self.model, **content, **self.parameters, **seeds}
        try:
            async with asyncio.timeout(self.timeout_s):
                return self._read(await self._client.post(self.path, cast_to=str, body=request))
        except (TimeoutError, openai.APITimeoutError):
            raise NoReplyError(f"no reply within {self.timeout_s:g} s") from None
        except openai.APIConnectionError as error:
            raise NoReplyError("the connection failed") from error
        except openai.APIStatusError as error:
            status, said = error.status_code, self._said(error)
            if status in (408, 409, 429) or status >= 500:
                if error.code != "insufficient_quota":
                    raise NoReplyError(f"the server replied {status}: {said}") from error
            elif status in (400, 422) and self._adapts(request, said):
                return await self.reply(prompt, seed)
            raise ServerError(self._refusal(error)) from error

    def _adapts(self, request: Mapping[str, Any], said: str) -> bool:
        """Can the same be asked in the words of this server? Only where that changes no answer's distribution."""
        if "max_completion_tokens" in said and "max_tokens" in request:
            if "max_tokens" in self.parameters:
                self.parameters["max_completion_tokens"] = self.parameters.pop("max_tokens")
            return True
        if "seed" in said and "seed" in request:
            if self._sends_seeds:
                self._sends_seeds = False
                self.note(f"{self.base_url} takes no seeds: the same answers cannot be sampled again")
            return True
        return False

    def _read(self, body: str) -> Reply:
        try:
            reply = json.loads(self._without_key(body, SECRET_FROM))
            choice = reply["choices"][0]
            text = _chat_text(choice["message"]) if self.chat else choice["text"]
            tokens = (reply.get("usage") or {}).get("completion_tokens")
            if not isinstance(text, str) or not isinstance(tokens, int | None):
                raise TypeError
            return Reply(text, tokens, choice.get("finish_reason") == "length")
        except (ValueError, LookupError, TypeError, AttributeError):
            raise NoReplyError(f"the reply holds no response: {self._shown(body)}") from None

    def _refusal(self, error: Any) -> str:
        status, said = error.status_code, self._said(error)
        if status in (401, 403):
            key = f"refuses the key of {self.key_name}" if self.key else f"wants a key ({self.key_name})"
            remedy = f". Set {self.key_name}, or name another variable with --api_key_env"
            return f"{self.base_url} {key} ({status}: {said}){remedy}"
        has_path = bool(urlsplit(self.base_url).path.strip("/"))
        hint = "" if status != 404 or has_path else f". Try --base_url {self.base_url}/v1"
        return f"{self.base_url}{self.path} refuses the request for {self.model!r} ({status}: {said}){hint}"

    def _said(self, error: Any) -> str:
        """What the server says is wrong."""
        said = error.body or error.response.headers.get("Location", "")
        said = said.get("message") or said.get("detail") or said if isinstance(said, dict) else said
        return self._shown(str(said))

    def _shown(self, text: str) -> str:
        return self._without_key(" ".join(text.split())[:300], least=4) or "nothing more"

    def _without_key(self, text: str, least: int) -> str:
        """Some servers repeat the key that they refuse."""
        key = self.key
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
