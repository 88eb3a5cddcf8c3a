"""Ada-Seq that closes prompts which will probably stay all wrong: `--ada_mode seq --ada_policy <this file>`.

After k wrong answers of k, the next M are all wrong with probability (k + 1) / (k + M + 1), for a uniform prior over
pass rates. Above SURE the prompt is closed, because more of its samples would probably have no gradient.
"""

from collections.abc import Sequence
from dataclasses import fields

from openrlhf_ada.config.settings import Settings, published_policy
from openrlhf_ada.core.policies import Action, Close, Draw, Policy, Sequential
from openrlhf_ada.core.types import PromptPool

SURE = 0.7


class GiveUp(Sequential):
    """Ada-Seq with another `decide`. What is trained, remembered and started early stays Ada-Seq's."""

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
    """`--ada_policy` calls this; `published_policy` returns the policy that the other flags describe."""
    usual = published_policy(settings)
    assert isinstance(usual, Sequential)
    return GiveUp(**{field.name: getattr(usual, field.name) for field in fields(usual)})
