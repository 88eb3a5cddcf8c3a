"""Every metric name that this package writes: its unit, its meaning, and what a bad value means.

The one home of these names: `RunLog` refuses an `ada/` name that is not listed here, and `docs/metrics.md` is
generated from this table. Host names (`rollout/...`, `timing/...`, ...) are OpenRLHF's and are kept as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from openrlhf_ada.reporting.host_figures import render_host_figures


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
        "Rollouts started in this step. Always `kept + unused + aborted`.",
        "At prompts x `ada.max_samples`: no prompt resolves; the prompts are far too hard (or too easy).",
    ),
    "ada/kept": Metric(
        "rollouts",
        "Rollouts that are trained: `rollout.n_samples_per_prompt` for each prompt.",
        "Not prompts x n: groups were dropped or incomplete.",
    ),
    "ada/unused": Metric(
        "rollouts",
        "Finished rollouts that enter the stop rule and the baseline but are not trained.",
        "Many times `kept`: balanced groups are expensive on these prompts. Take easier prompts or lower "
        "`ada.max_samples`.",
    ),
    "ada/aborted": Metric(
        "rollouts",
        "Rollouts that entered no pool: started early and not needed, failed, or lost.",
        "A large share of `drawn`: too many rollouts are started early. Lower `ada.speculation`.",
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
        "Near `ada.reward_timeout`: answers beyond it are wrong if their labels are readable, else without a score.",
    ),
    "ada/causes": Metric(
        "cause -> rollouts",
        "Why scores of these reward functions are below 1; the most frequent causes.",
        "Many without an answer: the model has not learned the format, or answers are cut off.",
    ),
    "ada/forgeable": Metric(
        "rollouts",
        "Rollouts whose tests run in the program's own process or rest on its word (reward `code`), so that a program "
        "could have forged its score. `forgeable` in samples.jsonl marks them.",
        "Many, and scores rise: read some of these programs. See rewards.md for tests that can be kept apart.",
    ),
    "ada/drawn_tokens": Metric(
        "tokens",
        "Response tokens of all rollouts started in this step.",
        "Grows while `drawn` does not: answers are getting longer.",
    ),
    "ada/kept_tokens": Metric(
        "tokens",
        "Response tokens of the trained rollouts.",
        "Per rollout far below `drawn_tokens / drawn`: selection prefers short answers, which must not happen.",
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
        "`drawn / prompts`. A uniform run of the same cost has this group size.",
        "At the cap: most prompts never resolve. At n: sampling never adapts.",
    ),
    "ada/rounds": Metric(
        "rounds",
        "Waves of the prompt that needed most of them.",
        "Always cap / wave: some prompt reaches the cap in every step. With `ada.scheduler rounds` all others "
        "wait for it.",
    ),
    # -- what the policy can do -------------------------------------------------------------------------------------
    "ada/metric_mean": Metric(
        "share, 0 to 1",
        "Mean score of all finished rollouts. Prompts that drew more, mostly hard ones, count more, so it is "
        "lower than the policy's accuracy.",
        "Use it for cost accounting only. Watch `ada/first_wave_metric_mean` for learning.",
    ),
    "ada/first_wave_metric_mean": Metric(
        "share, 0 to 1",
        "Mean score of the first n samples of every prompt (n = `rollout.n_samples_per_prompt`). Every prompt "
        "counts the same, and no stop rule is involved: an unbiased estimate of the policy's accuracy on this "
        "batch. In mode `off`: of all its samples, those that OpenRLHF's filter rejects included; not recorded if a "
        "score is outside of 0 to 1.",
        "Flat or falling over tens of steps: the policy does not learn. Near 0 or 1: the prompts do not fit the "
        "model.",
    ),
    "ada/reward_mean": Metric(
        "reward",
        "Mean reward over all finished rollouts (what is trained on, shaping included).",
        "Rises while the score does not: the policy exploits the shaping.",
    ),
    # -- is there anything to learn from ----------------------------------------------------------------------------
    "ada/signal_share": Metric(
        "share, 0 to 1",
        "Share of trained groups with a gradient (at least one non-zero coefficient). If groups with one outcome "
        "have a gradient too (baseline from a prediction or a critic, no baseline, raw scores): share of prompts "
        "whose pool shows more than one outcome. Not recorded with one rollout per prompt, nor are the next two.",
        "Near `ada/signal_share_uniform`: the extra rollouts gain nothing.",
    ),
    "ada/signal_share_uniform": Metric(
        "share, 0 to 1",
        "Share of prompts whose first n samples already show more than one outcome: the signal of uniform "
        "sampling with n, on the same prompts and samples. Not recorded for n = 1.",
        "Near 0: most prompts are too hard or too easy for groups of n. Near 1: adaptive sampling is not needed.",
    ),
    "ada/resolved_share": Metric(
        "share, 0 to 1",
        "Share of prompts whose pool shows more than one outcome.",
        "Low: many prompts stay all wrong or all right up to the cap. Raise `ada.max_samples` or change the prompts.",
    ),
    "ada/group_scale": Metric(
        "factor",
        "Common factor on all advantages of the step (`reinforce_baseline` and `gae`; 1 for the others).",
        "Changes by orders of magnitude: the effective learning rate changes with it.",
    ),
    "ada/stratum_factor_std": Metric(
        "factor",
        "Standard deviation of the stratum factors (N_c/N)/(k_c/n) of the trained rollouts. PPO weighs its "
        "critic's loss and its advantages with them. Their mean is 1; the deviation is 0 if every group has its "
        "pool's share of positives.",
        "Above 1: few rollouts carry most of the step. Raise `rollout.n_samples_per_prompt`, or lower "
        "`ada.max_samples`.",
    ),
    "ada/coefficient_max": Metric(
        "coefficient",
        "Largest coefficient (weight times advantage) of a trained rollout, of either sign (PPO: the weight "
        "alone). With rewards of 0 and 1 and default flags: below 1 in mode seq; in mode est at most 7.1 if all "
        "rollouts are trained, and 94 if groups are selected. docs/choosing.md has other settings.",
        "Tens or more: single rollouts decide the step. Raise `ada.floor`, or use another correction or baseline.",
    ),
    # -- raw scores: a reward model's, --ada_scores raw, --ada_positive_quantile --------------------------------------
    "ada/score_threshold": Metric(
        "score",
        "Raw score above which a rollout of this step was positive. With `ada.positive_quantile` it follows the "
        "scores of earlier steps.",
        "Rises while people like the answers no better: the policy exploits the reward model.",
    ),
    "ada/raw_score_mean": Metric(
        "score",
        "Mean raw score of the first rollouts of every prompt: those that each prompt gets whatever their outcomes.",
        "Constant: the policy does not learn what the scores reward.",
    ),
    # -- where the rollouts went ------------------------------------------------------------------------------------
    "ada/effective_weight": Metric(
        "pass-rate bin -> weight",
        "Weight of a prompt's pass-rate gradient in the trained groups, by the share of positives in its pool: "
        "(C+/p + C-/(1-p))/n. C+ is the sum of the coefficients of positives, C- minus that of negatives; p is "
        "the prediction, or the pool's own rate if nothing predicts. Its expectation at a given p is f' of the "
        "objective that is optimised (docs/algorithms.md has it exactly). Read it for size and change, not for "
        "shape: pools sorted by their own outcome differ from prompts sorted by pass rate. Losses that divide by "
        "lengths (`ada.loss`, `actor.loss_agg_mode`) change the weight, and are not counted here.",
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
        "Mean number of weight updates between the sampling of a rollout and its training. 0 in synchronous training.",
        "Many: sampling runs far ahead of training. Lower `train.async_queue_size`.",
    ),
    "ada/mixed_version_share": Metric(
        "share, 0 to 1",
        "Share of prompts whose pool has more than one policy version: with `train.partial_rollout_enable`, and "
        "in asynchronous training after an engine was restarted.",
        "Above 0 in synchronous training: a bug.",
    ),
    "ada/skipped": Metric(
        "share, 0 to 1",
        "Share of the trained rollouts that the policy does not compute, since their coefficient is 0. With "
        "`ada.zeros skip`; figures that begin with `trained/`, surprisal and gap are then of the others.",
        "Falls when fewer prompts come out as expected: training takes longer.",
    ),
    "ada/skipped_tokens": Metric(
        "tokens",
        "Response tokens of the trained rollouts that the policy does not compute. With `ada.zeros skip`.",
        "Beside `ada/kept_tokens`: what training is spared.",
    ),
    "ada/surprisal": Metric(
        "nats per token",
        "Mean of -log π over the sampled tokens of the trained rollouts, which estimates the policy's entropy. That "
        "rollouts are selected by outcome shifts it a little.",
        "Falls to 0: the policy is certain of every token, and explores nothing.",
    ),
    "ada/logprob_gap_mean": Metric(
        "nats",
        "Mean gap between policy and engines in the log-probability of a sampled token but an answer's first, over "
        "the trained rollouts. Logged every `ada.logprob_steps` steps. In asynchronous training the policy is ahead, "
        "which is part of the gap.",
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
        "Far from 1: the engines do not sample by the log-probabilities that they report.",
    ),
    # -- what is predicted ------------------------------------------------------------------------------------------
    "ada/estimator_brier": Metric(
        "squared error",
        "Brier score of the predicted pass rates: mean over prompts of the mean squared distance between the "
        "prediction and the outcomes drawn afterwards.",
        "At or above `ada/prior_brier`: the predictions say nothing about single prompts.",
    ),
    "ada/prior_brier": Metric(
        "squared error", "Brier score of a constant prediction: the mean pass rate of recent visits.", "-"
    ),
    "ada/critic_brier": Metric(
        "squared error",
        "Brier score of the critic's values, whether they are used or not.",
        "Above `ada/prior_brier` for long: the critic is not used (`ada/critic_in_use`). Raise `critic.adam.lr`.",
    ),
    "ada/critic_in_use": Metric(
        "0 or 1",
        "1 if the critic made the predictions. It is used after it predicted better than the mean over "
        "`ada.trust_steps` steps, and dropped after it was worse in each of them. Otherwise counts predict.",
        "0 late in a run: the budget is split by counts.",
    ),
    "ada/given_up": Metric(
        "prompts",
        "Prompts of the batch that got the least number of rollouts because `ada.give_up` rollouts in a row had "
        "no positive.",
        "Most of the batch: the prompts are too hard.",
    ),
    "ada/draws_histogram": Metric(
        "rollouts -> prompts",
        'How many prompts drew how many rollouts, as an object: `{"4": 10, "8": 3}`.',
        "All prompts at the cap, or all at the first wave.",
    ),
    "ada/allocation_by_pass_rate": Metric(
        "pass-rate bin -> counts",
        "Prompts and rollouts by the share of positives in the prompt's pool, as an object: "
        '`{"0": {"prompts": 3, "rollouts": 48}, "0-0.2": ..., "1": ...}`. A bin holds its lower edge; pools without a '
        "positive (`0`) and without a negative (`1`) have bins of their own.",
        "Most rollouts in bin `0`: unsolvable prompts take the budget.",
    ),
    # -- which prompts are sampled: --ada_candidates ------------------------------------------------------------------
    "ada/coverage": Metric(
        "share, 0 to 1",
        "Share of the data set's prompts that were sampled at least once so far.",
        "Stays far below 1: few prompts take the whole run. Lower `ada.candidates`.",
    ),
    "ada/prompt_age": Metric(
        "steps",
        "Median over the data set of the steps since a prompt was last sampled; 0: in this step. Prompts that were "
        "never sampled count from before the first step.",
        "Many times the steps of an episode: most prompts wait, and their pass rates are old. Lower `ada.candidates` "
        "or `ada.half_life`.",
    ),
    "ada/prompt_age_max": Metric(
        "steps",
        "Steps since the prompt that has waited longest was sampled. Those that were never sampled count from before "
        "the first step.",
        "Above 22 episodes: more prompts are overdue (20 episodes) than a step has places. Lower `ada.candidates`.",
    ),
    "ada/choice_length": Metric(
        "ratio",
        "Mean expected length of the answers to this step's chosen prompts, over that of the mean prompt.",
        "Falls far below 1 with `ada.choice` `std_per_token`: hardly any prompt with long answers is trained.",
    ),
    "ada/choice_chance": Metric(
        "share, 0 to 1",
        "Mean chance of this step's prompts to be chosen out of their candidates.",
        "At 1 / `ada.candidates`: the candidates are all worth the same, and choosing brings nothing.",
    ),
    # -- since the start of the run ---------------------------------------------------------------------------------
    "ada/total_drawn": Metric("rollouts", "Sum of `ada/drawn` since the first step, resumes included.", "-"),
    "ada/total_drawn_tokens": Metric("tokens", "Sum of `ada/drawn_tokens` since the first step.", "-"),
    "ada/step_s": Metric(
        "seconds",
        "Duration of this step: sampling, training and weight synchronisation; evaluation excluded.",
        "Grows while `drawn_tokens` does not: the machine is slower.",
    ),
    "ada/wall_clock_s": Metric("seconds", "Time since training started, evaluation included.", "-"),
    # -- evaluations on held-out prompts ----------------------------------------------------------------------------
    "eval/accuracy": Metric(
        "share, 0 to 1",
        "Mean over held-out prompts of the prompt's share of right answers, after this many training steps (0: before "
        "training). An answer is right if its score exceeds `--ada_positive_threshold`.",
        "Falls while `ada/first_wave_metric_mean` rises: overfitting to the training prompts.",
    ),
    "eval/ci95": Metric(
        "share",
        "Half-width of the 95 % interval of `eval/accuracy` (Student's t over prompt means, so clustered by "
        "prompt). null with one prompt.",
        "As large as the gain: evaluate more prompts before believing it.",
    ),
    "eval/score": Metric(
        "0 to 1",
        "Mean over held-out prompts of the prompt's mean score. Equal to `eval/accuracy` without partial credit.",
        "Rises while `eval/accuracy` does not: answers get partial credit, but are not right.",
    ),
    "eval/num_prompts": Metric("prompts", "Held-out prompts evaluated.", "Differs between rows of one run."),
    "eval/num_samples": Metric("answers", "All answers sampled for these prompts.", "-"),
    "eval/accuracy/<datasource>": Metric(
        "share, 0 to 1", "`eval/accuracy` over the prompts of one datasource.", "One falls while the others rise."
    ),
    "eval/pass@<n>": Metric(
        "share, 0 to 1",
        "Share of prompts with at least one right answer of n (`eval.n_samples_per_prompt`).",
        "Falls while accuracy rises: answers become alike, and fewer hard prompts are solved.",
    ),
    "eval/all_equal@<n>": Metric(
        "share, 0 to 1",
        "Share of prompts whose n answers are all right or all wrong.",
        "Near 1: groups of n have no signal.",
    ),
    "eval/tokens": Metric(
        "tokens", "Mean length of an answer.", "Grows while accuracy does not: longer answers do not help."
    ),
    "eval/truncated": Metric(
        "share, 0 to 1", "Share of answers cut off at the length limit.", "Above a few per cent: raise the limit."
    ),
    "eval/no_score": Metric(
        "answers",
        "Answers without a score. They are in no figure.",
        "Above 0: the engines' logs say why.",
    ),
}


_DOC_HEAD = """\
# Metrics

<!-- Generated from openrlhf_ada/reporting/metrics.py; a unit test compares. Write it anew with
`make docs`. -->

One JSON object per training step goes to `metrics.jsonl` in the run directory, and one per evaluation (`eval/...`);
both carry `step`, the number of training steps done. [OpenRLHF's own names](#openrlhfs-figures-of-a-step) stand beside
these. A value that is not finite is an error for the names below and becomes `null` for the host's.

Figures of the *trained* groups are biased, because these groups were selected to be balanced. So accuracy is computed
from the first n samples or from the whole pool; each row says which.

In metric names and in `samples.jsonl`, `metric` is the score of a sample, in [0, 1].

| Name | Unit | Meaning | A bad value means |
|---|---|---|---|
"""


def render_metrics_table() -> str:
    """The text of `docs/metrics.md`."""
    rows = (f"| `{name}` | {m.unit} | {m.meaning} | {m.bad} |\n" for name, m in METRICS.items())
    return _DOC_HEAD + "".join(rows) + render_host_figures()


OPEN_ENDED = ("eval/accuracy/", "eval/pass@", "eval/all_equal@")
"""Beginnings of names that a run completes: with a datasource, with a number of answers."""


def check_metric_name(name: str) -> None:
    """Raise ValueError if `name` is in our namespaces (`ada/`, `eval/`) but not in the table."""
    ours = name.startswith(("ada/", "eval/"))
    if ours and name not in METRICS and not name.startswith(OPEN_ENDED):
        raise ValueError(f"metric {name!r} is not in METRICS (openrlhf_ada/reporting/metrics.py): add it there")
