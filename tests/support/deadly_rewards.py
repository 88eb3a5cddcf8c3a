"""A reward file that ends an engine in the middle of a step."""

from __future__ import annotations

REWARDS = """
import os, pathlib, signal, threading
import psutil
from openrlhf_ada.reward import arithmetic

DONE, VICTIM, CALLS, LOCK = pathlib.Path({done!r}), {victim!r}, [], threading.Lock()

def is_core(process):
    # It cannot rename itself in every environment: below make it stays what multiprocessing started.
    try:
        told = process.name() + " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return "EngineCor" in told or "spawn_main" in told

def kill_one():
    me = psutil.Process()
    victim = me if VICTIM == "actor" else next(filter(is_core, me.children()))
    DONE.write_text(str(victim.pid))
    os.kill(victim.pid, signal.SIGKILL)

def reward_func(queries, prompts, labels):
    with LOCK:
        CALLS.append(1)
        if len(CALLS) >= {call} and not DONE.exists():
            kill_one()
    return arithmetic.reward_func(queries, prompts, labels)
"""
"""Kills an engine's process, or vLLM's core below it, when that has answered so often; once."""
