"""Which of torch's attention kernels for CPUs trains short rows faster, in bfloat16 and in single precision?

python benchmarks/cpu_attention.py      half a minute; its last line is one JSON object, kept in benchmarks/results/

Milliseconds forward and backward of a layer of SmolLM2-135M (9 heads of 64), medians of 9 turns, by precision,
tokens of a row and kernel. About 1,600 tokens in all.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

RESULTS = Path(__file__).parent / "results" / "cpu_attention.json"

HEADS, WIDTH, TOKENS, TURNS = 9, 64, 1600, 9
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "plain": SDPBackend.MATH}


def milliseconds(kernel: SDPBackend, length: int, dtype: torch.dtype) -> tuple[float, float]:
    """Forward, backward."""
    rows = TOKENS // length
    query, key, value = (torch.randn(rows, HEADS, length, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.zeros(rows, 1, length, length, dtype=dtype)
    turns: list[tuple[float, float]] = []
    for _ in range(TURNS):
        start = time.perf_counter()
        with sdpa_kernel(kernel):
            result = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        between = time.perf_counter()
        result.sum().backward()
        turns.append((between - start, time.perf_counter() - between))
    forward, backward = (round(1000 * median(of), 1) for of in zip(*turns, strict=True))
    return forward, backward


def main() -> None:
    found = {
        str(dtype).removeprefix("torch."): {
            length: {name: milliseconds(kernel, length, dtype) for name, kernel in KERNELS.items()}
            for length in (32, 64, 128, 192, 256)
        }
        for dtype in (torch.bfloat16, torch.float32)
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
