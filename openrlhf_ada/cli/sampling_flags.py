"""Flags that `eval` and `prepare-data` share, and the engines that they describe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

from openrlhf_ada.config.flags import FULL_MARKS, ConfigError, add_flag, check_value, flag
from openrlhf_ada.config.passed_on import PASSED_ON, arguments_of, check_known
from openrlhf_ada.config.schema import AdaConfig, add_flags
from openrlhf_ada.config.settings import resolve
from openrlhf_ada.data.problems import Problem, Question, Source
from openrlhf_ada.data.questions import rendered
from openrlhf_ada.data.row_rewards import KEY, RowRewards, parse_map
from openrlhf_ada.eval.answers import as_text
from openrlhf_ada.host.engine_options import check_stops, engine_arguments, options_of, recorded
from openrlhf_ada.host.parser import parse_host_arguments
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.reward.names import check_rewards, split_names
from openrlhf_ada.reward.pool import limits_of
from openrlhf_ada.reward.reward_function import MIXED, NAMED, Grading, is_url

OF_TRAINING = (
    *("timeout", "reward_timeout", "reward_memory", "reward_workers", "code_imports", "code_partial"),
    *("reward_key", "reward_map", *PASSED_ON),
    *("cluster_wait", "engine_args", "trust_remote_code", "verbose"),
)
"""Flags of training that these commands have too, with the same types, defaults, ranges and help texts."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are sampled: what vLLM is told, exactly."""

    n: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    max_len: int
    seed: int
    chat_template_args: str | None
    sampling_args: str | None


GRADERS = ", ".join(NAMED)


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """What these commands have beside OF_TRAINING."""

    reward: str | None = flag(None, "NAME")
    """{GRADERS}; mixed: each row names its own; FILE.py:NAME, a reward file or a URL. Of several with commas, the
    first is the score and grades here. Default: the reward that belongs to the problems."""
    right_above: float = flag(FULL_MARKS, "SCORE")
    """An answer is right if its score is greater; this is full marks."""
    limit: int | None = flag(None, "COUNT", "[1, inf)")
    """Take only the first rows of each source. Default: all."""
    input_key: str | None = flag(None, "COLUMN")
    """Column with the question; dots for nested fields. Default: auto-detected."""
    label_key: str | None = flag(None, "COLUMN")
    """Column with the reference answer. Default: auto-detected."""
    n: int | None = flag(None, "N", "[1, inf)")
    """Answers per problem. Default: 8 for eval, 16 for prepare-data."""
    temperature: float = flag(1.0, "T", "[0, inf)")
    """Sampling temperature."""
    top_p: float = flag(1.0, "P", "(0, 1]")
    """Nucleus sampling; 1: all tokens."""
    top_k: int = flag(-1, "K")
    """Sample from the K most likely tokens; -1: all."""
    max_new_tokens: int = flag(3072, "TOKENS", "[1, inf)")
    """Length limit of an answer."""
    max_len: int | None = flag(None, "TOKENS")
    """Length limit of prompt and answer. Default: --max_new_tokens + 1024, or the model's context."""
    seed: int = flag(0, "S")
    """Seed of all answers."""
    template: str | None = flag(None, "TEXT")
    """Prompt, with {{}} for the question. Default: of a named benchmark or data set its own, else {{}}."""
    system: str | None = flag(None, "TEXT")
    """System message, if the model has a chat template."""
    no_chat: bool = flag(False)
    """Send plain text even if the model has a chat template."""
    engines: int = flag(1, "N", "[1, inf)")
    """Number of vLLM engines."""
    tensor_parallel_size: int = flag(1, "N", "[1, inf)")
    """GPUs per engine."""
    gpu_memory_utilization: float = flag(0.9, "SHARE", "(0, 1]")
    """Share of GPU memory for an engine."""


GROUPS = {"n": "sampling", "engines": "engines and grading"}
"""By the first flag of each."""


def add_sampling_flags(parser: argparse.ArgumentParser, *, n: int) -> None:
    """All of SamplingFlags and OF_TRAINING. `n`: answers per problem, unless they are given."""
    group: Any = parser
    for f in fields(SamplingFlags):
        group = parser.add_argument_group(GROUPS[f.name]) if f.name in GROUPS else group
        add_flag(SamplingFlags, f.name, group, f"--{f.name}", dest=f.name)
    for name in OF_TRAINING:
        add_flag(AdaConfig, name, group, f"--{name}", dest=name)
    parser.set_defaults(n=n)


def sampling_of(args: argparse.Namespace, longest: int | None = None) -> Sampling:
    """Checked; raises ConfigError. `longest`: tokens that every model takes; None while that is not known."""
    for f in (*fields(SamplingFlags), *(AdaConfig.__dataclass_fields__[name] for name in OF_TRAINING)):
        check_value(f, getattr(args, f.name), f"--{f.name}")
    max_len = args.max_len or min(args.max_new_tokens + 1024, longest or sys.maxsize)
    rules = (
        ("top_k", args.top_k == -1 or args.top_k >= 1, "it is a number of tokens, or -1", "Leave it out"),
        (PASSED_ON[0], not (args.no_chat and args.chat_template_args), "--no_chat has no template", "Leave it out"),
        ("n", args.n == 1 or args.temperature > 0, "with --temperature 0 all answers are the same", "Use --n 1"),
        ("max_len", longest is None or max_len <= longest, f"a model takes {longest} tokens at most", "Lower it"),
        ("max_len", max_len > args.max_new_tokens, "prompt and answer must fit", "Raise it or lower --max_new_tokens"),
    )
    for name, holds, rule, remedy in rules:
        if not holds:
            raise ConfigError(f"--{name}", max_len if name == "max_len" else getattr(args, name), rule, remedy)
    stops = arguments_of(args.sampling_args).get("stop")
    check_stops(options_of(args.engine_args, "--engine_args"), stops, "--engine_args")
    return Sampling(**{f.name: getattr(args, f.name) for f in fields(Sampling)} | {"max_len": max_len})


def longest_context(models: Sequence[str], engine_args: str | None, *, trusted: bool) -> int:
    """Tokens, prompt and answer, that each of these takes. vLLM would refuse more after half a minute. Raises
    ConfigError: one is not there, or brings code along and is not `trusted`, or an engine takes no such options."""
    from openrlhf_ada.host.model_code import check_model_code
    from openrlhf_ada.trainer.preflight import check_model

    engine_arguments(engine_args, "--engine_args")
    for model in models:
        check_model("--model", model, trusted=trusted)
        check_model_code("--model", model, trusted=trusted)
    if without_gpu.is_needed():
        without_gpu.activate()
    from transformers.models.auto.configuration_auto import AutoConfig

    try:
        configs = [AutoConfig.from_pretrained(model, trust_remote_code=trusted).get_text_config() for model in models]
    except OSError as error:
        rule = f"one cannot be loaded ({str(error).splitlines()[0]})"
        raise ConfigError("--model", " ".join(models), rule, "Check the name") from error
    return min(config.max_position_embeddings for config in configs)


def with_given(source: Source, args: argparse.Namespace) -> Source:
    """The source with the columns and the template that the flags name."""
    return replace(
        source,
        question_key=args.input_key or source.question_key,
        label_key=args.label_key or source.label_key,
        template=source.template if args.template is None else args.template,
    )


def about_templates(sources: Sequence[Source]) -> str:
    """Which prompts are made, for the first line that a user sees."""
    if len({source.template for source in sources}) == 1:
        return f"prompt {sources[0].template!r}"
    return "prompts " + ", ".join(f"{source.template!r} of {source.name}" for source in sources)


def check_template(template: str | None, system: str | None, problems: Sequence[Problem]) -> None:
    """Raises ConfigError where one would be without effect, or would leave something of a problem out."""
    messages = [problem.question for problem in problems if not isinstance(problem.question, str)]
    if system and any(message["role"] == "system" for question in messages for message in question):
        raise ConfigError("--system", system, "these problems have a system message of their own", "Leave it out")
    if template is not None and "{}" not in template:
        raise ConfigError("--template", template, "it has no {}, where the question goes", "Add it")
    if template is not None and messages:
        raise ConfigError("--template", template, "chat messages are taken as they are", "Leave it out")


def scoring_of(args: argparse.Namespace) -> tuple[str | None, RowRewards | None]:
    """(what grades answers, where each row names its grader); None where the flags do not say. Raises ConfigError."""
    check_rewards(args.reward, "--reward")
    names = split_names(args.reward)
    reward = names[0] if names and not is_url(names[0]) else args.reward
    given = next((name for name in ("reward_key", "reward_map") if getattr(args, name) is not None), None)
    if reward == MIXED:
        return reward, RowRewards(args.reward_key or KEY, parse_map(args.reward_map, "--reward_map"), "--")
    if given is not None:
        rule, remedy = f"rows name their grader with --reward {MIXED} only", f"Add that, or leave --{given} out"
        raise ConfigError(f"--{given}", getattr(args, given), rule, remedy)
    return reward, None


def grading_of(args: argparse.Namespace) -> Grading:
    return Grading(limits_of(args), args.reward_workers)


def host_namespace(model: str, reward: str, args: argparse.Namespace, sampling: Sampling) -> SimpleNamespace:
    """OpenRLHF's flags with their defaults, for engines alone."""
    flags = {
        "--actor.model_name_or_path": model,
        "--reward.remote_url": reward,
        "--vllm.num_engines": args.engines,
        "--vllm.tensor_parallel_size": args.tensor_parallel_size,
        "--vllm.gpu_memory_utilization": args.gpu_memory_utilization,
        "--data.max_len": sampling.max_len,
        "--train.seed": sampling.seed,
        "--ada_cluster_wait": args.cluster_wait,
        "--ada_engine_args": recorded(args.engine_args) or "",
        # What follows is of training, of which there is none, and fits every machine.
        "--data.prompt_dataset": "none",
        "--algo.kl.init_coef": 0,
        "--algo.advantage.estimator": "reinforce",
        "--ds.attn_implementation": "sdpa",
        "--vllm.sync_backend": "gloo",
    }
    switches = ["--vllm.enable_prefix_caching", *(["--trust_remote_code"] if args.trust_remote_code else [])]
    argv = [*(str(part) for item in flags.items() for part in item), *switches]
    host = parse_host_arguments(argv, add_flags, lambda flags: None, prog="openrlhf-ada", description="")
    host.ada = resolve(AdaConfig(**vars(host.ada)), n=1, advantage="reinforce", batch=1)
    # There is no policy; engines take all the slots.
    host.actor.num_gpus_per_node = 0
    host.ada_events = None
    return host


@contextmanager
def open_sampler(
    model: str, reward: str, args: argparse.Namespace, sampling: Sampling, note: Callable[[str], None]
) -> Iterator[Any]:
    """An `AnswerSampler` on fresh engines with this model; Ray is started, or joined, and left as it was."""
    from openrlhf_ada.platforms.session import ray_session

    host = host_namespace(model, reward, args, sampling)
    with ray_session(host, verbose=args.verbose):
        from openrlhf_ada.trainer.sampling_only import start_answering

        yield start_answering(
            host, sampling=asdict(sampling), grading=grading_of(args), timeout_s=args.timeout, note=note
        )


class Prompts:
    """Makes prompts of problems, as the model wants them."""

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        from openrlhf_ada.host.tokenizer import load_tokenizer

        self._tokenizer = load_tokenizer(model, True)
        self._system = args.system
        self.chat = bool(self._tokenizer.chat_template) and not args.no_chat
        if self._system and not self.chat:
            raise ConfigError("--system", args.system, "there is no chat template for it", "Put it into --template")
        self._given = check_known(self._tokenizer, args, "--")

    def num_tokens(self, prompt: str) -> int:
        return len(self._tokenizer(prompt, add_special_tokens=False)["input_ids"])

    def __call__(self, problem: Problem) -> str:
        """Raises DataError where it would leave a part of chat messages out."""
        return rendered(problem.prompt, self._make, f"{problem.source} {problem.place}")

    def _make(self, prompt: Question) -> str:
        if not self.chat:
            return as_text(prompt)
        messages = as_messages(prompt, self._system)
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self._given)


def as_messages(prompt: Question, system: str | None) -> list[dict[str, Any]]:
    """For a chat template."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    return [{"role": "system", "content": system}, *messages] if system else messages
