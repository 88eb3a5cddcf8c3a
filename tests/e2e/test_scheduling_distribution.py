"""What is trained does not depend on the scheduler: kept rollouts of `rounds` and `stream` on the real vLLM.

With the same seeds they are the same rollouts. With other seeds they have the same distribution, by a test that would
see a shift of 2 % in length. That a scheduler in order of completion would fail it:
test_simulation_virtual_engines.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Toy, run_script, toy_flags

pytestmark = [pytest.mark.e2e, pytest.mark.long]

STEPS, PROMPTS = 12, 64

SCRIPT = """
import json, sys
from dataclasses import replace
from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.platforms.session import ray_session

if __name__ == "__main__":
    steps, *argv = sys.argv[1:]
    args = parse(argv)
    args.ada_events = None
    with ray_session(args, verbose=False):
        from openrlhf_ada.rollout.prompts import PromptSource
        from openrlhf_ada.trainer.sampling_only import generate_kwargs, start_sampling

        generator = start_sampling(args)
        settings, plan = generator.settings, generator.options.plan
        arms = {}
        for name, scheduler, seed in (("rounds", "rounds", 1), ("same", "stream", 1), ("other", "stream", 2)):
            generator.settings = replace(settings, scheduler=scheduler)
            generator.prompts = PromptSource(generator.prompts_dataloader, plan, seed=0, num_episodes=99)
            args.train.seed = seed
            kept = arms[name] = []
            while len(kept) < (int(steps) // 3 if name == "same" else int(steps)):
                record = generator.generate_samples(**generate_kwargs(args))[0].record
                if record is not None:
                    kept.append([
                        [group.row, [[group.pool.samples[i].num_tokens, group.pool.samples[i].reward]
                                     for i in group.group.indices], group.pool.scores.tolist()]
                        for group in record.groups
                    ])
    print(json.dumps(arms))
"""


@pytest.fixture(scope="module")
def arms(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By arm: for every step and prompt its row, (tokens, reward) of what is kept, and all scores."""
    folder = tmp_path_factory.mktemp("distribution")
    flags = toy_flags(
        toy, folder / "run", ada_mode="seq", ada_wave=4, ada_max_samples=16, data__max_samples=192,
        rollout__batch_size=PROMPTS, train__batch_size=4 * PROMPTS,
    )  # fmt: skip
    return run_script(SCRIPT, folder, str(STEPS), *flags)


def test_same_seeds_give_same_pools_and_groups(arms: dict[str, Any]) -> None:
    """But for the last digit of a logit, which depends on what else is in the batch."""
    steps = zip(arms["rounds"][: len(arms["same"])], arms["same"], strict=True)
    pairs = [pair for rounds, same in steps for pair in zip(rounds, same, strict=True)]
    assert len(pairs) == STEPS // 3 * PROMPTS
    assert all(a[0] == b[0] for a, b in pairs)
    assert sum(a == b for a, b in pairs) >= 0.98 * len(pairs)


@pytest.mark.parametrize(("what", "column"), [("tokens", 0), ("reward", 1)])
def test_other_seeds_give_the_same_distribution(arms: dict[str, Any], what: str, column: int) -> None:
    """Paired by prompt: differences of means over the kept rollouts of each visit."""

    def means(arm: str) -> np.ndarray:
        return np.array([np.mean([k[column] for k in kept]) for step in arms[arm] for _, kept, _ in step])

    first, second = means("rounds"), means("other")
    differences = first - second
    error = differences.std(ddof=1) / len(differences) ** 0.5
    assert abs(differences.mean()) < 3.5 * error, f"{what}: {first.mean():.4f} and {second.mean():.4f}, ±{error:.4f}"
    if what == "tokens":
        assert 3 * error < 0.02 * first.mean(), "a shift of 2 % would be seen"
