"""vLLM loads this (entry point `vllm.general_plugins`) in each of its processes: on a CPU they may use AMX, and they
must not outlive their parent.

An engine core whose Ray actor is killed is re-parented and goes on, holding a core and gigabytes. Only engines of our
own runs ask Linux to end them with their parent: it looks at the thread that started them, and other programs start
theirs from threads that end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

from openrlhf_ada.platforms.signals import end_with_parent

RUN_VARIABLE = "OPENRLHF_ADA_RUN"
"""Set in every Ray worker of our runs, and inherited by the engines that they start."""


def register() -> None:
    """Let a CPU be used; end this process with its parent, if it is one of vLLM's sub-processes in a run of ours."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from openrlhf_ada.platforms.without_gpu import ask_for_amx

        ask_for_amx()
    parent = multiprocessing.parent_process()
    if parent is None or RUN_VARIABLE not in os.environ:
        return
    from tqdm import tqdm

    # Its own is between processes, and stays in shared memory when this one is killed.
    tqdm.set_lock(threading.RLock())
    end_with_parent(signal.SIGKILL)
    if not parent.is_alive():
        # It ended before the request was in place.
        os.kill(os.getpid(), signal.SIGKILL)
