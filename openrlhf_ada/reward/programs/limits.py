"""What a program may use that the sandbox runs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

SECONDS = 10.0
"""For grading one answer, where nobody says otherwise: the default of --ada_reward_timeout."""

_OF_ONE_RUN, _OF_ALL_RUNS = 0.6, 0.8
"""Shares of the time for grading one answer."""


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one run may use; `seconds_in_all` is for the runs that grade one answer (see `time_of_tests.TestTime`).

    `seconds` is wall-clock time from when the program starts. `output_kib` holds for stdout and for a result,
    `file_mib` for each file, `folder_mib` and `files` for all of them. `memory_mib` is address space beyond what a
    child has when it starts, of which a thread takes 8 MiB and more.
    """

    seconds: float = _OF_ONE_RUN * SECONDS
    seconds_in_all: float = _OF_ALL_RUNS * SECONDS
    cpu_seconds: int = math.ceil(_OF_ONE_RUN * SECONDS)
    memory_mib: int = 1024
    output_kib: int = 1024
    file_mib: int = 16
    folder_mib: int = 64
    files: int = 1000
    open_files: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"the limit {name} is {value}, expected more than 0")


def limits_within(seconds: float) -> ProgramLimits:
    """Limits that fit into `seconds` for grading one answer: a program that is too slow then gets a score of 0, and
    the grading process is not killed, which would give no score.
    """
    of_one_run = _OF_ONE_RUN * seconds
    return ProgramLimits(seconds=of_one_run, seconds_in_all=_OF_ALL_RUNS * seconds, cpu_seconds=math.ceil(of_one_run))
