"""A server on a free port of this machine, for tests."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("starlette", reason="pip install 'symconfig[serve]'")
uvicorn = pytest.importorskip("uvicorn", reason="pip install 'symconfig[serve]'")

from symconfig.serve.app import app  # noqa: E402
from symconfig.serve.connections import (  # noqa: E402
    IDLE_S,
    listening,
    settings,
)
from symconfig.serve.guard import LOCAL, Guard  # noqa: E402
from symconfig.serve.workers import Bounds  # noqa: E402


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send one request, JSON where there are data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = None if data is None else json.dumps(data).encode()
        given = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, path, body, {**given, **(headers or {})})
        response = connection.getresponse()
        found = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        connection.close()
        return found

    def solved(self, kind: str, data: Any, limit_s: float = 120.0) -> dict[str, Any]:
        """Ask, wait, and return the id with the answer."""
        taken = self.ask("POST", f"/api/{kind}", data)
        assert taken.status == 202, taken.body
        name = taken.data["id"]
        ends = time.monotonic() + limit_s
        while (state := self.ask("GET", f"/api/requests/{name}").data["state"]) not in ("done", "failed", "cancelled"):
            assert time.monotonic() < ends, state
            time.sleep(0.05)
        return {"id": name, "state": state, **self.ask("GET", f"/api/requests/{name}/answer").data}


@contextmanager
def running(token: str | None = None, bounds: Bounds | None = None, idle_s: int = IDLE_S) -> Iterator[Running]:
    """Start a server and stop it again."""
    socket = listening("127.0.0.1", 0)
    made = app(Guard(LOCAL, token), bounds or Bounds())
    server = uvicorn.Server(settings(made, idle_s))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield Running(socket.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(timeout=30)
