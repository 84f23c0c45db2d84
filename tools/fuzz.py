"""Search for inputs that break a reader, guided by the lines that they reach: `python -m tools fuzz`.

Needs atheris. What breaks a target is written into tests/fuzz/corpora/TARGET/, where tests/fuzz/test_kept.py keeps
failing by it until it is mended; what only reaches further stays in the work folder, for the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from tests.fuzz import KEPT, ROOT

WORK = ROOT / ".fuzz"
MISSING = "note: atheris cannot be had for this Python; only the inputs that were kept are tried (make test)"
MEMORY_MIB = 4096


def search(names: Sequence[str], seconds: int, length: int) -> bool:
    """Run targets, as many at once as there are processors, and tell whether all held."""
    waiting, running, held = list(reversed(names)), dict[int, tuple[str, IO[str]]](), True
    with contextlib.ExitStack() as logs:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                name, log = waiting.pop(), logs.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
                running[_forked(name, log, seconds, length)] = name, log
            child, status = os.wait()
            held &= _reported(*running.pop(child), status == 0)
    return held


def _forked(name: str, log: IO[str], seconds: int, length: int) -> int:
    """Start a target in a fork, which has the counted branches already, and return the process."""
    corpus, crashes = WORK / name, KEPT / name
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    options = (
        *(f"-max_total_time={seconds}", f"-max_len={length}", "-timeout=60", f"-rss_limit_mb={MEMORY_MIB}"),
        *(f"-artifact_prefix={crashes}/", "-print_final_stats=1", "-verbosity=0"),
    )
    if (child := os.fork()) == 0:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
        _fuzz(name, str(corpus), str(crashes), *options)
    return child


def _reported(name: str, log: IO[str], held: bool) -> bool:
    log.seek(0)
    text = log.read()
    runs = next((line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line), "0")
    print(f"{name}: {runs} inputs, {'held' if held else 'BROKEN'}", flush=True)
    if not held:
        print(text[-3000:], flush=True)
    if not any((KEPT / name).iterdir()):
        (KEPT / name).rmdir()
    return held


def _fuzz(name: str, corpus: str, *words: str) -> None:
    """Be the process that searches; libFuzzer ends it."""
    import atheris

    from tests.fuzz.targets import TARGETS, hold

    for seed in TARGETS[name].seeds():
        (WORK / name / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    atheris.Setup(["fuzz", corpus, *words], lambda data: hold(name, data))
    atheris.Fuzz()


def main() -> int:
    """Search the targets. Exit 0: all held, or atheris is not here; 1: one broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="TARGET", help="some of the targets (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="of each target (default 60)")
    parser.add_argument("--length", type=int, default=8192, help="bytes of an input at most (default 8192)")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(MISSING)
        return 0
    import atheris

    os.environ["SYMCONFIG_DEBUG"] = "1"  # a defect is raised, with where it is
    # Their branches are counted; atheris names each module.
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["symconfig"]):
        from tests.fuzz.targets import TARGETS
    unknown = [name for name in arguments.names if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    return 0 if search(arguments.names or list(TARGETS), arguments.seconds, arguments.length) else 1
