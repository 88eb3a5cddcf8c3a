"""Prompt files: what is refused (naming flag, file, row, rule and remedy), what passes, and how fast."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_ada.data.checks import Columns, DataError, check_prompt_datasets, check_prompt_file

FLAG = "--data.prompt_dataset"
GOOD = '{"input": "1+1=", "label": "2"}'


def check(path: Path | str, *, input_key: str = "input", label_key: str | None = "label") -> int:
    return check_prompt_file(str(path), columns=Columns(input_key, label_key, chat=True), flag=FLAG)


def write(folder: Path, content: str | bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


BAD_ROWS = {
    "not JSON": (f"{GOOD}\nnot json\n", r"line 2 is not valid JSON \(Expecting value, column 1\).*correct the line"),
    "cut first line": ('{"input": "1"\n' + GOOD, r"line 1 is not valid JSON"),
    "cut last line": (f'{GOOD}\n{GOOD}\n{{"input', r"line 3 is not valid JSON"),
    "a number": (f"{GOOD}\n3\n", r"line 2 is a JSON number, expected an object with the key 'input'"),
    "a list": (f"{GOOD}\n[1]\n", r"line 2 is a JSON array, expected an object"),
    "null row": (f"{GOOD}\nnull\n", r"line 2 is a JSON null, expected an object"),
    "no input": (GOOD + '\n{"label": "1"}', r"line 2 has no key 'input'.*the keys 'label'.*--data\.input_key"),
    "no label": ('{"input": "1", "answer": "2"}', r"line 1 has no key 'label'.*'input', 'answer'.*--data\.label_key"),
    "no keys": (GOOD + "\n{}", r"line 2 has no key 'input'.*the row has no keys"),
    "null input": ('{"input": null, "label": "1"}', r"line 1: 'input' is null, expected a prompt"),
    "empty input": (GOOD + '\n{"input": "", "label": "1"}', r"line 2: 'input' is \"\", expected a prompt"),
    "blank input": ('{"input": " \\n", "label": "1"}', r"line 1: 'input' "),
    "no messages": ('{"input": [], "label": "1"}', r"line 1: 'input' is \[\], expected a prompt"),
    "number input": ('{"input": 5, "label": "1"}', r"line 1: 'input' is a JSON number \(5\), expected text"),
    "no rows": ("", r"no rows"),
    "blank lines only": ("\n \n", r"no rows"),
    "no rows in an array": ("[]", r"no rows"),
    "not text": (f"{GOOD}\n".encode() + b'{"input": "\xff"}\n', r"line 2 is not UTF-8 text \(byte 11: 0xff\)"),
    "UTF-16": (GOOD.encode("utf-16"), r"line 1 is not UTF-8 text"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused_by_line(case: str, tmp_path: Path) -> None:
    content, message = BAD_ROWS[case]
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=message) as error:
        check(path)
    assert str(error.value).startswith(f"{FLAG}: {path}")
    assert "\n" not in str(error.value)


def test_array_rows_by_number_and_mistakes_by_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 3 \(row 2\) has no key 'input'"):
        check(write(tmp_path, f'[\n{GOOD},\n{{"label": "1"}}\n]', "data.json"))
    with pytest.raises(DataError, match=r"line 3 is not valid JSON"):
        check(write(tmp_path, f"[\n{GOOD},\noops\n]", "data.json"))


GOOD_FILES = {
    "lines": (f"{GOOD}\n{GOOD}\n", 2),
    "no newline at the end": (f"{GOOD}\n{GOOD}", 2),
    "blank lines": (f"\n{GOOD}\n\n{GOOD}\n\n", 2),
    "Windows": (f"{GOOD}\r\n{GOOD}\r\n", 2),
    "byte order mark": (b"\xef\xbb\xbf" + f"{GOOD}\n{GOOD}\n".encode(), 2),
    "array": (f"[{GOOD}, {GOOD}, {GOOD}]", 3),
    "array over lines, after a blank one": (f"\n[\n{GOOD},\n{GOOD}\n]\n", 2),
    "objects over lines": ('{\n"input": "a",\n"label": "1"\n}\n{\n"input": "b",\n"label": "1"\n}\n', 2),
    "line separator inside a text": ('{"input": "a\u2028b", "label": "1"}', 1),
    "chat": ('{"input": [{"role": "user", "content": "hi"}], "label": "1"}', 1),
    "null label": ('{"input": "a", "label": null}', 1),
}


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@pytest.mark.parametrize("case", GOOD_FILES)
def test_readable_formats_pass(case: str, ending: str, tmp_path: Path) -> None:
    content, rows = GOOD_FILES[case]
    assert check(write(tmp_path, content, f"data{ending}")) == rows


def test_keys_are_the_callers(tmp_path: Path) -> None:
    path = write(tmp_path, '{"question": "1+1="}')
    assert check(path, input_key="question", label_key=None) == 1


@pytest.mark.parametrize(
    "path", ["/no/such.jsonl", "./no", "../no/such", "~/no", "no.parquet", "no.json", "no.csv", "a/b/c", "x/*.jsonl"]
)
def test_local_paths_must_exist(path: str) -> None:
    with pytest.raises(DataError, match=rf"^{FLAG}: .*(does not exist|no file matches).*give "):
        check(path)


@pytest.mark.parametrize(
    "path", ["org/name", "gsm8k", "org/name.v2", "https://host/x.jsonl", "hf://datasets/a/b.json"]
)
def test_hub_ids_and_urls_pass_unseen(path: str) -> None:
    assert check(path) == -1


def test_folders_pass_unseen_and_broken_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.parquet cannot be read as Parquet .*copy the file again"):
        check(write(tmp_path, b"PAR1", "data.parquet"))
    assert check(tmp_path) == -1


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.chmod(0)
    with pytest.raises(DataError, match=r"cannot be read.*permissions"):
        check(path)


def test_patterns_count_every_match(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path, GOOD, name)
    assert check(tmp_path / "*.jsonl") == 2


def test_a_list_of_data_sets_is_summed(tmp_path: Path) -> None:
    one, two = write(tmp_path, GOOD, "one.jsonl"), write(tmp_path, f"{GOOD}\n{GOOD}", "two.json")

    def count(spec: str) -> int:
        return check_prompt_datasets(spec, columns=Columns("input", "label"), flag=FLAG)

    assert count(f"{one}") == 1
    assert count(f"{one}, {two}@sub") == 3
    assert count(f"{one},org/name@main") == -1
    for spec in (f"{one},", "", f"{one},,{two}", "@dir"):
        with pytest.raises(DataError, match=r"an entry of the list .* is empty.*give a data set"):
            count(spec)
    with pytest.raises(DataError, match="holds no rows"):
        count(f"org/name,{write(tmp_path, '', 'empty.jsonl')}")


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_under_two_seconds(tmp_path: Path) -> None:
    row = json.dumps({"input": "What is 12 + 7? Answer with the number only.", "label": "19", "id": "x" * 40})
    path = write(tmp_path, f"{row}\n" * 100_000)
    start = time.process_time()
    assert check(path) == 100_000
    assert time.process_time() - start < 2.0


def test_data_and_reward_import_nothing_heavy() -> None:
    modules = ("data.checks", "demo.artifacts", "demo.arithmetic", "demo.toy", "demo.model", "reward.arithmetic")
    script = "import sys\n" + "".join(f"import openrlhf_ada.{name}\n" for name in modules)
    script += "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "datasets", "reasoning_gym", "tokenizers", "gguf"} & set(loaded)


@pytest.mark.parametrize(
    ("chat", "prompt", "message"),
    [
        (False, '[{"role": "user", "content": "hi"}]', "--data.apply_chat_template"),
        (True, "[1, 2]", "'role' and 'content'"),
        (True, '[{"role": "user"}]', "'role' and 'content'"),
    ],
)
def test_chat_messages_need_a_template_and_their_keys(chat: bool, prompt: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"input": {prompt}, "label": "1"}}')
    with pytest.raises(DataError, match=re.escape(message)):
        check_prompt_file(str(path), columns=Columns("input", "label", chat=chat), flag=FLAG)
