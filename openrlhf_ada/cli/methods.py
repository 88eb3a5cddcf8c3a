"""List the methods of --ada_method, or show one: the file, and what it rests on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from openrlhf_ada.cli.plan_tables import CONTROL, DEFAULT, EXPERIMENTS
from openrlhf_ada.config.presets import METHODS, PARTS, Method, method_named, part

PROG = "openrlhf-ada methods"

KINDS = {DEFAULT: "recommended", CONTROL: "control"} | dict.fromkeys(EXPERIMENTS, "experiment")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status. Raises ConfigError for what is no method."""
    name = build_parser().parse_args(argv).name
    print(_listed() if name is None else _shown(_named(name)), end="")
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="a method, or a YAML file of your own")
    return parser


def _named(name: str) -> Method:
    return part(name) if (PARTS / f"{name}.yaml").is_file() and name not in METHODS else method_named(name)


def _listed() -> str:
    """Recommended first, then the control, experiments, and all others."""
    order = sorted(METHODS, key=lambda name: list(KINDS).index(name) if name in KINDS else len(KINDS))
    width = max(map(len, METHODS))
    return "".join(f"{name:{width}}  {KINDS.get(name, ''):11}  {METHODS[name].summary}\n" for name in order)


def _shown(method: Method) -> str:
    return "\n".join(f"# {file}\n{file.read_text(encoding='utf-8')}" for file in method.files)
