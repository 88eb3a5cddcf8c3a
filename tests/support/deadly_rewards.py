"""A reward file that ends an engine in the middle of a step."""

from __future__ import annotations

REWARDS = """
import os, pathlib, signal, threading
import psutil
from openrlhf_ada.reward import arithmetic

DEATHS, CALLS, LOCK = {deaths!r}, [], threading.Lock()

def is_core(process):
    # It cannot rename itself in every environment: below make it stays what multiprocessing started.
    try:
        told = process.name() + " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return "EngineCor" in told or "spawn_main" in told

def kill(name, done):
    me = psutil.Process()
    victim = me if name == "actor" else next(filter(is_core, me.children()))
    done.write_text(str(victim.pid))
    os.kill(victim.pid, signal.SIGKILL)

def reward_func(queries, prompts, labels):
    with LOCK:
        CALLS.append(1)
        left = [death for death in DEATHS if not pathlib.Path(death[0]).exists()]
        if left and len(CALLS) >= left[0][2]:
            kill(left[0][1], pathlib.Path(left[0][0]))
    return arithmetic.reward_func(queries, prompts, labels)
"""
"""`deaths`: (file that is made, victim, calls), one after the other. Kills an engine's process ("actor"), or vLLM's
core below it ("core"), when that process has answered so often; once."""
