"""Where OpenRLHF and DeepSpeed keep checkpoints, on disk.

Contract: test_openrlhf_facts.test_deepspeed_names_the_checkpoint_in_latest
Contract: test_openrlhf_facts.test_fact
"""

from __future__ import annotations

from pathlib import Path

POLICY, CRITIC = "_actor", "_critic"
"""OpenRLHF's folders in --ckpt.path. In each, a folder per tag, and DeepSpeed's file `latest`."""


def policy_checkpoints(ckpt_path: str) -> Path:
    """OpenRLHF's folder for those of the policy. If it is there, OpenRLHF resumes."""
    return Path(ckpt_path) / POLICY


def latest_tag(folder: Path) -> str:
    """The checkpoint that a resumed run loads."""
    return _latest(folder).read_text().strip()


def name_latest(folder: Path, tag: str) -> None:
    """Let a resumed run load this one."""
    draft = _latest(folder).with_suffix(".tmp")
    draft.write_text(tag)
    draft.replace(_latest(folder))


def names_latest(folder: Path) -> bool:
    """Is there one that a resumed run would load?"""
    return _latest(folder).is_file()


def _latest(folder: Path) -> Path:
    return folder / "latest"
