"""Which checkpoint a run goes on from (--ckpt.load_enable), and whether it is of the same run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.reporting.run_log import SUMMARY_FILE
from openrlhf_ada.reporting.run_record import is_number, read_run
from openrlhf_ada.trainer.checkpoints import (
    Manifest,
    NoWholeCheckpointError,
    Origin,
    differences,
    go_on_from,
    has_checkpoint,
    newest_whole,
)

FLAG = "--ckpt.load_enable"

FIXED = ("ada.mode", "train.seed", "rollout.batch_size", "ds.zero_stage", "ds.lora.rank", "actor.optim")
"""Flags of which a checkpoint holds a state: order and position of the prompts, weights, the optimizer's moments."""

MODEL = "actor.model_name_or_path"


def resumes(args: SimpleNamespace) -> bool:
    """Is there a checkpoint to go on from? Without one OpenRLHF starts at step 0."""
    return args.ckpt.load_enable and has_checkpoint(Path(args.ckpt.path))


def prepare_resume(args: SimpleNamespace) -> list[str]:
    """Let OpenRLHF load the newest whole checkpoint of --ckpt.path. Returns lines to show.

    `args`: flags, after `prepare_training_data`.

    Raises ConfigError: none is whole, or it is of other prompts, or of flags that cannot change.
    """
    root = Path(args.ckpt.path)
    if not args.ckpt.load_enable:
        return []
    if not has_checkpoint(root):
        # OpenRLHF would stumble over the folder of one that was never finished.
        args.ckpt.load_enable = False
        return [f"{FLAG}: there is no finished checkpoint in {root}: training starts anew"]
    if args.ds.use_universal_ckpt:
        return [f"{FLAG}: a universal checkpoint is loaded as it is; neither its files nor its flags are checked"]
    try:
        choice = newest_whole(root)
    except NoWholeCheckpointError as error:
        raise ConfigError(
            "--ckpt.path", str(root), f"no checkpoint in it is whole: {error}", "Start anew with another folder"
        ) from error
    if choice is None:
        return [f"{FLAG}: the checkpoint in {root} has no manifest: neither its files nor its flags are checked"]
    (manifest, passed_over), now = choice, args.ada_origin
    _check_same(root, manifest, now, has_critic=args.critic.model_name_or_path is not None)
    go_on_from(root, manifest.tag)
    lines = [f"{FLAG}: {tag} is passed over: {damage}" for tag, damage in passed_over]
    changed = ", ".join(f"{_flag(name)} {new} (was {old})" for name, old, new in differences(manifest.origin, now))
    if changed:
        lines.append(f"{FLAG}: flags that differ from the checkpoint's: {changed}")
    return [*lines, f"{FLAG}: training goes on from {manifest.tag} in {root}"]


def already_complete(args: SimpleNamespace, run_dir: Path) -> str:
    """What to tell the user where a run that is to be resumed has nothing left to train; else empty.

    The summary of a record is written when the model is exported.
    """
    exported = [path for path in Path(args.ckpt.output_dir).glob("*") if path.suffix in (".safetensors", ".bin")]
    if not (args.ckpt.load_enable and exported and (run_dir / SUMMARY_FILE).is_file()):
        return ""
    run = read_run(run_dir)
    episodes = run.flag("train.num_episodes")
    if not is_number(episodes) or episodes < args.train.num_episodes:
        return ""
    return (
        f"{FLAG}: {run_dir} is already complete: {len(run.steps)} steps, --train.num_episodes {episodes:g}. Its model "
        f"is in {args.ckpt.output_dir}. Raise --train.num_episodes to train it further"
    )


def _check_same(root: Path, manifest: Manifest, now: Origin, *, has_critic: bool) -> None:
    """Raises ConfigError."""
    then = manifest.origin
    before = then.flags
    what = [
        f"{_flag(name)} was {before[name]}, is {now.flags[name]}" for name in FIXED if before[name] != now.flags[name]
    ]
    if _processes(then) != _processes(now):
        what.append(f"the policy had {_processes(then)} processes (nodes x GPUs), now {_processes(now)}")
    model, model_now = before[MODEL], now.flags[MODEL]
    if not _is_same_model(Path(model), Path(model_now)):
        what.append(f"{_flag(MODEL)} was {model}, is {model_now}")
    if then.data != now.data:
        what.append("its training prompts are others")
    if has_critic and not any(name.startswith("_critic/") for name in manifest.files):
        what.append("it has no critic")
    if what:
        raise ConfigError(
            "--ckpt.path",
            str(root),
            f"its checkpoint {manifest.tag} is of another run: {'; '.join(what)}",
            "Resume with the flags and prompts of that run; or begin a new one, from its exported model "
            "(--actor.model_name_or_path), with another folder",
        )


def _is_same_model(then: Path, now: Path) -> bool:
    """A run that was moved has its model at another path: by name, and where both are there by how files begin."""
    return then.name == now.name and (not (then.is_dir() and now.is_dir()) or _begins(then) == _begins(now))


def _begins(model: Path) -> dict[str, bytes]:
    files = [*model.glob("*.safetensors"), *model.glob("config.json")]
    return {file.name: np.fromfile(file, np.uint8, count=1 << 20).tobytes() for file in files}


def _flag(name: str) -> str:
    return "--" + (name.replace(".", "_", 1) if name.startswith("ada.") else name)


def _processes(origin: Origin) -> int:
    return int(origin.flags["actor.num_nodes"]) * int(origin.flags["actor.num_gpus_per_node"])
