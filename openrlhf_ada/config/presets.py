"""Published settings by name (`--ada_method`): defaults of our flags and of OpenRLHF's, with their source.

A preset only moves defaults, so whatever is given on the command line wins (`preset_flags.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Flags = dict[str, Any]
"""By the flag's name without dashes, sections separated by dots: "ada.mode", "rollout.batch_size"."""


def _ada(**flags: Any) -> Flags:
    """Flags of ours."""
    return {f"ada.{name}": value for name, value in flags.items()}


def nested(flags: Flags) -> dict[str, Any]:
    """The same by section, as in a run's config.json: {"ada": {"mode": ...}}."""
    record: dict[str, Any] = {}
    for dotted, value in flags.items():
        *sections, name = dotted.split(".")
        section = record
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return record


RECIPE: Flags = {
    "rollout.batch_size": 512,
    "rollout.n_samples_per_prompt": 4,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "train.batch_size": 512,
    "train.max_epochs": 1,
    "actor.adam.lr": 1e-6,
    "actor.adam.betas": (0.9, 0.999),
    "actor.adam.weight_decay": 0.0,
    "actor.lr_scheduler": "constant_with_warmup",
    "actor.lr_warmup_ratio": 0.025,
    "actor.max_norm": 1.0,
    "actor.eps_clip_low_high": (0.2, 0.28),
    "actor.dual_clip": 10.0,
    "actor.loss_agg_mode": "token-mean",
    "algo.advantage.estimator": "dr_grpo",
    "algo.kl.init_coef": 0.0,
}
"""What Reinforce-Ada's run script sets (RLHFlow/Reinforce-Ada 05be605, scripts/run_reinforce_ada.sh).

512 prompts a step in mini-batches of 128, no division by the std, no KL, no entropy bonus, a constant learning rate.
Betas, the schedule and one epoch per batch are defaults of the verl version that it uses. The warm-up is 10 of 400
steps, here as a share of all steps. All methods have this recipe, so that they can be compared. docs/migrating.md says
where the published GRPO script and the paper's text differ. A critic's flags keep OpenRLHF's defaults.
"""

POSITIVE_ABOVE = 0.7
"""Scores greater than this are positive, as in the recipe."""

SEQ = _ada(mode="seq", wave=8, max_samples=32, positive_threshold=POSITIVE_ABOVE)
"""The rest is the default of mode seq: `balanced` groups, baseline `pool`, no correction."""


def _trains(n: int, estimator: str = "dr_grpo") -> Flags:
    """n rollouts of each prompt, in four updates of the weights as in RECIPE."""
    sizes = {"rollout.n_samples_per_prompt": n, "train.batch_size": RECIPE["train.batch_size"] // 4 * n}
    return sizes | {"algo.advantage.estimator": estimator}


def _fixed(n: int, **flags: Any) -> Flags:
    """n rollouts of every prompt."""
    return _ada(mode="seq", exit="fixed", max_samples=n, positive_threshold=POSITIVE_ABOVE, **flags)


def _split(mean: int, allocation: str, **flags: Any) -> Flags:
    """`mean` rollouts of a prompt on average, all trained."""
    return _ada(
        mode="est", budget=float(mean), allocation=allocation, select="all", positive_threshold=POSITIVE_ABOVE, **flags
    )


EST = _split(8, "inverse_sqrt", objective="log", correction="paper", baseline="pool") | _trains(8)


def _chosen(choice: str) -> Flags:
    """8 rollouts of one in 4 prompts, all trained."""
    return _trains(8, "group_norm") | _fixed(8, select="all", candidates=4, choice=choice)


def _gated(pilot: int, most: int, low: float, high: float) -> Flags:
    """The first rollouts decide whether a prompt gets `most`, all trained, or is replaced."""
    gate = _ada(mode="seq", exit="gate", pilot=pilot, gate_low=low, gate_high=high, max_samples=most)
    kept = _ada(select="random", unresolved="refill", positive_threshold=POSITIVE_ABOVE)
    return gate | kept | _ada(refill_limit=BATCHES * RECIPE["rollout.batch_size"])


SINGLES = RECIPE["rollout.batch_size"] * RECIPE["rollout.n_samples_per_prompt"]

RIGHT_ONLY: Flags = {"baseline": "none", "correction": "none", "zeros": "skip"}
"""Positives are trained, with weight 1; nothing else is computed."""

BATCHES = 9
"""Further batches of prompts that DAPO may draw in a step (10 in all in its code)."""


@dataclass(frozen=True, slots=True)
class Method:
    """One named setting. `source`: what it reproduces. `note`: where it differs from that or from the
    recipe, or what the source does not say.
    """

    summary: str
    source: str
    flags: Flags
    note: str = field(default="")


METHODS: dict[str, Method] = {
    "reinforce-ada-pos": Method(
        "waves of 8, at most 32, until one positive; 4 are trained",
        "Reinforce-Ada (arXiv 2510.04996), Algorithm 2, positive-focused, and its code",
        RECIPE | SEQ | _ada(exit="pos"),
    ),
    "reinforce-ada-balance": Method(
        "waves of 8, at most 32, until two positives and two negatives; 4 are trained",
        "Reinforce-Ada (arXiv 2510.04996), Algorithm 2, balanced, and its code",
        RECIPE | SEQ | _ada(exit="balance"),
    ),
    "reinforce-ada-est": Method(
        "8 rollouts a prompt on average, in proportion to 1/√p, gradient times 1/√p; all are trained",
        "Reinforce-Ada (arXiv 2510.04996v3), Algorithm 1, hybrid",
        RECIPE | EST | _ada(estimator="ema"),
        "bounds, prior and decay are our defaults: the paper gives none",
    ),
    "reinforce-ada-est-critic": Method(
        "the same with pass rates from a critic",
        "Reinforce-Ada (arXiv 2510.04996v3), Algorithm 1, value estimator",
        RECIPE | EST | _ada(estimator="critic"),
        "OpenRLHF's critic: the paper gives no architecture, loss or learning rate",
    ),
    "grpo": Method(
        "4 rollouts a prompt, advantages divided by the group's standard deviation",
        "DeepSeekMath (arXiv 2402.03300) for the estimator, the recipe of Reinforce-Ada for the rest",
        RECIPE | _ada(mode="off") | {"algo.advantage.estimator": "group_norm"},
    ),
    "uniform-8": Method(
        "8 rollouts of every prompt, each compared with the mean of the others; those without an advantage are not "
        "computed",
        "the control of every adaptive method: RLOO (arXiv 2402.14740), which is GRPO without its division",
        RECIPE | _trains(8, "rloo") | _fixed(8, select="all", zeros="skip"),
        "the updates are those of all 8 rollouts, without a KL penalty",
    ),
    "ppo": Method(
        "4 rollouts a prompt, a critic and GAE",
        "PPO (arXiv 1707.06347) for the estimator, the recipe of Reinforce-Ada for the rest",
        RECIPE | _ada(mode="off") | {"algo.advantage.estimator": "gae"},
    ),
    "raft": Method(
        "4 rollouts a prompt, the positives are trained with equal weight",
        "RAFT (arXiv 2304.06767; arXiv 2504.11343), the recipe of Reinforce-Ada for the rest",
        RECIPE | _fixed(4, select="all", **RIGHT_ONLY),
        "for rewards of 0 and 1; negatives are not computed, but the loss is averaged over them too",
    ),
    "raft-1-twice": Method(
        "one rollout a prompt, the positives are trained with equal weight; two passes over each step",
        "this package; its parts: RAFT (arXiv 2304.06767) for positives alone, PPO for passes",
        RECIPE
        | _trains(1, "flash_reinforce")
        | _fixed(1, select="all", **RIGHT_ONLY)
        | {"rollout.batch_size": SINGLES, "train.batch_size": SINGLES // 4, "train.max_epochs": 2},
        "for rewards of 0 and 1, without a KL penalty; as many rollouts per step as the recipe, from four times as "
        "many prompts",
    ),
    "rated": Method(
        "one rollout a prompt, compared with the prompt's rating; two passes over each step",
        "this package; its parts: SPO (arXiv 2509.13232) for single rollouts, Glicko for ratings, PPO for passes",
        RECIPE
        | _trains(1, "flash_reinforce")
        | _fixed(1, select="all", baseline="blend", estimator="rating")
        | {"rollout.batch_size": SINGLES, "train.batch_size": SINGLES // 2, "train.max_epochs": 2},
        "as many rollouts per step as the recipe, from four times as many prompts",
    ),
    "rated-pos": Method(
        "one rollout of a prompt at a time until one is right, at most 8; all are trained, compared with the prompt's "
        "rating and with each other; two passes over each step",
        "this package: `rated` (SPO, arXiv 2509.13232, and others), with the exit of Reinforce-Ada (arXiv 2510.04996)",
        RECIPE
        | _trains(1, "flash_reinforce")
        | _ada(mode="seq", exit="pos", wave=1, max_samples=8, select="all", baseline="blend", estimator="rating")
        | _ada(positive_threshold=POSITIVE_ABOVE)
        | {"rollout.batch_size": 768, "train.batch_size": RECIPE["train.batch_size"], "train.max_epochs": 2},
        "2.7 rollouts a prompt if all pass rates are equally frequent. About as many rollouts per step as the "
        "recipe, in updates of the same size. On average 256 per step are left out to fill whole updates",
    ),
    "counted": Method(
        "two rollouts a prompt, compared with the pass rate that the prompt's counts predict, and weighed as "
        "`rated-pos` weighs it; two passes over each step; rollouts that come out as expected are not trained",
        "this package; its parts: SPO (arXiv 2509.13232) for a baseline from earlier steps, MaxRL (arXiv 2602.02710) "
        "for log p as far as some rollouts reach, PPO for passes",
        RECIPE
        | _trains(2)
        | _fixed(2, select="all", baseline="estimator", correction="stratum", objective="matched:rated-pos")
        | _ada(half_life=200.0, baseline_rounding=0.3, zeros="skip")
        | {"rollout.batch_size": SINGLES // 2, "train.batch_size": SINGLES // 4, "train.max_epochs": 2},
        "as many rollouts per step as the recipe, from twice as many prompts",
    ),
    "first-right": Method(
        "one rollout of a prompt at a time until one is right, at most 8; that one is trained and nothing else; two "
        "passes over each step",
        "this package; its parts: the exit of Reinforce-Ada (arXiv 2510.04996), RAFT (arXiv 2304.06767) for positives "
        "alone, PPO for passes. It optimises what MaxRL (arXiv 2602.02710) does with 8 rollouts of every prompt",
        RECIPE
        | _trains(1, "flash_reinforce")
        | _ada(mode="seq", exit="pos", wave=1, max_samples=8, select="best_random", **RIGHT_ONLY)
        | _ada(positive_threshold=POSITIVE_ABOVE)
        | {"rollout.batch_size": 768, "train.batch_size": 768 // 4, "train.max_epochs": 2},
        "for rewards of 0 and 1 (with others a wrong answer is trained where none is right), without a KL penalty; "
        "2.7 rollouts a prompt if all pass rates are equally frequent: about as many per step as the recipe",
    ),
    "dapo": Method(
        "16 rollouts a prompt; prompts of one outcome are replaced by fresh ones",
        "DAPO (arXiv 2503.14476), dynamic sampling; its other parts as the recipe has them",
        RECIPE
        | _trains(16, "group_norm")
        | _fixed(16, select="random", unresolved="refill")
        | _ada(refill_limit=BATCHES * RECIPE["rollout.batch_size"]),
        "replaces prompts one by one, not in batches; trains the rest as it is at the limit; no overlong reward "
        "shaping",
    ),
    "pods": Method(
        "16 rollouts a prompt, the 4 whose rewards vary most are trained, with the mean and deviation of these 4",
        "PODS (arXiv 2504.13818) and its code",
        RECIPE | _trains(4, "group_norm") | _fixed(16, select="max_variance", baseline="kept"),
        "sizes are those of our tables; any n of any number may be kept",
    ),
    "d3s": Method(
        "the same groups as pods, with the mean and deviation of all 16",
        "D3S (arXiv 2509.22115), sample level within a prompt: largest variance of the advantages",
        RECIPE | _trains(4, "group_norm") | _fixed(16, select="max_variance", baseline="pool"),
        "no selection across prompts, no selection of tokens, no schedule of these; sizes unverified",
    ),
    "maxrl": Method(
        "8 rollouts a prompt, advantage (r - mean) / mean",
        "MaxRL (arXiv 2602.02710)",
        RECIPE | _trains(8) | _fixed(8, select="all", correction="paper", objective="log"),
        "for rewards of 0 and 1; log p truncated at n - 1 rollouts, at n with `--ada_correction positives`",
    ),
    "vip": Method(
        "8 rollouts a prompt on average, split for the least variance of RLOO's gradient",
        "VIP (arXiv 2602.01601)",
        RECIPE
        | _trains(8, "rloo")
        | _split(8, "vip", min_samples=4, max_samples=32, baseline="loo", correction="stratum", objective="linear"),
        "counts predict, not a Gaussian process; every prompt weighs the same, as the paper analyses; without the "
        "term that only the released code has (7e-4 n log p)",
    ),
    "knapsack": Method(
        "8 rollouts a prompt on average, 2 to 128, split by the expected number of groups with two outcomes",
        "Knapsack RL (arXiv 2509.25849)",
        RECIPE | _trains(8, "group_norm") | _split(8, "knapsack", min_samples=2, max_samples=128, correction="none"),
        "fading counts, not those of the last epoch; no prediction is 0 or 1; an unseen prompt has the prior's pass "
        "rate, not the mean number; none is set aside for prompts that were never right; advantages are not clipped "
        "at 5; the first rollout above the least number has its own value, which the released code overrates",
    ),
    "gvm": Method(
        "8 rollouts a prompt on average, in proportion to 1/√(p + .001/p); positives are trained",
        "GVM-RAFT (arXiv 2505.02391) with all gradient norms 1",
        RECIPE | _trains(8) | _split(8, "gvm", **RIGHT_ONLY, min_samples=2, max_samples=32),
        "counts predict, without gradient norms and without pilots every 10 steps; prompts that were never right get "
        "at least 2 rollouts, not none",
    ),
    "sgpo": Method(
        "8 rollouts a prompt on average, in proportion to 1/p",
        "sGPO (arXiv 2606.08854), group sizes",
        RECIPE | _trains(8, "group_norm") | _split(8, "inverse", correction="none"),
        "p follows training, where the original keeps that of the first policy (`--ada_known_counts` starts from it); "
        "other sizes; no filter and no order of prompts; bounds unverified",
    ),
    "hora": Method(
        "4 rollouts a prompt, then 12 on average by the chance of a first positive among them",
        "HORA (arXiv 2605.07114)",
        RECIPE
        | _trains(16, "group_norm")
        | _split(16, "hit", pilot=4, min_samples=4, max_samples=64, correction="none"),
        "formula and sizes from a replication, not checked against the paper; the cap of 64 is ours",
    ),
    "aero": Method(
        "8 rollouts a prompt, then 2 at a time until one positive, at most 16; prompts of one outcome are trained too",
        "AERO (arXiv 2602.14338), constants from a third party's code",
        RECIPE
        | _trains(8)
        | _ada(
            mode="seq", exit="pos", wave=2, max_samples=16, baseline="posterior", positive_threshold=POSITIVE_ABOVE
        ),
        "samples that AERO leaves out share the others' weight: the same expected update, without the saving",
    ),
    "pilot-commit": Method(
        "8 rollouts a prompt; 24 more and training where 1 to 6 are positive, else a fresh prompt",
        "Pilot-Commit (arXiv 2605.26606)",
        RECIPE | _trains(32, "group_norm") | _gated(8, 32, 0.125, 0.75),
        "8 first rollouts, as in its configuration file (scripts: 32 of 128); these do not wait for a later step; "
        "prompts that are always right come back",
    ),
    "speed": Method(
        "4 rollouts a prompt; 20 more and training where they show two outcomes, else a fresh prompt",
        "SPEED (arXiv 2506.09016; withdrawn by its authors, for errors in the experiments)",
        RECIPE | _trains(24, "group_norm") | _gated(4, 24, 0.25, 0.75),
        "screening does not overlap with the step before",
    ),
    "mopps": Method(
        "8 rollouts of one in 4 prompts, chosen by how near 1/2 a draw of their pass rate is",
        "MoPPS (arXiv 2507.04632), criterion",
        RECIPE | _chosen("mopps"),
        "draws in proportion to nearness, the original takes the nearest; sizes unverified",
    ),
    "vade": Method(
        "8 rollouts of one in 4 prompts, chosen by p(1-p)² at a draw of their pass rate",
        "VADE (arXiv 2511.18902), criterion",
        RECIPE | _chosen("vade"),
        "draws in proportion, the original takes the best; one decay of counts, by steps; constants unverified",
    ),
    "mmr1": Method(
        "8 rollouts of one in 4 prompts, half of them chosen by p(1-p) at a draw of their pass rate, half at random",
        "MMR1 (arXiv 2509.21268), variance-aware sampling as its released configuration has it",
        RECIPE | _chosen("mmr1"),
        "p from training's rollouts, not from 8 rollouts of all prompts every 4 steps; no diversity of texts, which "
        "the paper adds; no KL",
    ),
    "greso": Method(
        "8 rollouts of one in 2 prompts, fewer of those whose last visits had one outcome; others of one outcome are "
        "replaced",
        "GRESO (arXiv 2506.02177) and its code",
        RECIPE
        | _trains(8, "group_norm")
        | _fixed(8, select="random", unresolved="refill", candidates=2, choice="greso")
        | _ada(refill_limit=BATCHES * RECIPE["rollout.batch_size"]),
        "takes one in 2, the original considers as many as it needs; the least chance is a tenth of the largest, not "
        "a hundredth; a prompt has one outcome if all rollouts agree; replaces prompts one by one",
    ),
    "prime-rl-pools": Method(
        "8 rollouts of one in 4 prompts; a fifth of the chance where more than 75 % or at most 25 % were right at the "
        "last visit",
        "prime-rl's difficulty pools and their default weights, from its code (INTELLECT-3, arXiv 2512.16144)",
        RECIPE | _trains(8) | _fixed(8, select="all", candidates=4, choice="pools"),
        "considers each prompt once per pass over the data, the original draws with replacement; sizes are ours",
    ),
    "cures": Method(
        "8 rollouts a prompt on average, in proportion to √(p(1-p))",
        "CurES (arXiv 2510.01037) and its code, with all gradient norms 1",
        RECIPE | _trains(8, "group_norm") | _split(8, "std", min_samples=2, max_samples=32, correction="none"),
        "counts predict, not 4 rollouts of all prompts every 10 steps; all prompts come equally often (the released "
        "temperature moves their chances by less than 1 %); bounds are ours",
    ),
    "dars": Method(
        "8 rollouts a prompt on average, in proportion to 1/(4p(1-p)) below p = 1/2 and equally many above",
        "DARS (arXiv 2508.13755) and its code, equal-treatment schedule",
        RECIPE | _trains(8) | _split(8, "dars", min_samples=2, max_samples=32, correction="none", baseline="pool"),
        "counts predict, where the original draws 8 of every prompt and then up to 24 more; so the sum is exact and "
        "easy prompts get fewer; breadth (full batches) is not part of it",
    ),
    "pf-ppo": Method(
        "4 rollouts a prompt, the best and a random other one are trained",
        "PF-PPO (arXiv 2409.06957), best-random filter of its code",
        RECIPE | _trains(2) | _fixed(4, select="best_random", baseline="pool"),
        "the baseline is the mean of the four, not a critic; best by score, so with raw scores any above the "
        "threshold; 4 rollouts from its script; best-worst is `--ada_select max_variance`",
    ),
}
