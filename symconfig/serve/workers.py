"""Worker processes: a few at most, each with one request at a time, which may be cancelled or take too long."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

from symconfig.errors import InputError

State = Literal["waiting", "running", "done", "cancelled", "failed"]
_ENDED = ("done", "cancelled", "failed")
_LOOK_S = 0.02  # between two looks at a worker


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the server. workers: requests run in parallel; waiting: requests queued besides; kept: finished
    requests kept; solve_s, memory_bytes: of one request.
    """

    workers: int = 2
    waiting: int = 16
    kept: int = 64
    solve_s: float = 300.0
    memory_bytes: int = 4 << 30


@dataclass
class Request:
    """A request and its result. progress: (text, share done). answer: None until it ends; done: set when it ends."""

    id: str
    kind: str
    data: Mapping[str, Any]
    state: State = "waiting"
    progress: tuple[str, float] = ("", 0.0)
    answer: dict[str, Any] | None = None
    cancelled: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def to_dict(self) -> dict[str, Any]:
        """Return the state and progress for a client, without the answer."""
        words, share = self.progress
        return {"id": self.id, "kind": self.kind, "state": self.state, "progress": {"words": words, "share": share}}


class Workers:
    """Worker processes that answer requests in order; the last `kept` finished requests stay available."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._free = asyncio.Semaphore(bounds.workers)
        self._known: OrderedDict[str, Request] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Worker] = []

    def submit(self, kind: str, data: Mapping[str, Any]) -> Request:
        """Return a new request and start it when a worker is free; old finished requests are dropped. Raises
        InputError if too many are open.
        """
        open_now = sum(one.state not in _ENDED for one in self._known.values())
        if open_now >= self._bounds.workers + self._bounds.waiting:
            raise InputError("too many requests are under way", got=str(open_now), hint="again in a moment")
        request = Request(secrets.token_urlsafe(16), kind, data)
        self._known[request.id] = request
        for name in [name for name, one in self._known.items() if one.state in _ENDED][: -self._bounds.kept or None]:
            del self._known[name]
        task = asyncio.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return request

    def find(self, name: str) -> Request | None:
        """Return a request by its id; None if unknown or dropped."""
        return self._known.get(name)

    def cancel(self, request: Request) -> None:
        """Cancel a request: a waiting one ends at once, a running one's worker is killed soon after; finished ones
        are unchanged.
        """
        if request.state not in _ENDED:
            request.cancelled = True
        if request.state == "waiting":
            request.state = "cancelled"
            request.done.set()

    async def close(self) -> None:
        """Cancel all requests and kill all workers."""
        for request in self._known.values():
            self.cancel(request)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._idle:
            worker.end()
        self._idle.clear()

    async def _run(self, request: Request) -> None:
        """Run a request when a worker is free; its state is final and `done` set at the end."""
        try:
            async with self._free:
                if not request.cancelled:
                    await self._work(request)
        finally:
            if request.state not in _ENDED:
                request.state = "cancelled" if request.cancelled else "failed"
            request.done.set()

    async def _work(self, request: Request) -> None:
        """Run a request in a worker, and set its progress, state and answer. The worker is killed after a cancel, a
        timeout or an error.
        """
        worker = self._idle.pop() if self._idle else _Worker(self._context, self._bounds.memory_bytes)
        request.state = "running"
        ends = time.monotonic() + self._bounds.solve_s
        worker.ask(request.kind, dict(request.data))
        try:
            while True:
                while worker.has_message():
                    what, content = worker.hear()
                    if what == "answer":
                        request.answer, request.state = content, "done"
                        self._idle.append(worker)
                        return
                    request.progress = content
                if request.cancelled:
                    break
                if time.monotonic() > ends or not worker.alive:
                    why = "it took too long" if worker.alive else "its worker ended; it may need more memory"
                    request.answer = _failed(why)
                    request.state = "failed"
                    break
                await asyncio.sleep(_LOOK_S)
        except (EOFError, OSError):
            request.answer = _failed("its worker ended")
            request.state = "failed"
        worker.end()


def _failed(why: str) -> dict[str, Any]:
    return {"error": "FailedError", "exit_code": 70, "problems": [why]}


class _Worker:
    """A process that answers one request at a time."""

    def __init__(self, context: multiprocessing.context.SpawnContext, memory_bytes: int) -> None:
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, memory_bytes), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def ask(self, kind: str, data: Mapping[str, Any]) -> None:
        self._mine.send((kind, data))

    def has_message(self) -> bool:
        return self._mine.poll()

    def hear(self) -> tuple[str, Any]:
        what, content = self._mine.recv()
        return str(what), content

    def end(self) -> None:
        """Kill the process, because a solver in progress does not listen."""
        self._process.kill()
        self._process.join()
        self._mine.close()


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Answer requests from the pipe until it closes, with at most `memory_bytes` of address space. Runs in the worker
    process.

    Exceptions become failed answers; the worker goes on.
    """
    import resource
    import signal
    import traceback

    from symconfig.serve.work import answer

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to handle
    with suppress(OSError, ValueError):  # a system without the limit, or with a lower one
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    while True:
        try:
            kind, data = pipe.recv()
        except (EOFError, OSError):
            return
        last = 0.0

        def say(words: str, share: float) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > 0.1:
                last = now
                pipe.send(("progress", (words, share)))

        try:
            made = answer(kind, data, say)
        except MemoryError:
            made = _failed(f"it needs more than {memory_bytes >> 20:,} MiB of memory")
        except Exception as error:  # a defect of ours: the worker lives on, and the server's owner reads where it is
            traceback.print_exc()
            made = _failed(f"a defect of symconfig: {type(error).__name__}")
        pipe.send(("answer", made))
