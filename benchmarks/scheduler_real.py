"""One step of Ada-Seq-balance on the real vLLM, by each scheduler in turn: the same prompts, the same seeds.

SmolLM2-135M answers short questions at length. Scores are drawn by hashing the answer, with a pass rate per prompt
from 0.05 to 0.95: the model is too small for a task with prompts of all pass rates, and the time of a step does not
depend on who gives the score. Also what the simulation says of the same step, from a calibration before it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.cli.train_ppo_ray import parse, quiet
from openrlhf_ada.core.scheduling import SCHEDULERS, Request, SchedulerName
from openrlhf_ada.core.types import PromptPool, Sample
from openrlhf_ada.demo.model import build_smollm2
from openrlhf_ada.simulation.forecast import Cluster, forecast
from openrlhf_ada.simulation.virtual_engines import EngineModel
from openrlhf_ada.simulation.workload import SyntheticRollouts

CACHE = Path(__file__).parent.parent / ".cache"
THINGS = (
    "river", "violin", "bridge", "whale", "candle", "desert", "poem", "train", "garden", "planet", "bakery", "storm",
)  # fmt: skip


@dataclass(frozen=True)
class Questions:
    """What is asked about so many things, and at most how many tokens an answer may have."""

    text: str
    count: int
    longest: int


LONG = Questions("Describe a {thing} in a few words or a few sentences.", 6, 256)
"""Few prompts, answers about lognormal, as reasoning is: 68 tokens on average, few up to 256."""

SHORT = Questions("What is a {thing}? One short sentence.", 12, 96)
"""More prompts, and answers that end soon: 35 tokens on average."""

QUICK = Questions(LONG.text, 4, 96)

PROMPT = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"

REWARDS = """
import zlib
def reward_func(queries, prompts, labels):
    score = float(zlib.crc32(queries[0].encode()) / 2**32 < float(labels[0]))
    return {"rewards": score, "scores": score}
"""


def measure(questions: Questions, *, repeats: int, calibrates: bool) -> dict[str, Any]:
    """Median seconds by scheduler, whether pools were the same, and predicted by measured seconds."""
    from openrlhf_ada.platforms.session import ray_session

    with tempfile.TemporaryDirectory() as folder:
        args = _flags(Path(folder), questions)
        with quiet(verbose=False), ray_session(args, verbose=False):
            return asdict(questions) | _measure(args, repeats=repeats, calibrates=calibrates)


def _flags(folder: Path, questions: Questions) -> SimpleNamespace:
    num_prompts = questions.count
    (folder / "rewards.py").write_text(REWARDS)
    rows = [
        {
            "input": PROMPT.format(question=questions.text.format(thing=thing)),
            "label": str(0.05 + 0.9 * i / (num_prompts - 1)),
        }
        for i, thing in enumerate(THINGS[:num_prompts])
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags: dict[str, Any] = {
        "ada_mode": "seq", "ada_wave": 4, "ada_max_samples": 16, "actor.num_gpus_per_node": 1,
        "actor.model_name_or_path": build_smollm2(CACHE / "smollm2-chat-model"), "vllm.num_engines": 1,
        "vllm.sync_backend": "gloo", "ds.attn_implementation": "sdpa", "algo.advantage.estimator": "dr_grpo",
        "algo.kl.init_coef": 0, "data.prompt_dataset": folder / "prompts.jsonl", "data.input_key": "input",
        "data.label_key": "label", "data.max_len": questions.longest + 64, "reward.remote_url": folder / "rewards.py",
        "rollout.batch_size": num_prompts, "rollout.n_samples_per_prompt": 4,
        "rollout.max_new_tokens": questions.longest,
        "train.batch_size": num_prompts * 4, "ada_run_dir": folder / "run", "ckpt.path": folder / "ckpt",
        "ckpt.output_dir": folder / "model",
    }  # fmt: skip
    return parse([part for name, value in flags.items() for part in (f"--{name}", str(value))])[0]


def _measure(args: SimpleNamespace, *, repeats: int, calibrates: bool) -> dict[str, Any]:
    from openrlhf_ada.config.settings import make_policy, resolve
    from openrlhf_ada.rollout.calibration import Calibrator
    from openrlhf_ada.rollout.prompts import PromptSource
    from openrlhf_ada.trainer.sampling_only import generate_kwargs, start_sampling

    args.ada_events = None
    generator = start_sampling(args)
    kwargs = generate_kwargs(args)
    engine = None
    if calibrates:
        engine = Calibrator(generator, kwargs).measure(lambda size, _: _say(f"calibrating: batches of {size}"))
    adaptive, plan, settings = generator.policy, generator.options.plan, generator.settings
    uniform = make_policy(
        resolve(
            replace(args.ada.given, exit="fixed", max_samples=4),
            n=4,
            advantage=args.ada.advantage,
            batch=args.rollout.batch_size,
        )
    )
    cases: dict[str, tuple[SchedulerName, Any]] = {name: (name, adaptive) for name in SCHEDULERS}
    cases["uniform"] = ("rounds", uniform)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    pools: dict[str, list[PromptPool]] = {}
    shares: dict[str, list[float]] = {name: [] for name in cases}
    _say("warming up")
    generator.policy = uniform
    generator.generate_samples(**kwargs)
    for repeat in range(repeats):
        # In another order each time, as the machine's mood drifts.
        for name in sorted(cases, key=lambda name: (list(cases).index(name) + repeat) % len(cases)):
            scheduler, generator.policy = cases[name]
            generator.settings = replace(settings, scheduler=scheduler)
            generator.prompts = PromptSource(generator.prompts_dataloader, plan, seed=0, num_episodes=99)
            start = time.monotonic()
            batch = generator.generate_samples(**kwargs)[0]
            seconds[name].append(time.monotonic() - start)
            record = batch.record
            assert record is not None
            pools[name] = [group.pool for group in record.groups]
            shares[name].append(record.ledger.aborted_tokens / record.ledger.drawn_tokens)
            _say(
                f"{name}: {seconds[name][-1]:.1f} s, {record.ledger.drawn_tokens} tokens, waste {shares[name][-1]:.0%}"
            )
    return _results(seconds, shares, pools) | (
        _predictions(engine, args, adaptive, uniform, pools, seconds) if engine else {}
    )


def _results(
    seconds: dict[str, list[float]], shares: dict[str, list[float]], pools: dict[str, list[PromptPool]]
) -> dict[str, Any]:
    paired = [stream / rounds for stream, rounds in zip(seconds["stream"], seconds["rounds"], strict=True)]
    same = [a.samples == b.samples for a, b in zip(pools["stream"], pools["rounds"], strict=True)]
    lengths = [sample.num_tokens for pool in pools["rounds"] for sample in pool.samples]
    return {
        "seconds": seconds,
        "stream_over_rounds": statistics.median(paired),
        "waves_over_rounds": statistics.median(
            waves / rounds for waves, rounds in zip(seconds["waves"], seconds["rounds"], strict=True)
        ),
        "stream_over_uniform": statistics.median(seconds["stream"]) / statistics.median(seconds["uniform"]),
        "waste_share": statistics.mean(shares["stream"]),
        "same_pools": sum(same) / len(same),
        "rollouts": len(lengths),
        "tokens_mean": statistics.mean(lengths),
        "tokens_stdev": statistics.stdev(lengths),
    }


def _predictions(
    engine: EngineModel, args: Any, adaptive: Any, uniform: Any, pools: dict[str, list[PromptPool]], seconds: Any
) -> dict[str, Any]:
    recorded = {pool.key: pool.samples for pool in pools["rounds"]}

    def answer(request: Request) -> Sample:
        """As recorded; beyond that, for rollouts that are only ever sent ahead, as one of the prompt's own."""
        own = recorded[request.key]
        return replace(own[request.index % len(own)], index=request.index)

    cluster = Cluster(1, engine, speculation=engine.speculation or 0)
    predicted: dict[str, float] = {}
    for name in seconds:
        scheduler: Any = "rounds" if name == "uniform" else name
        fresh = [PromptPool(key, row=key) for key in recorded]
        policy = uniform if name == "uniform" else adaptive
        predicted[name] = forecast(policy, fresh, answer, scheduler, cluster).seconds
    ratios = {name: predicted[name] / statistics.median(seconds[name]) for name in seconds}
    return {
        "engine": asdict(engine),
        "predicted": predicted,
        "predicted_over_measured": ratios,
        "speculation": speculation(engine, adaptive),
    }


def speculation(engine: EngineModel, policy: Any) -> list[dict[str, float]]:
    """Stream by rounds in virtual time on the measured engine, by how far it is filled up; means of eight seeds."""
    rows: list[dict[str, float]] = []
    for count in (6, 12, 24):
        for filled in (0, 8, 16, 32):
            ratios: list[float] = []
            waste: list[float] = []
            for seed in range(8):
                answer = SyntheticRollouts(alpha=1.0, beta=1.0, median=40.0, spread=0.9, longest=256, seed=seed)
                rounds, stream = (
                    forecast(
                        policy, [PromptPool(k, row=k) for k in range(count)], answer, name, Cluster(1, engine, filled)
                    )
                    for name in ("rounds", "stream")
                )
                ratios.append(stream.seconds / rounds.seconds)
                waste.append(stream.waste_share)
            figures = {"stream_over_rounds": statistics.mean(ratios), "waste_share": statistics.mean(waste)}
            rows.append({"prompts": count, "filled_up_to": filled} | figures)
    return rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(json.dumps(measure(QUICK, repeats=2, calibrates=False)))
