"""Start or join Ray, on GPUs or on a CPU, and leave nothing behind."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

from openrlhf_ada.config.flags import ConfigError
from openrlhf_ada.host.ray_session import job_runtime_env, own_token, running_cluster, session_folder, started_apart
from openrlhf_ada.platforms import without_gpu
from openrlhf_ada.platforms.gpu import check_cpu_limits, check_gpu_limits, check_machine, check_nodes, hidden_as_slots
from openrlhf_ada.platforms.processes import children_named, kill_rest
from openrlhf_ada.platforms.ray_head import NAMES, RayHead, RayHeadLostError
from openrlhf_ada.platforms.resources import MissingResourcesError, Slots, required_slots
from openrlhf_ada.platforms.signals import status_after_loss, take_signals, undisturbed, unwound_by_signals
from openrlhf_ada.platforms.vllm_plugin import RUN_VARIABLE
from openrlhf_ada.platforms.watcher import watched_session
from openrlhf_ada.reporting.wandb_run import VARIABLES as WANDB_VARIABLES

logger = logging.getLogger(__name__)

GIB = 1 << 30

HOOK_KEY = "worker_process_setup_hook"
"""Of Ray's runtime environments: a function that each worker calls when it starts."""

REMEMBERED_TASKS = {"RAY_task_events_max_num_task_in_gcs": "10000"}
"""Ray keeps 5 kB of each task for `ray list tasks`. By default of 100,000, which a long run reaches."""

SETTINGS_ON_CPU = REMEMBERED_TASKS | {"RAY_prestart_worker_first_driver": "0"}
"""Ray would also start workers that nothing uses: a tenth of the processor time of a short run."""

RAY_ON_CPU: dict[str, Any] = {"object_store_memory": GIB, "include_dashboard": False}

ANSWER_S = 10.0

SHUTDOWN_S = 10.0
"""How long processes may take to end by themselves."""


def host_environment(verbose: bool) -> dict[str, str]:
    """What OpenRLHF's own ray.init passes to its workers; a value that the user set wins, as there. Unless `verbose`,
    libraries that narrate every step give warnings and errors only."""
    defaults = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}
    quiet = {} if verbose else {"VLLM_LOGGING_LEVEL": "WARNING"}
    chosen = {name: os.environ.get(name, value) for name, value in (defaults | quiet).items()}
    # Workers on this node inherit them, those of a cluster that already runs do not.
    chosen |= {name: os.environ[name] for name in WANDB_VARIABLES if name in os.environ}
    return chosen if verbose else chosen | {"TQDM_DISABLE": "1"}


class Session(NamedTuple):
    """A Ray to work with: the folder of its logs, and the watch over its own processes."""

    log_dir: str
    head: RayHead


@contextmanager
def ray_session(
    args: SimpleNamespace,
    *,
    verbose: bool,
    note: Callable[[str], None] = logger.warning,
    last_words: Callable[[], str] = lambda: "",
) -> Iterator[Session]:
    """A Ray that has the slots which these flags need. `note`, `last_words`: see RayHead.

    Raises, before any actor starts: MissingResourcesError where the cluster is too small, or torch cannot use the GPUs
    of a machine; ConfigError for flags that need a GPU where there is none, or on GPUs a package that is not there.
    Later: RayHeadLostError where this Ray cannot be used any more; TerminatedError.

    A running cluster (RAY_ADDRESS, `ray start`, `ray job submit`) is joined and left as it was. Without one, a local
    one is started and ended. On a machine without a GPU the slots are logical and the CPU platform is switched on.
    """
    import ray

    slots = required_slots(args)
    with unwound_by_signals(), ExitStack() as after_ray:
        watcher = 0
        head: RayHead | None = None
        try:
            with started_apart():
                if address := cluster_to_join():
                    _join_cluster(args, slots, address, verbose)
                else:
                    after_ray.enter_context(own_token(secrets.token_hex(32)))
                    watcher = after_ray.enter_context(watched_session())
                    _start_ray(args, slots, verbose)
            take_signals()
            head = RayHead(note, last_words)
            head.start()
            slots.check(ray.cluster_resources(), free=ray.available_resources())
            yield Session(os.path.join(session_folder(), "logs"), head)
        except KeyboardInterrupt:
            if head is not None and head.verdict:
                raise RayHeadLostError(head.verdict) from None
            raise
        finally:
            with undisturbed():
                if head is not None:
                    head.stop()
                is_lost = head is not None and head.verdict
                # What was interrupted while it started is asked by nobody to end.
                shut_down(_give_up_ray if is_lost else _end_ray, {watcher}, SHUTDOWN_S if head is not None else 0.0)


def _end_ray() -> None:
    import ray

    ray.shutdown()
    take_signals()


def _give_up_ray() -> None:
    """Its shutdown would wait for what is gone, and calls that still wait would end the process with their status."""
    kill_rest([child for child, _ in children_named(NAMES)], 0.0)

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status_after_loss())

    # Runs before that of Ray, which was registered earlier.
    atexit.register(leave)


def shut_down(end_ray: Callable[[], object], after: Collection[int], patience_s: float = SHUTDOWN_S) -> None:
    """End Ray, then whatever it started and did not end: engine cores outlive a killed worker by a moment.

    `after`: pids of what ends by itself, after Ray. `patience_s`: until the others are killed.
    """
    import psutil

    started = [process for process in psutil.Process().children(recursive=True) if process.pid not in after]
    end_ray()
    psutil.wait_procs(kill_rest(started, patience_s), timeout=SHUTDOWN_S)


def check_this_machine(args: SimpleNamespace) -> None:
    """What a Ray of this run's own would be refused for: before data are read. Nothing where a cluster is named.

    Raises ConfigError or MissingResourcesError.
    """
    if runs_here():
        _check_local(args)


def runs_here() -> bool:
    """Will this run start a Ray of its own, so that this machine has all of its processes?"""
    return not os.environ.get("RAY_ADDRESS") and running_cluster() is None


def _check_local(args: SimpleNamespace) -> None:
    check_machine(args)
    (check_cpu_limits if without_gpu.is_needed() else check_gpu_limits)(args)


def cluster_to_join(warn: Callable[[str], object] = logger.warning) -> str | None:
    """Address of the cluster that RAY_ADDRESS or `ray start` names, if it answers.

    `warn` is told of one that `ray start` has named and that does not answer. Raises MissingResourcesError for an
    address of RAY_ADDRESS that cannot be used.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named.startswith("ray://"):
        raise MissingResourcesError(
            f"RAY_ADDRESS is {named!r}: no training runs through Ray's client. Use `ray job submit`, or "
            f"the head's HOST:6379 from a node of the cluster."
        )
    address = running_cluster()
    if address is None or _answers(address):
        return address
    if named:
        raise MissingResourcesError(
            f"RAY_ADDRESS is {named!r}: no Ray answers there. Start it (ray start --head), or unset RAY_ADDRESS."
        )
    # `ray start` leaves its address on disk, and Ray waits for minutes for one that was killed.
    warn(f"the Ray cluster that was started here at {address} does not answer any more; runs start one of their own")
    return None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S):
            return True
    except OSError:
        return False


def _join_cluster(args: SimpleNamespace, slots: Slots, address: str, verbose: bool) -> None:
    """When its nodes are there. Nothing is asked of this machine: the driver may well be on a node without a GPU."""
    import ray
    from ray.exceptions import AuthenticationError

    try:
        ray.init(address=address, **_logging(verbose))
    except AuthenticationError as error:
        raise MissingResourcesError(
            f"the Ray cluster at {address} asks for a token ({' '.join(str(error).split())}). Set RAY_AUTH_MODE=token "
            f"and RAY_AUTH_TOKEN as where it was started."
        ) from error
    slots.await_in(ray.cluster_resources, seconds=args.ada.cluster_wait)
    has_gpus = any(name.startswith("accelerator_type:") for name in ray.cluster_resources())
    try:
        on_gpu = check_nodes(args) and has_gpus
    finally:
        ray.shutdown()
    (check_gpu_limits if on_gpu else check_cpu_limits)(args)
    ray.init(address=address, runtime_env=runtime_env(verbose, on_cpu=not on_gpu), **_logging(verbose))


def _start_ray(args: SimpleNamespace, slots: Slots, verbose: bool) -> None:
    """Start a Ray of this run's own."""
    import ray

    _check_local(args)
    on_cpu = without_gpu.is_needed()
    for name, value in (SETTINGS_ON_CPU if on_cpu else REMEMBERED_TASKS).items():
        os.environ.setdefault(name, value)
    of_workers = runtime_env(verbose, on_cpu=on_cpu, num_engines=args.vllm.num_engines)
    # Logical slots: as many as the flags ask for, since all of them share the cores anyway.
    own = RAY_ON_CPU | {"num_gpus": slots.gpus, "num_cpus": slots.cpus} if on_cpu else {}
    with hidden_as_slots(slots.gpus) if on_cpu else nullcontext():
        ray.init(address="local", runtime_env=of_workers, **own, **_logging(verbose))


def _logging(verbose: bool) -> dict[str, Any]:
    return {"log_to_driver": verbose, "logging_level": "INFO" if verbose else "ERROR"}


def runtime_env(verbose: bool, *, on_cpu: bool, num_engines: int = 1) -> dict[str, Any]:
    """Of all workers. Raises ConfigError for a job that has taken the place that a CPU needs."""
    of_job = job_runtime_env()
    variables = host_environment(verbose) | {RUN_VARIABLE: "1"}
    if on_cpu:
        variables |= without_gpu.worker_environment(num_engines)
    # Ray refuses a variable that the job sets as well, even to the same value. The job's reach all workers anyway.
    chosen = {"env_vars": {n: value for n, value in variables.items() if n not in of_job.get("env_vars", {})}}
    if not on_cpu:
        return chosen
    if HOOK_KEY in of_job:
        rule = "on a cluster without GPUs this package needs that place in every worker"
        raise ConfigError(f"--runtime-env-json, {HOOK_KEY}", of_job[HOOK_KEY], rule, "Leave it out")
    without_gpu.activate()
    return chosen | {HOOK_KEY: without_gpu.SETUP_HOOK}
