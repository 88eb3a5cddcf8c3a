"""`eval` and `prepare-data` before any engine starts: what they refuse, and the prompts that they make."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf_ada.cli import evaluate, prepare_data
from openrlhf_ada.cli.sample_answers import fitting_prompts
from openrlhf_ada.cli.sampling_flags import Sampling, as_messages, check_template, host_namespace, sampling_of
from openrlhf_ada.config.flags import FULL_MARKS, ConfigError
from openrlhf_ada.data.benchmarks import BOXED
from openrlhf_ada.data.examples import DataSets, read_examples
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.prepared import Difficulty
from openrlhf_ada.data.problems import Problem, load_problems
from openrlhf_ada.data.questions import Columns
from openrlhf_ada.eval.answers import as_text
from openrlhf_ada.host import tokenizer as host_tokenizer
from openrlhf_ada.host.rows import prompt_maker
from openrlhf_ada.platforms.resources import required_slots
from openrlhf_ada.reporting.counting import Counting

ROOT = Path(__file__).parents[2]


@pytest.fixture
def problems(tmp_path: Path) -> str:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"question": "1+1=", "answer": "2"}) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--n", "4", "--k", "8"], "--k is '8': pass@k needs k answers per problem, and --n is 4. Raise --n"),
        (["--k", "0"], "--k is '0': expected whole numbers"),
        (["--k", "a"], "--k is 'a'"),
        (["--n", "0"], "--n is 0: "),
        (["--temperature", "0"], "--n is 8: with --temperature 0 all answers are the same"),
        (["--temperature", "-1"], "--temperature is -1.0"),
        (["--top_p", "0"], "--top_p is 0.0"),
        (["--top_k", "0"], "--top_k is 0"),
        (["--sampling_args", '{"stop": ["x"]}', "--engine_args", '{"spec_method": "ngram"}'], "is 'spec_method'"),
        (["--max_new_tokens", "0"], "--max_new_tokens is 0"),
        (["--max_len", "10"], "--max_len is 10: prompt and answer must fit"),
        (["--benchmark", "math5000"], "--benchmark math5000: expected one of math500"),
        (["--benchmark", "none.jsonl"], "--benchmark: 'none.jsonl' does not exist"),
        (["--input_key", "text"], "no column 'text'"),
        (["--engines", "0"], "--engines is 0"),
        (["--limit", "0"], "--limit is 0: "),
        (["--reward_timeout", "0"], "--reward_timeout is 0.0: "),
        (["--reward_memory", "32"], "--reward_memory is 32: it must be at least 64"),
        (["--timeout", "0"], "--timeout is 0.0: "),
        (["--reward", "maths"], "--reward is 'maths': it is no Python file"),
        (["--template", "1+1="], "--template is '1+1=': it has no {}"),
        (["--model", "/no/such/model"], "--model is '/no/such/model': there is no such folder"),
    ],
)
def test_bad_input_of_eval_is_refused_at_once(
    problems: str, changes: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--model", "m", "--benchmark", problems, *changes]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--band", "medium"], "--band is 'medium': expected hard, easy"),
        (["--n", "0"], "--n is 0"),
        (["--reward", "code"], "--reward code: "),
    ],
)
def test_bad_input_of_prepare_data_is_refused_at_once(
    problems: str, changes: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_data.main([problems, "--model", "m", "--out", str(tmp_path / "out"), *changes]) == 2
    assert said in capsys.readouterr().err


def test_prompts_are_template_with_question() -> None:
    question, messages = "What is {x} in \\boxed{}?", [{"role": "user", "content": "Q"}]
    assert Problem("i", question, "1", "s", template=BOXED).prompt == question + BOXED.removeprefix("{}")
    assert Problem("i", messages, "1", "s", template=BOXED).prompt is messages
    assert as_text(messages) == "Q"
    assert as_messages("Q", None) == messages
    assert as_messages(messages, "S") == [{"role": "system", "content": "S"}, *messages]


def parsed(*changes: str) -> argparse.Namespace:
    return evaluate.build_parser().parse_args(["--model", "m", "--benchmark", "math500", *changes])


def test_ks_of_table_and_curves_are_always_there() -> None:
    assert evaluate._ks("8", 8) == [1, 4, 8]
    assert evaluate._ks("1,2", 2) == [1, 2]
    assert evaluate._ks(None, 6) == [1, 2, 4, 6]


def test_folders_of_different_models_differ() -> None:
    assert evaluate.slug("gsm8k") == "gsm8k"
    assert evaluate.slug("runs/a") != evaluate.slug("runs_a") != evaluate.slug("runs.a")


def test_own_files_get_no_instruction_and_benchmarks_get_theirs(problems: str, capsys: Any) -> None:
    """A copy of a benchmark is the benchmark. What is made of a prompt is said first."""
    for spec, template in ((problems, "{}"), ("org/name", "{}"), (f"math500={problems}", BOXED), ("aime24", BOXED)):
        (benchmark,) = evaluate.sources_of(parsed("--benchmark", spec))
        assert benchmark.template == template
        (given,) = evaluate.sources_of(parsed("--benchmark", spec, "--template", "{}!"))
        assert given.template == "{}!"
    for spec, template in ((problems, "{}"), ("org/name", "{}"), (f"openr1-math={problems}", BOXED)):
        args = prepare_data.build_parser().parse_args([spec, "--model", "m", "--out", "o", "--reward", "math"])
        assert prepare_data.source_of(spec, args).template == template
    assert evaluate.main(["--model", "/none", "--benchmark", problems, f"math500={problems}"]) == 2
    first, *_ = capsys.readouterr().err.splitlines()
    assert f"{'{}'!r} of set" in first and f"{BOXED!r} of math500" in first


class Tokenizer:
    """A token per character. Its template drops system messages, and writes calls of tools if `knows_tools`."""

    def __init__(self, *, chat: bool = True, knows_tools: bool = False) -> None:
        self.chat_template, self.knows_tools = "a template" if chat else None, knows_tools

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, str]:
        return {"input_ids": text}

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        shown = [m for m in messages if m["role"] != "system"]
        tools = [str(m.get("tool_calls") or "") for m in shown if self.knows_tools]
        return "".join(f"<{m['role']}>{m['content']}" for m in shown) + "".join(tools) + "<assistant>"


MESSAGES = [{"role": "user", "content": "1+1="}]


def test_only_a_template_reads_its_arguments() -> None:
    given = ("--chat_template_args", '{"enable_thinking": false}')
    for more in ((), ("--base_url", "http://localhost:1/v1")):
        evaluate.check_flags(parsed(*given, *more))
        with pytest.raises(ConfigError) as error:
            evaluate.check_flags(parsed(*given, "--no_chat", *more))
        assert error.value.flag == "--chat_template_args"


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("question", ["1+1=", json.dumps(MESSAGES), MESSAGES])
def test_a_training_and_eval_make_the_same_prompt(
    problems: str, question: Any, chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_tokenizer, "load_tokenizer", lambda *_: Tokenizer(chat=chat))
    Path(problems).write_text(json.dumps({"input": question, "label": "2"}))
    (problem,) = load_problems(evaluate.sources_of(parsed("--benchmark", problems))[0])
    prompts, _ = fitting_prompts("m", [problem], parsed(), sampling_of(parsed()))
    if not chat and question != "1+1=":
        with pytest.raises(DataError, match="line 1: 'input' holds chat messages"):
            read_examples(DataSets("--eval.dataset", problems, Columns("input", "label", chat=chat)))
        return
    (example,) = read_examples(DataSets("--eval.dataset", problems, Columns("input", "label", chat=chat)))
    make = prompt_maker(None, Tokenizer().apply_chat_template if chat else None)
    assert prompts[problem.id] == make(example.question) == ("<user>1+1=<assistant>" if chat else "1+1=")


def test_prompts_that_do_not_fit_name_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_tokenizer, "load_tokenizer", lambda *_: Tokenizer(chat=False))
    sampling = sampling_of(parsed("--max_len", "20", "--max_new_tokens", "10"))
    prompts, too_long = fitting_prompts("m", [Problem("i", "1+1=", "2", "s", template=BOXED)], parsed(), sampling)
    assert not prompts and repr(BOXED) in too_long["i"]


CALL = [{"role": "user", "content": "Q"}, {"role": "tool", "content": "5", "tool_calls": [{"name": "add"}]}]


@pytest.mark.parametrize(
    ("messages", "knows_tools", "lost"),
    [
        (CALL, False, "'tool_calls' of message 2, of the tool"),
        (CALL, True, None),
        ([{"role": "system", "content": "S"}, CALL[0]], False, "'content' of message 1, of the system"),
        ([{"role": "user", "content": "Q", "name": "me", "weight": 1}], False, None),
    ],
)
def test_what_a_template_leaves_out_is_refused_with_the_line(
    messages: list[Any], knows_tools: bool, lost: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_tokenizer, "load_tokenizer", lambda *_: Tokenizer(knows_tools=knows_tools))
    problem = Problem("i", messages, "2", "file.jsonl", "line 3")
    with nullcontext() if lost is None else pytest.raises(DataError, match=f"file.jsonl line 3: .* {lost}"):
        fitting_prompts("m", [problem], parsed(), sampling_of(parsed()))


def test_template_or_system_message_without_effect_is_refused() -> None:
    chat = Problem("id", [{"role": "user", "content": "Q"}], "1", "s")
    check_template(None, "S", [chat])
    with pytest.raises(ConfigError, match="chat messages"):
        check_template("{}!", None, [chat])
    with pytest.raises(ConfigError, match="--system"):
        check_template(None, "S", [Problem("id", [{"role": "system", "content": "S"}], "1", "s")])


@pytest.mark.slow
def test_contradicting_labels_are_told_and_not_mistaken_for_notations(problems: str, capsys: Any) -> None:
    rows = [("a", "1/2"), ("a", "0.5"), ("b", "1"), ("b ", "2"), ("b", "3"), ("c", "1")]
    Path(problems).write_text("".join(json.dumps({"input": q, "label": label}) + "\n" for q, label in rows))
    with Counting() as progress:
        args = parsed("--benchmark", problems)
        evaluate.load_suites(evaluate.sources_of(args), args, None, None, progress)
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "contradict" in line)
    assert "3 of 6 rows" in said and "line 3 and" in said and "line 4" in said


def test_length_limit_comes_from_the_model() -> None:
    assert sampling_of(parsed(), longest=4096).max_len == 4096
    assert sampling_of(parsed("--max_new_tokens", "100"), longest=4096).max_len == 1124
    with pytest.raises(ConfigError, match="--max_len is 5000: a model takes 4096 tokens at most"):
        sampling_of(parsed("--max_len", "5000"), longest=4096)
    with pytest.raises(ConfigError, match="--max_len is 2048: prompt and answer must fit"):
        sampling_of(parsed(), longest=2048)


def test_sampling_follows_flags_and_uses_all_slots() -> None:
    args = parsed("--n", "16", "--temperature", "0.6", "--top_p", "0.95", "--max_new_tokens", "100", "--engines", "3")
    sampling = sampling_of(args)
    assert sampling == Sampling(16, 0.6, 0.95, -1, 100, 1124, 0, None, None)
    host = host_namespace("m", "math", args, sampling)
    assert required_slots(host).by_role == {"vLLM engine": 3}
    assert host.reward.remote_url == ["math"]


def test_training_gets_what_sampling_got(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that `prepare-data` prints can be pasted into a shell."""
    monkeypatch.setattr(prepare_data, "Prompts", lambda model, args: SimpleNamespace(chat=True))
    given = {"chat_template_args": '{"enable_thinking": false}', "sampling_args": """{"stop": ["it's"]}"""}
    more = [word for name, value in given.items() for word in (f"--{name}", value)]
    args = prepare_data.build_parser().parse_args(["s", "--model", "m", "--out", str(tmp_path), *more])
    one = Difficulty(Problem("i", "1+1=", "2", "s"), 4, 2, 3.0, 0.0)
    prepare_data._write(args, [one], [one], {}, "math")
    words = shlex.split(capsys.readouterr().out.partition("train ...")[2].replace("\\\n", " "))
    for name, value in given.items():
        assert words[words.index(f"--ada_{name}") + 1] == value


@pytest.mark.parametrize(
    ("reward", "given", "flag"),
    [
        ("math", FULL_MARKS, None),
        ("reasoning_gym", FULL_MARKS, None),
        ("reasoning_gym", 0.7, "--ada_positive_threshold 0.7"),
        ("reward.py", 0.0, "--ada_positive_threshold 0"),
        ("reward.py", FULL_MARKS, "--ada_positive_threshold 0.999999"),
    ],
)
def test_training_counts_as_positive_what_was_measured(reward: str, given: float, flag: str | None) -> None:
    flags = prepare_data.training_flags(Path("t"), reward, given, chat=False)
    assert [line.strip(" \\") for line in flags.splitlines() if "threshold" in line] == ([flag] if flag else [])


@pytest.mark.parametrize(
    ("script", "main", "environment"),
    [
        ("eval_model.sh", evaluate, {"MODEL": "a,b c", "BENCHMARKS": "math500,gsm8k", "CLUSTER_WAIT": "9"}),
        (
            "eval_model.sh",
            evaluate,
            {"MODEL": "a,b c", "BASE_URL": "http://h/v1", "BENCHMARKS": "math500,gsm8k", "CLUSTER_WAIT": ""},
        ),
        ("prepare_data.sh", prepare_data, {"DATA": "dapo-17k=/data/d.parquet"}),
    ],
)
def test_scripts_print_command_lines_that_parse(script: str, main: Any, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [ROOT / "examples" / "scripts" / script, "--seed", "3"],
        env=os.environ | environment | {"DRY_RUN": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    program, verb, *arguments = shlex.split(done.stdout)
    assert (Path(program).name, verb) == ("openrlhf-ada", "eval" if main is evaluate else "prepare-data")
    args = main.build_parser().parse_args(arguments)
    assert args.seed == 3
    if main is evaluate:
        assert (args.model, args.benchmark) == (["a", "b c"], ["math500", "gsm8k"])
        has_server = "BASE_URL" in environment
        assert (args.base_url, args.cluster_wait) == (("http://h/v1", 0.0) if has_server else (None, 9.0))
        evaluate.check_flags(args)
