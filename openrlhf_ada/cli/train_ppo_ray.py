"""OpenRLHF's train_ppo_ray with adaptive sampling: every OpenRLHF flag works, plus --ada_*."""

from __future__ import annotations

import argparse
import logging
import math
import os
import shlex
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

from openrlhf_ada.cli.run_folder import begin_run_folder, check_free, keep_name
from openrlhf_ada.cli.run_watch import RunLostError, RunWatch
from openrlhf_ada.config import program
from openrlhf_ada.config.flags import ConfigError, actions_of, words_by_flag
from openrlhf_ada.config.loss_rules import loss_warnings
from openrlhf_ada.config.method_rules import without_effect
from openrlhf_ada.config.objective_notes import objective_notes
from openrlhf_ada.config.preset_flags import apply_method, check_with_method, method_notes, named_method
from openrlhf_ada.config.presets import DEVICES
from openrlhf_ada.config.schema import add_flags
from openrlhf_ada.config.visible import as_told
from openrlhf_ada.data.files import DataError
from openrlhf_ada.host.engine_options import engine_notes
from openrlhf_ada.host.parser import HostError, HostFlagError, parse_host_arguments, training_parser
from openrlhf_ada.host.ray_session import root_cause
from openrlhf_ada.platforms.folders import said_of_full
from openrlhf_ada.platforms.ray_head import RayHeadLostError
from openrlhf_ada.platforms.resources import MissingResourcesError
from openrlhf_ada.platforms.session import Session, check_this_machine, ray_session, runs_here
from openrlhf_ada.platforms.signals import TerminatedError, status_of, unwound_by_signals
from openrlhf_ada.reporting.output import LOG_FILE, LogText, kept_output
from openrlhf_ada.reporting.progress import ProgressView
from openrlhf_ada.reporting.redaction import redact_words
from openrlhf_ada.reward.names import split_names
from openrlhf_ada.reward.trial import Trials
from openrlhf_ada.trainer.checkpoints import last_checkpoint
from openrlhf_ada.trainer.preflight import check_flags, check_hub_models
from openrlhf_ada.trainer.resume import already_complete, prepare_resume
from openrlhf_ada.trainer.settled import settings_of, threshold_notes
from openrlhf_ada.trainer.training_data import prepare_training_data, trial_rows

logger = logging.getLogger(__name__)

PROG = "openrlhf-ada train"
USER_ERRORS = (ConfigError, DataError, HostError, HostFlagError, MissingResourcesError)
EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def build_parser() -> argparse.ArgumentParser:
    """What OpenRLHF reads, and our flags; `parse` reads them with its rules."""
    return training_parser(add_flags, prog=PROG, description="")


def parse(argv: Sequence[str], check: Callable[[SimpleNamespace], None] = check_flags) -> SimpleNamespace:
    """Parse the flags and check all that can be checked without starting anything; raises one of USER_ERRORS.

    `args.ada` has our flags, resolved; nothing is resolved again.
    """
    checked: list[SimpleNamespace] = []
    parsers: list[argparse.ArgumentParser] = []
    method = named_method(argv)

    def add_all(parser: argparse.ArgumentParser) -> None:
        add_flags(parser)
        for device in dict(words_by_flag(argv)).get("--ada_device", ()):
            parser.set_defaults(**DEVICES.get(device, {}))
        apply_method(parser, method, actions_of(parser))
        parsers.append(parser)

    def settle_and_check(flags: SimpleNamespace) -> None:
        flags.ada = settings_of(flags, argv)
        check(flags)
        checked.append(flags)

    def check_all(flags: SimpleNamespace) -> None:
        check_with_method(flags, argv, method, settle_and_check)

    args = parse_host_arguments(argv, add_all, check_all, prog=PROG, description=__doc__ or "")
    for line in method_notes(checked[0], argv, method, parsers[0].get_default):
        logger.warning("%s", line)
    args.ada = checked[0].ada.with_method(method and method.recorded)
    if args.ada.own_critic:
        # In critic-free training OpenRLHF resets the critic's model, and without a model it starts no critic.
        args.critic.model_name_or_path = checked[0].critic.model_name_or_path or args.actor.model_name_or_path
    if args.ada.mode != "off":
        # A prompt's rollouts are requests of their own and share its prefix.
        args.vllm.enable_prefix_caching = True
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (1: the run failed, 2: bad input, 130: Ctrl-C, 143: SIGTERM,
    129: the terminal was closed)."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with kept_output() as log:
        return _main(sys.argv[1:] if argv is None else argv, log)


def _main(words: Sequence[str], log: LogText) -> int:
    args: SimpleNamespace | None = None
    try:
        with unwound_by_signals():
            args = parse(words)
            goes_on = _check(args)
            status = run(args, words, log) if goes_on else 0
    except USER_ERRORS as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print(f"{PROG}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except TerminatedError as error:
        print(f"{PROG}: terminated", file=sys.stderr)
        status = status_of(error)
    if status and args is not None:
        print(how_to_resume(words, args), file=sys.stderr)
    return status


def _check(args: SimpleNamespace) -> bool:
    """Everything that needs no Ray; raises one of USER_ERRORS. Is there anything to train?"""
    for line in notes(args):
        logger.warning(as_told(line))
    check_surroundings(args)
    if runs_here():
        check_free(args)
    if complete := already_complete(args, args.ada.resolved_run_dir(args.logger.wandb.run_name)):
        logger.warning(complete)
        return False
    for line in prepare(args, resume=True):
        logger.warning(as_told(line))
    return True


def notes(args: SimpleNamespace) -> list[str]:
    """What a run is told of its flags."""
    of_settings = [*without_effect(args.ada), *loss_warnings(args.ada, args), *objective_notes(args.ada)]
    return [*of_settings, *threshold_notes(args), *engine_notes(args)]


def check_surroundings(args: SimpleNamespace) -> None:
    """This machine and models of the hub; raises one of USER_ERRORS."""
    check_this_machine(args)
    check_hub_models(args)


def prepare(args: SimpleNamespace, *, resume: bool) -> Iterator[str]:
    """Lines to show. Rewards load while data is read, and are tried then. Raises ConfigError and DataError."""
    with Trials("--reward.remote_url", split_names(args.reward.remote_url)) as trials:
        if args.train.agent_func_path:
            trials.start("--train.agent_func_path", args.train.agent_func_path)
        yield from prepare_training_data(args)
        if resume:
            yield from prepare_resume(args)
        yield from _tried(trials, args)


def _tried(trials: Trials, args: SimpleNamespace) -> Iterator[str]:
    """Raises ConfigError for a reward that no training can use. The nodes of a cluster may have what this machine
    lacks, so there it is a line as well.
    """
    first = split_names(args.reward.remote_url)[:1]
    is_unit = args.ada.mode != "off" and args.ada.scores != "raw"
    for verdict in trials.verdicts(trial_rows(args)):
        error = verdict.error(unit=is_unit and [verdict.name] == first)
        if error is not None and runs_here():
            raise error
        if line := str(error or verdict.note()):
            yield line


def how_to_resume(words: Sequence[str], args: SimpleNamespace) -> str:
    """A line for the user of a run that failed. `words`: its command line after `openrlhf-ada train`."""
    last = last_checkpoint(Path(args.ckpt.path))
    if last is None:
        return f"There is no checkpoint to resume from in {args.ckpt.path} (--ckpt.path, --ckpt.save_steps)."
    again = [word for word in redact_words(words) if word != "--ckpt.load_enable"]
    command = f"{program.called()} train {shlex.join([*again, '--ckpt.load_enable'])}"
    return f"Resume it from its last checkpoint, {last}: {command}"


def run(args: SimpleNamespace, words: Sequence[str], log: LogText) -> int:
    """Train with checked flags, showing progress; everything that was started is ended before this returns.

    `words`: the command line after `openrlhf-ada train`. `log`: keeps what this process prints. Raises ConfigError
    where another run has the folders.
    """
    keep_name(args, words)
    with ProgressView() as view, quiet(args.ada.verbose):
        view.handle({"type": "phase", "text": "starting Ray"})
        from ray.exceptions import RayError

        log_dir, full = "none: Ray did not start", ""
        try:
            begin_run_folder(args, [*PROG.split(), *words], log)
            last_words = lambda: how_to_resume(words, args)  # noqa: E731
            with ray_session(args, verbose=args.ada.verbose, note=_noting(view), last_words=last_words) as session:
                log_dir = session.log_dir
                try:
                    _train(args, view, session)
                except (RayError, RunLostError):
                    # Before Ray ends, which makes room.
                    full = said_of_full(Path(log_dir))
                    raise
        except RayError as error:
            for line in str(error).splitlines():
                log.line(line)
            print(f"{PROG}: the run failed.\n{root_cause(error)}", file=sys.stderr)
            traceback = args.ada.resolved_run_dir(args.logger.wandb.run_name) / LOG_FILE
            said = f"{full}The traceback: {traceback}. Logs of all processes: {log_dir} (or --verbose)"
            print(said, file=sys.stderr)
            return EXIT_FAILED
        except (RunLostError, RayHeadLostError) as error:
            print(f"{PROG}: the run failed. {error}\n{full}Logs of all processes: {log_dir}", file=sys.stderr)
            return EXIT_FAILED
    return 0


@contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Keep the output of libraries off the terminal; progress and errors go to stderr and are shown."""
    if verbose:
        yield
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    # About tensors that Ray shares between processes; nothing writes to them.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    root = logging.getLogger()
    root.addFilter(_is_no_compiler)
    try:
        with redirect_stdout(_null_stream()):
            yield
    finally:
        root.removeFilter(_is_no_compiler)


def _is_no_compiler(record: logging.LogRecord) -> bool:
    """DeepSpeed tries which libraries it can link, and setuptools logs every command of that."""
    return "distutils" not in Path(record.pathname).parts and "_distutils" not in Path(record.pathname).parts


@lru_cache
def _null_stream() -> TextIO:
    """Never closed: loggers of libraries keep the output that was there when they were imported."""
    return open(os.devnull, "w")


def _noting(view: ProgressView) -> Callable[[str], None]:
    return lambda text: view.handle({"type": "note", "text": text})


def _train(args: SimpleNamespace, view: ProgressView, session: Session) -> None:
    from ray.exceptions import OutOfMemoryError, RayActorError
    from ray.util.queue import Queue

    from openrlhf_ada.platforms.resources import on_this_node

    view.handle({"type": "phase", "text": f"loading engines and models (their logs: {session.log_dir})"})
    from openrlhf_ada.rollout.engine_starts import watched_starts
    from openrlhf_ada.trainer.launch import train

    note = _noting(view)
    args.ada_events = Queue(actor_options=on_this_node(takes_cpu=False))
    watch = RunWatch(args.ada, session.log_dir, note)
    with watched_starts(args.vllm.num_engines or 0, note) as tell_starts:
        # What is known of the engines comes before what they do.
        reader = EventReader(args.ada_events, view, lambda: (tell_starts(), watch.note_progress()))
        reader.start()
        watch.start()
        try:
            train(args, note)
        except KeyboardInterrupt:
            if watch.verdict and not session.head.verdict:
                raise RunLostError(watch.verdict) from None
            raise
        except (RayActorError, OutOfMemoryError) as error:
            if lost := watch.lost():
                raise RunLostError(lost) from error
            raise
        finally:
            reader.stop(waits=not session.head.verdict)
            watch.stop(waits=not session.head.verdict)


class EventReader(threading.Thread):
    """Carries the trainer's events from its Ray actor to the terminal; `on_event` is called before each is shown."""

    POLL_S = 0.5

    DRAIN_S = 2.0
    """Seconds to show what is still queued, while trainers that have not ended yet queue more."""

    def __init__(self, queue: Any, view: ProgressView, on_event: Callable[[], object]) -> None:
        super().__init__(daemon=True, name="ada-events")
        self._queue = queue
        self._view = view
        self._on_event = on_event
        self._end_at = math.inf

    def run(self) -> None:
        from ray.exceptions import RayError
        from ray.util.queue import Empty

        while time.monotonic() < self._end_at:
            try:
                event = self._queue.get(timeout=self.POLL_S)
                self._on_event()
                self._view.handle(event)
            except Empty:
                if self._end_at < math.inf:
                    return
            except RayError:
                # The queue's actor is gone because the job ends; the main thread reports why.
                return

    def stop(self, *, waits: bool) -> None:
        """Show what is still queued, then end. A call into Ray after its shutdown would end the whole process.

        `waits`: False where Ray does not answer any more.
        """
        self._end_at = time.monotonic() + self.DRAIN_S
        if not waits:
            return
        self.join(2 * self.DRAIN_S)
        if self.is_alive():
            # The queue's process does not answer. Its end ends the call.
            self._queue.shutdown(force=True)
            self.join()


if __name__ == "__main__":
    sys.exit(main())
