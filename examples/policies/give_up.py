"""Ada-Seq that gives a prompt up when it will probably stay all wrong: `--ada_mode seq --ada_policy <this file>`.

After k wrong answers of k, the next M are all wrong too with probability (k + 1) / (k + M + 1), if every pass rate was
as likely as any other at first. Above SURE the prompt is closed: more of its rollouts would probably teach nothing.
"""

from collections.abc import Sequence
from dataclasses import fields

from openrlhf_ada.config.settings import Settings, published_policy
from openrlhf_ada.core.policies import Action, Close, Draw, Policy, Sequential
from openrlhf_ada.core.types import PromptPool

SURE = 0.7


class GiveUp(Sequential):
    """Everything but `decide` is Ada-Seq's: what is trained of a pool, what is remembered, what is sent ahead."""

    def decide(self, pools: Sequence[PromptPool]) -> Sequence[Action]:
        actions = super().decide(pools)
        return [self._closing(pool, action) for pool, action in zip(pools, actions, strict=True)]

    def _closing(self, pool: PromptPool, action: Action) -> Action:
        wrong = len(pool)
        if isinstance(action, Close) or not wrong or pool.count_positives(self.rule.threshold):
            return action
        all_wrong_again = (wrong + 1) / (wrong + action.count + 1)
        return Close(pool.key) if all_wrong_again > SURE else Draw(pool.key, action.count)


def make_policy(settings: Settings) -> Policy:
    """What `--ada_policy` calls; `published_policy` is what the other flags describe."""
    usual = published_policy(settings)
    assert isinstance(usual, Sequential)
    return GiveUp(**{field.name: getattr(usual, field.name) for field in fields(usual)})
