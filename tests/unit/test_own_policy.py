"""A sampling policy of a user's own (`--ada_policy`): the example in examples/policies, and files that are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from cases import pool_of

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.policies import Close, Draw

Flags = Mapping[str, str]

GIVE_UP = Path(__file__).parents[2] / "examples" / "policies" / "give_up.py"
POLICY = "--ada_policy"


def settings(**flags: object) -> Settings:
    return resolve(AdaConfig(mode="seq", policy=str(GIVE_UP), **flags), n=4, advantage="group_norm", batch=2)


def test_the_example_closes_prompts_that_stay_all_wrong() -> None:
    """(k + 1) / (k + M + 1) > 0.7 for waves of 4: k = 8 gives 9 / 13 = .69, k = 12 gives 13 / 17 = .76."""
    policy = make_policy(settings(wave=4, max_samples=32))
    assert policy.decide([pool_of([])]) == [Draw(0, 4)]
    assert policy.decide([pool_of([0.0] * 8)]) == [Draw(0, 4)]
    assert policy.decide([pool_of([0.0] * 12)]) == [Close(0)]
    assert policy.decide([pool_of([0.0] * 11 + [1.0])]) == [Draw(0, 4)], "a positive is worth going on for"
    assert policy.decide([pool_of([1.0, 1.0, 0.0, 0.0])]) == [Close(0)], "Ada-Seq's own rule"


def test_closed_prompts_are_trained_as_in_seq() -> None:
    group = make_policy(settings(wave=4, max_samples=32)).build(pool_of([0.0] * 12), np.random.default_rng(0))
    assert len(group.indices) == 4 and group.coefficients == (0.0,) * 4 and not group.resolved


def test_it_is_chosen_on_the_command_line(valid_flags: Flags, argv_with: Callable[[Flags], list[str]]) -> None:
    args = parse(argv_with({POLICY: str(GIVE_UP)}))
    assert type(make_policy(args.ada)).__name__ == "GiveUp"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def policy(settings): ...", "it does not define make_policy"),
        ("def make_policy(settings): return 1", "make_policy returned int, which lacks methods"),
        ("def make_policy(settings): return settings.no", "AttributeError: 'Settings' object has no attribute 'no'"),
        ("import no_such_module\nmake_policy = 1", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_file_that_makes_no_policy_is_refused(
    tmp_path: Path, refusal: Callable[[Mapping[str, str]], Exception], text: str, said: str
) -> None:
    path = tmp_path / "policy.py"
    path.write_text(text)
    error = str(refusal({POLICY: str(path)}))
    assert error.startswith(f"{POLICY} is '{path}'") and said in error


def test_other_modes_refuse_it(refusal: Callable[[Mapping[str, str]], Exception]) -> None:
    assert "Use --ada_mode seq" in str(refusal({POLICY: str(GIVE_UP), "--ada_mode": "est"}))
    assert str(refusal({POLICY: "no.py"})).startswith(f"{POLICY} is 'no.py':")
