"""`openrlhf-ada submit` without a cluster: what goes along, where results go, what is refused, and the log."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import distributions, entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_ada.cli import ray_job, submit
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.platforms.job_files import DISTRIBUTION, MIB, files_of

RUN = ["--ada_run_dir", "/shared/a"]
EVAL = ["eval", "--model", "m", "--benchmark", "aime24", "--out", "/o"]


def test_options_before_the_verb_rest_belongs_to_it() -> None:
    args = submit.build_parser().parse_args(["--env", "A", "--upload", "x", "--env", "B=1", "train", "--env", "3"])
    assert (args.env, args.upload, args.command) == (["A", "B=1"], ["x"], ["train", "--env", "3"])


def test_results_go_where_they_stay() -> None:
    added = ["--ckpt.path", "/shared/a/ckpt", "--ckpt.output_dir", "/shared/a/model"]
    assert submit.with_outputs("train", RUN) == [*RUN, *added]
    assert submit.with_outputs("train", ["--ada.run_dir=/shared/a"]) == ["--ada.run_dir=/shared/a", *added]
    given = [*RUN, "--ckpt.path", "/c", "--ckpt.output_dir=/m"]
    assert submit.with_outputs("train", given) == given
    for verb, words, flag in (
        ("train", [], "--ada_run_dir"),
        ("train", ["--ada_run_dir", "runs/a"], "--ada_run_dir"),
        ("train", [*RUN, "--ckpt.path", "ckpt"], "--ckpt.path"),
        ("eval", ["--out", "here"], "--out"),
        ("prepare-data", [], "--out"),
    ):
        with pytest.raises(ConfigError, match=rf"{flag} is .*the job's working folder is deleted"):
            submit.with_outputs(verb, words)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text("{}")
    (tmp_path / "more.jsonl").write_text("{}")
    (tmp_path / "models").mkdir()
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    (tmp_path / "package" / "a.py").write_text("A = 1")
    return tmp_path


def test_files_that_the_command_names_go_along(here: Path) -> None:
    words = ["--data.prompt_dataset", "prompts.jsonl,more.jsonl", "--reward.remote_url=math", "--x", "/etc/hostname"]
    files = files_of("train", [*words, "--eval.dataset", "./prompts.jsonl"], ["package"], here)
    assert files.files == (Path("package/a.py"), Path("prompts.jsonl"), Path("more.jsonl"))
    named = files_of("prepare-data", ["mine=prompts.jsonl", "more*.jsonl", "--out", "/o"], [], here)
    assert named.files == (Path("prompts.jsonl"), Path("more.jsonl"))
    assert files_of("eval", ["--benchmark", "math500=prompts.jsonl"], [], here).files == (Path("prompts.jsonl"),)
    (here / "p=1.jsonl").touch()
    of_host = files_of("train", ["--data.prompt_dataset", "prompts.jsonl, p=1.jsonl"], [], here)
    assert of_host.files == (Path("prompts.jsonl"), Path("p=1.jsonl"))
    (here / "style.py").touch()
    (here / "own.py").touch()
    graders = ["--reward.remote_url", "mixed,style.py:brevity", "--ada_reward_map", "a=math,b=own.py:grade"]
    assert files_of("train", graders, [], here).files == (Path("style.py"), Path("own.py"))
    graders = ["--reward", "math,style.py:brevity", "--reward_map", "a=own.py:grade"]
    assert files_of("eval", graders, [], here).files == (Path("style.py"), Path("own.py"))


def test_problem_arguments_may_be_anywhere() -> None:
    words = ["--model", "m", "--out", "/o", "prompts.jsonl", "--band", "hard"]
    assert submit.with_paths_only("prepare-data", words) == ["prompts.jsonl", "--model", "m"]
    words = ["--n", "8", "--out", "/o", "--model", "a", "b", "--benchmark", "aime24", "--reward", "r.py"]
    expected = ["--model", "a", "b", "--benchmark", "aime24", "--reward", "r.py"]
    assert submit.with_paths_only("eval", words) == expected


def test_other_values_are_no_paths(here: Path) -> None:
    for name in ("math", "seq", "input", "8"):
        (here / name).mkdir()
    words = [
        "--reward.remote_url",
        "math",
        "--ada_mode",
        "seq",
        "--data.input_key",
        "input",
        "--vllm.num_engines",
        "8",
    ]
    assert files_of("train", words, [], here).files == ()


def test_links_are_followed_and_counted(here: Path) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "big").write_bytes(bytes(1000))
    (here / "package" / "linked").symlink_to(here / "elsewhere")
    files = files_of("train", [], ["package", "package/a.py"], here)
    assert files.files == (Path("package/a.py"), Path("package/linked/big")) and files.num_bytes == 1005
    (here / "gone").mkdir()
    with pytest.raises(ConfigError, match=r"--upload is 'package/a.py': it cannot be read"):
        files.__class__(here / "gone", files.files).stage(here / "gone")
    (here / "package" / "gone").symlink_to(here / "nothing")
    with pytest.raises(ConfigError, match="is a link to nothing"):
        files_of("train", [], ["package"], here)


@pytest.mark.parametrize(
    ("words", "extra", "said"),
    [
        (["--actor.model_name_or_path", "models"], [], "this folder is here and not on the cluster"),
        ([], ["nothing.py"], "there is no such file or folder"),
        ([], ["../x"], "what is uploaded keeps its name"),
        ([], ["/etc/hostname"], "what is uploaded keeps its name"),
    ],
)
def test_unuploadable_files_are_refused(here: Path, words: list[str], extra: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        files_of("train", words, extra, here)


def test_oversized_upload_names_the_largest_file(here: Path) -> None:
    (here / "big").write_bytes(bytes(2 * MIB))
    files = files_of("train", ["--data.prompt_dataset", "big,prompts.jsonl"], [], here)
    with pytest.raises(ConfigError, match=r"--max-upload is 1: the files to upload have 2 MiB, .*/big alone 2"):
        files.check(1)
    files.check(3)


def test_the_job_gets_this_package_with_its_plugin(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """vLLM finds plugins by the metadata of distributions; those of a folder on the path count."""
    staged = tmp_path_factory.mktemp("staged")
    files_of("train", [], ["package", "prompts.jsonl"], here).stage(staged)
    assert (staged / "package" / "a.py").read_text() == "A = 1" and (staged / "prompts.jsonl").exists()
    assert (staged / "openrlhf_ada" / "reporting").is_dir() and not list(staged.rglob("__pycache__"))
    (ours,) = [d for d in distributions(path=[str(staged)]) if d.name == DISTRIBUTION]
    assert {e.group for e in ours.entry_points} >= {"vllm.general_plugins", "console_scripts"}
    assert {e.name for e in entry_points(group="vllm.general_plugins")} >= {"openrlhf_ada"}


def test_variables_go_along_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OTHER", "stays")
    assert submit.environment_of(["HF_TOKEN", "X=a=b"]) == {
        "HF_TOKEN": "secret",
        "X": "a=b",
        "RAY_JOB_STOP_WAIT_TIME_S": "30",
    }
    assert submit.environment_of(["RAY_JOB_STOP_WAIT_TIME_S=5"])["RAY_JOB_STOP_WAIT_TIME_S"] == "5"
    with pytest.raises(ConfigError, match="--env is 'NOT_SET': it is not set here"):
        submit.environment_of(["NOT_SET"])
    with pytest.raises(ConfigError, match="--env is '=x': it has no name"):
        submit.environment_of(["=x"])


class Flaky:
    """A cluster whose connection breaks after so many pieces of the log; it sends the log from its beginning.

    `goodbyes`: of the connections that reach the log's end, how many end before the job does.
    """

    def __init__(self, pieces: list[str], breaks: list[int], goodbyes: int = 0) -> None:
        self.pieces, self.breaks, self.goodbyes = pieces, breaks, goodbyes

    def get_job_status(self, job: str) -> SimpleNamespace:
        self.goodbyes -= 1
        return SimpleNamespace(name="SUCCEEDED", is_terminal=lambda: self.goodbyes < 0)

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        end = self.breaks.pop(0) if self.breaks else None
        for piece in self.pieces[:end]:
            yield piece
        if end is not None:
            raise RuntimeError("closed")


def test_log_resumes_where_it_broke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_job.JobLog, "PAUSE_S", 0.0)
    ray_job.JobLog(Flaky(["step 1\n", "st", "ep 2\n", "end\n"], [2, 0, 1, 3], goodbyes=2), "job").show()
    assert capsys.readouterr().out == "step 1\nstep 2\nend\n"


def test_interruptions_count_until_new_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job.JobLog, "PAUSE_S", 0.0)
    pieces = [f"step {k}\n" for k in range(3 * ray_job.JobLog.TRIES)]
    ray_job.JobLog(Flaky(pieces, list(range(len(pieces)))), "job").show()
    assert capsys.readouterr().out == "".join(pieces)


NOTHING = SimpleNamespace(files=(), num_bytes=0)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is uploaded, and nobody waits between tries."""
    monkeypatch.setattr(submit, "submit", lambda *args: None)
    monkeypatch.setattr(ray_job.JobLog, "PAUSE_S", 0.0)


def run(client: Flaky) -> int:
    return submit._run(client, "", NOTHING, {}, "job-1", waits=True)  # type: ignore[arg-type]


def test_lost_cluster_is_reported(sent: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Flaky(["step 1\n"], [1] * ray_job.JobLog.TRIES)) == 1
    out = capsys.readouterr()
    assert out.out == "step 1\n" and "ray job logs --follow job-1" in out.err


@pytest.mark.slow
def test_job_continues_when_its_log_is_not_read() -> None:
    """As with `| head -1`: one try, and no word of a lost cluster."""
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import test_cli_submit as t\n"
        "t.submit.submit = lambda *args: None\n"
        "sys.exit(t.run(t.Flaky(['step 1\\n'] * 100000, [])))"
    )
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    command = [sys.executable, "-c", program, *folders]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "step 1\n"
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert (
        "the log has no reader any more; the job continues" in told
        and "interrupted" not in told
        and "Error" not in told
    )


@pytest.mark.parametrize(("terminated", "status"), [(False, 130), (True, 143)])
def test_an_interrupt_stops_the_job(
    sent: None, capsys: pytest.CaptureFixture[str], terminated: bool, status: int
) -> None:
    stopped: list[str] = []

    class Interrupted(Flaky):
        async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
            yield "step 1\n"
            if terminated:
                signal.raise_signal(signal.SIGTERM)
            raise KeyboardInterrupt

        def stop_job(self, job: str) -> None:
            stopped.append(job)
            raise ConnectionError("away")

    assert run(Interrupted([], [])) == status
    assert stopped == ["job-1"]
    assert "job-1 may still run (away): ray job stop job-1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "exit_code", "returned"),
    [("SUCCEEDED", 0, 0), ("FAILED", 7, 7), ("STOPPED", None, 1), ("FAILED", -9, 137)],
)
def test_the_status_is_the_jobs(status: str, exit_code: int | None, returned: int) -> None:
    class Ended(Flaky):
        def get_job_info(self, job: str) -> SimpleNamespace:
            return SimpleNamespace(status=SimpleNamespace(name=status), driver_exit_code=exit_code, message=None)

    assert ray_job.follow(Ended([], []), "job") == returned


def test_bad_input_is_refused_before_the_cluster_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["report", "x"], "the command is 'report': expected one of: train, eval, prepare-data"),
        (["train", *RUN, "--ada_mode", "sep"], "--ada_mode is 'sep'"),
        (["--address", "head:8265", *EVAL], "Try --address http://head:8265"),
        (["--address", "ray://head", *EVAL], "Try --address http://head"),
        (["prepare-data", "a.jsonl", "--model", "m", "--out", "/o", "--band", "foo"], "--band is 'foo'"),
        (["prepare-data", "https://me:pw@host/x", "--out", "/o"], "the command is '<removed>': its address"),
        (["train", *RUN, "--reward.remote_url", "https://me:pw@host/x"], "--reward.remote_url is '<removed>'"),
        (["train", *RUN, "--logger.wandb.key", "abc"], "--logger.wandb.key is '<removed>': Ray's dashboard shows"),
        (["--env", "NOT_SET", *EVAL], "--env is 'NOT_SET'"),
        (["--address", "http://127.0.0.1:1", *EVAL], "--address is 'http://127.0.0.1:1': no Ray takes jobs"),
    ):
        assert submit.main(words) == 2
        assert said in capsys.readouterr().err


def test_given_address_is_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ray's client prefers its variables to what it is given."""
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:2")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:3")
    assert submit.main(["--address", "http://127.0.0.1:1", *EVAL]) == 2
    assert "at address: http://127.0.0.1:1" in capsys.readouterr().err
