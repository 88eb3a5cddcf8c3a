"""The methods that are compared: flags of this package, with how prompts are chosen and how many make a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config import presets
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.policies import Policy


@dataclass(frozen=True, slots=True)
class Method:
    """n: --rollout.n_samples_per_prompt. ada: our flags. estimator: --algo.advantage.estimator.

    `refill`: prompts of one outcome are replaced until the step is full (DAPO). `passes`: over the rollouts of a step.
    `parts`: of a step, with one update each, in each pass.
    """

    name: str
    summary: str
    n: int
    ada: dict[str, Any]
    estimator: str = "dr_grpo"
    refill: bool = False
    passes: int = 1
    parts: int = 1

    def settings(self, prompts: int) -> Settings:
        """`prompts`: of a step."""
        host = SimpleNamespace(
            rollout=SimpleNamespace(n_samples_per_prompt=self.n, batch_size=prompts),
            algo=SimpleNamespace(advantage=SimpleNamespace(estimator=self.estimator)),
        )
        return resolve(AdaConfig(**self.ada), host)

    def policy(self, prompts: int) -> Policy:
        """A new one."""
        return make_policy(self.settings(prompts))


def _uniform(n: int, **more: Any) -> dict[str, Any]:
    """Fixed numbers as a special case of mode seq: everything that is drawn is trained."""
    return {"n": n, "ada": {"mode": "seq", "exit": "fixed", "max_samples": n, "wave": n, "select": "all"} | more}


def _published(name: str, preset: str) -> Method:
    """A preset of --ada_method, with the arena's recipe in the place of its own."""
    flags, summary = presets.METHODS[preset].flags, presets.METHODS[preset].summary
    ada = {flag.removeprefix("ada."): value for flag, value in flags.items() if flag.startswith("ada.")}
    n, estimator = flags["rollout.n_samples_per_prompt"], flags["algo.advantage.estimator"]
    return Method(name, summary, n, ada, estimator, refill=ada.get("unresolved") == "refill", parts=4)


_BY_PRESET = (
    "pods",
    "d3s",
    "maxrl",
    "vip",
    "knapsack",
    "gvm",
    "sgpo",
    "hora",
    "aero",
    "pilot-commit",
    "speed",
    "mopps",
    "vade",
    "mmr1",
    "greso",
    "prime-rl-pools",
    "pf-ppo",
    "cures",
    "dars",
)

PUBLISHED = {"dapo-16": "dapo"} | {name: name for name in _BY_PRESET}
"""Presets by their names here."""

OF_PRESET = {preset: name for name, preset in PUBLISHED.items()} | {
    "grpo": "grpo-4-in-four",
    "reinforce-ada-pos": "pos-in-four",
    "reinforce-ada-balance": "balance-in-four",
    "reinforce-ada-est": "est-in-four",
    "rated": "rated-1-twice",
    "rated-pos": "rated-pos",
    "counted": "counted",
}
"""Methods here by the presets that they stand for. Sizes of steps are the arena's own."""


_RATED = {"baseline": "blend", "estimator": "rating"}

_REPEATED = {2: "twice", 4: "four-times"}
"""Passes over the rollouts of a step, in as many updates each: names of such methods."""

IN_FOUR = ("uniform-2", "uniform-4", "uniform-8", "uniform-16", "grpo-4", "pos", "balance", "est", "est-std", "dapo")
"""Methods that are compared with one update of a step, and with the four of the published recipe."""


def _rollouts(n: int) -> str:
    return f"{n} rollout{'s' * (n > 1)}"


def _rated() -> Iterator[Method]:
    """Ours: rollouts of a prompt are compared with its rating as well."""
    for n in (1, 2, 4):
        yield Method(
            f"rated-{n}",
            f"{_rollouts(n)} a prompt, compared with its rating and with each other",
            estimator="flash_reinforce",
            **_uniform(n, **_RATED),
        )
    for passes, name in _REPEATED.items():
        summary, flags = f"rated-1 with {passes} passes over each step", _uniform(1, **_RATED)
        yield Method(f"rated-1-{name}", summary, estimator="flash_reinforce", passes=passes, parts=passes, **flags)
    for n in (2, 4):
        summary, flags = f"rated-{n} with 2 passes over each step", _uniform(n, **_RATED)
        yield Method(f"rated-{n}-twice", summary, estimator="flash_reinforce", passes=2, parts=2, **flags)
    until_right = {"mode": "seq", "exit": "pos", "k_pos": 1, "max_samples": 8, "select": "all", "estimator": "rating"}
    for name, wave, baseline, summary in (
        ("rated-pos", 1, "blend", "one at a time until one is right, at most 8; all trained, rated, 2 passes"),
        ("rated-pos-2", 2, "blend", "rated-pos, two at a time"),
        ("rated-pos-2-exact", 2, "estimator", "rated-pos-2, compared with the rating alone"),
    ):
        ada = until_right | {"wave": wave, "baseline": baseline}
        yield Method(name, summary, wave, ada, "flash_reinforce", passes=2, parts=2)
    summary, flags = (
        "rated-2-twice on one in four prompts, chosen by expected spread",
        _uniform(2, candidates=4, **_RATED),
    )
    yield Method("rated-2-twice-chosen", summary, estimator="flash_reinforce", passes=2, parts=2, **flags)


def _all() -> Iterator[Method]:
    for n in (2, 4, 8, 16, 32):
        yield Method(f"uniform-{n}", f"{n} rollouts a prompt, all trained", estimator="rloo", **_uniform(n))
    for n, passes in ((2, 2), (4, 2), (4, 4)):
        summary = f"uniform-{n} with {passes} passes over each step"
        yield Method(
            f"uniform-{n}-{_REPEATED[passes]}", summary, estimator="rloo", passes=passes, parts=passes, **_uniform(n)
        )
    yield Method("grpo-4", "4 rollouts a prompt, over the standard deviation", estimator="group_norm", **_uniform(4))
    yield Method("grpo-8", "8 rollouts a prompt, over the standard deviation", estimator="group_norm", **_uniform(8))
    yield from _rated()
    yield Method("dapo", "8 rollouts a prompt; prompts of one outcome are replaced", refill=True, **_uniform(8))
    seq = {"mode": "seq", "wave": 8, "max_samples": 32}
    for exit_rule in ("pos", "balance"):
        yield Method(exit_rule, f"Reinforce-Ada, {exit_rule}, 4 trained", n=4, ada=seq | {"exit": exit_rule})
        summary = f"{exit_rule} with 2 passes over each step"
        yield Method(f"{exit_rule}-twice", summary, n=4, ada=seq | {"exit": exit_rule}, passes=2, parts=2)
        matched = {"objective": f"matched:reinforce-ada-{exit_rule}", "correction": "stratum"}
        yield Method(
            f"uniform-8-as-{exit_rule}",
            f"8 rollouts a prompt with the weight that {exit_rule} has",
            **_uniform(8, **matched),
        )
    matched = {"objective": "matched:rated-pos", "correction": "stratum"}
    for n, name in ((2, "counted"), (4, "uniform-4-as-rated-pos")):
        summary = f"{n} rollouts a prompt with the weight that rated-pos has, 2 passes"
        yield Method(name, summary, **_uniform(n, **matched), passes=2, parts=2)
    summary, flags = "counted with equal weights", _uniform(2, objective="linear", correction="stratum")
    yield Method("counted-linear", summary, **flags, passes=2, parts=2)
    est = {"mode": "est", "budget": 8.0, "select": "all"}
    yield Method("est", "Reinforce-Ada, Ada-Est: n as 1/sqrt(p)", n=8, ada=est | {"correction": "paper"})
    neyman = {"allocation": "std", "correction": "stratum", "objective": "linear"}
    yield Method("est-std", "n as sqrt(p (1 - p)), linear objective", n=8, ada=est | neyman)
    for name, preset in PUBLISHED.items():
        yield _published(name, preset)
    yield from _choosing()


def _choosing() -> Iterator[Method]:
    for n in (4, 8):
        for name, weight, note in (
            ("share", "none", ""),
            ("share-corrected", "inverse", "; weighed by the inverse of their chance"),
        ):
            yield Method(
                f"choose-{n}-{name}",
                f"{n} rollouts of each of one in four prompts, chosen by expected spread{note}",
                estimator="rloo",
                **_uniform(n, candidates=4, choice_weight=weight),
            )
        yield Method(
            f"choose-{n}-per-token",
            f"{n} rollouts of each of one in four prompts, chosen by expected spread per token",
            estimator="rloo",
            **_uniform(n, candidates=4, choice="std_per_token"),
        )


def _in_four(method: Method) -> Method:
    return replace(method, name=f"{method.name}-in-four", summary=f"{method.summary}; four updates a step", parts=4)


METHODS = {method.name: method for method in _all()}
METHODS |= {method.name: method for method in map(_in_four, (METHODS[name] for name in IN_FOUR))}
