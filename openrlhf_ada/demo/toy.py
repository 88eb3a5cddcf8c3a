"""A model that is small enough to train in seconds, and its task: sums such as "7+15=", one token per character.

Its weights come from a supervised warm start: first on right answers, then on answers of which a known share is wrong,
namely repeats an operand ("7+15=7"), the larger the sum the more often. So its pass rates spread from about 0.05 to
0.9, as those of a real model do, and there is something to learn that carries over to other sums: not to repeat.
"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from openrlhf_ada.demo.artifacts import build_directory, write_jsonl

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
ALPHABET = "\n 0123456789+-*/=<>().,:;?!'\"#%&@[]abcdefghijklmnopqrstuvwxy"
"""One token each; with the special tokens 64 in all, which is what vLLM pads a vocabulary to: no token is unused."""

LARGEST = 19
"""Operands are 0 ... 19, so there are 400 sums, and results have one or two digits."""

_RECIPE_VERSION = 2
_HELDOUT_SHARE = 0.27


def build_toy_model(out_dir: Path, *, seed: int = 0) -> Path:
    """Build and warm-start the model (2 layers, hidden size 64, 0.1 M parameters, bf16) in `out_dir`; return it.

    Deterministic given `seed` on one machine. Takes under 40 s on one core; returns at once when `out_dir` is
    complete. Raises FileExistsError when `out_dir` holds something else.
    """
    recipe = {"model": "toy", "version": _RECIPE_VERSION, "seed": seed}
    return build_directory(Path(out_dir), recipe, lambda directory: _build(directory, seed))


def write_toy_data(out_dir: Path, *, num_train: int, num_heldout: int, seed: int) -> dict[str, Any]:
    """Write `train.jsonl` and `heldout.jsonl` for the toy model; the same arguments give the same files.

    Rows have the keys "input", "label", "datasource" and "id" and are distinct; no held-out sum occurs in the training
    rows, in either order of its operands. The reward is that of the demo (`reward/arithmetic.py`). Returns the paths
    ("train", "heldout"). Raises ValueError when a number is below 1 or above what the 400 sums give.
    """
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(a, LARGEST + 1)]
    Random(f"{seed}/split").shuffle(pairs)
    cut = round(_HELDOUT_SHARE * len(pairs))
    sides = {"heldout": (pairs[:cut], num_heldout), "train": (pairs[cut:], num_train)}
    paths: dict[str, Any] = {}
    for name, (side, wanted) in sides.items():
        sums = sorted({(a, b) for a, b in side} | {(b, a) for a, b in side})
        if not 1 <= wanted <= len(sums):
            raise ValueError(f"num_{name} is {wanted}, expected 1 to {len(sums)} sums: ask for fewer rows")
        Random(f"{seed}/{name}").shuffle(sums)
        path = Path(out_dir) / f"{name}.jsonl"
        write_jsonl(path, [_row(a, b) for a, b in sums[:wanted]])
        paths[name] = str(path)
    return paths


def expected_pass_rate(total: int) -> float:
    """Share of right answers that the warm start shows for a sum of `total`: from 0.96 (0) down to 0.16 (38). A model
    comes out a little lower: between 0.05 and 0.85, and about 0.4 on average."""
    return 0.15 + 0.82 / (1 + math.exp((total - 18) / 4))


def _row(a: int, b: int) -> dict[str, str]:
    level = "easy" if a + b < 10 else "medium" if a + b < 20 else "hard"
    return {"input": f"{a}+{b}=", "label": str(a + b), "datasource": f"toy-{level}", "id": f"toy/{a}+{b}"}


def _build(directory: Path, seed: int) -> None:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = _build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that vLLM's attention on CPU supports
        max_position_embeddings=64,
        tie_word_embeddings=False,
        dtype="float32",
        **special_ids(tokenizer),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower at this size, and would make sums depend on their number
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
            _warm_start(model, tokenizer)
    finally:
        torch.set_num_threads(threads)
    model = model.bfloat16()
    model.generation_config = GenerationConfig(**special_ids(tokenizer))
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def _build_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *ALPHABET))}
    # Byte-pair encoding without merges gives one token per character.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    pad, bos, eos, unk = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Of padding, begin and end, as models' configurations have them."""
    return {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}


_PHASES = (
    (600, 64, 4e-3, False),  # learns to add; RL can only find that again
    (200, 128, 1e-3, True),
)
"""The warm start: supervised steps, random sums in each, learning rate, and are wrong answers shown too, each as often
as `expected_pass_rate` says?"""


def _warm_start(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Train `model` in place; loss on the answer and the end token only."""
    import torch

    ids, labels, chances = _answer_table(tokenizer)
    model.train()
    for steps, batch, learning_rate, shows_wrong in _PHASES:
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, learning_rate, total_steps=steps, pct_start=0.15, cycle_momentum=False
        )
        for _ in range(steps):
            row = torch.randint(len(ids), (batch,))
            column = torch.multinomial(chances[row], 1)[:, 0] if shows_wrong else torch.zeros_like(row)
            loss = model(input_ids=ids[row, column], labels=labels[row, column]).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()


def _answer_table(tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and labels (400 sums, 3 answers, longest) and chances (400, 3) of the sum itself and the two operands."""
    import torch

    ids_of = special_ids(tokenizer)
    sums = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    shape = (len(sums), 3, len(f"{LARGEST}+{LARGEST}={2 * LARGEST}") + 1)
    ids, labels = torch.full(shape, ids_of["pad_token_id"]), torch.full(shape, -100)
    chances = torch.zeros(shape[:2])
    for row, (a, b) in enumerate(sums):
        prompt, right = f"{a}+{b}=", expected_pass_rate(a + b)
        for column, answer in enumerate((a + b, a, b)):
            text = [*tokenizer.encode(f"{prompt}{answer}", add_special_tokens=False), ids_of["eos_token_id"]]
            ids[row, column, : len(text)] = torch.tensor(text)
            labels[row, column, len(prompt) : len(text)] = torch.tensor(text[len(prompt) :])
            chances[row, column] = right if column == 0 else (1 - right) / 2
    return ids, labels, chances
