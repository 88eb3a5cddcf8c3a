"""docs/migrating.md: every flag here exists with the default that is said, commands start, what is refused is."""

from __future__ import annotations

import argparse
import importlib.util
import json
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT, Block, blocks, command_lines, section, spans, tables

from openrlhf_ada.cli.evaluate import build_parser as eval_parser
from openrlhf_ada.cli.prepare_data import build_parser as prepare_parser
from openrlhf_ada.cli.train_ppo_ray import USER_ERRORS, parse
from openrlhf_ada.config.presets import METHODS
from openrlhf_ada.config.schema import add_flags
from openrlhf_ada.host.parser import training_parser

TEXT = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
PLAIN, OLDER, VERL, TRL = (
    section(TEXT, title)
    for title in ("From OpenRLHF", "From older versions of OpenRLHF", "From verl's Reinforce-Ada", "From TRL")
)


@cache
def training_flags() -> dict[str, argparse.Action]:
    return training_parser(add_flags, prog="", description="")._option_string_actions


@pytest.fixture(autouse=True)
def example_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands name: prompts, held-out prompts, and the reward file of this very page."""
    rows = "".join(json.dumps({"input": f"{i}+1=", "label": f"{i + 1}"}) + "\n" for i in range(2048))
    for name in ("prompts.jsonl", "heldout.jsonl"):
        (tmp_path / name).write_text(rows, encoding="utf-8")
    (tmp_path / "reward.py").write_text(reward_file().text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def reward_file() -> Block:
    (block,) = (block for block in blocks(TRL) if block.language == "python")
    return block


def commands(text: str, verb: str = "train") -> list[list[str]]:
    """Arguments of the training commands, or those of another verb."""
    lines = [words for block in blocks(text) if not block.language for words in command_lines(block.text)]
    called = {"train": (["openrlhf-ada", "train"], ["python", "-m", "openrlhf_ada.cli.train_ppo_ray"])}
    starts = called.get(verb, (["openrlhf-ada", verb],))
    return [words[len(start) :] for words in lines for start in starts if words[: len(start)] == start]


# -- from OpenRLHF ----------------------------------------------------------------------------------------------------


def base() -> list[str]:
    """The one with a mode, without what shares GPUs."""
    shared = ("--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep")
    return [word for word in commands(PLAIN)[1] if word not in shared]


def test_flags_that_a_method_sets_are_listed() -> None:
    """Who adds a method to a command line leaves them out."""
    _, _, rest = PLAIN.partition("A method sets these flags or has no use for them, so leave yours out:")
    said = {span for span in spans(rest.partition("Two to think about")[0]) if span.startswith("--")}
    of_every_method = set.intersection(*(set(method.flags) for method in METHODS.values()))
    host = {f"--{flag}" for flag in of_every_method if not flag.startswith("ada.")}
    assert said == host - {"--actor.adam.lr"} | {"--algo.dynamic_filtering_enable"}


def test_kept_flags_exist_on_both_sides() -> None:
    (table,) = tables(section(TEXT, "What means something else in the modes seq and est"))
    for row in table[1:]:
        named = {span.split()[0] for cell in row[:2] for span in spans(cell) if span.startswith("--")}
        assert named <= set(training_flags())


REFUSED = next(tables(section(TEXT, "What is refused")))[1:]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_refused_commands_are_refused_neighbours_pass(row: list[str]) -> None:
    refused, _, instead = row
    flags = spans(refused)[0].split()
    with pytest.raises(USER_ERRORS) as error:
        parse([*base(), *flags])
    assert any(flag in str(error.value) for flag in flags if flag.startswith("--"))
    parse([*base(), *(spans(instead)[0].split() if instead.startswith("`") else [])])


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_the_first_three_are_refused_in_every_mode(row: list[str]) -> None:
    command = [*base(), *spans(row[0])[0].split(), "--ada_mode", "off"]
    if row in REFUSED[:3]:
        with pytest.raises(USER_ERRORS):
            parse(command)
    elif "n_samples_per_prompt" not in row[0] and "vllm_generate" not in row[0]:
        parse(command)  # these two OpenRLHF refuses with the flags beside them


def test_a_reward_model_alone_needs_a_threshold() -> None:
    words = base()
    at = words.index("--reward.remote_url")
    command = [*words[:at], *words[at + 2 :], "--reward.model_name_or_path", "owner/model"]
    with pytest.raises(USER_ERRORS, match="--ada_positive_threshold is None"):
        parse(command)
    parse([*command, "--ada_positive_threshold", "0"])


def test_dynamic_filtering_draws_n_and_refills() -> None:
    args = parse(commands(section(TEXT, "Dynamic filtering"))[0])
    settings = args.ada
    assert settings.refills
    assert settings.max_samples == settings.group_size == 4


# -- from older versions ----------------------------------------------------------------------------------------------


def test_flat_names_are_refused_dotted_ones_parse(capsys: pytest.CaptureFixture[str]) -> None:
    (table,) = tables(OLDER)
    flat = [span for row in table[1:] for span in spans(row[0])]
    assert len(flat) == len(set(flat)) > 100
    assert not set(flat) & set(training_flags())
    for name, dotted in (
        ("--advantage_estimator", "--algo.advantage.estimator"),
        ("--n_samples_per_prompt", "--rollout.n_samples_per_prompt, --eval.n_samples_per_prompt"),
        ("--gamma", "--algo.advantage.gamma"),
    ):
        with pytest.raises(SystemExit):
            parse([*base(), name, "4"])
        assert f"Did you mean {dotted}?" in capsys.readouterr().err


def test_each_flat_name_has_its_dotted_one() -> None:
    """In order, and alike in their last words, so that no column has slipped."""
    (table,) = tables(OLDER)
    for flat, dotted in table[1:]:
        old, new = spans(flat), [span for span in spans(dotted) if "..." not in span]
        assert len(new) >= len(old) or dotted == "gone" or "--data.max_len" in new, flat
        for name in new:
            assert name.split()[0] in training_flags(), name


# -- from verl and TRL ------------------------------------------------------------------------------------------------

MAPPED = [
    (title, row) for title, part in (("verl", VERL), ("TRL", TRL)) for table in tables(part) for row in table[1:]
]


def default_text(action: argparse.Action) -> str:
    """As in the tables."""
    if action.nargs == 0 or action.default in (None, ""):
        return "–"
    if isinstance(action.default, list | tuple):
        return f"`{' '.join(map(str, action.default))}`"
    return f"`{action.default:g}`" if isinstance(action.default, float) else f"`{action.default}`"


@pytest.mark.parametrize(("of", "row"), MAPPED, ids=[f"{of}: {row[0]}" for of, row in MAPPED])
def test_defaults_are_those_of_the_parser(of: str, row: list[str]) -> None:
    """Of the first flag in the column `here`."""
    _, _, here, default, _ = row
    flags = [span for span in spans(here) if span.startswith("--")]
    if not flags:
        assert here == "–" or spans(here)[0].startswith("openrlhf-ada ")
        return
    name = flags[0].split()[0]
    known = training_flags() | (
        {}
        if name in training_flags()
        else {**eval_parser()._option_string_actions, **prepare_parser()._option_string_actions}
    )
    said = {default_text(known[name])}
    if name == "--max_new_tokens":
        said.add(default_text(eval_parser()._option_string_actions[name]))
    assert default in said


def test_the_command_from_verl_is_the_published_setting(caplog: pytest.LogCaptureFixture) -> None:
    (command,) = commands(VERL)
    args = parse(command)
    assert args.ada.method == "reinforce-ada-balance"
    deviating = [record.getMessage() for record in caplog.records if record.getMessage().startswith("deviation")]
    assert deviating == []
    assert args.train.num_episodes == round(400 * args.rollout.batch_size / 13_650)


def test_ada_est_of_the_branch_starts() -> None:
    flags = next(span for span in spans(VERL) if span.startswith("--ada_mode est --ada_allocation"))
    config = parse([*base(), *flags.split()]).ada
    assert config.prior_mean * config.prior_strength == pytest.approx(1, abs=0.001), "Beta(1, 16) has one positive"
    assert config.prior_strength == 17


def test_verl_file_is_read_by_its_command() -> None:
    ((*words,),) = commands(VERL, "prepare-data")
    args = prepare_parser().parse_args(words)
    assert (args.input_key, args.label_key) == ("prompt", "reward_model.ground_truth")


def test_the_command_from_trl_has_its_batches() -> None:
    """8 GPUs with 8 completions each are 64 completions of 8 prompts, trained in one step."""
    args = parse(commands(TRL)[0])
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == 64
    assert args.train.batch_size == args.train.micro_batch_size * args.actor.num_gpus_per_node == 64


def test_maxrl_is_paper_correction_on_uniform_groups() -> None:
    """(r - mean) / mean, as TRL's scale_rewards="mean"."""
    import numpy as np

    from openrlhf_ada.config.settings import make_policy
    from openrlhf_ada.core.types import PromptPool, Sample

    row = next(row for of, row in MAPPED if row[0] == '`scale_rewards="mean"`')
    flags = f"{spans(row[2])[0]} --ada_exit fixed --ada_max_samples 4"
    args = parse([*base(), *flags.split()])
    pool = PromptPool(0, [Sample(0, i, score, score, 1) for i, score in enumerate([1.0, 0.0, 0.0, 0.0])])
    group = make_policy(args.ada).build(pool, np.random.default_rng(0))
    assert group.coefficients == pytest.approx([(1 - 0.25) / 0.25, -1, -1, -1])


def test_the_reward_file_grades_as_trl_would() -> None:
    spec = importlib.util.spec_from_file_location("reward_of_the_page", "reward.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = module.reward_func(["1+1= 2<|im_end|>", "1+1= 3"], ["1+1=", "1+1="], ["2", "2"])
    assert out["scores"].tolist() == out["rewards"].tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="does not start with its prompt"):
        module.reward_func(["2"], ["1+1="], ["2"])
