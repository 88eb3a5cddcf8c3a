"""Every script in examples/scripts prints, with DRY_RUN=1, a command that the real parser and all checks accept."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_ada.cli.train_ppo_ray import parse
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.platforms.gpu import check_cpu_limits
from openrlhf_ada.platforms.resources import required_slots
from openrlhf_ada.reporting import recorded_flags
from openrlhf_ada.reporting.redaction import plain
from openrlhf_ada.trainer.preflight import check_without_files

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "scripts"
TRAINING = sorted(path.name for path in SCRIPTS.glob("*.s*") if path.name.startswith(("train_", "reproduce")))

COMMON = (SCRIPTS / "common.sh").read_text()


def called(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *arguments],
        env={"PATH": os.environ["PATH"], "DRY_RUN": "1"} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def dry_run(script: str, *arguments: str, **environment: str) -> list[str]:
    """The arguments of the last command that a script would run."""
    done = called(script, *arguments, **environment)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.splitlines()[-1])
    return words[words.index("train") :] if Path(words[0]).name == "openrlhf-ada" else words


def parsed(words: list[str]) -> SimpleNamespace:
    words = words[words.index("train") :]
    # Files are those of the machine that trains.
    return parse(words[1:], check_without_files)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize("script", TRAINING)
def test_the_command_is_right_and_every_flag_has_an_effect(script: str, device: str) -> None:
    args = parsed(dry_run(script, DEVICE=device))
    assert without_effect(args.ada) == []
    if device == "cpu":
        check_cpu_limits(args)
        assert required_slots(args).gpus <= 3
        return
    nodes = 2 if script in ("train_multinode.sh", "train_slurm.sbatch") else 1
    assert required_slots(args).gpus == 8 * nodes
    assert args.ds.packing_samples and args.train.dynamic_batch_enable


@pytest.mark.slow
@pytest.mark.parametrize("script", TRAINING)
def test_variables_and_arguments_win(script: str) -> None:
    variables = {"MODEL": "/models/mine", "RUN_DIR": "/runs/a b", "ADA_MODE": "seq", "GPUS": "4", "MAX_LEN": "999"}
    args = parsed(dry_run(script, "--train.seed", "7", "--ada_timeout", "60", **variables))
    assert args.actor.model_name_or_path == "/models/mine"
    assert args.ada.run_dir == "/runs/a b" and args.ckpt.output_dir == "/runs/a b/model"
    assert (args.ada.mode, args.ada.timeout) == ("seq", 60.0)
    assert (args.train.seed, args.data.max_len) == (7, 999)
    assert required_slots(args).gpus % 4 == 0


@pytest.mark.slow
@pytest.mark.parametrize("device", ["gpu", "cpu"])
@pytest.mark.parametrize("script", TRAINING)
def test_steps_are_steps(script: str, device: str) -> None:
    for variables in ({}, {"EPISODES": "2"}):
        args = parsed(dry_run(script, STEPS="6", DEVICE=device, **variables))
        # Whole batches in each pass: in mode off no pass hands its rest to the next one.
        batches, rest = divmod(args.data.max_samples, args.rollout.batch_size)
        assert args.train.num_episodes == int(variables.get("EPISODES", 1))
        assert (batches * args.train.num_episodes, rest) == (6, 0)


@pytest.mark.parametrize(
    ("script", "variables", "said"),
    [
        ("train_grpo.sh", {"DEVICE": "tpu"}, "DEVICE is 'tpu'"),
        ("train_grpo.sh", {"GPUS": "0"}, "GPUS is 0"),
        ("train_grpo.sh", {"GPUS": "2", "TP": "4"}, "GPUS is 2 and TP is 4"),
        ("train_ada_async.sh", {"GPUS": "1"}, "GPUS is 1"),
        ("reproduce.sh", {"BATCH": "64"}, "BATCH is 64 and GROUP is 4: the setting has 512"),
        ("reproduce.sh", {"GROUP": "8"}, "GROUP is 8: the setting has"),
        ("train_grpo.sh", {"STEPS": "3", "EPISODES": "2"}, "STEPS is 3 and EPISODES is 2"),
        ("train_grpo.sh", {"STEPS": "abc"}, "STEPS is abc: expected a whole number"),
        ("train_slurm.sbatch", {"SCRIPT": "train_multinode.sh"}, "inside a Slurm job nothing is submitted"),
    ],
)
def test_variables_without_a_meaning_are_refused(script: str, variables: dict[str, str], said: str) -> None:
    done = called(script, **variables)
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.slow
def test_script_works_through_a_link_and_finds_its_environment(tmp_path: Path) -> None:
    (tmp_path / "link.sh").symlink_to(SCRIPTS / "train_grpo.sh")
    bare = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [tmp_path / "link.sh"], env={**bare, "DRY_RUN": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and shlex.split(done.stdout)[:2] == [str(ROOT / ".venv/bin/openrlhf-ada"), "train"]
    # DATA is not there, and openrlhf-ada is in the clone's .venv only.
    done = called("train_grpo.sh", DRY_RUN="0", **bare)
    assert done.returncode == 2 and done.stderr.startswith("openrlhf-ada train: error: --data.prompt_dataset")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_every_published_setting_can_be_had(device: str, method: str) -> None:
    args = parsed(dry_run("reproduce.sh", METHOD=method, DEVICE=device))
    assert args.ada.method == method
    assert args.rollout.n_samples_per_prompt == METHODS[method].flags["rollout.n_samples_per_prompt"]


@pytest.mark.parametrize(("batch", "group", "micro"), [(8, 4, 32), (16, 4, 64), (24, 4, 48), (48, 4, 64), (7, 3, 21)])
def test_micro_batches_on_a_cpu_divide_the_step(batch: int, group: int, micro: int) -> None:
    args = parsed(dry_run("train_grpo.sh", DEVICE="cpu", BATCH=str(batch), GROUP=str(group)))
    assert args.train.batch_size == batch * group
    assert (args.train.micro_batch_size, args.rollout.micro_batch_size) == (micro, micro)


def test_toy_is_built_only_for_its_own_paths() -> None:
    mine = called("train_grpo.sh", DEVICE="cpu", DATA="/d.jsonl").stdout
    assert "demo-model" in mine and "demo-data" in mine, "the toy is evaluated on its own prompts"
    nothing = called("train_grpo.sh", DEVICE="cpu", MODEL="/m", DATA="/d.jsonl", CHAT="0").stdout
    unwanted = ("demo-model", "demo-data", "toy", "--eval.dataset", "--data.apply_chat_template")
    assert not any(text in nothing for text in unwanted)


MACHINE = {
    *("ada.device", "vllm.num_engines", "vllm.sync_backend", "vllm.enable_sleep", "vllm.gpu_memory_utilization"),
    *("ds.attn_implementation", "ds.zero_stage", "ds.packing_samples", "ds.enable_sleep"),
    *(f"{model}.num_gpus_per_node" for model in ("actor", "ref", "critic", "reward")),
    *("train.colocate_all", "train.dynamic_batch_enable", "actor.gradient_checkpointing_enable"),
    *(f"{part}.{name}" for part in ("train", "rollout") for name in ("max_tokens_per_gpu", "micro_batch_size")),
}
"""What a machine without a GPU needs otherwise."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [name for name in TRAINING if name not in ("train_ada_async.sh", "train_multinode.sh", "train_slurm.sbatch")],
)
def test_a_model_of_ones_own_keeps_nothing_of_the_toy(script: str) -> None:
    """On a CPU its flags are those of GPUs, but for the machine."""
    mine = {"MODEL": "/models/mine", "DATA": "/data.jsonl", "RUN_DIR": "/runs/a", "PROMPTS": "/prompts"}
    on_gpu, on_cpu = (flat(parsed(dry_run(script, DEVICE=device, **mine))) for device in ("gpu", "cpu"))
    different = {name for name in on_gpu if on_gpu[name] != on_cpu[name]}
    # OpenRLHF names a run after the minute in which it is parsed.
    different.discard("logger.wandb.run_name")
    assert different <= MACHINE, {name: (on_gpu[name], on_cpu[name]) for name in different - MACHINE}


def test_sizes_of_ones_own_model_can_be_lowered_on_a_cpu() -> None:
    mine = {"MODEL": "/models/mine", "DATA": "/data.jsonl", "DEVICE": "cpu", "BATCH": "4", "MAX_NEW_TOKENS": "64"}
    for script in ("train_ada_seq_balance.sh", "reproduce.sh"):
        args = parsed(dry_run(script, STEPS="2", **mine))
        assert (args.rollout.batch_size, args.rollout.max_new_tokens, args.train.batch_size) == (4, 64, 16)
        assert args.actor.adam.lr == 1e-6


def test_spaces_and_patterns_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    script = SCRIPTS / "train_ada_hard_prompts.sh"
    variables = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "DEVICE": "cpu", "SUBMIT_FLAGS": "--working-dir *.sh"}
    done = subprocess.run(
        ["bash", script],
        cwd=folder,
        env=variables | {"SUBMIT": "http://h:1", "RUN_DIR": "/shared/a"},
        capture_output=True,
        text=True,
        check=True,
    )
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    (problems,) = [words[2] for words in commands if words[1] == "prepare-data"]
    assert problems == f"{folder}/.cache/toy-examples/data/train.jsonl"
    assert commands[-1][5:7] == ["--working-dir", "*.sh"]


def test_all_parts_of_a_slurm_job_wait_for_its_nodes() -> None:
    prepare, train = called("train_slurm.sbatch", SCRIPT="train_ada_hard_prompts.sh").stdout.splitlines()
    assert "--cluster_wait 600" in prepare and "--ada_cluster_wait 600" in train


def test_a_method_by_name_makes_one_pass_over_the_prompts() -> None:
    assert parsed(dry_run("train_method.sh")).ada.method == "reinforce-ada-balance"
    args = parsed(dry_run("train_method.sh", METHOD="uniform-8"))
    assert (args.ada.method, args.train.num_episodes, args.rollout.n_samples_per_prompt) == ("uniform-8", 1, 8)


def test_modes_are_toggled() -> None:
    for mode in ("off", "seq", "est"):
        args = parsed(dry_run("train_ada_ppo.sh", ADA_MODE=mode))
        assert args.ada.mode == mode


def test_script_is_submitted_to_a_cluster() -> None:
    words = dry_run("train_multinode.sh", RUN_DIR="/shared/a", SUBMIT_FLAGS="--no-wait")
    assert words[: words.index("train")] == [
        *("ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--no-wait", "--", "openrlhf-ada")
    ]
    done = called("train_multinode.sh", RUN_DIR="runs/a")
    assert done.returncode == 2 and "RUN_DIR is runs/a" in done.stderr, "Ray deletes the job's folder"


@pytest.mark.slow
@pytest.mark.parametrize("script", TRAINING)
def test_adaptive_groups_are_not_divided_by_std(script: str) -> None:
    """`group_norm` would weigh prompts of adaptive groups 20 to 1; the published setting is r - b."""
    args = parsed(dry_run(script))
    expected = "gae" if "ppo" in script else "group_norm" if args.ada.mode == "off" else "dr_grpo"
    assert args.algo.advantage.estimator == expected


@pytest.mark.parametrize(
    ("control", "adaptive"),
    [
        ("train_grpo.sh", "train_ada_seq_balance.sh"),
        ("train_grpo.sh", "train_ada_seq_pos.sh"),
        ("train_ppo.sh", "train_ada_ppo.sh"),
    ],
)
def test_the_control_differs_in_sampling_alone(control: str, adaptive: str) -> None:
    check_control(*(dry_run(script, ESTIMATOR="dr_grpo", RUN_DIR="/runs/a") for script in (control, adaptive)))


@pytest.mark.parametrize("method", ["reinforce-ada-balance", "reinforce-ada-pos"])
def test_published_control_differs_in_sampling_alone(method: str) -> None:
    script, estimator = "reproduce.sh", ("--algo.advantage.estimator", "dr_grpo")
    control = dry_run(script, *estimator, METHOD="grpo", RUN_DIR="/runs/a")
    check_control(control, dry_run(script, METHOD=method, RUN_DIR="/runs/a"))


def check_control(control: list[str], adaptive: list[str]) -> None:
    theirs, ours = (flat(parsed(words)) for words in (control, adaptive))
    assert (theirs["ada.mode"], ours["ada.mode"]) == ("off", "seq")
    different = {name for name in theirs | ours if theirs[name] != ours[name] and not name.startswith("ada.")}
    # Rollouts of a prompt are requests of their own in an adaptive mode, so prompts are cached there.
    assert different == {"vllm.enable_prefix_caching"}


def flat(flags: SimpleNamespace) -> dict[str, str]:
    """Values by dotted name."""
    return dict(recorded_flags.flat(plain(flags)))


def test_published_settings_are_those_of_their_name(caplog: pytest.LogCaptureFixture) -> None:
    """512 prompts a step, mini-batches of 128 prompts x 4, learning rate 1e-6: all from the preset."""
    for method, mode in (("reinforce-ada-pos", "seq"), ("reinforce-ada-est", "est"), ("grpo", "off")):
        words = dry_run("reproduce.sh", METHOD=method)
        args = parsed(words)
        assert "deviation" not in caplog.text
        given = {f"--{flag}" for flag in METHODS[method].flags} & set(words)
        assert given == {"--algo.kl.init_coef"}, "common.sh says it for all scripts"
        assert (args.ada.mode, args.rollout.batch_size, args.actor.adam.lr) == (mode, 512, 1e-6)
        assert args.algo.kl.init_coef == 0 and args.data.max_len == 3072
        assert (args.rollout.max_new_tokens, args.actor.dual_clip, args.actor.adam.betas) == (2048, 10.0, (0.9, 0.999))


@pytest.mark.parametrize("script", [*TRAINING, "prepare_data.sh", "eval_model.sh"])
def test_header_states_needs_and_expectation(script: str) -> None:
    path = SCRIPTS / script
    text = path.read_text()
    assert os.access(path, os.X_OK) and text.startswith("#!/usr/bin/env bash\n")
    for word in ("# Needs: ", "# Expect: ", "# Usage: "):
        assert word in text, word
    assert "set -euo pipefail" in text
    assert len(text.splitlines()) <= 75


def test_all_variables_that_scripts_read_are_explained() -> None:
    read = set(re.findall(r"\$\{([A-Z_]+):?-", COMMON))
    assert read <= set(re.findall(r"\b[A-Z_]{2,}\b", COMMON.split("\n\n")[0]))
