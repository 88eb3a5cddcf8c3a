"""Hostile data: every file ends in rows or in one clear error, for train, prepare-data and eval alike.

`train` goes the whole way: the flags' checks, the reading of all rows, and OpenRLHF's own loader on what it is handed.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
import lzma
import os
import re
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_ada.cli import evaluate, prepare_data
from openrlhf_ada.cli.sampling_flags import scoring_of
from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.files import DataError
from openrlhf_ada.host.rows import load_blended
from openrlhf_ada.reporting.counting import Counting
from openrlhf_ada.trainer import training_data

Make = Callable[[Path], Any]
"""Makes a file in a folder; returns its path."""

Result = list[tuple[Any, Any]] | str
"""Questions and labels, or the text of the error."""

ROW = '{"input": "1+1=", "label": "2"}\n'
CHAT = [{"role": "user", "content": "1+1="}]
SHAREGPT = [{"from": "human", "value": "1+1="}, {"from": "gpt", "value": "2"}]
TEXT = {"type": "text", "text": "1+"}


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def text(content: str | bytes, name: str = "data.jsonl") -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def rows(*values: Any, name: str = "data.jsonl") -> Make:
    return text("".join(json.dumps(value) + "\n" for value in values), name)


def labels(*values: Any) -> Make:
    return rows(*({"input": f"{number}+1=", "label": value} for number, value in enumerate(values)))


def raw(label: str) -> Make:
    """A label as it is written in the file."""
    return text(ROW + f'{{"input": "q", "label": {label}}}\n')


def table(values: list[Any], kind: Any = None, name: str = "data.parquet") -> Make:
    def make(folder: Path) -> Path:
        path = folder / name
        questions = [f"q{number}" for number in range(len(values))]
        content = pa.table({"input": pa.array(questions, pa.string()), "label": pa.array(values, kind)})
        if name.endswith(".parquet"):
            pq.write_table(content, path)
        elif "stream" in name:
            with pa.ipc.new_stream(path, content.schema) as sink:
                sink.write_table(content)
        else:
            with pa.ipc.new_file(path, content.schema) as sink:
                sink.write_table(content)
        return path

    return make


def cut(make: Make, keep: float) -> Make:
    def broken(folder: Path) -> Path:
        path = Path(make(folder))
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
        return path

    return broken


def renamed(make: Make, name: str) -> Make:
    return lambda folder: Path(make(folder)).rename(folder / name)


def columns_twice(folder: Path) -> Path:
    names = ["input", "label", "label"]
    pq.write_table(pa.table([pa.array(["q"]), pa.array(["1"]), pa.array(["2"])], names=names), folder / "d.parquet")
    return folder / "d.parquet"


def link_loop(folder: Path) -> Path:
    (folder / "a.jsonl").symlink_to("b.jsonl")
    (folder / "b.jsonl").symlink_to("a.jsonl")
    return folder / "a.jsonl"


def link_to_nothing(folder: Path) -> Path:
    (folder / "a.jsonl").symlink_to("gone.jsonl")
    return folder / "a.jsonl"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.jsonl")
    return folder / "pipe.jsonl"


def folder_named(name: str) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).mkdir()
        return folder / name

    return make


def folder_of_files(folder: Path) -> Path:
    (folder / "set").mkdir()
    (folder / "set" / "train.jsonl").write_text(ROW)
    return folder / "set"


def saved_folder(folder: Path) -> Path:
    import datasets

    datasets.Dataset.from_list([{"input": "1+1=", "label": "2"}]).save_to_disk(str(folder / "set"))
    return folder / "set"


def zip_archive(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "d.jsonl", "w") as archive:
        archive.writestr("a.jsonl", ROW)
    return folder / "d.jsonl"


def columns(**values: Any) -> Make:
    def make(folder: Path) -> Path:
        arrays = {name: value if isinstance(value, pa.Array) else pa.array(value) for name, value in values.items()}
        pq.write_table(pa.table(arrays), folder / "d.parquet")
        return folder / "d.parquet"

    return make


def folder_with(**files: str) -> Make:
    """`__` in a name stands for its full stop."""

    def make(folder: Path) -> Path:
        (folder / "set").mkdir()
        for name, content in files.items():
            (folder / "set" / name.replace("__", ".")).write_text(content)
        return folder / "set"

    return make


def folder_of_two_formats(folder: Path) -> Path:
    path = folder_of_files(folder)
    table(["2"])(folder).rename(path / "more.parquet")
    return path


def device(folder: Path) -> Path:
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    return folder / "zero.jsonl"


def link_to_folder(folder: Path) -> Path:
    folder_of_files(folder)
    (folder / "link").symlink_to("set")
    return folder / "link"


def in_folder(name: str) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).mkdir()
        return text(ROW)(folder / name)

    return make


GOOD = [("1+1=", "2")]
NO_ROWS = r"no rows"
BROKEN_JSON = f'{ROW}{{"input": "x'

FILES: dict[str, tuple[Make, Result]] = {
    # -- JSON that is broken, by line ---------------------------------------------------------------------------------
    "cut line": (text(BROKEN_JSON), r"line 2 .*JSON .*column \d"),
    "line that is no JSON": (text(ROW + "oops\n"), r"line 2 .*JSON .*column 1\b"),
    "first line cut": (text('{"input": "x"\n' + ROW), r"line 1 .*JSON .*column \d"),
    "trailing comma in an object": (text(ROW + '{"input": "x", "label": "1",}\n'), r"line 2 .*JSON .*column \d"),
    "trailing comma in an array": (text(f"[{ROW},\n]", "d.json"), r"line 3 .*JSON .*column \d"),
    "array without its end": (text(f"[{ROW}", "d.json"), r"line 2 .*JSON .*column \d"),
    "two objects in a line": (text(ROW + ROW.strip() * 2), r"line 2 .*JSON .*column \d"),
    "single quotes": (text(ROW + "{'input': 'x', 'label': '1'}\n"), r"line 2 .*JSON .*column \d"),
    "comment": (text(ROW + "// note\n"), r"line 2 .*JSON .*column \d"),
    "a key twice": (text(ROW + '{"input": "x", "label": "1", "label": "2"}\n'), r"line 2 .*'label'"),
    "nested too deeply": (text(ROW + "[" * 100_000 + "\n"), r"line 2 .*JSON"),
    "control character": (text(b'{"input": "a\x00b", "label": "1"}\n'), r"line 1 .*JSON .*column \d"),
    "NUL bytes": (text(b"\x00" * 100), r"line 1 .*JSON .*column \d"),
    "5,000 digits": (raw("1" * 5000), r"line 2 .*JSON"),
    # -- what is no JSON at all ---------------------------------------------------------------------------------------
    "empty file": (text(""), NO_ROWS),
    "blank lines": (text("\n \n\n"), NO_ROWS),
    "empty array": (text("[]", "d.json"), NO_ROWS),
    "UTF-16": (text(ROW.encode("utf-16")), r"line 1 .*iconv -f UTF-16 -t UTF-8"),
    "UTF-16 without a mark": (text(ROW.encode("utf-16-le")), r"line 1 .*JSON .*column \d"),
    "Latin-1": (
        text(ROW.encode() + '{"input": "é", "label": "1"}'.encode("latin-1")),
        r"line 2 .*UTF-8 .*CP1252",
    ),
    "binary": (text(b"\xff\xd8\xff\xe0" * 9), r"line 1 .*UTF-8"),
    "Parquet named .jsonl": (renamed(table(["1"]), "d.jsonl"), r"\.parquet\b"),
    "gzip named .jsonl": (text(gzip.compress(ROW.encode())), r"\.jsonl\.gz\b"),
    "web page": (text("<!DOCTYPE html>\n<html>"), r"web page"),
    "pointer of Git LFS": (text("version https://git-lfs.github.com/spec/v1\n"), r"git lfs pull"),
    # -- rows of the wrong kind ---------------------------------------------------------------------------------------
    "a number": (text(ROW + "3\n"), r"line 2 .*JSON number"),
    "a list": (text(ROW + "[1]\n"), r"line 2 .*JSON array"),
    "null": (text(ROW + "null\n"), r"line 2 .*JSON null"),
    "text": (text(ROW + '"x"\n'), r"line 2 .*JSON string"),
    "array of arrays": (
        text('[{"input": "1+1=", "label": "2"},\n["q", "1"]]', "d.json"),
        r"line 2 \(row 2\) .*JSON array",
    ),
    "no question": (text(ROW + '{"label": "1"}\n'), r"line 2 .*'input'.*input_key"),
    "no label": (text(ROW + '{"input": "x"}\n'), r"line 2 .*'label'.*label_key"),
    "integer question": (text(ROW + '{"input": 5, "label": "1"}\n'), r"line 2: 'input' .*JSON number \(5\)"),
    "object for a question": (text(ROW + '{"input": {"a": 1}, "label": "1"}\n'), r"line 2: 'input' .*JSON object"),
    "empty question": (text(ROW + '{"input": "", "label": "1"}\n'), r"line 2: 'input' .*\"\""),
    "blank question": (
        text(ROW + '{"input": " \\n", "label": "1"}\n'),
        r"line 2: 'input' ",
    ),
    "null question": (text(ROW + '{"input": null, "label": "1"}\n'), r"line 2: 'input' .*null"),
    "half a surrogate pair": (text(ROW + '{"input": "\\ud800", "label": "1"}\n'), r"line 2: 'input' .*surrogate"),
    "third line after a blank one": (text(f"\n{ROW}\n[]\n"), r"line 4 .*JSON array"),
    # -- labels -------------------------------------------------------------------------------------------------------
    "NaN": (raw("NaN"), r"line 2: 'label' .*\bnan\b"),
    "Infinity": (raw("-Infinity"), r"line 2: 'label' .*-inf\b"),
    "half a surrogate pair in a label": (raw('"\\udfff"'), r"line 2: 'label' .*surrogate"),
    "10^30": (raw(str(10**30)), [("1+1=", "2"), ("q", str(10**30))]),
    "10^30 alone": (labels(10**30), [("0+1=", str(10**30))]),
    "2^63": (labels(2**63), [("0+1=", str(2**63))]),
    "1e400": (raw("1e400"), [("1+1=", "2"), ("q", "1E+400")]),
    "more digits than a float": (raw("0.1234567890123456789"), [("1+1=", "2"), ("q", "0.1234567890123456789")]),
    "integers and text": (labels(1, "x"), [("0+1=", "1"), ("1+1=", "x")]),
    "text and lists": (labels("1", ["2", "3"]), [("0+1=", "1"), ("1+1=", '["2", "3"]')]),
    "integers and fractions": (labels(1, 1.5), [("0+1=", "1"), ("1+1=", "1.5")]),
    "objects with other keys": (labels({"a": 1}, {"b": "2"}), [("0+1=", '{"a": 1}'), ("1+1=", '{"b": "2"}')]),
    "booleans": (labels(True, False), [("0+1=", True), ("1+1=", False)]),
    "texts that look like dates": (
        labels("2020-01-01", "1999-12-31"),
        [("0+1=", "2020-01-01"), ("1+1=", "1999-12-31")],
    ),
    "texts that look like numbers": (labels("007", "1e3"), [("0+1=", "007"), ("1+1=", "1e3")]),
    # -- other columns ------------------------------------------------------------------------------------------------
    "mixed types beside": (
        rows(*({"input": f"q{i}", "label": "1", "m": m} for i, m in enumerate((1, "x", {"a": [1]}, None)))),
        [(f"q{i}", "1") for i in range(4)],
    ),
    "NaN beside": (text('{"input": "q", "label": "1", "m": NaN}\n'), [("q", "1")]),
    # -- files that look bad and are good -----------------------------------------------------------------------------
    "byte order mark": (text(b"\xef\xbb\xbf" + ROW.encode()), GOOD),
    "Windows lines": (text(ROW.replace("\n", "\r\n")), GOOD),
    "old Mac lines": (
        text(ROW.replace("\n", "\r") + ROW.strip().replace("1+1", "2+2")),
        [("1+1=", "2"), ("2+2=", "2")],
    ),
    "no last line end": (text(ROW.strip()), GOOD),
    "array": (text(f"[{ROW}]", "d.json"), GOOD),
    "array named .jsonl": (text(f"[{ROW}]"), GOOD),
    "object over lines": (text('{\n"input": "1+1=",\n"label": "2"\n}\n', "d.json"), GOOD),
    "a line of 2 MB": (text(json.dumps({"input": "x" * 2_000_000, "label": "2"})), [("x" * 2_000_000, "2")]),
    "NUL in a text": (text('{"input": "a\\u0000b", "label": "1"}\n'), [("a\x00b", "1")]),
    "line separator in a text": (text('{"input": "a\u2028b", "label": "1"}\n'), [("a\u2028b", "1")]),
    "gzip": (text(gzip.compress(ROW.encode()), "d.jsonl.gz"), GOOD),
    "bzip2": (text(bz2.compress(ROW.encode()), "d.json.bz2"), GOOD),
    "xz": (text(lzma.compress(ROW.encode()), "d.jsonl.xz"), GOOD),
    "capital letters": (text(ROW, "D.JSONL"), GOOD),
    "brackets in the name": (text(ROW, "d[1].jsonl"), GOOD),
    "a space in the name": (text(ROW, "my data.jsonl"), GOOD),
    # -- broken compression -------------------------------------------------------------------------------------------
    "gzip cut off": (cut(text(gzip.compress(ROW.encode() * 99), "d.jsonl.gz"), 0.7), r"EOFError"),
    "text named .gz": (text(ROW, "d.jsonl.gz"), "gzipped"),
    "xz cut off": (cut(text(lzma.compress(os.urandom(9999)), "d.jsonl.xz"), 0.5), r"d\.jsonl\.xz"),
    # -- CSV ----------------------------------------------------------------------------------------------------------
    "CSV": (text("input,label\n1+1=,2\n", "d.csv"), GOOD),
    "CSV as text": (text("input,label\na,007\nb,NA\nc,1e3\n", "d.csv"), [("a", "007"), ("b", "NA"), ("c", "1e3")]),
    "CSV with 10^30": (text(f"input,label\na,{10**30}\n", "d.csv"), [("a", str(10**30))]),
    "CSV with quotes": (text('input,label\n"a,\nb",2\n', "d.csv"), [("a,\nb", "2")]),
    "CSV with a mark": (text(b"\xef\xbb\xbfinput,label\n1+1=,2\n", "d.csv"), GOOD),
    "CSV with a field too many": (text("input,label\na,1\nb,2,3\n", "d.csv"), r"line 3 .*\b3 fields.*\b2\b"),
    "CSV with a field too few": (text("input,label\na,1\nb\n", "d.csv"), r"line 3 .*\b1 fields.*\b2\b"),
    "CSV with an open quote": (text('input,label\n"a,1\n', "d.csv"), r"line 2 .*CSV"),
    "CSV with semicolons": (text('input;label\n"a, b; c";1,5\n', "d.csv"), [("a, b; c", "1,5")]),
    "CSV with tabs": (text("input\tlabel\na;b\t1,5\n", "d.csv"), [("a;b", "1,5")]),
    "TSV": (text("input\tlabel\na, b\t007\n", "d.tsv"), [("a, b", "007")]),
    "TSV with commas in the header": (text("input\tlabel\tx,y\na\t1\t2\n", "d.tsv"), [("a", "1")]),
    "TSV, packed": (text(gzip.compress(b"input\tlabel\na\t1\n"), "d.tsv.gz"), [("a", "1")]),
    "TSV with an open quote": (text('input\tlabel\n"a\t1\n', "d.tsv"), r"line 2 .*CSV"),
    "CSV with bars": (text("input|label\na|1\n", "d.csv"), r"input\|label.*input_key"),
    "CSV with semicolons and a field too many": (text("input;label\na;1\nb;2;3\n", "d.csv"), r"line 3 .*\b3 fields"),
    "CSV from Windows": (text("input,label\n\u201ca\u201d,1\n".encode("cp1252"), "d.csv"), r"line 2 .*CP1252"),
    "CSV with a column twice": (text("input,label,label\na,1,2\n", "d.csv"), r"'label' twice"),
    "CSV in Latin-1": (text("input,label\né,1\n".encode("latin-1"), "d.csv"), r"line 2 .*UTF-8"),
    "CSV of nothing": (text("", "d.csv"), NO_ROWS),
    "CSV of a header": (text("input,label\n", "d.csv"), NO_ROWS),
    # -- Parquet and Arrow --------------------------------------------------------------------------------------------
    "Parquet": (table(["2", "x"]), [("q0", "2"), ("q1", "x")]),
    "Parquet of integers": (table([1, 2]), [("q0", 1), ("q1", 2)]),
    "Parquet without rows": (table([], pa.string()), r"cannot be loaded .*\.jsonl"),
    "broken Parquet": (cut(table(["2"]), 0.6), r"cannot be loaded .*\bparquet|Parquet"),
    "empty Parquet": (text("", "d.parquet"), r"cannot be loaded .*\bparquet|Parquet"),
    "text named .parquet": (text(ROW * 9, "d.parquet"), r"cannot be loaded .*\bparquet|Parquet"),
    "binary labels": (table([b"\xff\xfe"]), r"row 1: 'label' .*binary"),
    "text in bytes": (table([b"2"]), [("q0", "2")]),
    "decimals": (table([Decimal("1.50"), Decimal("2.00")]), [("q0", "1.50"), ("q1", "2.00")]),
    "dates": (table([datetime.date(2020, 1, 2)]), [("q0", "2020-01-02")]),
    "times": (table([datetime.datetime(2020, 1, 2, 3, 4)]), [("q0", "2020-01-02 03:04:00")]),
    "durations": (table([datetime.timedelta(1)]), r"row 1: 'label' .*timedelta"),
    "dictionary": (table(pa.array(["2", "2"]).dictionary_encode()), [("q0", "2"), ("q1", "2")]),
    "NaN in Parquet": (table([1.0, float("nan")]), r"row 2: 'label' .*\bnan\b"),
    "a column twice": (columns_twice, r"cannot be loaded .*\blabel\b"),
    "Arrow": (table(["2"], name="d.arrow"), [("q0", "2")]),
    "Arrow stream": (table(["2"], name="stream.arrow"), [("q0", "2")]),
    "broken Arrow": (text(b"ARROW1\x00\x00", "d.arrow"), r"cannot be loaded .*\.jsonl"),
    # -- paths --------------------------------------------------------------------------------------------------------
    "missing file": (lambda folder: folder / "no.jsonl", r"not exist.*\.jsonl, "),
    "missing .gz": (lambda folder: folder / "no.jsonl.gz", r"not exist"),
    "loop of links": (link_loop, r"symbolic links"),
    "link to nothing": (link_to_nothing, r"\blink\b"),
    "pipe": (pipe, r"pipe or a device"),
    "empty folder": (folder_named("empty"), r"empty folder"),
    "folder named like a file": (folder_named("d.jsonl"), r"folder"),
    "folder of files": (folder_of_files, GOOD),
    "saved folder": (saved_folder, GOOD),
    "unknown ending": (text(ROW, "rows.txt"), r"\.jsonl"),
    "pattern without a match": (lambda folder: folder / "none-*.jsonl", r"matches"),
    "folder of two formats": (folder_of_two_formats, r"\(json, parquet\)"),
    "folder with a hidden file": (folder_with(__DS_Store="x", train__jsonl=ROW), GOOD),
    "folder with an empty file": (folder_with(a__jsonl=ROW, b__jsonl=""), GOOD),
    "folder of a note": (folder_with(README__md="x"), r"data files"),
    "link to a folder": (link_to_folder, GOOD),
    "device": (device, r"pipe or a device"),
    "an = in the path": (in_folder("day=1"), GOOD),
    "a % in the name": (text(ROW, "d%20.jsonl"), GOOD),
    "a line end in the name": (text(ROW, "d\nx.jsonl"), GOOD),
    # -- what joins and wraps -----------------------------------------------------------------------------------------
    "gzip twice": (text(gzip.compress(gzip.compress(ROW.encode())), "d.jsonl.gz"), r"line 1 .*gzip"),
    "zip archive": (zip_archive, r"\bzip\b"),
    "UTF-32": (text(ROW.encode("utf-32-le"), "d.jsonl"), r"line 1 .*JSON .*column \d"),
    "UTF-32 with a mark": (text(ROW.encode("utf-32")), r"iconv -f UTF-32"),
    "joined files with marks": (
        text(ROW.encode() + b"\xef\xbb\xbf" + ROW.encode()),
        r"line 2 .*byte order mark",
    ),
    "commas between lines": (text(ROW.strip() + ",\n" + ROW), r"line 1 .*JSON .*column \d"),
    "a key twice within": (text(ROW + '{"input": "x", "label": {"a": 1, "a": 2}}\n'), r"line 2 .*'a'"),
    "rows under a key": (text('{"data": [' + ROW.strip() + "]}", "d.json"), GOOD),
    "rows under a key, over lines, with notes": (
        text('{\n"version": "1.0",\n"data": [\n' + ROW + "]\n}\n", "d.json"),
        GOOD,
    ),
    "rows under another key alone": (text('{"problems": [' + ROW.strip() + "]}", "d.json"), GOOD),
    "rows under two keys": (
        text('{"train": [' + ROW + '], "test": [' + ROW + "]}", "d.json"),
        r"\btrain\W+test\b.*input_key",
    ),
    "a bad row under a key": (text('{"data": [' + ROW + ', {"label": "1"}]}', "d.json"), r"row 2 .*'input'"),
    "a row with tests beside": (
        rows({"input": "q", "label": "1", "tests": [{"input": "1", "output": "2"}]}),
        [("q", "1")],
    ),
    "no rows under a key": (text('{"data": []}', "d.json"), r"\bdata\b.*input_key"),
    "columns in place of rows": (text('{"input": ["a"], "label": ["1"]}', "d.json"), r"line 1: 'input' .*\[\"a\"\]"),
    "form feed between rows": (text(ROW + "\x0c\n" + ROW.replace("1+1", "2+2")), [*GOOD, ("2+2=", "2")]),
    "next line in a text": (text('{"input": "a\u0085b", "label": "1"}\n'), [("a\x85b", "1")]),
    "500 lists in a label": (raw("[" * 500 + "]" * 500), r"line 2: 'label' .*\b100\b"),
    "NaN within a label": (raw('{"a": [NaN]}'), r"line 2: 'label' .*\bnan\b"),
    "1e-400": (raw("1e-400"), [("1+1=", "2"), ("q", "1E-400")]),
    "boolean question": (text(ROW + '{"input": true, "label": "1"}\n'), r"line 2: 'input' .*JSON boolean"),
    # -- further types of tables --------------------------------------------------------------------------------------
    "unsigned numbers": (columns(input=["a"], label=pa.array([2**63 + 5], pa.uint64())), [("a", str(2**63 + 5))]),
    "long decimals": (columns(input=["a"], label=pa.array([Decimal("1.5")], pa.decimal256(50, 2))), [("a", "1.50")]),
    "text views": (columns(input=pa.array(["a"], pa.string_view()), label=["1"]), [("a", "1")]),
    "lists in Parquet": (table([["1", "2"]]), [("q0", ["1", "2"])]),
    "infinity in Parquet": (table([1.0, float("inf")]), r"row 2: 'label' .*\binf\b"),
    "integer questions in Parquet": (columns(input=[1], label=["1"]), r"row 1: 'input' .*JSON number"),
    "Parquet without columns": (columns(), r"cannot be loaded .*\.jsonl"),
    "CSV with a field of 300 kB": (text("input,label\n" + "x" * 300_000 + ",2\n", "d.csv"), [("x" * 300_000, "2")]),
    # -- chat messages ------------------------------------------------------------------------------------------------
    "chat": (rows({"input": CHAT, "label": "2"}), [(CHAT, "2")]),
    "chat and text": (rows({"input": CHAT, "label": "2"}, {"input": "q", "label": "1"}), [(CHAT, "2"), ("q", "1")]),
    "messages as JSON text": (rows({"input": json.dumps(CHAT), "label": "2"}), [(CHAT, "2")]),
    "a message as JSON text": (rows({"input": json.dumps(CHAT[0]), "label": "2"}), [(CHAT, "2")]),
    "messages as Python's text": (rows({"input": str(CHAT), "label": "2"}), [(CHAT, "2")]),
    "messages as numpy's text": (rows({"input": f"{CHAT[0]}\n {CHAT[0]}", "label": "2"}), r"line 1: 'input' .*JSON"),
    "ShareGPT": (rows({"input": [SHAREGPT[0]], "label": "2"}), [([{**CHAT[0], **SHAREGPT[0]}], "2")]),
    "ShareGPT as JSON text": (
        rows({"input": json.dumps([SHAREGPT[0]]), "label": "2"}),
        [([{**CHAT[0], **SHAREGPT[0]}], "2")],
    ),
    "ShareGPT with its answer": (
        rows({"input": SHAREGPT, "label": "2"}),
        r"line 1: 'input' .*message of the assistant",
    ),
    "ShareGPT without a text": (rows({"input": [{"from": "human"}], "label": "2"}), r"line 1: 'input' .*'content'"),
    "JSON that is a question": (
        rows({"input": '[{"a": 1}] has how many?', "label": "1"}),
        [('[{"a": 1}] has how many?', "1")],
    ),
    "an answer at the end": (
        rows({"input": [*CHAT, {"role": "assistant", "content": "2"}], "label": "2"}),
        r"line 1: 'input' .*assistant",
    ),
    "an answer at the end of JSON text": (
        rows({"input": json.dumps([*CHAT, {"role": "Assistant", "content": "2"}]), "label": "2"}),
        r"line 1: 'input' .*Assistant",
    ),
    "parts of text": (rows({"input": said(TEXT, {"type": "text", "text": "1="}), "label": "2"}), [(CHAT, "2")]),
    "an image that a part names": (
        rows({"input": said(TEXT, {"type": "image_url", "image_url": "a.png"}), "label": "2"}),
        r"line 1: 'input' .*image_url",
    ),
    "a part without a kind": (rows({"input": said(TEXT, "1="), "label": "2"}), r"line 1: 'input' "),
    "a place for an image": (
        rows({"input": said({"type": "image"}, TEXT), "label": "2"}),
        r"line 1:? .*image",
    ),
    "an image beside the prompt": (
        rows({"input": "q", "label": "2", "images": ["a.png"]}),
        r"line 1:? .*image",
    ),
    "no images beside the prompt": (rows({"input": "1+1=", "label": "2", "images": []}), GOOD),
    "message without content": (rows({"input": [{"role": "user"}], "label": "2"}), r"line 1: 'input' .*'content'"),
    "message of null": (rows({"input": [{"role": "user", "content": None}], "label": "2"}), r"'role' and 'content'"),
    "no messages": (rows({"input": [], "label": "2"}), r"line 1: 'input' .*\[\]"),
    "messages that are numbers": (
        rows({"input": [1, 2], "label": "2"}),
        r"line 1: 'input' .*\[1, 2\]",
    ),
}

LEFT_OUT_BY_PREPARE_DATA = (
    *("a number", "a list", "null", "text", "array of arrays", "no question", "no label", "integer question"),
    *("object for a question", "empty question", "blank question", "null question", "half a surrogate pair"),
    *("third line after a blank one", "NaN", "Infinity", "half a surrogate pair in a label", "NaN in Parquet"),
    *(
        "a bad row under a key",
        "500 lists in a label",
        "NaN within a label",
        "boolean question",
        "infinity in Parquet",
    ),
)
"""One row of these is bad, and another one good."""


class CharacterTokenizer:
    """A token per character, and messages one after the other."""

    def __call__(self, text: list[str], add_special_tokens: bool) -> dict[str, list[str]]:
        return {"input_ids": text}

    def apply_chat_template(self, messages: list[Any], **_: Any) -> str:
        return "".join(message["content"] for message in messages)


@pytest.fixture
def train(
    argv_with: Callable[[dict[str, Any]], list[str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], list[tuple[Any, Any]]]:
    """The rows on which OpenRLHF trains."""
    monkeypatch.setattr(training_data, "_tokenizer", lambda args: CharacterTokenizer())

    def run(path: Path) -> list[tuple[Any, Any]]:
        flags = {
            "--data.prompt_dataset": str(path), "--data.apply_chat_template": "", "--data.max_len": str(10**8),
            "--rollout.batch_size": "1", "--train.batch_size": "4",
        }  # fmt: skip
        args = parse(argv_with(flags))
        training_data.prepare_training_data(args)
        loaded = load_blended(args.data.prompt_dataset, max_count=args.data.max_samples, split="train")
        return list(zip(loaded["input"], loaded["label"], strict=True))

    return run


def evaluated(path: Path) -> list[tuple[Any, Any]]:
    args = evaluate.build_parser().parse_args(["--model", "m", "--benchmark", str(path)])
    (suite,) = evaluate.load_suites(evaluate.sources_of(args), args, *scoring_of(args), Counting())
    return [(problem.question, problem.label) for problem in suite.problems.values()]


def prepared(path: Path, reward: str = "http://server") -> list[tuple[Any, Any]]:
    out = path.parent / "out"
    arguments = [str(path), "--model", "m", "--out", str(out), "--reward", reward]
    args = prepare_data.build_parser().parse_args(arguments)
    out.mkdir(exist_ok=True)
    sources = [prepare_data.source_of(spec, args) for spec in args.source]
    problems, _, _ = prepare_data.clean(sources, *prepare_data.scoring_for(sources, args), args, Counting())
    return [(problem.question, problem.label) for problem in problems]


def outcome(run: Callable[[Path], list[tuple[Any, Any]]], path: Path) -> Result:
    try:
        return run(path)
    except USER_ERRORS as error:
        assert isinstance(error, DataError | ConfigError)
        assert "\n" not in str(error), "one line"
        assert len(str(error)) < 800
        return str(error)


def as_text(values: Result) -> Result:
    """`eval` and `prepare-data` keep labels as they are; training has one type for all."""
    if isinstance(values, str):
        return values
    plain = [(q, label if isinstance(label, str) else json.dumps(label)) for q, label in values]
    return [([{"role": "user", "content": q}] if isinstance(q, str) else q, label) for q, label in plain]


def check(found: Result, expected: Result, path: Path, flag: str) -> None:
    if not isinstance(expected, str):
        assert as_text(found) == as_text(expected)
        return
    assert isinstance(found, str), found
    assert re.search(expected, found), found
    assert found.startswith(flag)
    assert path.name in found
    assert ": " in found.partition(path.name)[2], "a rule and a remedy"


def test_the_table_is_large() -> None:
    assert len(FILES) >= 150


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES)
def test_train(case: str, train: Callable[[Path], list[tuple[Any, Any]]], tmp_path: Path) -> None:
    make, expected = FILES[case]
    path = make(tmp_path)
    check(outcome(train, path), expected, path, "--data.prompt_dataset")


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES)
def test_eval(case: str, tmp_path: Path) -> None:
    make, expected = FILES[case]
    path = make(tmp_path)
    check(outcome(evaluated, path), expected, path, "--benchmark")


@pytest.mark.parametrize("case", FILES)
def test_prepare_data(case: str, tmp_path: Path) -> None:
    make, expected = FILES[case]
    path = make(tmp_path)
    found = outcome(prepared, path)
    if case in LEFT_OUT_BY_PREPARE_DATA:
        assert len(found) == 1, "the good row"
    else:
        check(found, expected, path, "SOURCE")


@pytest.mark.slow
def test_rows_that_contradict_each_other_are_one_error(tmp_path: Path) -> None:
    path = rows({"input": "q", "label": "1"}, {"input": "q", "label": "2"})(tmp_path)
    found = outcome(lambda path: prepared(path, "math"), path)
    assert isinstance(found, str), found
    assert re.search(r"\b2 of 2 rows", found)
    assert "line 1" in found
