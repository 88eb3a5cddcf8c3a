"""Messages of rollouts through the real Ray: handed over without a copy, and readable when their engine is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json
import ray
from openrlhf_ada.core.scheduling import Request
from openrlhf_ada.rollout.messages import finished, pack, read

class Engine:
    async def answers(self, count, tokens):
        response = {
            "prompt": "p", "label": "l", "observation_tokens": list(range(tokens)), "action_ranges": [(1, tokens)],
            "rollout_log_probs": [-0.5] * tokens, "reward": 1.0, "scores": 1.0,
        }
        requests = [Request(7, index) for index in range(count)]
        return pack([finished(r, tokens, (1, 2), response, max_length=9999, logprobs=True) for r in requests])

ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
engine = ray.remote(num_cpus=0)(Engine).remote()
found = {}
for name, count, tokens in (("in the reply", 3, 40), ("in the object store", 16, 4000)):
    answers = read(ray.get(engine.answers.remote(count, tokens)))
    found[name] = answers
ray.kill(engine)
while True:
    try:
        ray.get(engine.answers.remote(1, 2))
    except ray.exceptions.ActorDiedError:
        break
print(json.dumps({
    name: {
        "owned": any(a.result.packed.flags.owndata for a in answers),
        "writeable": any(a.result.packed.flags.writeable for a in answers),
        "indices": [a.request.index for a in answers],
        "tokens": [a.result.response()["observation_tokens"].tolist() == list(range(a.num_tokens)) for a in answers],
    }
    for name, answers in found.items()
}))
"""


@pytest.mark.slow
def test_messages_are_not_copied_and_outlive_their_engine() -> None:
    """16 answers of 4,000 tokens take 0.5 MB: more than Ray puts into a reply."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True, text=True, timeout=240, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    for name, count in (("in the reply", 3), ("in the object store", 16)):
        assert seen[name] == {
            "owned": False,
            "writeable": False,
            "indices": list(range(count)),
            "tokens": [True] * count,
        }, name
