"""AdaptiveExperienceMaker: advantages from the group's coefficients, not from the position in a reshaped batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from openrlhf.models.utils import compute_reward
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_ada.core.advantages import WHITENED
from openrlhf_ada.rollout.records import SampleTag, TaggedExperience
from openrlhf_ada.trainer.logprob_gap import LogprobGap, check_gap, logprob_gap, surprisal
from openrlhf_ada.trainer.skipped_rollouts import hide, show

CRITIC_WEIGHT = "ada_critic_weight"
"""Key in Experience.info: the stratum factor with which the critic's loss weighs a sample, shape (B,)."""


class AdaptiveExperienceMaker(RemoteExperienceMaker):
    """Turns tagged samples into experience.

    Where OpenRLHF subtracts a baseline computed from `reshape(-1, n)`, a sample here brings its coefficient (weight x
    advantage over its whole pool). KL penalty, GAE and the shift of the reward to the last token stay OpenRLHF's.
    """

    def __init__(self, host: RemoteExperienceMaker, *, uses_critic: bool = True) -> None:
        """`uses_critic`: ask it for values. A pass-rate critic predicts, and has none for the policy's training."""
        critic: Any = host.critic_model_group if uses_critic else None
        super().__init__(
            host.actor_model_group,
            critic,
            host.reward_model_group,
            host.initial_model_group,
            host.kl_ctl,
            host.strategy,
            host.tokenizer,
        )
        self.group_scale = 1.0
        self.gap: LogprobGap | None = None
        self.surprisal: float | None = None
        self._tags: list[SampleTag] = []
        self._lengths: list[int] = []

    @torch.no_grad()
    def make_experience_batch(self, rollout_samples: Sequence[TaggedExperience]) -> list[Experience]:
        """Raises ValueError on a sample without a tag: its advantage would be a guess."""
        tags = [sample.tag for sample in rollout_samples]
        if None in tags:
            raise ValueError(f"sample {tags.index(None)} of the batch carries no group tag")
        self._tags = [tag for tag in tags if tag is not None]
        self._lengths = [sample.sequences.shape[1] for sample in rollout_samples]
        if self.args.ada.skips_zeros:
            hide(rollout_samples, [tag.coefficient for tag in self._tags])
        return super().make_experience_batch(rollout_samples)

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Fill advantages and returns, shape (B, A) each, from the tags of the current batch.

        Raises LogprobGapError where the engines sampled from something else than the policy, over the whole step.
        Length penalties are already in the rewards: the pool's baseline needs them for samples that are not trained.
        """
        for experience in experiences:
            self._weigh(experience)
        self.gap = logprob_gap(experiences)
        self.surprisal = surprisal(experiences, [experience.info[CRITIC_WEIGHT] for experience in experiences])
        if self.args.ada.skips_zeros:
            for experience in experiences:
                show(experience, [self._lengths[i] for i in experience.index])
        if self.gap is not None:
            check_gap(self.gap, self.args.ada.logprob_stop)
        for experience in experiences:
            coefficients = torch.tensor([self._tags[i].coefficient for i in experience.index], dtype=torch.float32)
            if self.advantage_estimator == "gae":
                self._gae(experience, coefficients)
            else:
                self._returns(experience, coefficients)
            experience.kl = None
        self.group_scale = self._whitening_scale(experiences)
        for experience in experiences:
            experience.advantages = experience.advantages * self.group_scale
        return experiences

    def _weigh(self, experience: Any) -> None:
        """Let a sample count in figures of the policy as often as it stands for others of its pool."""
        weights = torch.tensor([self._tags[i].critic_weight for i in experience.index])
        experience.info |= {n: experience.info[n] * weights for n in experience.info.keys() & {"kl", "logprobs_diff"}}
        experience.info[CRITIC_WEIGHT] = weights

    def _gae(self, experience: Any, weights: torch.Tensor) -> None:
        """PPO: the critic is the baseline, so the reward enters as it is and the coefficient is a weight."""
        advantage = self.args.algo.advantage
        reward = self._token_rewards(experience, experience.rewards.float())
        experience.info["return"] = reward.sum(dim=-1)
        advantages, experience.returns = self.get_advantages_and_returns(
            experience.values, reward, experience.action_mask, advantage.gamma, advantage.lambd
        )
        experience.advantages = advantages * weights.unsqueeze(-1)

    def _returns(self, experience: Any, coefficients: torch.Tensor) -> None:
        """Critic-free: the coefficient, which no range of rewards bounds, takes the place of the baselined reward. The
        KL penalty counts a sample as often as it stands for others of its pool."""
        experience.kl = experience.kl * experience.info[CRITIC_WEIGHT].unsqueeze(-1)
        reward = self._token_rewards(experience, coefficients)
        experience.info["return"] = reward.sum(dim=-1)
        returns: Any = self.get_cumulative_returns(reward, experience.action_mask, 1.0)
        experience.returns, experience.advantages = returns, returns.clone()

    def _token_rewards(self, experience: Any, value: torch.Tensor) -> Any:
        return compute_reward(value, self.kl_ctl.value, experience.kl, action_mask=experience.action_mask)

    def _whitening_scale(self, experiences: list[Any]) -> float:
        """One positive factor for the batch: over the root mean square of tokens. OpenRLHF also subtracts the mean,
        which in groups selected by outcome would undo the baseline of each."""
        advantage = self.args.algo.advantage
        if advantage.estimator not in WHITENED or advantage.no_std_norm:
            return 1.0
        square_sum = num_tokens = 0.0
        for experience in experiences:
            mask = experience.action_mask.float()
            square_sum += float((experience.advantages.float().pow(2) * mask).sum())
            num_tokens += float(mask.sum())
        if num_tokens == 0:
            return 1.0
        return max(square_sum / num_tokens, 1e-8) ** -0.5


def critic_weights(experience: Any) -> torch.Tensor:
    """Stratum factors of a training micro-batch, shape (B,)."""
    values = experience.info[CRITIC_WEIGHT]
    # OpenRLHF's collation makes a list of scalars of it.
    return values if isinstance(values, torch.Tensor) else torch.stack(list(values))
