"""`symconfig serve` as a command: on this machine alone, or with a token that it prints."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="pip install 'symconfig[serve]'")


@contextmanager
def _served(*options: str) -> Iterator[str]:
    """Start the command and return the address that it prints."""
    command = [sys.executable, "-u", "-m", "symconfig", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(timeout=30)


def _status(port: int | None, path: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port or 0, timeout=30)
    connection.request("GET", path, headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


def test_by_default_it_listens_on_this_machine_alone() -> None:
    with _served() as address:
        found = urlsplit(address)
        assert (found.hostname, found.query) == ("127.0.0.1", "")
        assert _status(found.port, "/", f"localhost:{found.port}") == 200
        assert _status(found.port, "/", "planner.example.org") == 421


def test_for_others_it_prints_a_token_that_each_must_bring() -> None:
    with _served("--host", "0.0.0.0", "--name", "planner.example.org") as address:
        found = urlsplit(address)
        assert found.hostname == "planner.example.org"
        assert len(found.query.removeprefix("token=")) >= 24
        assert _status(found.port, "/", "planner.example.org") == 401
        assert _status(found.port, f"/?{found.query}", "planner.example.org") == 200
        assert _status(found.port, f"/?{found.query}", "evil.example.org") == 421
