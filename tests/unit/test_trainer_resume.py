"""What --ckpt.load_enable goes on from, and what it refuses: files are real, only the training is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.data.examples import Example
from openrlhf_ada.host.checkpoints import latest_tag
from openrlhf_ada.reporting.recorded_flags import flat
from openrlhf_ada.reporting.redaction import plain
from openrlhf_ada.reporting.run_log import RunLog
from openrlhf_ada.trainer.checkpoints import Origin, commit
from openrlhf_ada.trainer.resume import already_complete, prepare_resume, resumes
from openrlhf_ada.trainer.training_data import fingerprint

Flags = dict[str, str | None]
Parsed = Callable[..., SimpleNamespace]


@pytest.fixture
def parsed(argv_with: Callable[[Flags], list[str]], tmp_path: Path) -> Parsed:
    """The flags of a run that resumes, some of them changed. `prompts`: stands for their fingerprint."""

    def call(changes: Flags | None = None, prompts: str = "prompts") -> SimpleNamespace:
        args = parse(argv_with({"--ckpt.path": str(tmp_path), "--ckpt.load_enable": ""} | (changes or {})))
        args.ada_origin = Origin(dict(flat(plain(args))), prompts)
        return args

    return call


def save(args: SimpleNamespace, tag: str, *, has_critic: bool = False) -> Path:
    root = Path(args.ckpt.path)
    for group in ("_actor", "_critic")[: 1 + has_critic]:
        (root / group / tag).mkdir(parents=True)
        (root / group / tag / "weights.pt").write_text(tag)
    commit(root, tag, None, args.ada_origin)
    return root


def test_the_newest_is_named_and_loaded(parsed: Parsed) -> None:
    args = parsed()
    for step in (1, 2):
        root = save(args, f"global_step{step}")
    assert resumes(args)
    assert prepare_resume(args) == [f"--ckpt.load_enable: training goes on from global_step2 in {root}"]
    assert latest_tag(root / "_actor") == "global_step2"


def test_a_damaged_one_is_passed_over_aloud(parsed: Parsed) -> None:
    args = parsed()
    for step in (1, 2):
        root = save(args, f"global_step{step}")
    (root / "_actor/global_step2/weights.pt").write_text("global_step3")
    first, last = prepare_resume(args)
    assert first.startswith("--ckpt.load_enable: global_step2 ") and "_actor/global_step2/weights.pt" in first
    assert last.startswith("--ckpt.load_enable: ") and "global_step1" in last
    assert latest_tag(root / "_actor") == "global_step1"


def test_without_a_whole_one_it_is_refused(parsed: Parsed) -> None:
    args = parsed()
    root = save(args, "global_step1")
    (root / "_actor/global_step1/weights.pt").unlink()
    with pytest.raises(ConfigError, match=r"--ckpt.path is .*\bglobal_step1: .*weights\.pt"):
        prepare_resume(args)


OTHERS: list[tuple[Flags, str]] = [
    ({"--train.seed": "7"}, r"--train\.seed .*\b42\b.*\b7\b"),
    ({"--ada_mode": "est"}, r"--ada_mode .*\bseq\b.*\best\b"),
    ({"--ds.zero_stage": "3"}, r"--ds\.zero_stage .*\b2\b.*\b3\b"),
    ({"--actor.model_name_or_path": "owner/other"}, r"--actor\.model_name_or_path .*/model\b.* owner/other"),
    ({"--actor.num_gpus_per_node": "2"}, r"policy .*\b1 processes\b.*\b2\b"),
    ({"--algo.advantage.estimator": "gae"}, "critic"),
]


@pytest.mark.parametrize(("changes", "difference"), OTHERS, ids=[next(iter(changes)) for changes, _ in OTHERS])
def test_a_checkpoint_of_other_flags_is_refused_with_the_difference(
    parsed: Parsed, changes: Flags, difference: str
) -> None:
    root = save(parsed(), "global_step1")
    with pytest.raises(ConfigError, match=rf"\bglobal_step1\b.*{difference}"):
        prepare_resume(parsed(changes))
    (root / "_actor/latest").read_text()


def test_a_checkpoint_of_other_prompts_is_refused(parsed: Parsed) -> None:
    save(parsed(), "global_step1")
    with pytest.raises(ConfigError, match=r"\bglobal_step1\b.*\bprompts\b"):
        prepare_resume(parsed(prompts="others"))


def test_other_flags_may_change_and_are_told(parsed: Parsed) -> None:
    save(parsed(), "global_step1")
    lines = prepare_resume(parsed({"--actor.adam.lr": "0.5", "--train.num_episodes": "9", "--ckpt.max_num": "7"}))
    (changed, _) = lines
    assert "--actor.adam.lr 0.5 (was " in changed and "--train.num_episodes 9 (was 1)" in changed
    assert "ckpt.max_num" not in changed


def test_a_model_may_have_moved(parsed: Parsed, tmp_path: Path) -> None:
    save(parsed(), "global_step1")
    shutil.copytree(tmp_path / "model", tmp_path / "elsewhere" / "model")
    (changed, _) = prepare_resume(parsed({"--actor.model_name_or_path": str(tmp_path / "elsewhere" / "model")}))
    assert "--actor.model_name_or_path" in changed
    (tmp_path / "elsewhere" / "model" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ConfigError, match=r"--actor\.model_name_or_path was "):
        prepare_resume(parsed({"--actor.model_name_or_path": str(tmp_path / "elsewhere" / "model")}))


@pytest.mark.parametrize(
    ("episodes", "missing", "says"),
    [("2", "", True), ("1", "", True), ("3", "", False), ("2", "summary.json", False), ("2", "export", False)],
)
def test_a_finished_run_is_complete_until_more_is_asked_of_it(
    parsed: Parsed, tmp_path: Path, episodes: str, missing: str, says: bool
) -> None:
    """Without a summary it was ended between its last checkpoint and the export."""
    run, model = tmp_path / "finished", tmp_path / "export"
    with RunLog(run, {"train": {"num_episodes": 2}}) as log:
        log.log_step(1, {})
        if missing != "summary.json":
            log.write_summary({"steps": 1})
    if missing != "export":
        model.mkdir()
        (model / "model.safetensors").touch()
    args = parsed({"--train.num_episodes": episodes, "--ckpt.output_dir": str(model)})
    said = already_complete(args, run)
    assert bool(said) == says and (not says or all(part in said for part in ("--train.num_episodes", str(model))))


def test_a_critic_is_resumed_with_its_policy(parsed: Parsed) -> None:
    args = parsed({"--algo.advantage.estimator": "gae"})
    root = save(args, "global_step1", has_critic=True)
    prepare_resume(args)
    assert latest_tag(root / "_critic") == "global_step1"


def test_openrlhfs_own_checkpoints_are_loaded_unchecked(parsed: Parsed, tmp_path: Path) -> None:
    (tmp_path / "_actor").mkdir()
    (tmp_path / "_actor/latest").write_text("global_step7")
    args = parsed()
    assert resumes(args)
    (line,) = prepare_resume(args)
    assert "manifest" in line
    assert latest_tag(tmp_path / "_actor") == "global_step7"


def test_without_a_finished_one_training_starts_anew(parsed: Parsed, tmp_path: Path) -> None:
    (tmp_path / "_actor/global_step1").mkdir(parents=True)
    args = parsed()
    assert not resumes(args)
    (line,) = prepare_resume(args)
    assert line.startswith("--ckpt.load_enable")
    assert not args.ckpt.load_enable, "OpenRLHF would resume from it"


def test_without_the_flag_nothing_is_touched(parsed: Parsed) -> None:
    root = save(parsed(), "global_step1")
    (root / "_actor/latest").write_text("of somebody else")
    args = parsed({"--ckpt.load_enable": None})
    assert prepare_resume(args) == [] and not resumes(args)
    assert latest_tag(root / "_actor") == "of somebody else"


def test_prompts_are_known_by_text_answer_and_order() -> None:
    rows = [Example(0, "file", str(n), f"{n} + 1", str(n + 1)) for n in range(3)]
    same = [Example(1, "another file", "", row.question, row.label, {"more": 1}) for row in rows]
    assert fingerprint(rows) == fingerprint(same)
    others = [rows[::-1], rows[:2], [*rows[:2], Example(0, "file", "2", "2 + 1", "4")]]
    assert len({fingerprint(rows), *map(fingerprint, others)}) == 4
