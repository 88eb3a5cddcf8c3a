"""The console script `openrlhf-ada`: one command, a few verbs. Each verb imports what it needs when it is called."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

COMMANDS = """commands:
  train         train with OpenRLHF, adaptively (all OpenRLHF flags; see: openrlhf-ada train --help)
  demo          train a small model on this machine's CPU and show that it learned
  demo-model    write the demo's model as a Hugging Face checkpoint
  demo-data     write the demo's prompts: train.jsonl and heldout.jsonl
  prepare-data  raw problems to training data of known difficulty: checked, sampled, selected
  eval          evaluate models on benchmarks: avg@n, pass@k, maj@k, with intervals
  submit        run train, eval or prepare-data on a Ray cluster: openrlhf-ada submit train ...
  report        write report.html and plot.png of a run directory
  simulate      how long sampling would take with other policies, schedulers and numbers of engines
"""


def _train(argv: Sequence[str]) -> int:
    from openrlhf_ada.cli.train_ppo_ray import main as train

    return train(argv)


def _demo(argv: Sequence[str]) -> int:
    from openrlhf_ada.cli.demo import main as demo

    return demo(argv)


def demo_model_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openrlhf-ada demo-model", description="SmolLM2-135M-Instruct, or a toy")
    parser.add_argument("out_dir", type=Path, help="folder to write")
    parser.add_argument("--toy", action="store_true", help="a two-layer character model, warm-started in seconds")
    return parser


def _demo_model(argv: Sequence[str]) -> int:
    args = demo_model_parser().parse_args(argv)
    from openrlhf_ada.demo.model import build_smollm2
    from openrlhf_ada.demo.toy import build_toy_model

    print((build_toy_model if args.toy else build_smollm2)(args.out_dir))
    return 0


def demo_data_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openrlhf-ada demo-data", description="Arithmetic of graded difficulty")
    parser.add_argument("out_dir", type=Path, help="folder to write")
    parser.add_argument("--toy", action="store_true", help="the toy model's task")
    parser.add_argument("--num-train", type=int, default=256, help="training prompts (default 256)")
    parser.add_argument("--num-heldout", type=int, default=100, help="held-out prompts (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    return parser


def _demo_data(argv: Sequence[str]) -> int:
    args = demo_data_parser().parse_args(argv)
    from openrlhf_ada.demo.arithmetic import write_demo_data
    from openrlhf_ada.demo.toy import write_toy_data

    write = write_toy_data if args.toy else write_demo_data
    print(write(args.out_dir, num_train=args.num_train, num_heldout=args.num_heldout, seed=args.seed))
    return 0


def report_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openrlhf-ada report", description="Report of a run, finished or not")
    parser.add_argument("run_dir", type=Path, help="run directory; the two files are written there")
    return parser


def _report(argv: Sequence[str]) -> int:
    args = report_parser().parse_args(argv)
    from openrlhf_ada.reporting.plots import plot_run
    from openrlhf_ada.reporting.report import write_report
    from openrlhf_ada.reporting.run_record import read_run

    run = read_run(args.run_dir)
    print(plot_run(run, args.run_dir / "plot.png"))
    print(write_report(run, args.run_dir / "report.html"))
    return 0


def _simulate(argv: Sequence[str]) -> int:
    from openrlhf_ada.cli.simulate import main as simulate

    return simulate(argv)


def _eval(argv: Sequence[str]) -> int:
    from openrlhf_ada.cli.evaluate import main as evaluate

    return evaluate(argv)


def _prepare_data(argv: Sequence[str]) -> int:
    from openrlhf_ada.cli.prepare_data import main as prepare

    return prepare(argv)


def _submit(argv: Sequence[str]) -> int:
    from openrlhf_ada.cli.submit import main as submit

    return submit(argv)


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": _train,
    "demo": _demo,
    "demo-model": _demo_model,
    "demo-data": _demo_data,
    "eval": _eval,
    "prepare-data": _prepare_data,
    "report": _report,
    "simulate": _simulate,
    "submit": _submit,
}


def main() -> int:
    """Entry point; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: openrlhf-ada <command> [options]\n\n{COMMANDS}")
        return 0 if arguments else 2
    verb, *rest = arguments
    if verb not in VERBS:
        print(f"openrlhf-ada: error: no command {verb!r}. {COMMANDS}", file=sys.stderr)
        return 2
    try:
        return VERBS[verb](rest)
    except (OSError, ValueError) as error:
        # What the small verbs raise for bad input; `train` and `demo` answer for themselves.
        if verb in ("train", "demo"):
            raise
        print(f"openrlhf-ada {verb}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
