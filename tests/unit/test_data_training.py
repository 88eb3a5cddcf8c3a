"""What a run trains on: rows that are left out and listed, data sets of several kinds, long prompts."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.files import DataError
from openrlhf_ada.data.left_out import MOST_SHOWN
from openrlhf_ada.data.prepared import DRAWS, POSITIVES
from openrlhf_ada.demo import toy
from openrlhf_ada.host.rows import load_blended
from openrlhf_ada.trainer import training_data

Flags = dict[str, str | None]

DATA, REWARD, EVAL = "--data.prompt_dataset", "--reward.remote_url", "--eval.dataset"


class CharacterTokenizer:
    """A token per character; its chat template refuses what is not from a user."""

    def __call__(self, text: list[str], add_special_tokens: bool) -> dict[str, list[str]]:
        return {"input_ids": text}

    def apply_chat_template(self, messages: list[Any], **_: Any) -> str:
        from jinja2 import TemplateError

        if any(message["role"] != "user" for message in messages):
            raise TemplateError("only user messages")
        return "".join(message["content"] for message in messages)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def problems(labels: list[Any]) -> list[dict[str, Any]]:
    return [{"input": f"{number}+1=", "label": label} for number, label in enumerate(labels)]


class Prepared:
    """What is there when a run's engines start."""

    def __init__(self, argv: list[str]) -> None:
        self.args = parse(argv)
        self.lines = training_data.prepare_training_data(self.args)
        self.list = self.args.ada.resolved_run_dir(None) / "left_out.jsonl"

    @property
    def rows(self) -> list[dict[str, Any]]:
        data = self.args.data
        return list(load_blended(data.prompt_dataset, max_count=data.max_samples, split="train"))

    @property
    def left_out(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.list.read_text().splitlines()] if self.list.exists() else []


@pytest.fixture
def prepare(argv_with: Callable[[Flags], list[str]], monkeypatch: pytest.MonkeyPatch) -> Callable[[Flags], Prepared]:
    monkeypatch.setattr(training_data, "_tokenizer", lambda args: CharacterTokenizer())
    return lambda changes: Prepared(argv_with({"--rollout.batch_size": "1", "--train.batch_size": "4", **changes}))


@pytest.mark.slow
def test_good_data_are_handed_over_as_they_are(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", problems(["1", "2"]))
    found = prepare({DATA: path, REWARD: "math"})
    assert (found.args.data.prompt_dataset, found.lines, found.left_out) == (path, [], [])


# -- prompts that are too long ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "room"), [({}, 15), ({"--rollout.max_new_tokens": "6"}, 10)])
def test_prompts_that_do_not_fit_are_left_out_and_listed(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, flags: Flags, room: int
) -> None:
    """OpenRLHF's rule: a prompt and the new tokens, or one token, fit into --data.max_len."""
    lengths = [5, room, room + 1, 3, 40]
    path = write(tmp_path / "rows.jsonl", [{"input": "x" * length, "label": "1"} for length in lengths])
    found = prepare({DATA: path, EVAL: path, "--data.max_len": "16", **flags})
    assert [len(row["input"]) for row in found.rows] == [5, room, 3]
    assert [(row["source"], row["place"]) for row in found.left_out] == [(path, "line 3"), (path, "line 5")] * 2
    assert f"the prompt has {room + 1} tokens, and --data.max_len 16" in found.left_out[0]["cause"]
    assert f"leaves {room}" in found.lines[0] and f"{DATA}: {path} line 3" in found.lines[0]
    assert re.search(rf"\b2 of 5 rows .*\b{room} tokens.* {re.escape(str(found.list))}", found.lines[2])
    held_out = load_blended(found.args.eval.dataset, max_count=99, split="train")
    assert [len(row["input"]) for row in held_out] == [5, room, 3]


def test_a_resumed_run_finds_its_data_as_they_were(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    """`datasets` caches files by their time, so a file with the same rows stays the same file."""
    path = write(tmp_path / "rows.jsonl", [{"input": "x" * n, "label": "1"} for n in (1, 99, 2)])
    flags: Flags = {DATA: path, "--data.max_len": "16"}
    first = prepare(flags)
    file = Path(first.args.data.prompt_dataset)
    written = file.stat().st_mtime_ns
    assert prepare(flags).rows == first.rows
    assert file.stat().st_mtime_ns == written
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_too_few_prompts_that_fit_are_refused(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"input": "x" * n, "label": "1"} for n in (1, 99, 99)])
    few = {DATA: path, "--data.max_len": "16", "--rollout.batch_size": "2", "--train.batch_size": "8"}
    with pytest.raises(ConfigError, match=r"2 of 3 rows .*15 tokens.* line 2: .*\b1 prompts") as e:
        prepare(few)
    assert e.value.value == path, "the user's file, not one that was written"
    few |= {"--rollout.batch_size": "1", "--train.batch_size": "4", "--ada_candidates": "2"}
    with pytest.raises(ConfigError, match=r"--ada_candidates is 2: 2 of 3 rows"):
        prepare({**few, "--ada_choice": "greso"})
    path = write(tmp_path / "none.jsonl", [{"input": "x" * 99, "label": "1"}])
    with pytest.raises(DataError, match=r"none\.jsonl .*\b1 of 1 rows .* line 1: .*\b99 tokens"):
        prepare({DATA: path, "--data.max_len": "16"})


def test_what_leaves_too_few_is_listed_too(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    lists = []
    for lengths in ([1, 99, 99], [99, 99]):
        path = write(tmp_path / "rows.jsonl", [{"input": "x" * n, "label": "1"} for n in lengths])
        with pytest.raises((ConfigError, DataError), match=r"\b2 of \d rows are left out .*left_out\.jsonl") as error:
            prepare({DATA: path, "--data.max_len": "16", "--rollout.batch_size": "2", "--train.batch_size": "8"})
        (file,) = re.findall(r"\S+left_out\.jsonl", str(error.value))
        lists.append([json.loads(line)["place"] for line in Path(file).read_text().splitlines()])
    assert lists == [["line 2", "line 3"], ["line 1", "line 2"]]


def test_long_prompts_are_left_out_in_mode_off_too(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"input": "x" * n, "label": "1"} for n in (1, 99)])
    found = prepare({DATA: path, "--data.max_len": "16", "--ada_mode": "off"})
    assert (len(found.rows), len(found.left_out)) == (1, 1)


def test_arguments_of_the_template_count_in_a_prompts_length(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's prompts are checked as they will be sampled, and what the template does not read is refused."""
    tokenizer = toy._build_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}think{% endif %}"
    monkeypatch.setattr(training_data, "_tokenizer", lambda args: tokenizer)
    path = write(tmp_path / "rows.jsonl", [{"input": "1" * length, "label": "1"} for length in (3, 8)])
    flags: Flags = {DATA: path, "--data.max_len": "10", "--data.apply_chat_template": ""}
    assert len(prepare(flags).rows) == 2
    assert len(prepare({**flags, "--ada_chat_template_args": '{"enable_thinking": true}'}).rows) == 1
    unread: Flags = {"--ada_chat_template_args": '{"thinking": true}'}
    for wrong in (
        {**flags, **unread},
        {DATA: path, **unread},
        {**flags, "--ada_sampling_args": '{"stop_token_ids": [64]}'},
    ):
        with pytest.raises(ConfigError, match=r"^--ada_(chat_template|sampling)_args is "):
            prepare(wrong)


def test_a_chat_template_that_refuses_is_one_error(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"input": [{"role": "tool", "content": "x"}], "label": "1"}])
    with pytest.raises(DataError, match=r"rows\.jsonl line 1: .*only user messages"):
        prepare({DATA: path, "--data.apply_chat_template": ""})
    path = write(tmp_path / "rows.jsonl", problems(["1"]))
    with pytest.raises(ConfigError, match=r"--data\.input_template is .*\{answer\}"):
        prepare({DATA: path, "--data.input_template": r"{} in \boxed{answer}"})
    # OpenRLHF would go on without these templates.
    for template, chat in (("Q:", {}), ("Q: {}", {"--data.apply_chat_template": ""})):
        with pytest.raises(ConfigError, match=r"--data\.input_template is 'Q:"):
            prepare({DATA: path, "--data.input_template": template, **chat})


# -- labels -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_labels_that_cannot_be_read_are_left_out_and_listed(
    prepare: Callable[[Flags], Prepared], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", problems(["4", "?", r"\frac{", "5", None]))
    found = prepare({DATA: path, REWARD: "math"})
    assert [row["label"] for row in found.rows] == ["4", "5"]
    assert [row["place"] for row in found.left_out] == ["line 2", "line 3", "line 5"]
    assert "'?'" in found.left_out[0]["cause"]
    assert found.left_out[0]["row"] == {"question": "1+1=", "label": "?"}


@pytest.mark.slow
@pytest.mark.parametrize(("reward", "count"), [("math", 3), ("http://localhost:1", 5)])
def test_contradicting_labels_are_counted(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, reward: str, count: int
) -> None:
    """With a grader of ours, these do not contradict each other: notations of one answer, solutions that end in it,
    and a label that is left out."""
    pairs = [("a", "1/2"), ("a", "0.5"), ("b", "3"), ("b.", "4"), (" b", "3"), ("c", "1"), ("c", "So.\n#### 1")]
    pairs = [*pairs, ("c", "?")] if reward == "math" else pairs[:5]
    path = write(tmp_path / "rows.jsonl", [{"input": question, "label": label} for question, label in pairs])
    (line,) = (line for line in prepare({DATA: path, REWARD: reward}).lines if "rows contradict" in line)
    first, other = (3, 4) if reward == "math" else (1, 2)
    assert line.startswith(f"{DATA}: {count} of ") and f"{path} line {first} and {path} line {other}." in line


@pytest.mark.slow
def test_few_rows_are_shown_and_all_are_listed(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", problems(["4", *["?"] * 12]))
    found = prepare({DATA: path, REWARD: "math"})
    assert len(found.lines) == MOST_SHOWN + 1
    assert found.lines[0].startswith(f"{DATA}: {path} row 2: ")
    assert re.search(rf"\b12 of 13 rows .*\b{MOST_SHOWN}\b", found.lines[-1])
    assert len(found.left_out) == 12
    # Only the first rows are used, so only they are looked at.
    assert not prepare({DATA: path, REWARD: "math", "--data.max_samples": "1"}).lines


def test_what_prepare_data_has_checked_is_not_checked_again(
    prepare: Callable[[Flags], Prepared], tmp_path: Path
) -> None:
    rows = [row | {DRAWS: 16, POSITIVES: 3} for row in problems(["?", "4"])]
    found = prepare({DATA: write(tmp_path / "train.parquet", rows), REWARD: "math"})
    assert len(found.rows) == 2 and not found.lines


def test_counts_stay_with_their_rows(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    rows = [
        {"input": "x" * length, "label": "1", "datasource": "s", DRAWS: 16, POSITIVES: length} for length in (1, 99, 2)
    ]
    found = prepare({DATA: write(tmp_path / "train.parquet", rows), "--data.max_len": "16"})
    assert [(row[POSITIVES], row["datasource"]) for row in found.rows] == [(1, "s"), (2, "s")]


# -- several data sets --------------------------------------------------------------------------------------------


def test_data_sets_whose_labels_have_other_types_go_together(
    prepare: Callable[[Flags], Prepared], tmp_path: Path
) -> None:
    one, two = write(tmp_path / "a.jsonl", problems([1, 2])), write(tmp_path / "b.parquet", problems(["x"]))
    found = prepare({DATA: f"{one},{two}"})
    assert [row["label"] for row in found.rows] == ["1", "2", "x"]
    assert f"{one},{two}" in found.lines[0]
    assert found.args.data.prompt_dataset.count(",") == 1, "probabilities are per data set"


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1="}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"index": 0, "split": "train"},
}
CHAT: Flags = {"--data.apply_chat_template": "", "--data.input_key": "prompt"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verl.parquet", "verl.jsonl"])
def test_data_of_verl_are_trained_on_as_they_are(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, name: str
) -> None:
    path = write(tmp_path / name, [VERL])
    found = prepare({DATA: path, REWARD: "math", "--data.label_key": "reward_model.ground_truth", **CHAT})
    assert [(row["prompt"], row["reward_model.ground_truth"]) for row in found.rows] == [(VERL["prompt"], "2")]


REAL: dict[str, tuple[dict[str, Any], str, str]] = {
    "GSM8K": ({"question": "Q", "answer": "So 4.\n#### 4"}, "question", "answer"),
    "MATH": ({"problem": "Q", "level": "Level 5", "solution": r"\boxed{4}", "answer": "4"}, "problem", "answer"),
    "DeepScaleR": ({"problem": "Q", "answer": "4", "solution": ""}, "problem", "answer"),
    "Big-Math": ({"problem": "Q", "answer": "4", "source": "cn_k12", "llama8b_solve_rate": None}, "problem", "answer"),
    "OpenR1": (
        {"problem": "Q", "answer": "4", "generations": ["a", "b"], "messages": [{"role": "user", "content": "Q"}]},
        "problem",
        "answer",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_data_sets_of_the_field_are_trained_on_as_they_are(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, name: str
) -> None:
    row, question, label = REAL[name]
    path = write(tmp_path / "rows.jsonl", [row])
    found = prepare({DATA: path, "--data.input_key": question, "--data.label_key": label})
    assert [(r[question], r[label]) for r in found.rows] == [("Q", row[label])]


# -- a grader for each row ----------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text("def grade(response, label): ...\n")
    return f"{path}:grade"


def named(label: str) -> tuple[str, Any]:
    content = json.loads(label)
    return content["reward"], content["label"]


@pytest.mark.slow
def test_rows_name_their_graders(prepare: Callable[[Flags], Prepared], tmp_path: Path, own: str) -> None:
    code = {"inputs": ["1"], "outputs": ["1"]}
    rows = [
        {"input": "a", "label": "4", "reward": "math"},
        {"input": "b", "label": code, "reward": "code"},
        {"input": "c", "label": "anything", "reward": own},
        {"input": "d", "label": "?", "reward": "math"},
    ]
    found = prepare({DATA: write(tmp_path / "rows.jsonl", rows), REWARD: "mixed"})
    assert [named(row["label"]) for row in found.rows] == [("math", "4"), ("code", code), (own, "anything")]
    assert [row["place"] for row in found.left_out] == ["line 4"]


@pytest.mark.slow
def test_a_second_grader_reads_the_labels_own_part(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    rows = [{"input": "a", "label": label, "reward": "math"} for label in ("4", "1/2", "?")]
    flags = {REWARD: "mixed,arithmetic", "--ada_reward_weights": "1,0.5"}
    found = prepare({DATA: write(tmp_path / "rows.jsonl", rows), **flags})
    assert [named(row["label"]) for row in found.rows] == [("math", "4")]
    assert [row["place"] for row in found.left_out] == ["line 2", "line 3"]


@pytest.mark.slow
def test_graders_follow_another_column_or_the_data_set(prepare: Callable[[Flags], Prepared], tmp_path: Path) -> None:
    verl = write(tmp_path / "verl.parquet", [VERL])
    plain = write(tmp_path / "plain.jsonl", [{"prompt": "q", "reward_model": {"ground_truth": "4"}}])
    flags = {
        DATA: f"{verl},{plain}", REWARD: "mixed", "--data.label_key": "reward_model.ground_truth", **CHAT,
        "--ada_reward_key": "data_source", "--ada_reward_map": f"openai/gsm8k=math,{plain}=arithmetic",
    }  # fmt: skip
    labels = [named(row["reward_model.ground_truth"]) for row in prepare(flags).rows]
    assert labels == [("math", "2"), ("arithmetic", "4")]


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ("maths", r"'maths'.* math\b"),
        ("no.py:grade", r"'no\.py'.*\bfile\b"),
        (None, r"'reward'.*--ada_reward_key.*--ada_reward_map"),
        (0.5, r"'0\.5'"),
    ],
)
def test_unknown_graders_of_rows_are_refused(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, reward: Any, named: str
) -> None:
    rows = [{"input": "a", "label": "4", "reward": "math"}, {"input": "b", "label": "4", "reward": reward}]
    with pytest.raises(DataError, match=rf"line 2\b.*{named}"):
        prepare({DATA: write(tmp_path / "rows.jsonl", rows), REWARD: "mixed"})


def test_a_function_that_a_row_misspells_is_refused(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, own: str
) -> None:
    rows = [{"input": "a", "label": "4", "reward": own.replace("grade", "grad")}]
    with pytest.raises(DataError, match=r"\bgrad\b.*\bgrade\b"):
        prepare({DATA: write(tmp_path / "rows.jsonl", rows), REWARD: "mixed"})


# -- flags --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "head", "named"),
    [
        ({REWARD: "mth"}, REWARD, "math"),
        ({REWARD: "math,code"}, REWARD, "--ada_reward_weights"),
        ({REWARD: "math,math", "--ada_reward_weights": "1,1"}, REWARD, "twice"),
        ({REWARD: "math,http://x"}, REWARD, "kind"),
        ({REWARD: "math,code", "--ada_reward_weights": "1"}, "--ada_reward_weights", ""),
        ({REWARD: "math,code", "--ada_reward_weights": "1,x"}, "--ada_reward_weights", ""),
        ({REWARD: "math,code", "--ada_reward_weights": "1,nan"}, "--ada_reward_weights", ""),
        ({REWARD: "math", "--ada_reward_key": "source"}, "--ada_reward_key", f"{REWARD} mixed"),
        ({REWARD: "math", "--ada_reward_map": "a=math"}, "--ada_reward_map", f"{REWARD} mixed"),
        ({REWARD: "no.py:grade"}, REWARD, "grade"),
        ({REWARD: "mixed", "--data.label_key": None}, "--data.label_key", f"{REWARD} mixed"),
    ],
)
def test_rewards_that_cannot_work_are_refused(
    refusal: Callable[[Flags], Exception], flags: Flags, head: str, named: str
) -> None:
    error = refusal(flags)
    assert isinstance(error, ConfigError)
    assert error.flag == head
    assert named in f"{error.rule}. {error.remedy}"


@pytest.mark.parametrize("text", ["math", "a=", "=math", "a=maths", "a=math,,b=code"])
def test_maps_that_are_no_pairs_are_refused(prepare: Callable[[Flags], Prepared], text: str) -> None:
    with pytest.raises(ConfigError, match="--ada_reward_map is"):
        prepare({REWARD: "mixed", "--ada_reward_map": text})


def test_a_split_that_a_data_set_does_not_have_is_refused(
    prepare: Callable[[Flags], Prepared], tmp_path: Path
) -> None:
    path = write(tmp_path / "rows.jsonl", problems(["1"]))
    with pytest.raises(DataError, match=r"rows\.jsonl .*'train'.*--data\.prompt_split"):
        prepare({DATA: path, "--data.prompt_split": "test"})
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", problems(["1"]))
    with pytest.raises(DataError, match=r"ValueError: .*'test'"):
        prepare({DATA: str(tmp_path / "set"), "--data.prompt_split": "test"})


# -- columns that hold more than one value --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.csv"])
@pytest.mark.parametrize("as_text", [json.dumps, str])
def test_what_a_text_holds_is_read(
    prepare: Callable[[Flags], Prepared], tmp_path: Path, name: str, as_text: Callable[[Any], str]
) -> None:
    """As exports of tables have it: objects as JSON, or as Python writes them."""
    row = {key: as_text(value) if isinstance(value, dict | list) else value for key, value in VERL.items()}
    if name.endswith(".csv"):
        with (tmp_path / name).open("w", newline="") as stream:
            csv.writer(stream, delimiter=";").writerows([row.keys(), row.values()])
    else:
        write(tmp_path / name, [row])
    flags = {DATA: str(tmp_path / name), REWARD: "math", "--data.label_key": "reward_model.ground_truth", **CHAT}
    assert [(r["prompt"], r["reward_model.ground_truth"]) for r in prepare(flags).rows] == [(VERL["prompt"], "2")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["verl.parquet", "verl.jsonl"])
def test_a_label_of_several_columns(prepare: Callable[[Flags], Prepared], tmp_path: Path, name: str) -> None:
    """A function of another trainer gets them by name."""
    key = "data_source,reward_model.ground_truth,extra_info"
    found = prepare({DATA: write(tmp_path / name, [VERL]), "--data.label_key": key, **CHAT})
    assert [json.loads(row[key]) for row in found.rows] == [
        {"data_source": VERL["data_source"], "ground_truth": "2", "extra_info": VERL["extra_info"]}
    ]
    with pytest.raises(DataError, match=r"row 1|line 1") as error:
        prepare({DATA: write(tmp_path / name, [VERL]), "--data.label_key": "data_source,gold", **CHAT})
    assert "'data_source,gold'" in str(error.value)
