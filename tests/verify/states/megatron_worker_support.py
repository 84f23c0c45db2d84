"""Talks to megatron_worker.py: Megatron's own functions in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

import symconfig.verify
from symconfig.verify.megatron_source import MegatronSource

FUNCTIONS_SINCE = (0, 18)  # the layout of a buffer is a function of its own


class Ask(Protocol):
    """Asks one of the worker's functions by name."""

    def __call__(self, name: str, /, **request: Any) -> Any: ...


@contextmanager
def worker(source: MegatronSource) -> Iterator[Ask]:
    """A process with this Megatron; a skip for one without the functions."""
    if source.release < FUNCTIONS_SINCE:
        pytest.skip(f"{source.version} has no function that lays out a buffer")
    script = Path(__file__).with_name("megatron_worker.py")
    folder = Path(symconfig.verify.__file__).parent
    command = [sys.executable, "-E", "-P", str(script), str(folder), str(source.root)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def ask(name: str, /, **request: Any) -> Any:
            requests.write(json.dumps({"ask": name, **request}) + "\n")
            return json.loads(answers.readline())

        yield ask
        requests.close()
