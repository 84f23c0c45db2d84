"""A port to listen on."""

from __future__ import annotations

import socket

from symconfig.errors import InputError, Problem


def listening(host: str, port: int) -> socket.socket:
    """Return a socket to which others can connect at an address. Raises InputError where there can be none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        what = f"cannot listen on port {port} of {host}: {why}"
        raise InputError(Problem(what, field="--port", hint="--port 0 takes one that is free")) from None
    return made
