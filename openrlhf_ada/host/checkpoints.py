"""Where OpenRLHF and DeepSpeed keep a policy's checkpoints, on disk."""

from __future__ import annotations

from pathlib import Path


def policy_checkpoints(ckpt_path: str) -> Path:
    """OpenRLHF's folder for them in --ckpt.path. A folder per tag, and DeepSpeed's file `latest`.

    Contract: test_openrlhf_facts.test_fact
    """
    return Path(ckpt_path) / "_actor"


def latest_tag(folder: Path) -> str:
    """The checkpoint that a resumed run loads.

    Contract: test_openrlhf_facts.test_fact
    """
    return (folder / "latest").read_text().strip()
