"""For tests of the adapter to TRL: a tiny model, prompts of known pass rates, and stand-ins for what needs a GPU.

These are the engine behind vLLM's HTTP interface, and the attention kernel of TRL's asynchronous trainer.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

from openrlhf_ada.adapters.trl import AdaGRPOTrainer
from openrlhf_ada.demo.toy import _build_tokenizer, special_ids

PROMPTS, VOCABULARY = 12, 64


def tokenizer() -> PreTrainedTokenizerFast:
    made = _build_tokenizer()
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    made.response_template = {}
    return made


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **special_ids(tokenizer())))


def saved_model(folder: Path) -> str:
    model().save_pretrained(folder)
    return str(folder)


def prompts(*, chat: bool = False) -> Dataset:
    """An answer to row i is right with a chance of about i / 12."""
    texts = [f"{i}+{i}=" for i in range(PROMPTS)]
    asked = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    return Dataset.from_dict({"prompt": asked, "share": [i / PROMPTS for i in range(PROMPTS)]})


def right(completion_ids: list[list[int]], share: list[float], **others: Any) -> list[float]:
    return [float(ids[0] / VOCABULARY < most) for ids, most in zip(completion_ids, share, strict=True)]


def bonus(completion_ids: list[list[int]], **others: Any) -> list[float]:
    """A reward that does not decide."""
    return [ids[-1] % 4 / 4 for ids in completion_ids]


SHARED = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 3, "learning_rate": 1e-2}
SHARED |= {"report_to": "none", "use_cpu": True, "bf16": False, "save_steps": 2, "logging_steps": 1, "max_steps": 4}


def synchronous(
    folder: Path, ada: Any, reward: Any = right, kind: Any = AdaGRPOTrainer, *, chat: bool = False, **changes: Any
) -> Any:
    """4 prompts and 16 trained rollouts a step."""
    own = {"gradient_accumulation_steps": 2, "scale_rewards": "none", "disable_tqdm": True}
    args = GRPOConfig(str(folder), **SHARED | own | changes)
    return kind(model(), reward, args, prompts(chat=chat), ada=ada, processing_class=tokenizer())


class _Engine(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = [random.Random(asked["seed"]).randrange(4, VOCABULARY) for _ in range(asked["max_tokens"])]
        logprobs = {"token_logprobs": [-math.log(VOCABULARY)] * len(ids)}
        body = json.dumps({"choices": [{"token_ids": ids, "logprobs": logprobs}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def engine() -> Iterator[str]:
    """The address of something that answers as vLLM does, with tokens as likely as the untrained model's."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Engine)
    server.handle_error = lambda *connection: None  # the trainer's end cuts requests off
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def _attention(q: Any, k: Any, v: Any, at_q: Any, at_k: Any, *sizes: Any, softmax_scale: float, **others: Any) -> Any:
    """Causal attention of packed segments, aligned at their ends."""
    parts = []
    for i in range(len(at_q) - 1):
        here, keys = slice(at_q[i], at_q[i + 1]), slice(at_k[i], at_k[i + 1])
        scores = torch.einsum("qhd,khd->hqk", q[here], k[keys]) * softmax_scale
        queries, known = scores.shape[1:]
        hidden = torch.ones(queries, known, dtype=torch.bool).triu(known - queries + 1)
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v[keys]))
    return torch.cat(parts)


KERNELS = SimpleNamespace(flash_attn_varlen_func=_attention)

NO_TRANSFER = SimpleNamespace(
    **dict.fromkeys(("init_weight_transfer", "pause", "resume", "destroy"), lambda: None),
    send_weights=lambda weights: [None for _ in weights],
)
