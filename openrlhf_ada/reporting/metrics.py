"""Every metric name that this package writes: its unit, its meaning, and what a bad value means.

The one home of these names: `RunLog` refuses an `ada/` name that is not listed here, and `docs/metrics.md` is
generated from this table. Host names (`rollout/...`, `timing/...`, ...) are OpenRLHF's and are kept as they are.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """What one metric says; the words go to `docs/metrics.md`."""

    unit: str
    meaning: str
    bad: str


METRICS: dict[str, Metric] = {
    # -- the ledger of one step -------------------------------------------------------------------------------------
    "ada/prompts": Metric(
        "prompts",
        "Prompts trained in this step, one group each.",
        "Below `rollout.batch_size`: the dataset ran out, or prompts were dropped.",
    ),
    "ada/drawn": Metric(
        "rollouts",
        "Rollouts dispatched in this step. Always `kept + unused + aborted`.",
        "At prompts x `ada.max_samples`: nothing is being resolved, the prompts are far too hard (or too easy).",
    ),
    "ada/kept": Metric(
        "rollouts",
        "Rollouts that are trained: `rollout.n_samples_per_prompt` for each prompt.",
        "Not prompts x n: groups were dropped or incomplete.",
    ),
    "ada/unused": Metric(
        "rollouts",
        "Finished rollouts that decide the stop and the baseline but are not trained.",
        "Many times `kept`: balance is expensive on these prompts. Take easier ones or lower `ada.max_samples`.",
    ),
    "ada/aborted": Metric(
        "rollouts",
        "Rollouts that entered no pool: sent ahead and not needed (stopped, or finished too late), failed, or lost.",
        "A large share of `drawn`: too much speculation.",
    ),
    "ada/failed": Metric(
        "rollouts",
        "Rollouts of `ada/aborted` that got no score: the reward function raised or gave nothing, or "
        "`ada.timeout` was over. Each was repeated once if its prompt needed it.",
        "Above 0: a note after the step says why the last one failed.",
    ),
    "ada/lost": Metric(
        "rollouts",
        "Rollouts of `ada/aborted` whose engine died. They were sampled again with the same seeds. Their "
        "tokens are not counted, because nobody knows their number.",
        "Above 0: an engine died and was started again; its log says why.",
    ),
    "ada/no_score": Metric(
        "prompts",
        "Prompts that fresh ones replaced because a rollout got no score, twice.",
        "Above 0: look at these rows. More than `ada.max_no_score` of a step end the run.",
    ),
    "ada/scoring_s_mean": Metric(
        "seconds",
        "Mean time to grade an answer, for our reward functions (math, reasoning_gym, code).",
        "Large: times the rollouts of a step, divided by the pool's processes, it is the time spent on grading.",
    ),
    "ada/scoring_s_max": Metric(
        "seconds",
        "Longest time to grade an answer.",
        "Near `ada.reward_timeout`: some answers are hard to grade; those beyond it have no score.",
    ),
    "ada/causes": Metric(
        "rollouts by cause",
        "Why scores of these reward functions are below 1; the most frequent causes.",
        "Many without an answer: the format is not learned, or answers are cut off.",
    ),
    "ada/drawn_tokens": Metric(
        "tokens",
        "Response tokens of all rollouts dispatched in this step.",
        "Grows while `drawn` does not: answers are getting longer.",
    ),
    "ada/kept_tokens": Metric(
        "tokens",
        "Response tokens of the trained rollouts.",
        "Per rollout far below `drawn_tokens / drawn`: selection prefers short answers, which it must not.",
    ),
    "ada/unused_tokens": Metric(
        "tokens",
        "Response tokens of finished rollouts that are not trained.",
        "As `ada/unused`.",
    ),
    "ada/aborted_tokens": Metric(
        "tokens",
        "Response tokens of rollouts that entered no pool.",
        "As `ada/aborted`: this work was wasted.",
    ),
    "ada/rollouts_per_prompt": Metric(
        "rollouts / prompt",
        "`drawn / prompts`. The uniform run that costs the same has this group size.",
        "At the cap: most prompts never resolve. At n: sampling never adapts.",
    ),
    "ada/rounds": Metric(
        "rounds",
        "Waves of the prompt that took most of them.",
        "Always cap / wave: some prompt runs into the cap in every step, and with `ada.scheduler rounds` all others "
        "wait for it.",
    ),
    # -- what the policy can do -------------------------------------------------------------------------------------
    "ada/metric_mean": Metric(
        "share, 0 to 1",
        "Sum of the metric over all finished rollouts, divided by their number. A ratio of totals, so biased towards "
        "prompts that drew more (mostly the hard ones): it reads lower than the policy's accuracy.",
        "Use it for cost accounting only; `ada/first_wave_metric_mean` is the one to watch for learning.",
    ),
    "ada/first_wave_metric_mean": Metric(
        "share, 0 to 1",
        "Mean metric of the first n samples of every prompt (n = `rollout.n_samples_per_prompt`). Every prompt counts "
        "the same and no stopping rule is involved: an unbiased estimate of the policy's accuracy on this batch.",
        "Flat or falling over tens of steps: it does not learn. Near 0 or 1: the prompts do not fit the model.",
    ),
    "ada/reward_mean": Metric(
        "reward",
        "Mean reward (what the loss trains on, shaping included) over all finished rollouts.",
        "Rises while the metric does not: the shaping is being exploited.",
    ),
    # -- is there anything to learn from ----------------------------------------------------------------------------
    "ada/signal_share": Metric(
        "share, 0 to 1",
        "Share of trained groups with at least one non-zero coefficient, so with a gradient. Where the baseline comes "
        "from outside the pool (a prediction, a critic, none) or scores are raw, groups of one outcome have a "
        "gradient too, and are not counted: share of prompts whose pool shows more than one outcome.",
        "Near `ada/signal_share_uniform`: the extra rollouts gain nothing.",
    ),
    "ada/signal_share_uniform": Metric(
        "share, 0 to 1",
        "Share of prompts whose first n samples already differ in outcome: what uniform sampling with n would have "
        "had on the same prompts, from the same samples.",
        "Near 0: most prompts are too hard or too easy for groups of n. Near 1: adaptive sampling is not needed.",
    ),
    "ada/resolved_share": Metric(
        "share, 0 to 1",
        "Share of prompts whose pool shows more than one outcome.",
        "Low: many prompts stay all wrong or all right up to the cap. Raise `ada.max_samples` or change the prompts.",
    ),
    "ada/group_scale": Metric(
        "factor",
        "Common positive factor on all advantages of the step (`reinforce_baseline` and `gae`; 1 for the others).",
        "Drifts by orders of magnitude: the learning rate means something else at the end than at the start.",
    ),
    "ada/stratum_factor_std": Metric(
        "factor",
        "Spread of the stratum factors (N_c/N)/(k_c/n) of the trained rollouts, with which PPO weighs its critic's "
        "loss and its advantages. Their mean is 1; 0 where every group has its pool's share of positives.",
        "Above 1: few rollouts carry most of the step. Raise `rollout.n_samples_per_prompt`, or lower "
        "`ada.max_samples`.",
    ),
    "ada/coefficient_max": Metric(
        "coefficient",
        "Largest weight times advantage of a trained rollout, of either sign (PPO: the weight alone). With rewards of "
        "0 and 1 and default flags below 1 in mode seq; in mode est at most 7.1 where all rollouts are trained, and "
        "94 where groups are selected. docs/choosing.md has the others.",
        "Tens or more: single rollouts decide the step. Raise `ada.floor`, or use another correction or baseline.",
    ),
    # -- raw scores: a reward model's, --ada_scores raw, --ada_positive_quantile --------------------------------------
    "ada/score_threshold": Metric(
        "score",
        "The raw score above which a rollout of this step was positive; with `ada.positive_quantile` it follows the "
        "scores of the steps before.",
        "Rising while people like the answers no better: the policy exploits the reward model.",
    ),
    "ada/score_mean": Metric(
        "score",
        "Mean raw score of the first rollouts of every prompt: as many as each has whatever their outcomes.",
        "Constant: the policy does not learn what the scores reward.",
    ),
    # -- where the rollouts went ------------------------------------------------------------------------------------
    "ada/effective_weight": Metric(
        "pass-rate bin -> weight",
        "Weight of the gradient of the pass rate that the trained groups stand for, by the share of positives in the "
        "prompt's pool: (C+/p + C-/(1-p))/n, C+ the sum of the coefficients of positives, C- minus that of negatives. "
        "Its expectation at a given p is f' of the objective really optimised (docs/algorithms.md has it exactly). "
        "Losses that divide by lengths (`ada.loss`, `actor.loss_agg_mode`) change it, and are not counted here. "
        "Here p is the prediction, or the pool's own rate where nothing predicts; pools sorted by their own outcome "
        "differ from prompts sorted by their pass rate, so read it for size and for change, not for shape.",
        "Tens or more: few prompts carry the step. Raise `ada.floor`, or take a milder `ada.objective`.",
    ),
    "ada/replaced": Metric(
        "prompts",
        "Prompts of one outcome that were replaced by fresh ones (`ada.unresolved refill`). Their rollouts are in "
        "`ada/unused`.",
        "Always at `ada.refill_limit`: the prompts do not fit the model.",
    ),
    # -- policy versions --------------------------------------------------------------------------------------------
    "ada/staleness_mean": Metric(
        "weight updates",
        "Updates of the weights between the sampling of a rollout and its training, on average. 0 in the synchronous "
        "trainer.",
        "Many: sampling runs far ahead. Lower `train.async_queue_size`.",
    ),
    "ada/mixed_version_share": Metric(
        "share, 0 to 1",
        "Share of prompts whose sampling saw an update of the weights: with `train.partial_rollout_enable`, and in "
        "asynchronous training when an engine was started again.",
        "Above 0 in synchronous training: a defect.",
    ),
    "ada/logprob_gap_mean": Metric(
        "nats",
        "Distance of policy and engines in the log-probability of a sampled token, mean over the trained rollouts. In "
        "the steps of `ada.logprob_steps`. In asynchronous training the policy is ahead, which is part of it.",
        "Rising from step to step, or above `ada.logprob_warn`: the engines sample from another policy.",
    ),
    "ada/logprob_gap_max": Metric(
        "nats",
        "Largest distance of a single token.",
        "It may be large in half precision: watch the mean.",
    ),
    "ada/logprob_ratio_mean": Metric(
        "ratio",
        "Mean over tokens of the policy's probability divided by the engine's. It would be 1 in expectation if all "
        "rollouts were trained; but their scores decide which are.",
        "Far from 1: what engines call log-probability is not what they sample by.",
    ),
    # -- what is predicted ------------------------------------------------------------------------------------------
    "ada/estimator_brier": Metric(
        "squared error",
        "Brier score of the pass rates that were predicted before sampling, on what was then drawn: mean over prompts "
        "of the mean squared distance to the outcome.",
        "At or above `ada/prior_brier`: the prediction knows nothing of the single prompt.",
    ),
    "ada/prior_brier": Metric(
        "squared error", "The same for the mean pass rate of recent visits, as the only prediction for all.", "-"
    ),
    "ada/critic_brier": Metric(
        "squared error",
        "The same for the critic's value of the prompt, used or not.",
        "Above `ada/prior_brier` for long: it is not used (`ada/critic_in_use`). Raise `critic.adam.lr`.",
    ),
    "ada/critic_in_use": Metric(
        "0 or 1",
        "Were the predictions the critic's? It is used once it predicted better than the mean over "
        "`ada.trust_steps` steps, and dropped when it was worse in every one of them; counts stand in.",
        "0 late in a run: allocation goes by counts.",
    ),
    "ada/given_up": Metric(
        "prompts",
        "Prompts of the batch that got the least number of rollouts, after `ada.give_up` in a row without a positive.",
        "Most of the batch: the prompts are too hard.",
    ),
    "ada/draws_histogram": Metric(
        "rollouts -> prompts",
        'How many prompts drew how many rollouts, as an object: `{"4": 10, "8": 3}`.',
        "All mass at the cap, or all at the first wave.",
    ),
    "ada/allocation_by_pass_rate": Metric(
        "pass-rate bin -> counts",
        "Prompts and rollouts by the share of positives in the prompt's pool, as an object: "
        '`{"0": {"prompts": 3, "rollouts": 48}, "0-0.2": ..., "1": ...}`. A bin holds its lower edge; pools without a '
        "positive (`0`) and without a negative (`1`) have bins of their own.",
        "Most rollouts in bin `0`: unsolvable prompts eat the budget.",
    ),
    # -- since the start of the run ---------------------------------------------------------------------------------
    "ada/total_drawn": Metric("rollouts", "Sum of `ada/drawn` since the first step, resumes included.", "-"),
    "ada/total_drawn_tokens": Metric("tokens", "Sum of `ada/drawn_tokens` since the first step.", "-"),
    "ada/step_s": Metric(
        "seconds",
        "Duration of this step: sampling, training and weight synchronisation; evaluation excluded.",
        "Grows with `drawn_tokens` unchanged: the machine, not the method.",
    ),
    "ada/wall_clock_s": Metric("seconds", "Time since training started, evaluation included.", "-"),
    # -- evaluations on held-out prompts ----------------------------------------------------------------------------
    "eval/accuracy": Metric(
        "share, 0 to 1",
        "Mean over held-out prompts of the prompt's mean metric, after this many training steps (0: before training).",
        "Falls while `ada/first_wave_metric_mean` rises: over-fitting to the training prompts.",
    ),
    "eval/ci95": Metric(
        "share",
        "Half-width of the 95 % interval of `eval/accuracy`: Student's t over prompt means, so clustered by prompt. "
        "null with one prompt.",
        "As large as the gain: evaluate more prompts before believing it.",
    ),
    "eval/num_prompts": Metric("prompts", "Held-out prompts evaluated.", "Differs between rows of one run."),
    "eval/num_samples": Metric("answers", "Answers sampled for them in all.", "-"),
    "eval/accuracy/<datasource>": Metric(
        "share, 0 to 1", "`eval/accuracy` of the prompts of one datasource.", "One falls while the others rise."
    ),
    "eval/pass@<n>": Metric(
        "share, 0 to 1",
        "Prompts of which at least one of the n answers (`eval.n_samples_per_prompt`) is right.",
        "Falls while accuracy rises: answers become alike, and fewer hard prompts are solved.",
    ),
    "eval/all_equal@<n>": Metric(
        "share, 0 to 1", "Prompts whose n answers are all right or all wrong.", "Near 1: groups of n have no signal."
    ),
    "eval/tokens": Metric(
        "tokens", "Mean length of an answer.", "Grows while accuracy does not: longer answers do not help."
    ),
    "eval/truncated": Metric(
        "share, 0 to 1", "Answers that were cut off at the longest length.", "Above a few per cent: raise the length."
    ),
    "eval/no_score": Metric(
        "answers",
        "Answers without a score. They are in no figure.",
        "Above 0: look for the cause in the engines' logs.",
    ),
}


_DOC_HEAD = """\
# Metrics

<!-- Generated from openrlhf_ada/reporting/metrics.py; a unit test compares. Write it anew with
`make docs`. -->

One JSON object per training step goes to `metrics.jsonl` in the run directory, and one per evaluation (`eval/...`);
both carry `step`, the number of training steps done. OpenRLHF's own names stand beside these, unchanged.
A value that is not finite is an error for the names below and becomes `null` for the host's.

Anything computed on the *trained* groups is biased, because they were selected to be balanced. So accuracy is reported
from the first wave or from the whole pool, and each row says which.

| Name | Unit | Meaning | A bad value means |
|---|---|---|---|
"""


def render_metrics_table() -> str:
    """The text of `docs/metrics.md`."""
    rows = (f"| `{name}` | {m.unit} | {m.meaning} | {m.bad} |\n" for name, m in METRICS.items())
    return _DOC_HEAD + "".join(rows)


OPEN_ENDED = ("eval/accuracy/", "eval/pass@", "eval/all_equal@")
"""Beginnings of names that a run completes: with a datasource, with a number of answers."""


def check_metric_name(name: str) -> None:
    """Raise ValueError if `name` is in our namespaces (`ada/`, `eval/`) but not in the table."""
    ours = name.startswith(("ada/", "eval/"))
    if ours and name not in METRICS and not name.startswith(OPEN_ENDED):
        raise ValueError(f"metric {name!r} is not in METRICS (openrlhf_ada/reporting/metrics.py): add it there")
