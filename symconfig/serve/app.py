"""The server's addresses: the page with its form, and the commands' own contracts as JSON."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from symconfig.errors import InputError
from symconfig.report.page.page import served
from symconfig.serve.description import description
from symconfig.serve.guard import COOKIE, Guard, Refused, body
from symconfig.serve.workers import Bounds, Workers
from symconfig.serve.workers import Request as Asked

_DATE = (2020, 1, 1, 0, 0, 0)  # of files in a zip: equal plans give equal bytes
_WAIT_S = 25.0  # that a client may be kept waiting for news
Next = Callable[[Request], Awaitable[Response]]


def app(guard: Guard, bounds: Bounds | None = None) -> Starlette:
    """Return the server's application."""
    routes = [
        Route("/", _page),
        Route("/api/zoo", _zoo),
        Route("/api/openapi.json", _description),
        Route("/api/plan", _submit, methods=["POST"]),
        Route("/api/audit", _submit, methods=["POST"]),
        Route("/api/requests/{id}", _request),
        Route("/api/requests/{id}", _cancel, methods=["DELETE"]),
        Route("/api/requests/{id}/answer", _answer),
        Route("/api/requests/{id}/page", _data),
        Route("/api/requests/{id}/files.zip", _files),
    ]

    @asynccontextmanager
    async def running(made: Starlette) -> AsyncIterator[None]:
        made.state.workers = Workers(bounds or Bounds())
        try:
            yield
        finally:
            await made.state.workers.close()

    async def guarded(asked: Request, answer: Next) -> Response:
        try:
            guard.check(asked)
            response = await answer(asked)
        except Refused as refused:
            return refused.response()
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Cache-Control"] = "no-store"
        if guard.token is not None and asked.query_params.get("token"):
            response.set_cookie(COOKIE, guard.token, httponly=True, samesite="strict")
        return response

    return Starlette(routes=routes, lifespan=running, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guarded)])


async def _page(asked: Request) -> Response:
    text, policy = served()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


async def _zoo(asked: Request) -> Response:
    from symconfig.descriptor.load import zoo_clusters, zoo_models

    return JSONResponse({"models": list(zoo_models()), "clusters": list(zoo_clusters())})


async def _description(asked: Request) -> Response:
    return JSONResponse(description())


async def _submit(asked: Request) -> Response:
    data = await body(asked)
    kind = asked.url.path.rpartition("/")[2]
    try:
        request = _workers(asked).submit(kind, data)
    except InputError as error:
        raise Refused(503, str(error)) from None
    return JSONResponse(request.told(), 202, headers={"Location": f"/api/requests/{request.id}"})


async def _request(asked: Request) -> Response:
    return JSONResponse(_known(asked).told())


async def _cancel(asked: Request) -> Response:
    import asyncio

    request = _known(asked)
    _workers(asked).cancel(request)
    async with asyncio.timeout(_WAIT_S):
        await request.done.wait()
    return JSONResponse(request.told())


async def _answer(asked: Request) -> Response:
    done = _done(asked)
    return JSONResponse({name: value for name, value in done.items() if name not in ("page", "files")})


async def _data(asked: Request) -> Response:
    done = _done(asked)
    if "page" not in done:
        raise Refused(404, "; ".join(done["problems"]) or "there is no page of it")
    return JSONResponse(done["page"])


async def _files(asked: Request) -> Response:
    done = _done(asked)
    if not done.get("files"):
        raise Refused(404, "it has no files")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(done["files"].items()):
            info = zipfile.ZipInfo(name, _DATE)
            info.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, text)
    headers = {"Content-Disposition": 'attachment; filename="plan.zip"'}
    return Response(buffer.getvalue(), media_type="application/zip", headers=headers)


def _workers(asked: Request) -> Workers:
    found: Workers = asked.app.state.workers
    return found


def _known(asked: Request) -> Asked:
    request = _workers(asked).find(asked.path_params["id"])
    if request is None:
        raise Refused(404, "there is no such request")
    return request


def _done(asked: Request) -> dict[str, Any]:
    request = _known(asked)
    if request.answer is None:
        raise Refused(409, f"it is {request.state}")
    return request.answer
