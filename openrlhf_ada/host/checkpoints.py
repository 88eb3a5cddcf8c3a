"""Where OpenRLHF and DeepSpeed keep checkpoints, on disk.

Contract: test_openrlhf_facts.test_deepspeed_names_the_checkpoint_in_latest
Contract: test_openrlhf_facts.test_fact
"""

from __future__ import annotations

from pathlib import Path

POLICY, CRITIC = "_actor", "_critic"
"""OpenRLHF's folders in --ckpt.path; if the policy's is there, OpenRLHF resumes. In each, a folder per tag, and
DeepSpeed's file `latest`."""

_LATEST = "latest"


def latest_tag(folder: Path) -> str | None:
    """The checkpoint that a resumed run loads; None where it would load none."""
    file = folder / _LATEST
    return file.read_text().strip() if file.is_file() else None


def name_latest(folder: Path, tag: str) -> None:
    """Let a resumed run load this one."""
    draft = folder / f"{_LATEST}.tmp"
    draft.write_text(tag)
    draft.replace(folder / _LATEST)
