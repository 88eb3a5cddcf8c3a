"""What OpenRLHF's own figures of a training step are, for `docs/metrics.md`."""

_HEAD = """\

## OpenRLHF's figures of a step

Each is one mean over all that the step has trained: in all processes, optimizer steps and epochs, whatever
`train.micro_batch_size` is. OpenRLHF's own depend on it, so mode `off` has them
[otherwise](decisions.md#where-mode-off-is-not-openrlhf). In the adaptive modes `reward`, `score` and `return` are
`trained/reward` and so on.

| Name | Mean over | Meaning |
|---|---|---|
"""

_FIGURES = {
    "`policy_loss`": (
        "tokens; samples, if the loss is",
        "The policy's loss without KL and entropy; with `ada.loss` in that average.",
    ),
    "`entropy_loss`": ("tokens", "Entropy of the policy. With `actor.entropy_coef`."),
    "`kl`, `logprobs_diff`": (
        "samples, of means over their tokens; with `algo.kl.use_loss` tokens",
        "KL estimate between policy and reference, and their difference in log-probability.",
    ),
    "`ppo_kl`, `ppo_clip_ratio`": (
        "tokens",
        "How far the policy has moved within the step, in log-probability; share of tokens whose ratio is clipped.",
    ),
    "`vllm_kl`": (
        "tokens",
        "Difference in log-probability between engines and policy. With `algo.advantage.is_correction_level`.",
    ),
    "`is_filter_ratio`": ("tokens; at level `seq` samples", "Share that the importance correction filters."),
    "`critic_loss`, `values`": ("tokens", "PPO: the critic's loss, and its values."),
    "`actor_grad_norm`, `critic_grad_norm`": (
        "-",
        "Norm of the gradient before it is clipped, in the step's last optimizer step.",
    ),
    "`actor_lr`, `critic_lr`": ("-", "Learning rate after the step."),
    "`reward`, `score`, `return`": ("samples", "Rewards with length penalties, scores, and returns."),
    "`response_length`, `truncated`": (
        "samples",
        "Sampled tokens, and whether sampling was cut off. What an environment inserts is no part of the length. A "
        "conversation that ends without being done is truncated.",
    ),
    "`total_length`, `response_clip_ratio`": (
        "samples",
        "Tokens of the whole sequence, and whether they fill `data.max_len`.",
    ),
    "`rollout/...`": (
        "samples",
        "The same in mode `off`; in the adaptive modes of the first n samples of every prompt.",
    ),
}


def render_host_figures() -> str:
    """A section of `docs/metrics.md`."""
    return _HEAD + "".join(f"| {name} | {over} | {meaning} |\n" for name, (over, meaning) in _FIGURES.items())
