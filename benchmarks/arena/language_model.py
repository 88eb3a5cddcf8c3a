"""The chain tasks for a language model: a Llama of one layer that Hugging Face, vLLM and the learner track can run.

A prompt is a formula: `K³7` asks for K(7), K(K(7)), K(K(K(7))). One token per character, and the answer's tokens have
the numbers that they have in `tasks`, so the same answers can be compared on both sides.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.arena.learner import AnswerModel, PromptBatch, WarmUp, drawn, until_end, warm_up
from benchmarks.arena.tasks import END, NUM_SYMBOLS, PAD, TAG, Ints, Prompts, World

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

END_TEXT, PAD_TEXT, TAG_TEXT = "<eos>", "<pad>", "#"

FUNCTIONS = string.ascii_letters + "αβγδεζηθκλμν"
LENGTHS = "¹²³⁴⁵⁶⁷⁸⁹"
"""Names of functions and of lengths, from 1."""

_FIRST_LENGTH = PAD + 1
_FIRST_FUNCTION = _FIRST_LENGTH + len(LENGTHS)

PROMPT_TOKENS = 3

HIDDEN, INTERMEDIATE, HEADS, LAYERS = 64, 128, 2, 1
"""Two heads of 32, the smallest that vLLM's attention on a CPU supports."""

SPREAD = 0.1
"""Standard deviation of the first weights. With the usual 0.02 so small a model needs several times as many steps."""

WARM_UP = WarmUp(800, 128, 5e-3)


class ChainLanguageModel(AnswerModel):
    """Answers are the continuation of a prompt's tokens. Every prompt has as many tokens, so nothing is padded."""

    def __init__(self, llama: LlamaForCausalLM) -> None:
        super().__init__()
        self.llama = llama

    def sample(self, prompts: PromptBatch, generator: torch.Generator) -> Tensor:
        """No answer ends at its first token: OpenRLHF asks vLLM for one token at least (`min_tokens`)."""
        said = prompt_tokens(prompts)
        tokens = torch.full(prompts.answers.shape, PAD)
        speaking = torch.arange(len(said))
        for position in range(tokens.shape[1]):
            logits = self.llama(input_ids=said, use_cache=False, logits_to_keep=1).logits[:, -1]
            if position == 0:
                logits[:, END] = -torch.inf
            latest = drawn(logits, generator)
            tokens[speaking, position] = latest
            goes_on = latest != END
            speaking, said = speaking[goes_on], torch.cat([said, latest.unsqueeze(1)], dim=1)[goes_on]
            if not len(speaking):
                break
        return tokens

    def token_log_probs(self, prompts: PromptBatch, tokens: Tensor) -> Tensor:
        read = torch.cat([prompt_tokens(prompts), tokens[:, :-1]], dim=1)
        logits = self.llama(input_ids=read, use_cache=False, logits_to_keep=tokens.shape[1]).logits
        chosen = functional.log_softmax(logits, dim=2).gather(2, tokens.unsqueeze(2)).squeeze(2)
        return torch.where(until_end(tokens), chosen, 0.0)


# -- text -------------------------------------------------------------------------------------------------------------


def prompt_tokens(prompts: PromptBatch) -> Tensor:
    """Shape (N, PROMPT_TOKENS)."""
    columns = (prompts.function + _FIRST_FUNCTION, prompts.length + _FIRST_LENGTH - 1, prompts.start)
    return torch.stack(columns, dim=1)


def vocabulary(num_functions: int) -> list[str]:
    """The text of every token, by number. Raises ValueError for more functions than there are names."""
    if num_functions > len(FUNCTIONS):
        raise ValueError(f"{num_functions} functions, and there are names for {len(FUNCTIONS)}")
    spoken = [*map(str, range(NUM_SYMBOLS)), *(text for _, text in sorted(((TAG, TAG_TEXT), (END, END_TEXT))))]
    return [*spoken, PAD_TEXT, *LENGTHS, *FUNCTIONS[:num_functions]]


def rows_of(prompts: Prompts) -> list[dict[str, Any]]:
    """Rows of a data set: "input" and "label", the one right answer without its end."""
    names = vocabulary(int(prompts.function.max()) + 1)
    inputs = prompt_tokens(PromptBatch.of(prompts)).numpy()
    return [
        {"input": _text(said, names), "label": _text(answer, names).removesuffix(END_TEXT)}
        for said, answer in zip(inputs, prompts.answers, strict=True)
    ]


def _text(tokens: Ints, names: list[str]) -> str:
    """Up to the end token, if there is one."""
    text = "".join(names[token] for token in tokens)
    head, end, _ = text.partition(END_TEXT)
    return head + end


def tokenizer_of(num_functions: int) -> PreTrainedTokenizerFast:
    """One token per character."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    numbers = {text: number for number, text in enumerate(vocabulary(num_functions))}
    # Byte-pair encoding without merges gives one token per character.
    backend = Tokenizer(models.BPE(vocab=numbers, merges=[]))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_TEXT,
        pad_token=PAD_TEXT,
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


# -- checkpoints ------------------------------------------------------------------------------------------------------


def new_model(num_functions: int) -> ChainLanguageModel:
    """With random weights, in float32."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    special: dict[str, Any] = {"eos_token_id": END, "pad_token_id": PAD, "bos_token_id": None}
    config = LlamaConfig(
        vocab_size=len(vocabulary(num_functions)),
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=64,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        dtype="float32",
        **special,
    )
    llama: Any = LlamaForCausalLM(config)
    llama.generation_config = GenerationConfig(**special)
    return ChainLanguageModel(llama)


def save_start(world: World, seed: int, folder: Path) -> None:
    """Write the starting model of a world, and its tokenizer, as a Hugging Face checkpoint. Takes half a minute."""
    torch.manual_seed(seed)
    model = new_model(world.task.num_functions)
    warm_up(model, world, seed, WARM_UP)
    model.llama.save_pretrained(folder)
    tokenizer_of(world.task.num_functions).save_pretrained(folder)


def load_model(folder: Path) -> ChainLanguageModel:
    """A checkpoint that `save_start` or a training has written, in float32."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    # One for each of twelve tensors, a hundred times.
    logging.disable_progress_bar()
    return ChainLanguageModel(AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32))
