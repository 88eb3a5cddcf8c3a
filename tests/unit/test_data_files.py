"""What data sets may be named, and files that are read whatever they look like."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_ada.data.files import DataError, check_names, local_files
from openrlhf_ada.data.rows import text_rows

FLAG = "--data.prompt_dataset"
GOOD = '{"input": "1+1=", "label": "2"}'


def write(folder: Path, content: str | bytes, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def places(path: Path) -> list[str]:
    found = text_rows(str(path), FLAG)
    assert found is not None
    return [place for _, place, _ in found]


GOOD_FILES = {
    "lines": (f"{GOOD}\n{GOOD}", ["line 1", "line 2"]),
    "blank lines": (f"\n{GOOD}\n\n{GOOD}\n\n", ["line 2", "line 4"]),
    "byte order mark": (b"\xef\xbb\xbf" + f"{GOOD}\n{GOOD}\n".encode(), ["line 1", "line 2"]),
    "array in a line": (f"[{GOOD}, {GOOD}]", ["line 1 (row 1)", "line 1 (row 2)"]),
    "array over lines, after a blank one": (f"\n[\n{GOOD},\n{GOOD}\n]\n", ["line 3 (row 1)", "line 4 (row 2)"]),
    "objects over lines": (
        '\n{\n"input": "a",\n"label": "1"\n}\n{\n"input": "b",\n"label": "1"\n}\n',
        ["line 2 (row 1)", "line 6 (row 2)"],
    ),
}


@pytest.mark.parametrize("ending", [".jsonl", ".json"])
@pytest.mark.parametrize("case", GOOD_FILES)
def test_rows_have_the_lines_that_an_editor_shows(case: str, ending: str, tmp_path: Path) -> None:
    content, expected = GOOD_FILES[case]
    assert places(write(tmp_path, content, f"data{ending}")) == expected


def test_a_mistake_in_an_array_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, f"\n[\n{GOOD},\noops\n]", "data.json")
    with pytest.raises(DataError, match=rf"^{FLAG}: {path} line 4 .*JSON .*column 1\b"):
        places(path)
    path = write(tmp_path, f"[\n{GOOD},\n".encode() + b'{"input": "\xff"}]', "data.json")
    with pytest.raises(DataError, match=rf"^{FLAG}: {path} line 3 .*0xff.*iconv"):
        places(path)


@pytest.mark.parametrize(
    "path", ["/no/such.jsonl", "./no", "../no/such", "~/no", "no.parquet", "no.json", "no.csv", "a/b/c", "x/*.jsonl"]
)
def test_local_paths_must_exist(path: str) -> None:
    with pytest.raises(DataError, match=rf"^{FLAG}: .*(does not exist|no file matches)") as error:
        check_names(path, FLAG)
    assert path in str(error.value)


@pytest.mark.parametrize(
    "path", ["org/name", "gsm8k", "org/name.v2", "https://host/x.jsonl", "hf://datasets/a/b.json"]
)
def test_hub_ids_and_urls_pass_unseen(path: str) -> None:
    check_names(path, FLAG)
    assert local_files(path, FLAG) is None


def test_patterns_have_every_match(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl"):
        write(tmp_path, GOOD, name)
    assert local_files(f"{tmp_path}/*.jsonl", FLAG) == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]


@pytest.mark.parametrize("spec", ["{one},", "", "{one},,org/name", "@dir"])
def test_an_empty_entry_of_a_list_is_refused(tmp_path: Path, spec: str) -> None:
    one = write(tmp_path, GOOD)
    check_names(f"{one}, org/name@sub", FLAG)
    with pytest.raises(DataError, match=rf"^{FLAG}: .*empty"):
        check_names(spec.format(one=one), FLAG)


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_under_two_seconds(tmp_path: Path) -> None:
    row = json.dumps({"input": "What is 12 + 7? Answer with the number only.", "label": "19", "id": "x" * 40})
    path = write(tmp_path, f"{row}\n" * 100_000)
    start = time.process_time()
    assert len(places(path)) == 100_000
    assert time.process_time() - start < 2.0


def test_data_and_reward_import_nothing_heavy() -> None:
    modules = ("data.rows", "demo.artifacts", "demo.arithmetic", "demo.toy", "demo.model", "reward.arithmetic")
    script = "import sys\n" + "".join(f"import openrlhf_ada.{name}\n" for name in modules)
    script += "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "datasets", "reasoning_gym", "tokenizers", "gguf"} & set(loaded)
