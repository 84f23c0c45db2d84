"""Who may ask: the right host, the same origin, a token where others can reach the server, and small bodies."""

from __future__ import annotations

import asyncio
import hmac
import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

COOKIE = "symconfig-token"
MOST_BYTES = 2 << 20  # of a body: a config.json or a launch script has thousands
BODY_S = 10.0  # in which a body must have come
LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Refused(Exception):
    """A request that is not answered. status: HTTP status code; why: its text."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why

    def response(self) -> Response:
        """Return the refusal as a JSON response that closes the connection."""
        return JSONResponse({"error": self.why}, self.status, headers={"Connection": "close"})


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks who may use the server. hosts: accepted names, without port. token: None if only this machine can
    connect.
    """

    hosts: frozenset[str]
    token: str | None = None

    def check(self, connection: HTTPConnection) -> None:
        """Raise Refused for another host (421), another origin (403), or a missing or wrong token (401)."""
        host = connection.headers.get("host", "")
        if _name(host) not in self.hosts:
            raise Refused(421, f"this server is not {host[:80]!r}")
        origin = connection.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "pages of other origins are not answered")
        if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "pages of other origins are not answered")
        if self.token is not None and not self._knows(connection):
            raise Refused(401, "the token is missing or wrong: open the address that the server printed")

    def _knows(self, connection: HTTPConnection) -> bool:
        """Return whether the query, the cookie or the bearer header has the token; compared in constant time."""
        kind, _, bearer = connection.headers.get("authorization", "").partition(" ")
        given = (
            connection.query_params.get("token"),
            connection.cookies.get(COOKIE),
            bearer if kind == "Bearer" else None,
        )
        token = (self.token or "").encode()
        return any(hmac.compare_digest(one.encode(), token) for one in given if one)


def _name(host: str) -> str:
    """Return a host without its port."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host


async def body(request: Request) -> dict[str, Any]:
    """Return the request's JSON object. Raises Refused for another content type (415), a large (413), slow (408) or
    invalid body (400).
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "the body must be application/json")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MOST_BYTES:
        raise Refused(413, f"the body is larger than {MOST_BYTES:,} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            data = b""
            async for part in request.stream():
                data += part
                if len(data) > MOST_BYTES:
                    raise Refused(413, f"the body is larger than {MOST_BYTES:,} bytes")
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_S:g} s") from None
    try:
        fields = json.loads(data)
        json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body must be an object")
    return fields
