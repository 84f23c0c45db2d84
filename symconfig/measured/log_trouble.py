"""What went wrong in a run, by the lines that it left: out of memory, tracebacks, signals, timeouts."""

from __future__ import annotations

import re

from symconfig.measured.log_lines import prefix
from symconfig.measured.log_records import Collected, Remark

_OOM = re.compile(r"(?:CUDA|HIP|NPU) (?:error: )?out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY")
_DIED = (
    (
        re.compile(
            r"Watchdog caught collective operation timeout|NCCL (?:error|timeout)|nccl(?:System|Internal|"
            r"UnhandledCuda|Remote)Error"
        ),
        "a collective failed or timed out",
    ),
    (re.compile(r"DUE TO TIME LIMIT"), "the job reached its time limit"),
    (re.compile(r"oom[_-]kill|Out of memory: Killed process"), "the host ran out of memory"),
    (re.compile(r"CANCELLED AT|SIGTERM|SIGINT\b|death signal"), "the run was told to stop"),
    (re.compile(r"SIGKILL|SIGSEGV|SIGABRT|SIGBUS|Segmentation fault|Bus error"), "a process was killed or crashed"),
    (re.compile(r"\bChildFailedError\b|exits with return code = [1-9]"), "a process of the run failed"),
)
_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(r"^\s*(?:\w+\.)*(\w{1,60}(?:Error|Exception|Interrupt|Exit))\b(?:: (.{0,120}))?")
_LONGEST_TRACEBACK = 200  # lines
_MOST = 12  # different remarks

WANTED = (
    b"ut of memory",
    b"OutOfMemory",
    b"OUT_OF_MEMORY",
    b"Traceback",
    b"imeout",
    b"NCCL",
    b"nccl",
    b"SIG",
    b"signal",
    b"oom",
    b"CANCELLED",
    b"TIME LIMIT",
    b"Segmentation",
    b"Bus error",
    b"ChildFailed",
    b"exits with return",
)


class Trouble:
    """A reader of trouble, line by line.

    out_of_memory: the iteration after which it ran out; remarks: each kind of trouble once.
    """

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.out_of_memory: int | None = None
        self._remarks: dict[tuple[str, str], tuple[int, int]] = {}  # kind and text -> first line, how often
        self._traceback = 0

    @property
    def wants_all(self) -> bool:
        return self._traceback > 0

    def read(self, number: int, line: str) -> None:
        after = max((steps[-1].iteration for steps in self.collected.steps.values() if steps), default=0)
        if _OOM.search(line):
            rank = prefix(line)[0]
            where = "" if rank is None else f" on rank {rank}"
            if self.out_of_memory is None:
                self.out_of_memory = after
            self._add("out of memory", f"out of memory {self._when(after)}{where}", number)
            self._traceback = 0
            return
        if _TRACEBACK in line:
            self._traceback = _LONGEST_TRACEBACK
        elif self._traceback:
            self._traceback -= 1
            rest = prefix(line)[1]
            if match := _EXCEPTION.match(rest):
                what = match[1] + (f": {match[2].strip()}" if match[2] else "")
                self._add("died", f"{what} {self._when(after)}", number)
                self._traceback = 0
                return
        for pattern, what in _DIED:
            if pattern.search(line):
                self._add("died", f"{what} {self._when(after)}", number)
                return

    def remarks(self) -> list[Remark]:
        """Return the remarks in order of their lines, with how often each was printed, where that is more than once."""
        result = []
        for (kind, text), (line, count) in self._remarks.items():
            result.append(Remark(kind, text + (f" ({count} times)" if count > 1 else ""), line))
        return result

    def _add(self, kind: str, text: str, number: int) -> None:
        if (kind, text) in self._remarks:
            line, count = self._remarks[kind, text]
            self._remarks[kind, text] = (line, count + 1)
        elif len(self._remarks) < _MOST:
            self._remarks[kind, text] = (number, 1)

    @staticmethod
    def _when(iteration: int) -> str:
        return f"after iteration {iteration}" if iteration else "before the first step"
