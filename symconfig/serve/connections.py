"""How the server listens, and holds connections: few, small, and not for those who keep it waiting."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from symconfig.errors import InputError

IDLE_S = 10  # that a connection may be open without a request
_MOST_OPEN = 256
_HEAD_BYTES = 64 << 10


class Patient(H11Protocol):
    """A connection that is closed if no complete request head arrives within the idle time; Uvicorn itself would
    wait without limit.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the idle timeout."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the idle timeout stops once the request's head is complete."""
        super().data_received(data)
        self._unset_keepalive_if_required()

    def _unset_keepalive_if_required(self) -> None:
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            super()._unset_keepalive_if_required()


def settings(made: Starlette, idle_s: int = IDLE_S) -> uvicorn.Config:
    """Return uvicorn's configuration for an application. idle_s: seconds until an idle connection is closed."""
    return uvicorn.Config(
        made,
        http=Patient,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_keep_alive=idle_s,
        limit_concurrency=_MOST_OPEN,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_graceful_shutdown=2,
    )


def listening(host: str, port: int) -> socket.socket:
    """Return a socket listening on an address. Raises InputError if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        what = f"cannot listen on port {port} of {host}: {why}"
        raise InputError(what, field="--port", hint="--port 0 takes one that is free") from None
    return made
