"""Intel's AMX on a CPU: a process must ask Linux for its registers before the first instruction that uses them."""

from __future__ import annotations

import torch


def ask_for_amx() -> None:
    """Before vLLM computes anything. Where Linux refuses, vLLM is told that there is no AMX.

    vLLM's attention uses AMX where the processor has it, and leaves the asking to a matrix product of more than four
    rows. If the first step of an engine has fewer tokens, there was none, and the process is ended by SIGILL.
    Contract: test_cpu_engine_shims.test_vllm_uses_amx_without_asking_for_it
    """
    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        torch.cpu._is_amx_tile_supported = lambda: False
