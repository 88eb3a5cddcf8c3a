"""R19: files that are missing, unreadable or not what their flag needs are refused before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import wandb
from wandb.sdk.lib import wbauth

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.files import DataError
from openrlhf_ada.reporting.run_log import METRICS_FILE

Flags = dict[str, str | None]
Refusal = Callable[[Flags], Exception]
Make = Callable[[Path], str]
"""Makes the broken thing in a folder; returns the flag's value."""

DATA, REWARD, MODEL = "--data.prompt_dataset", "--reward.remote_url", "--actor.model_name_or_path"


def written(content: str | bytes, name: str) -> Make:
    def write(folder: Path) -> str:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def folder_named(name: str, *files: str) -> Make:
    def make(folder: Path) -> str:
        (folder / name).mkdir()
        for file in files:
            (folder / name / file).write_text("{}")
        return str(folder / name)

    return make


def absent(name: str) -> Make:
    return lambda folder: str(folder / name)


ROW = '{"input": "1+1=", "label": "2"}\n'
FREE: Flags = {"--ada_run_dir": "/tmp/run", "--ckpt.path": "/tmp/ckpt", "--ckpt.output_dir": "/tmp/model"}
EVAL, CRITIC, AGENT = "--eval.dataset", "--critic.model_name_or_path", "--train.agent_func_path"

FILES: list[tuple[str, str, Make, str]] = [
    ("data missing", DATA, absent("no.jsonl"), "exist"),
    ("data missing folder", DATA, absent("deep/er/no"), "exist"),
    ("data is empty", DATA, written("", "e.jsonl"), "no rows"),
    ("row without label", DATA, written(ROW + '{"input": "x"}\n', "k.jsonl"), "line 2 .*'label'.*--data.label_key"),
    ("row is cut off", DATA, written(ROW + ROW + '{"input": "x', "k.jsonl"), "line 3 .*JSON"),
    ("pattern without match", DATA, absent("*.jsonl.none"), "matches"),
    ("empty entry in the list", DATA, lambda _: "a/b,,c/d", "empty"),
    ("evaluation data missing", EVAL, absent("no.jsonl"), "exist"),
    ("evaluation row without key", EVAL, written('{"x": 1}\n', "k.jsonl"), "line 1 .*'input'"),
    ("model missing", MODEL, absent("no-model"), "folder"),
    ("model is a file", MODEL, written("{}", "model.json"), "folder"),
    ("model without config.json", MODEL, folder_named("m", "model.safetensors"), r"config\.json"),
    ("critic missing", CRITIC, absent("no-critic"), "folder"),
    ("reward file missing", REWARD, absent("no.py"), "reward_func"),
    ("reward is a folder", REWARD, folder_named("r.py"), "reward_func"),
    ("reward without reward_func", REWARD, written("def reward(q, p, l): ...", "r.py"), "reward_func"),
    ("reward_func in a comment", REWARD, written("# reward_func\n", "r.py"), "reward_func"),
    ("reward with a syntax error", REWARD, written("def reward_func(:\n", "r.py"), r"Python \("),
    ("reward is binary", REWARD, written(b"\xff\xfe\x00", "r.py"), r"Python \("),
    ("reward with a null byte", REWARD, written(b"x = 1\x00", "r.py"), r"Python \("),
    ("agent missing", AGENT, absent("agent.py"), "AgentExecutor"),
    ("agent without class", AGENT, written("x = 1\n", "agent.py"), "AgentExecutor"),
]


@pytest.mark.parametrize(("flag", "make", "named"), [c[1:] for c in FILES], ids=[c[0] for c in FILES])
def test_broken_file_is_refused(refusal: Refusal, tmp_path: Path, flag: str, make: Make, named: str) -> None:
    value = make(tmp_path)
    error = refusal({flag: value})
    assert isinstance(error, ConfigError | DataError)
    assert str(error).startswith(flag)
    assert value in str(error)
    assert re.search(named, str(error).replace(value, ""))


@pytest.mark.parametrize(
    "make",
    [folder_named("empty"), folder_named("folder.jsonl", "a.json"), written(ROW, "rows.txt")],
    ids=["empty folder", "folder named like a file", "format that OpenRLHF does not know"],
)
def test_data_that_the_host_cannot_load_is_refused(refusal: Refusal, tmp_path: Path, make: Make) -> None:
    assert DATA in str(refusal({DATA: make(tmp_path)}))


# -- permissions --------------------------------------------------------------------------------------------------


@contextmanager
def without_permission(path: str) -> Iterator[None]:
    """The file is locked, everything around it open. Root reads everything, so it becomes another user meanwhile."""
    file, user = Path(path), os.geteuid()
    ours = [f for f in file.parents if f.stat().st_uid == user and len(f.parts) > 2]
    modes = {folder: folder.stat().st_mode for folder in ours}
    file.chmod(0)
    for folder, mode in modes.items():
        folder.chmod(mode | 0o055)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        for folder, mode in modes.items():
            folder.chmod(mode)


def test_data_without_permission_is_refused(
    refusal: Refusal, argv_with: Callable[[Flags], list[str]], tmp_path: Path
) -> None:
    parse(argv_with({}))  # everything that is imported on the way is there before the user changes
    path = written(ROW, "secret.jsonl")(tmp_path)
    with without_permission(path):
        error = refusal({DATA: path, **FREE})
    assert str(error).startswith(f"{DATA}: {path} ") and "Permission denied" in str(error)


@pytest.mark.parametrize(("flag", "name"), [(REWARD, "secret.py"), (MODEL, "secret")])
def test_reward_or_model_without_permission_is_refused(
    refusal: Refusal, argv_with: Callable[[Flags], list[str]], tmp_path: Path, flag: str, name: str
) -> None:
    parse(argv_with({}))
    make = written("def reward_func(q, p, l): ...", name) if flag == REWARD else folder_named(name, "config.json")
    path = make(tmp_path)
    with without_permission(path):
        assert flag in str(refusal({flag: path}))


# -- the run directory --------------------------------------------------------------------------------------------


def test_used_run_directory_is_refused_unless_resumed(
    refusal: Refusal, argv_with: Callable[[Flags], list[str]], tmp_path: Path
) -> None:
    run = tmp_path / "earlier"
    run.mkdir()
    parse(argv_with({"--ada_run_dir": str(run)}))  # an empty folder is free
    (run / METRICS_FILE).write_text("")
    error = refusal({"--ada_run_dir": str(run)})
    assert str(error).startswith(f"--ada_run_dir is {str(run)!r}: ")
    assert "--ckpt.load_enable" in str(error)
    resume = {"--ada_run_dir": str(run), "--ckpt.load_enable": "", "--ckpt.path": str(tmp_path / "checkpoints")}
    assert "--ckpt.path" in str(refusal(resume)), "OpenRLHF would start again at step 0"
    (tmp_path / "checkpoints" / "_actor").mkdir(parents=True)
    assert "--ckpt.path" in str(refusal(resume)), "none was finished"
    (tmp_path / "checkpoints" / "_actor" / "latest").write_text("global_step1")
    parse(argv_with(resume))


@pytest.mark.parametrize("name", ["../..", "a/../../b", "/tmp/x", "."])
def test_a_run_name_that_leads_out_of_its_folder_is_refused(refusal: Refusal, name: str) -> None:
    assert str(refusal({"--logger.wandb.run_name": name, "--ada_run_dir": None})).startswith("--logger.wandb.run_name")


@pytest.mark.parametrize("flag", ["--ada_run_dir", "--ckpt.path", "--ckpt.output_dir", "--logger.tensorboard_dir"])
def test_folder_that_cannot_be_written_is_refused(
    refusal: Refusal, argv_with: Callable[[Flags], list[str]], tmp_path: Path, flag: str
) -> None:
    file, locked = written("", "taken")(tmp_path), tmp_path / "locked"
    assert file in str(refusal({flag: file})) and flag in str(refusal({flag: f"{file}/below"}))
    parse(argv_with({flag: str(tmp_path / "new" / "folder")}))
    assert not (tmp_path / "new").exists()
    locked.mkdir()
    with without_permission(str(locked)):
        error = refusal({**FREE, flag: f"{locked}/new"})
    assert str(error).startswith(f"{flag} is '{locked}/new': {locked} ")


# -- the key of Weights & Biases ----------------------------------------------------------------------------------


@pytest.fixture
def nobody_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    # What another test has logged in with stays in the process.
    wandb.teardown()
    wbauth.unauthenticate_session(update_settings=False)


WITH_KEY = "--logger.wandb.key"


@pytest.mark.usefixtures("nobody_logged_in")
@pytest.mark.parametrize(("key", "shown"), [("env", "'env'"), ("0123456789", "'<removed>'")])
def test_missing_key_is_refused(refusal: Refusal, key: str, shown: str) -> None:
    error = str(refusal({WITH_KEY: key}))
    assert error.startswith(f"{WITH_KEY} is {shown}:")
    assert "WANDB_API_KEY" in error and "wandb login" in error and "WANDB_MODE=offline" in error


@pytest.mark.usefixtures("nobody_logged_in")
@pytest.mark.parametrize("where", ["flag", "variable", "login", "offline"])
def test_key_is_found_where_openrlhf_finds_it(
    argv_with: Callable[[Flags], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    key = "0" * 40
    if where == "variable":
        monkeypatch.setenv("WANDB_API_KEY", key)
    elif where == "login":
        (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {key}\n")
    elif where == "offline":
        monkeypatch.setenv("WANDB_MODE", "offline")
    parse(argv_with({WITH_KEY: key if where == "flag" else "env"}))
