"""openrlhf-ada demo-model, demo-data: what the demo trains, to look at or to train by other flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def model_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openrlhf-ada demo-model", description="SmolLM2-135M-Instruct, or a toy")
    parser.add_argument("out_dir", type=Path, help="folder to write")
    parser.add_argument("--toy", action="store_true", help="a two-layer character model, warm-started in seconds")
    return parser


def data_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openrlhf-ada demo-data", description="Arithmetic of graded difficulty")
    parser.add_argument("out_dir", type=Path, help="folder to write")
    parser.add_argument("--toy", action="store_true", help="the toy model's task")
    parser.add_argument("--num-train", type=int, default=256, help="training prompts (default 256)")
    parser.add_argument("--num-heldout", type=int, default=100, help="held-out prompts (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    return parser


def write_model(argv: Sequence[str]) -> int:
    """Entry point of demo-model; returns the exit status."""
    args = model_parser().parse_args(argv)
    from openrlhf_ada.demo.model import build_smollm2
    from openrlhf_ada.demo.toy import build_toy_model

    print((build_toy_model if args.toy else build_smollm2)(args.out_dir))
    return 0


def write_data(argv: Sequence[str]) -> int:
    """Entry point of demo-data; returns the exit status."""
    args = data_parser().parse_args(argv)
    from openrlhf_ada.demo.arithmetic import write_demo_data
    from openrlhf_ada.demo.toy import write_toy_data

    write = write_toy_data if args.toy else write_demo_data
    print(write(args.out_dir, num_train=args.num_train, num_heldout=args.num_heldout, seed=args.seed))
    return 0
