"""--ada_loss: the gradient of OpenRLHF's training step is that of the formula, whatever micro-batches it is made of.

OpenRLHF's training step, loss, batch totals and collation; a table of logits in place of the model. The formulas are
written down once more here, sample by sample. With DeepSpeed in two processes: tests/contract/test_dynamic_batches.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cases import expected_weight, pool_of, sequential
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm
from run_flags import settings_with

from openrlhf_ada.config import schema
from openrlhf_ada.core.policies import Sequential
from openrlhf_ada.trainer.policy import AdaActorTrainer
from openrlhf_ada.trainer.training_step import advantage_factors

N, LENGTH = 3, 32
"""Samples of a prompt; --ada_loss_length."""

LENGTHS = (1, 2, 5, 3, 7, 4, 1, 6, 2, 8, 1, 3)
"""Response tokens of 4 groups of 3."""

VOCABULARY, PROMPT = 6, 2
LOW, HIGH, DUAL = 0.2, 0.28, 1.5
ENTROPY, KL = 0.05, 0.3
BANDS = {"token": (0.5, 1.2), "seq": (0.8, 1.15)}
"""Importance ratios that are not filtered out."""

LOSSES = {
    "ppo": {},
    "ppo, dual clip": {"dual_clip": DUAL},
    "ppo, tokens filtered": {"is_correction_level": "token", "is_correction_threshold": BANDS["token"]},
    "ppo, samples filtered": {"is_correction_level": "seq", "is_correction_threshold": BANDS["seq"]},
    "gspo": {"policy_loss_type": "gspo"},
    "gspo, dual clip": {"policy_loss_type": "gspo", "dual_clip": DUAL},
}


class Policy(torch.nn.Module):
    """Logits by token before and token after, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        self.logits = torch.nn.Parameter(values)
        self.model = SimpleNamespace(global_steps=0, set_gradient_accumulation_boundary=lambda is_boundary: None)

    def forward(self, sequences: torch.Tensor, action_mask: torch.Tensor, **_: Any) -> tuple[torch.Tensor, Any]:
        table = torch.log_softmax(self.logits, dim=-1)
        entropy = -(table.exp() * table).sum(dim=-1)
        return table[sequences[:, :-1], sequences[:, 1:]], SimpleNamespace(entropy=entropy[sequences[:, :-1]])


class Strategy:
    """One process; divides by the number of micro-batches as DeepSpeed does."""

    ring_attn_group = None

    def __init__(self, divides_by: int) -> None:
        self.divides_by = divides_by

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        (loss / self.divides_by).backward()

    def optimizer_step(self, *_: Any, **__: Any) -> None:
        """Gradients are read instead."""

    def get_grad_norm(self, *_: Any) -> float:
        return 0.0


def arguments(loss: str, *, dynamic: bool = False, **actor: Any) -> SimpleNamespace:
    return SimpleNamespace(
        ada=settings_with(
            loss=loss if loss in schema.LOSSES else "host", loss_length=LENGTH, mode="seq", zeros="compute"
        ),
        actor=SimpleNamespace(**{"entropy_coef": ENTROPY, "aux_loss_coef": 0.0} | actor),
        algo=SimpleNamespace(kl=SimpleNamespace(use_loss=True, init_coef=KL, estimator="k1", unbiased_gradient=False)),
        rollout=SimpleNamespace(n_samples_per_prompt=N),
        train=SimpleNamespace(dynamic_batch_enable=dynamic),
    )


def trainer_of(args: SimpleNamespace, divides_by: int, **loss_options: Any) -> Any:
    trainer: Any = AdaActorTrainer.__new__(AdaActorTrainer)
    trainer.args, trainer.strategy, trainer.actor = args, Strategy(divides_by), Policy()
    trainer.actor_loss_fn = PolicyLoss(clip_eps_low=LOW, clip_eps_high=HIGH, **loss_options)
    trainer.aux_loss, trainer.ema_model, trainer.actor_optim = False, None, None
    trainer.actor_scheduler = SimpleNamespace(get_last_lr=lambda: [1.0])
    trainer._finite = SimpleNamespace(step=lambda _: nullcontext())
    return trainer


def samples() -> list[Experience]:
    """As the experience maker leaves them, one by one: ratios on both sides of every bound, either sign."""
    generator = torch.Generator().manual_seed(0)
    longest = PROMPT + max(LENGTHS)
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), longest), generator=generator)
    places = torch.arange(longest).expand(len(LENGTHS), -1)
    ends = PROMPT + torch.tensor(LENGTHS).unsqueeze(-1)
    with torch.no_grad():
        log_probs, _ = Policy()(tokens, None)

    def near(spread: float) -> torch.Tensor:
        return log_probs + spread * torch.randn(log_probs.shape, dtype=torch.float64, generator=generator)

    signs = torch.tensor([1.0, -1.0, -0.5, 2.0, -1.5, 0.75] * 2, dtype=torch.float64).unsqueeze(-1)
    together = Experience(
        sequences=tokens,
        attention_mask=(places < ends).long(),
        action_mask=((places < ends) & (places >= PROMPT))[:, 1:],
        action_log_probs=near(0.5),
        base_action_log_probs=near(0.2),
        rollout_log_probs=near(0.5),
        advantages=signs * (1 + torch.rand(log_probs.shape, dtype=torch.float64, generator=generator)),
        index=list(range(len(LENGTHS))),
        info={},
    )
    return split_experience_batch(together)


def policy_loss(sample: Experience, log_probs: torch.Tensor, kind: str) -> torch.Tensor:
    """Of each token, shape (A,)."""
    mask = sample.action_mask
    ratios = (log_probs - sample.action_log_probs).exp()
    if kind.startswith("gspo"):
        ratios = ((log_probs - sample.action_log_probs) * mask).sum().div(mask.sum()).exp().expand_as(ratios)
    advantages, good = sample.advantages, sample.advantages > 0
    # Good tokens gain up to 1 + HIGH; bad ones lose down from 1 - LOW, with the dual clip no more than DUAL.
    most = DUAL if "dual" in kind else math.inf
    kept = torch.where(good, ratios.clamp(max=1 + HIGH), ratios.clamp(min=1 - LOW, max=most))
    weights = (sample.action_log_probs - sample.rollout_log_probs).exp()
    low, high = BANDS["token" if "tokens" in kind else "seq"]
    if "tokens filtered" in kind:
        weights = torch.where((weights >= low) & (weights <= high), weights, 0.0)
    elif "samples filtered" in kind:
        middle = (weights.log() * mask).sum().div(mask.sum()).exp()
        weights = weights if low <= middle <= high else torch.zeros_like(weights)
    else:
        weights = torch.ones_like(weights)
    return -kept * advantages * weights


def by_formula(
    batch: list[Experience], loss: str, kind: str, kl: float = KL, entropy: float = ENTROPY
) -> torch.Tensor:
    """The gradient of one optimizer step."""
    policy, tokens = Policy(), sum(int(sample.action_mask.sum()) for sample in batch)
    total = torch.zeros((), dtype=torch.float64)
    for sample in batch:
        log_probs, output = policy(sample.sequences.unsqueeze(0), None)
        mask = sample.action_mask
        divisor = {
            "sequence-constant": len(batch) * LENGTH,
            "host": tokens if kind.startswith("ppo") else len(batch) * int(mask.sum()),
        }[loss]
        total = total + (policy_loss(sample, log_probs[0], kind) * mask).sum() / divisor
        log_ratio = log_probs[0] - sample.base_action_log_probs
        total = total + ((kl * log_ratio - entropy * output.entropy[0]) * mask).sum() / tokens
    total.backward()
    return policy.logits.grad


def micro_batches(items: list[Experience], sizes: list[int]) -> Iterator[Experience]:
    for size in sizes:
        batch, items = items[:size], items[size:]
        yield make_experience_batch(batch)


def by_training(
    batches: list[list[Experience]], sizes: list[int], loss: str, kind: str, *, dynamic: bool
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """Gradients of OpenRLHF's training step, one by one, and the figures that we log: `batches` of an optimizer step
    each, in micro-batches."""
    gas = 1 if dynamic else len(sizes)
    trainer = trainer_of(arguments(loss, dynamic=dynamic), gas, **LOSSES[kind])
    tokens = [float(sum(s.action_mask.sum() for s in batch)) for batch in batches for _ in sizes]
    trainer.replay_buffer = SimpleNamespace(
        dynamic_batch_num_tokens=tokens,
        dynamic_global_batch_size=[float(len(batches[0]))] * len(tokens),
        dynamic_optimizer_step=([0] * (len(sizes) - 1) + [1]) * len(batches),
    )
    made = [e for batch in batches for e in micro_batches(batch, sizes)]
    pairs = ((e, None) for e in made) if dynamic else iter_grad_accum_global_norm(
        made, trainer.strategy, gas, lambda e: e.action_mask
    )  # fmt: skip
    gradients, figures = [], []
    for step, (experience, info) in enumerate(pairs):
        status = trainer.training_step(experience, KL, step, info)
        assert status["weights"].get("is_filter_ratio") == {"token": "token", "seq": "sample"}.get(
            "off" if "gspo" in kind else trainer.actor_loss_fn.is_correction_level
        )
        if (step + 1) % len(sizes) == 0:
            gradients.append(trainer.actor.logits.grad.clone())
            trainer.actor.logits.grad = None
            figures.append(trainer._means.take(dict))
    return gradients, figures


SIZES = {"one": [6], "three, accumulated": [2, 2, 2], "four, dynamic": [1, 3, 1, 1]}
"""Samples of the micro-batches of an optimizer step."""


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("loss", ["host", "sequence-constant"])
def test_optimizer_step_gradients_match_the_formula(loss: str, kind: str, sizes: str) -> None:
    """Two steps of 6 samples; groups are split among steps and micro-batches."""
    shuffled = [samples()[7 * k % len(LENGTHS)] for k in range(len(LENGTHS))]
    steps = [shuffled[:6], shuffled[6:]]
    found, figures = by_training(steps, SIZES[sizes], loss, kind, dynamic="dynamic" in sizes)
    _, undivided = by_training(steps, SIZES["one"], loss, kind, dynamic=False)
    for of_step, expected in zip(figures, undivided, strict=True):
        assert of_step == pytest.approx(expected, rel=1e-5) and of_step.keys() == {"policy_loss", "entropy_loss", "kl"}
    for gradient, batch in zip(found, steps, strict=True):
        expected = by_formula(batch, loss, kind)
        largest = float(expected.abs().max())
        assert largest > 1e-3
        # OpenRLHF's totals are of single precision.
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-6 * largest)


def test_test_cases_clip_on_all_sides() -> None:
    """Or they would prove nothing of clips and filters."""
    ratios, weights = [], []
    for sample in samples():
        with torch.no_grad():
            log_probs, _ = Policy()(sample.sequences.unsqueeze(0), None)
        mask = sample.action_mask
        ratios += [
            (float(a) > 0, float(r))
            for a, r in zip(sample.advantages[mask], (log_probs[0] - sample.action_log_probs).exp()[mask], strict=True)
        ]
        weights.append(float((sample.action_log_probs - sample.rollout_log_probs)[mask].mean().exp()))
    assert any(r > 1 + HIGH for good, r in ratios if good)
    assert any(r < 1 - LOW for good, r in ratios if not good)
    assert any(r > DUAL for good, r in ratios if not good)
    low, high = BANDS["seq"]
    assert 0 < sum(low <= w <= high for w in weights) < len(weights)


@pytest.mark.parametrize("zeros", ["compute", "skip"])
@pytest.mark.parametrize("loss", schema.LOSSES)
def test_wrong_samples_count_in_the_average_alone_after_their_epochs(loss: str, zeros: str) -> None:
    """Three epochs of two micro-batches each, and then the next step's."""
    batch, args = samples()[:6], arguments(loss, entropy_coef=None)
    args.ada = replace(args.ada, wrong_epochs=2, zeros=zeros)
    args.algo.kl.use_loss = False
    trainer = trainer_of(args, 2)
    right = [replace(s, advantages=s.advantages.clamp_min(0.0)) for s in batch]
    found: list[torch.Tensor] = []
    for _ in range(2):
        trainer._epoch = -1
        for _ in range(3):
            pairs = iter_grad_accum_global_norm(micro_batches(batch, [1, 5]), None, 2, lambda e: e.action_mask)
            for step, (experience, totals) in enumerate(pairs):
                trainer.training_step(experience, 0.0, step, totals)
            found.append(trainer.actor.logits.grad.clone())
            trainer.actor.logits.grad = None
    for gradient, trained in zip(found, [batch, batch, right] * 2, strict=True):
        expected = by_formula(trained, loss, "ppo", kl=0.0, entropy=0.0)
        assert torch.allclose(gradient, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_default_leaves_the_host_loss() -> None:
    """Mode off promises OpenRLHF to the bit."""
    (experience,) = micro_batches(samples()[:2], [2])
    advantages, totals = experience.advantages, {"dp_size": 1, "batch_num_tokens": 3.0, "global_batch_size": 2.0}
    trainer_of(arguments("host"), 1).training_step(experience, KL, 0, totals)
    assert experience.advantages is advantages


def test_a_second_pass_starts_from_the_same_advantages() -> None:
    """--train.max_epochs: micro-batches are copies, and the replay buffer keeps what it has."""
    items, loss = samples()[:6], "sequence-constant"
    (first,), (second,) = (by_training([items], [6], loss, "ppo", dynamic=False)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("by_token", [True, False])
def test_a_sample_without_a_token_makes_no_nan(by_token: bool) -> None:
    mask = torch.tensor([[0, 0], [1, 1]]).bool()
    totals = {"batch_num_tokens": torch.tensor(2.0), "global_batch_size": torch.tensor(1.0)}
    experience = SimpleNamespace(action_mask=mask)
    factors = advantage_factors(experience, totals, arguments("sequence-constant"), by_token=by_token)
    assert (factors.isfinite().all(), factors.shape) == (True, (2, 1))
    assert float(factors[1]) == pytest.approx(2 / LENGTH)


# -- what becomes of the objective --------------------------------------------------------------------------------

RIGHT_TOKENS, WRONG_TOKENS = 100, 400


class Coin(torch.nn.Module):
    """Answers right with probability sigmoid(logit): the first token says so, and the rest is certain."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.logit = torch.nn.Parameter(torch.logit(torch.tensor(p, dtype=torch.float64)))
        self.model = SimpleNamespace(global_steps=0)

    def forward(self, sequences: torch.Tensor, action_mask: torch.Tensor, **_: Any) -> tuple[torch.Tensor, Any]:
        chance = torch.sigmoid(torch.where(sequences[:, 1] == 1, self.logit, -self.logit))
        first = torch.arange(action_mask.shape[1]) == 0
        return torch.where(first, chance.log().unsqueeze(-1), 0.0), SimpleNamespace()


def trained_weight(policy: Sequential, p: float, loss: str, kind: str) -> float:
    """The expected update by OpenRLHF's training step in units of the pass rate's gradient, all pools enumerated."""
    n = policy.group_size
    args = arguments(loss, entropy_coef=None)
    args.algo.kl.use_loss, args.rollout.n_samples_per_prompt = False, n
    trainer = trainer_of(args, 1, policy_loss_type=kind, token_level_loss=loss != "seq-mean-token-mean")

    def weight(drawn: int, positives: int) -> float:
        pool = pool_of([1] * positives + [0] * (drawn - positives))
        pool.predicted = p
        group = policy.build(pool, np.random.default_rng(0))
        right = torch.tensor([i < positives for i in group.indices])
        lengths = torch.where(right, RIGHT_TOKENS, WRONG_TOKENS)
        mask = torch.arange(WRONG_TOKENS) < lengths.unsqueeze(-1)
        trainer.actor = Coin(p)
        sequences = torch.cat([torch.zeros(n, 1), right.unsqueeze(-1), torch.zeros(n, WRONG_TOKENS - 1)], 1).long()
        with torch.no_grad():
            log_probs, _ = trainer.actor(sequences, mask)
        experience = Experience(
            sequences=sequences, action_mask=mask, action_log_probs=log_probs,
            advantages=torch.tensor(group.coefficients, dtype=torch.float64).unsqueeze(-1).expand(mask.shape),
            index=list(range(n)), info={},
        )  # fmt: skip
        # One prompt of a batch whose totals are the same however this one comes out.
        totals = {"dp_size": 1, "batch_num_tokens": torch.tensor(1e6), "global_batch_size": torch.tensor(float(n))}
        trainer.training_step(experience, 0.0, 0, totals)
        return -float(trainer.actor.logit.grad) / (p * (1 - p))

    return expected_weight(policy.plan, p, weight)


UNIFORM = sequential(0, 0, n=4, wave=4, cap=4, estimator="rloo")
EXACT = sequential(1, 1, n=4, wave=4, cap=8, baseline="estimator", correction="stratum")
"""`stratum` for the linear objective: the weight should be 1 at every pass rate."""

WEIGHTS = [  # sampling, loss, kind, weights at pass rates .1, .9 relative to that at .5
    (UNIFORM, "host", "ppo", (1.0, 1.0)),
    (UNIFORM, "seq-mean-token-mean", "ppo", (1.48, 0.52)),
    (UNIFORM, "host", "gspo", (1.48, 0.52)),
    (UNIFORM, "sequence-constant", "ppo", (1.0, 1.0)),
    (UNIFORM, "sequence-constant", "gspo", (1.0, 1.0)),
    (EXACT, "host", "ppo", (1.0, 1.0)),
    (EXACT, "seq-mean-token-mean", "ppo", (1.48, 0.52)),
    (EXACT, "host", "gspo", (1.48, 0.52)),
    (EXACT, "sequence-constant", "ppo", (1.0, 1.0)),
    (EXACT, "sequence-constant", "gspo", (1.0, 1.0)),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "loss", "kind", "expected"),
    WEIGHTS,
    ids=[f"{'uniform' if policy is UNIFORM else 'stratum'}, {loss}, {kind}" for policy, loss, kind, _ in WEIGHTS],
)
def test_outcome_dependent_lengths_change_some_losses(
    policy: Sequential, loss: str, kind: str, expected: tuple[float, float]
) -> None:
    """Right answers of 100 tokens, wrong ones of 400: the figures in the messages of loss_rules and in the docs."""
    middle = trained_weight(policy, 0.5, loss, kind)
    for p, relative in zip((0.1, 0.9), expected, strict=True):
        assert trained_weight(policy, p, loss, kind) / middle == pytest.approx(relative, abs=5e-4)
    if loss == "sequence-constant":
        assert middle == pytest.approx(1 / LENGTH, rel=1e-6), "the linear objective over the constant, no other scale"
