"""A model that is small enough to train in seconds, and its task: sums such as "7+15=", one token per character.

Its weights come from a supervised warm start on sums of which a known share is wrong: the larger the sum, the more
often. So its pass rates spread from about 0.05 to 0.9 as those of a real model do, by construction, and there is
something to learn: to prefer the right answer among the few that the model proposes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from openrlhf_ada.data.artifacts import build_directory, write_jsonl

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
ALPHABET = "\n 0123456789+-*/=<>().,:;?!'\"#%&@[]abcdefghijklmnopqrstuvwxy"
"""One token each; with the special tokens 64 in all, which is what vLLM pads a vocabulary to: no token is unused."""

LARGEST = 19
"""Operands are 0 ... 19, so there are 400 sums, and results have one or two digits."""

_RECIPE_VERSION = 1
_STEPS = 60
_LEARNING_RATE = 3e-3
_HELDOUT_SHARE = 0.25
_SLIPS = (-10, -2, -1, 1, 2, 10)
"""By how much a wrong answer of the warm start is off."""


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
            raise ValueError(
                f"num_{name} is {wanted}, expected 1 to {len(sums)} (the toy task has no more sums): ask for fewer "
                f"rows, and train for several episodes"
            )
        Random(f"{seed}/{name}").shuffle(sums)
        path = Path(out_dir) / f"{name}.jsonl"
        write_jsonl(path, [_row(a, b) for a, b in sums[:wanted]])
        paths[name] = str(path)
    return paths


def expected_pass_rate(total: int) -> float:
    """Share of right answers among those that the warm start shows for a sum of `total`: from 0.9 (0) to 0.05 (38)."""
    return 0.05 + 0.85 * (1 - total / (2 * LARGEST)) ** 1.5


def _row(a: int, b: int) -> dict[str, str]:
    level = "easy" if a + b < 10 else "medium" if a + b < 20 else "hard"
    return {"input": f"{a}+{b}=", "label": str(a + b), "datasource": f"toy-{level}", "id": f"toy/{a}+{b}"}


def _build(directory: Path, seed: int) -> None:
    import torch
    from transformers import GenerationConfig

    tokenizer = _build_tokenizer()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more threads are slower at this size, and would make sums depend on their number
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _new_model(tokenizer)
            _warm_start(model, tokenizer, seed)
    finally:
        torch.set_num_threads(threads)
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(**_special_ids(tokenizer))
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


def _special_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

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
        **_special_ids(tokenizer),
    )
    return LlamaForCausalLM(config)


def _warm_start(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Supervised steps, each over all sums with freshly drawn answers; loss on the answer and the end token only."""
    import torch

    ids, labels, chances = _answer_table(tokenizer)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=_LEARNING_RATE, total_steps=_STEPS, pct_start=0.1, cycle_momentum=False
    )
    every_sum = torch.arange(len(ids))
    model.train()
    for step in range(_STEPS):
        answer = torch.multinomial(chances, 1, generator=generator)[:, 0]
        loss = model(input_ids=ids[every_sum, answer], labels=labels[every_sum, answer]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == _STEPS - 1:
            logger.info("toy warm start: step %d of %d, loss %.3f", step + 1, _STEPS, loss.item())
    model.eval()


def _answer_table(tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each of the 400 sums and each answer the warm start may show (the right one first): token ids and labels,
    shape (sums, answers, longest), right-padded and with -100 where there is no loss; chances, shape (sums, answers).
    """
    import torch

    sums = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    shape = (len(sums), 1 + len(_SLIPS), len(f"{LARGEST}+{LARGEST}=") + 3)
    ids, labels = torch.full(shape, tokenizer.pad_token_id), torch.full(shape, -100)
    chances = torch.zeros(shape[:2])
    for row, (a, b) in enumerate(sums):
        prompt, right = f"{a}+{b}=", expected_pass_rate(a + b)
        slips = [slip for slip in _SLIPS if a + b + slip >= 0]
        for column, slip in enumerate((0, *slips)):
            text = tokenizer.encode(f"{prompt}{a + b + slip}", add_special_tokens=False) + [tokenizer.eos_token_id]
            ids[row, column, : len(text)] = torch.tensor(text)
            labels[row, column, len(prompt) : len(text)] = torch.tensor(text[len(prompt) :])
            chances[row, column] = right if slip == 0 else (1 - right) / len(slips)
    return ids, labels, chances
