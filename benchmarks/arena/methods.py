"""The methods that are compared: flags of this package, with how prompts are chosen and how many make a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.arena.arguments import check_names
from benchmarks.arena.learner import CLIP
from benchmarks.arena.peers import PEERS
from benchmarks.arena.peers.base import Rules
from openrlhf_ada.config import presets
from openrlhf_ada.config.schema import AdaConfig
from openrlhf_ada.config.settings import Settings, make_policy, resolve
from openrlhf_ada.core.policies import Policy

GIVES_UP: dict[str, Any] = {"give_up": 64}
"""With which all methods that split a budget ran here; the presets never give up, as published."""

AS_IT_RAN: dict[str, dict[str, Any]] = {
    "dapo": {"refill_limit": 4608},
    "maxrl": {"floor": 0.02},
    "mopps": {"candidates": 4},
    "pilot-commit": {"pilot": 8, "max_samples": 32, "refill_limit": 4608},
}
"""Our flags with which the results of methods were made whose presets have been mended since."""

OTHERWISE_AS_IT_RAN: dict[str, dict[str, Any]] = {
    "mopps": {"summary": "8 rollouts of one in 4 prompts, chosen by how near 1/2 a draw of their pass rate is"},
    "pilot-commit": {
        "n": 32,
        "summary": "8 rollouts a prompt; 24 more and training where 1 to 6 are positive, else a fresh prompt",
    },
    "speed": {"estimator": "group_norm"},
}
"""The same, of what is no flag of ours."""

RIGHT_ONLY: dict[str, Any] = {"baseline": "none", "correction": "none", "zeros": "skip"}
"""Positives are trained, with weight 1; nothing else is computed."""


@dataclass(frozen=True, slots=True)
class Method:
    """n: --rollout.n_samples_per_prompt. ada: our flags. estimator: --algo.advantage.estimator.

    `refill`: prompts of one outcome are replaced until the step is full (DAPO). `epochs`: over a step's
    rollouts. `updates`: of a step in each epoch; the published recipe has one epoch and four.
    `weight_of`: a method; prompts get its effective weight, at their true pass rates (weights.py).

    `least_noise`: a baseline from outside the pool is multiplied by core.least_noise's factor. `wrong_epochs`: only in
    so many epochs coefficients below 0 are trained. `by_outcome`: coefficients of right and wrong answers, whatever
    the baseline. `clip`: of the ratio, low and high; the recipe's if it is left out.
    """

    name: str
    summary: str
    n: int
    ada: dict[str, Any]
    estimator: str = "dr_grpo"
    refill: bool = False
    epochs: int = 1
    updates: int = 4
    weight_of: str | None = None
    least_noise: bool = False
    wrong_epochs: int | None = None
    by_outcome: tuple[float, float] | None = None
    clip: tuple[float, float] | None = None

    @property
    def has_flags(self) -> bool:
        """Do our flags say all of it?"""
        return self.by_outcome is None

    def settings(self, prompts: int) -> Settings:
        """`prompts`: of a step."""
        return resolve(AdaConfig(**self.ada), n=self.n, advantage=self.estimator, batch=prompts)

    def policy(self, prompts: int) -> Policy:
        """A new one."""
        return self.start(prompts, prompts, 0)

    def start(self, prompts: int, rows: int, seed: int) -> Policy:
        """A new one, for a training set of so many rows."""
        return make_policy(self.settings(prompts))


@dataclass(frozen=True, slots=True)
class Peer(Method):
    """A published method whose policy is the arena's own; see peers/. The package's flags say how groups are built."""

    rules: Rules = field(kw_only=True)

    @property
    def has_flags(self) -> bool:
        return False

    def start(self, prompts: int, rows: int, seed: int) -> Policy:
        return self.rules.start(self.settings(prompts), rows, seed)


def _uniform(n: int, **more: Any) -> dict[str, Any]:
    """Fixed numbers as a special case of mode seq: everything that is drawn is trained."""
    return {"n": n, "ada": {"mode": "seq", "exit": "fixed", "max_samples": n, "wave": n, "select": "all"} | more}


def _published(name: str) -> Method:
    """A preset of --ada_method, with the arena's recipe in the place of its own."""
    flags, summary = presets.METHODS[name].flags, presets.METHODS[name].summary
    ada = {flag.removeprefix("ada."): value for flag, value in flags.items() if flag.startswith("ada.")}
    n, estimator = flags["rollout.n_samples_per_prompt"], flags["algo.advantage.estimator"]
    if ada["mode"] == "est":
        ada |= GIVES_UP
    found = Method(name, summary, n, ada | AS_IT_RAN.get(name, {}), estimator, ada.get("unresolved") == "refill")
    return replace(found, **OTHERWISE_AS_IT_RAN.get(name, {}))


PUBLISHED = (
    "raft",
    "dapo",
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
"""Presets that have the same name here."""

OURS = ("raft-n1-e2", "rated", "rated-pos", "spo-n2", "first-success-8")

OF_PRESET = {name: name for name in (*PUBLISHED, *OURS)} | {
    "grpo": "grpo-4",
    "uniform-8": "uniform-8-skip",
    "reinforce-ada-pos": "pos",
    "reinforce-ada-balance": "balance",
    "reinforce-ada-est": "est",
}
"""Methods here by the presets that they stand for. Sizes of steps are the arena's own."""

TWICE: dict[str, Any] = {"epochs": 2, "updates": 2}
"""Two epochs, in as many updates as one epoch in four."""

SKIP: dict[str, Any] = {"zeros": "skip"}
"""Rollouts without an advantage are not computed."""

ROUNDED: dict[str, Any] = {"baseline_rounding": 0.3} | SKIP
"""Nor are those that come out as expected."""


def _uniforms() -> Iterator[Method]:
    for n in (2, 4, 8, 16, 32):
        yield Method(f"uniform-{n}", f"{n} rollouts a prompt, all trained", estimator="rloo", **_uniform(n))
    yield Method(
        "uniform-8-at-once", "uniform-8 with one update of a step", estimator="rloo", updates=1, **_uniform(8)
    )
    for n in (2, 4, 8):
        summary = f"uniform-{n} with 2 epochs over each step"
        yield Method(f"uniform-{n}-e2", summary, estimator="rloo", **_uniform(n), **TWICE)
    yield Method("grpo-4", "4 rollouts a prompt, over the standard deviation", estimator="group_norm", **_uniform(4))


def _skipping() -> Iterator[Method]:
    """The same updates, of which rollouts without an advantage are no part."""
    for method in _uniforms():
        if method.name in ("uniform-4", "uniform-8", "uniform-4-e2", "uniform-8-e2", "grpo-4"):
            summary = f"{method.name}; rollouts of advantage 0 are not computed"
            yield replace(method, name=f"{method.name}-skip", summary=summary, ada=method.ada | SKIP)
    summary = "uniform-4-e2-skip in as many updates as spo-n2"
    yield Method("uniform-4-e2-in-eight", summary, estimator="rloo", **_uniform(4, **SKIP), epochs=2)
    summary = "grpo-4 in as many updates as spo-n2"
    yield Method("grpo-4-in-eight", summary, estimator="group_norm", updates=8, **_uniform(4))


def _ours() -> Iterator[Method]:
    """Few rollouts of a prompt, compared with what its earlier ones predict; two epochs."""
    rated = {"baseline": "blend", "estimator": "rating"}
    summary = "1 rollout a prompt, compared with its rating and with the others"
    yield Method("rated", summary, estimator="flash_reinforce", **_uniform(1, **rated), **TWICE)
    summary = "one at a time until one is right, at most 8; all trained, rated"
    yield Method("rated-pos", summary, 1, _until_right(8) | rated, "flash_reinforce", **TWICE)
    yield from _spo()
    yield from _right_only()


def _until_right(most: int) -> dict[str, Any]:
    """One rollout of a prompt at a time."""
    return {"mode": "seq", "exit": "pos", "k_pos": 1, "max_samples": most, "wave": 1, "select": "all"}


def _first_success(most: int) -> dict[str, Any]:
    """The best of a prompt's rollouts is the right one, if there is one."""
    return _until_right(most) | {"select": "best_random"} | RIGHT_ONLY


def _right_only() -> Iterator[Method]:
    """`first-success-8`, what it is without one of its parts, and right answers of fixed numbers of rollouts."""
    for most, name in ((8, "first-success-8"), (4, "first-success-4"), (16, "first-success-16")):
        summary = f"one at a time until one is right, at most {most}; that one is trained"
        yield Method(name, summary, 1, _first_success(most), "flash_reinforce", epochs=2)
    yield Method("first-success-8-e1", "first-success-8 with one epoch", 1, _first_success(8), "flash_reinforce")
    one = "right answers of one rollout a prompt"
    yield Method("raft-n1-e2", one, estimator="flash_reinforce", **_uniform(1, **RIGHT_ONLY), epochs=2)
    for n, name in ((2, "raft-n2-e2"), (4, "raft-n4-e2"), (8, "raft-n8-e2")):
        summary = f"right answers of {n} rollouts a prompt, with equal weight"
        yield Method(name, summary, **_uniform(n, **RIGHT_ONLY), epochs=2)
    log = {"correction": "positives", "objective": "log"} | SKIP
    summary = "raft-n8-e2 with the weight that first-success-8 has"
    yield Method("raft-n8-e2-as-first-success-8", summary, **_uniform(8, **log), epochs=2)


def _spo() -> Iterator[Method]:
    """`spo-n2`, what it is without one of its parts, and what each part is alone."""
    weight = {"objective": "matched:rated-pos", "correction": "stratum", "half_life": 200.0}
    compared = "compared with its counts, with the weight that rated-pos has"
    rounded = f"{compared}; expected outcomes are not trained"
    yield Method("spo-n2", f"2 rollouts a prompt, {rounded}", **_uniform(2, **weight, **ROUNDED), epochs=2)
    for n, name in ((2, "spo-n2-unrounded"), (4, "uniform-4-as-rated-pos")):
        yield Method(name, f"{n} rollouts a prompt, {compared}", **_uniform(n, **weight), **TWICE)
    summary = "spo-n2 in as many updates as the others"
    yield Method("spo-n2-in-four", summary, **_uniform(2, **weight, **ROUNDED), **TWICE)
    linear = weight | {"objective": "linear"}
    yield Method("spo-n2-linear", "spo-n2 with equal weights", **_uniform(2, **linear, **ROUNDED), epochs=2)
    # Counts are forgotten at once, and what is left is the mean over the prompts of the last step.
    by_mean = weight | ROUNDED | {"half_life": 0.01}
    summary = "spo-n2 without counts: every prompt is predicted by the mean of all"
    yield Method("spo-n2-by-mean", summary, **_uniform(2, **by_mean), epochs=2)
    summary = "spo-n2 on one in four prompts, chosen by expected spread"
    yield Method("spo-n2-chosen", summary, **_uniform(2, candidates=4, **weight, **ROUNDED), epochs=2)


def _adaptive() -> Iterator[Method]:
    """Reinforce-Ada, variants of it, and fixed sampling with its weight."""
    seq = {"mode": "seq", "wave": 8, "max_samples": 32}
    exact = {"correction": "stratum", "objective": "linear"}
    for exit_rule in ("pos", "balance"):
        ada = seq | {"exit": exit_rule}
        yield Method(exit_rule, f"Reinforce-Ada, {exit_rule}, 4 trained", 4, ada)
        yield Method(f"{exit_rule}-skip", f"{exit_rule}; rollouts of advantage 0 are not computed", 4, ada | SKIP)
        summary = f"{exit_rule}, 4 trained, compared with its counts; equal weights"
        yield Method(f"{exit_rule}-linear", summary, 4, ada | exact)
        yield Method(f"{exit_rule}-16", f"{exit_rule} with at most 16 rollouts", 4, ada | {"max_samples": 16})
    one_each = {"mode": "seq", "exit": "balance", "wave": 4, "max_samples": 32, "k_pos": 1, "k_neg": 1}
    yield Method("balance-1-1", "waves of 4 until one right and one wrong; 4 trained", 4, one_each)
    yield Method("pos-4", "pos in waves of 4", 4, seq | {"exit": "pos", "wave": 4})
    est = {"mode": "est", "budget": 8.0, "select": "all"}
    yield Method("est", "Reinforce-Ada, Ada-Est: n as 1/sqrt(p)", 8, est | {"correction": "paper", "baseline": "pool"})
    yield Method("est-counts", "est, compared with its counts", 8, est)
    yield Method("est-std", "n as sqrt(p (1 - p)), equal weights", 8, est | {"allocation": "std"} | exact)
    for name, objective, weight in (
        ("counts", "linear", "with equal weights"),
        ("as-pos", "matched:reinforce-ada-pos", "with the weight that pos has"),
        ("as-balance", "matched:reinforce-ada-balance", "with the weight that balance has"),
        ("as-est", "log", "with the weight that est aims at (log p)"),
    ):
        summary = f"8 rollouts a prompt, compared with its counts, {weight}"
        yield Method(f"uniform-8-{name}", summary, **_uniform(8, objective=objective, correction="stratum"))
    yield Method("dapo-8", "8 rollouts a prompt; prompts of one outcome are replaced", refill=True, **_uniform(8))


def _gvm() -> Iterator[Method]:
    """In as many epochs and updates as ours."""
    gvm = replace(_published("gvm"), epochs=2)
    yield replace(gvm, name="gvm-e2", summary="gvm")
    summary = "gvm-e2 with 4 rollouts a prompt on average"
    yield replace(gvm, name="gvm-4-e2", summary=summary, n=4, ada=gvm.ada | {"budget": 4.0})


def _weighed() -> Iterator[Method]:
    """Controls: uniform sampling that differs from `uniform-8` by the weight of prompts alone, or of right answers
    only. RAFT needs none: it draws as many of every prompt, and weighs them alike."""
    for name in ("pos", "balance", "est", *PUBLISHED):
        if name not in ("raft", "gvm"):
            summary = f"uniform-8 with the weight that {name} has, at true pass rates"
            yield Method(f"weighed-as-{name}", summary, estimator="rloo", **_uniform(8), weight_of=name)
    summary = "right answers of 8 rollouts a prompt, with the weight that gvm has, at true pass rates"
    yield Method("weighed-as-gvm", summary, **_uniform(8, **RIGHT_ONLY), weight_of="gvm")


def _choosing() -> Iterator[Method]:
    for n in (4, 8):
        chosen = f"{n} rollouts of each of one in four prompts, chosen by expected spread"
        yield Method(f"choose-{n}-share", chosen, estimator="rloo", **_uniform(n, candidates=4))


UPDATES = 4
"""Of an epoch over a step, for every method of the grid."""

GRID_EPOCHS = (1, 2)


def _grid() -> Iterator[Method]:
    """Every one with each of GRID_EPOCHS, in UPDATES of an epoch."""
    for base in (*_grid_of_n(), *_grid_published(), *_grid_least_noise(), *_grid_peers()):
        for epochs in GRID_EPOCHS:
            yield _of_epochs(base, epochs)
    for base in (*_grid_of_n(), *_grid_least_noise()):
        if base.name in WRONG_ONCE:
            name, summary = f"{base.name}-wrong-once", f"{base.summary}; wrong answers in the first epoch only"
            for epochs in (2, 3):
                yield _of_epochs(replace(base, name=name, summary=summary, wrong_epochs=1), epochs)
            name, summary = f"{base.name}-tight", f"{base.summary}; wrong answers are clipped early"
            yield _of_epochs(replace(base, name=name, summary=summary, clip=TIGHT), 2)


TIGHT = (0.05, CLIP[1])
"""The lower limit stops wrong answers alone: a quarter of the recipe's."""

WRONG_ONCE = ("n1", "n4", "n8", "lambda-1", "lambda-4", "lambda-success-8")
"""Methods that are also run with wrong answers in the first of their epochs only."""


def _of_epochs(base: Method, epochs: int) -> Method:
    name, summary = f"{base.name}/{epochs}", f"{base.summary}; {epochs} epochs"
    return replace(base, name=name, summary=summary, epochs=epochs, updates=UPDATES)


def _grid_of_n() -> Iterator[Method]:
    predicted = {"baseline": "blend"} | SKIP
    yield Method("n1", "1 rollout, compared with its counts", estimator="flash_reinforce", **_uniform(1, **predicted))
    for n in (2, 4, 8, 16, 32):
        yield Method(f"n{n}", f"{n} rollouts a prompt", estimator="rloo", **_uniform(n, **SKIP))


def _grid_published() -> Iterator[Method]:
    yield Method("grpo-2", "2-GRPO (2510.00977)", estimator="group_norm", **_uniform(2, **SKIP))
    yield Method("grpo-8", "8, over the standard deviation", estimator="group_norm", **_uniform(8, **SKIP))
    dapo = "8 rollouts a prompt; prompts of one outcome are replaced"
    yield Method("dapo-8", dapo, refill=True, estimator="group_norm", **_uniform(8))
    yield Method("right-1", "right answers of 1", estimator="flash_reinforce", **_uniform(1, **RIGHT_ONLY))
    yield Method("right-8", "right answers of 8 (RAFT)", **_uniform(8, **RIGHT_ONLY))
    wrong = Method("wrong-8", "wrong answers of 8 (NSR, 2506.01347)", by_outcome=(0.0, -1.0), **_uniform(8, **SKIP))
    yield wrong
    summary = "8, right ones with 0.1 (W-REINFORCE, 2506.01347)"
    yield replace(wrong, name="weighted-8", summary=summary, by_outcome=(0.1, -1.0))
    for name in ("maxrl", "gvm"):
        yield _published(name)
    of_name = {method.name: method for method in (*_adaptive(), *_right_only())}
    for name in ("pos-skip", "balance-skip", "est", "first-success-8"):
        yield replace(of_name[name], name=name.removesuffix("-skip"))


def _grid_least_noise() -> Iterator[Method]:
    """A baseline of lambda times the prediction; see core/least_noise.py."""
    predicted = {"baseline": "blend"} | SKIP
    for n in (1, 2, 4):
        summary, more = f"{n} of a prompt, with the baseline of least noise", _uniform(n, **predicted)
        yield Method(f"lambda-{n}", summary, estimator="flash_reinforce", least_noise=True, **more)
    until = _until_right(8) | {"baseline": "estimator"} | SKIP
    summary = "one at a time until one is right, at most 8; all trained, with the baseline of least noise"
    yield Method("lambda-success-8", summary, 1, until, "flash_reinforce", least_noise=True)


def _grid_peers() -> Iterator[Method]:
    for name, n, estimator, rules in PEERS:
        yield Peer(name, rules.summary, estimator=estimator, rules=rules, **_uniform(n, **SKIP))


def _all() -> Iterator[Method]:
    yield from _grid()
    yield from _uniforms()
    yield from _skipping()
    yield from _ours()
    yield from _adaptive()
    for name in PUBLISHED:
        yield _published(name)
    yield from _gvm()
    yield from _weighed()
    yield from _choosing()


METHODS = {method.name: method for method in _all()}


def check_on_real_stack(methods: Sequence[str]) -> None:
    """Raises ValueError for methods that no command line can name."""
    check_names("--methods", methods, METHODS)
    if without := [name for name in methods if METHODS[name].weight_of is not None]:
        raise ValueError(
            f"--methods {','.join(without)}: weights at true pass rates, which only a small model has. The real stack "
            "cannot train so. Leave out what begins with weighed-as-"
        )
    if without := [name for name in methods if not METHODS[name].has_flags]:
        raise ValueError(
            f"--methods {','.join(without)}: no flag says this yet, so the real stack would train something else. "
            "Leave them out, or compare them with `grid`"
        )
