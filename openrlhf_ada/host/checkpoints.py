"""Where OpenRLHF and DeepSpeed keep checkpoints, on disk. OpenRLHF resumes if the policy's folder is there.

Contract: test_openrlhf_facts.test_fact
"""

from __future__ import annotations

from pathlib import Path

POLICY, CRITIC = "_actor", "_critic"
"""OpenRLHF's folders in --ckpt.path. In each, a folder per tag, and DeepSpeed's file `latest`."""


def latest_tag(folder: Path) -> str:
    """The checkpoint that a resumed run loads.

    Contract: test_openrlhf_facts.test_deepspeed_names_the_checkpoint_in_latest
    """
    return _latest(folder).read_text().strip()


def name_latest(folder: Path, tag: str) -> None:
    """Let a resumed run load this one.

    Contract: test_openrlhf_facts.test_deepspeed_names_the_checkpoint_in_latest
    """
    draft = _latest(folder).with_suffix(".tmp")
    draft.write_text(tag)
    draft.replace(_latest(folder))


def names_latest(folder: Path) -> bool:
    """Is there one that a resumed run would load?

    Contract: test_openrlhf_facts.test_deepspeed_names_the_checkpoint_in_latest
    """
    return _latest(folder).is_file()


def _latest(folder: Path) -> Path:
    return folder / "latest"
