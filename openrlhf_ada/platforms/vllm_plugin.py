"""vLLM loads this (entry point `vllm.general_plugins`) in each of its processes: their start can be followed, on a CPU
they may use AMX, and they must not outlive their parent.

An engine core whose Ray actor is killed is re-parented and goes on, holding a core and gigabytes. Linux can end a
process when its parent ends; asking for it in the child itself needs no cooperation of the parent. Only engines of our
own runs ask: Linux looks at the thread that started them, and other programs start theirs from threads that end.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading

from openrlhf_ada.platforms.start_log import keep_last_line
from openrlhf_ada.platforms.template_server import FORKED_VARIABLE, PR_SET_PDEATHSIG

RUN_VARIABLE = "OPENRLHF_ADA_RUN"
"""Set in every Ray worker of our runs, and inherited by the engines that they start."""


def register() -> None:
    """Let a start be followed, and a CPU be used; end this process with its parent, if it is one of vLLM's
    sub-processes in a run of ours."""
    from vllm.platforms import current_platform

    keep_last_line()
    if current_platform.is_cpu():
        from openrlhf_ada.platforms.cpu_amx import ask_for_amx

        ask_for_amx()
    parent = multiprocessing.parent_process()
    if parent is None or RUN_VARIABLE not in os.environ:
        return
    from tqdm import tqdm

    # Its own is between processes, and stays in shared memory when this one is killed.
    tqdm.set_lock(threading.RLock())
    if os.environ.get(FORKED_VARIABLE) == str(os.getpid()):
        # Its stand-in, which the actor started, ends with the actor, and the template then ends this process.
        is_orphan = not parent.is_alive()
    else:
        ctypes.CDLL("libc.so.6", use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        is_orphan = os.getppid() != parent.pid
    if is_orphan:
        # The parent ended before the request was in place.
        os.kill(os.getpid(), signal.SIGKILL)
