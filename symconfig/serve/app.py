"""The server's addresses: the page with its form, and the commands' own contracts as JSON."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

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
from symconfig.serve.workers import Request as Work

_DATE = (2020, 1, 1, 0, 0, 0)  # of files in a zip: equal plans give equal bytes
_WAIT_S = 25.0  # that a client may be kept waiting for news
Next = Callable[[Request], Awaitable[Response]]


def app(guard: Guard, bounds: Bounds | None = None) -> Starlette:
    """Return the server's Starlette application. Each request is checked by `guard`; security headers are set on each
    answer.

    bounds: limits of the workers; None: the defaults.
    """
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

    async def guarded(request: Request, answer: Next) -> Response:
        """Answer a request if the guard allows it, with security headers; a Refused becomes its response."""
        try:
            guard.check(request)
            response = await answer(request)
        except Refused as refused:
            return refused.response()
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Cache-Control"] = "no-store"
        if guard.token is not None and request.query_params.get("token"):
            response.set_cookie(COOKIE, guard.token, httponly=True, samesite="strict")
        return response

    return Starlette(routes=routes, lifespan=running, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guarded)])


async def _page(request: Request) -> Response:
    text, policy = served()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


async def _zoo(request: Request) -> Response:
    """Return the zoo's models and clusters, and the choices of the form, as JSON."""
    from symconfig.descriptor.job import Backend, PrecisionName
    from symconfig.descriptor.load import zoo_clusters, zoo_models
    from symconfig.descriptor.task import PLAIN

    words = {"backends": get_args(Backend), "tasks": PLAIN, "precisions": get_args(PrecisionName)}
    return JSONResponse({"models": list(zoo_models()), "clusters": list(zoo_clusters()), **words})


async def _description(request: Request) -> Response:
    return JSONResponse(description())


async def _submit(http_request: Request) -> Response:
    """Start a plan or audit and return its state with status 202. Raises Refused (503) if too many requests are
    open.
    """
    data = await body(http_request)
    kind = http_request.url.path.rpartition("/")[2]
    try:
        request = _workers(http_request).submit(kind, data)
    except InputError as error:
        raise Refused(503, str(error)) from None
    return JSONResponse(request.to_dict(), 202, headers={"Location": f"/api/requests/{request.id}"})


async def _request(request: Request) -> Response:
    return JSONResponse(_known(request).to_dict())


async def _cancel(http_request: Request) -> Response:
    """Cancel a request and return its state once it has ended. Raises TimeoutError after _WAIT_S seconds."""
    import asyncio

    request = _known(http_request)
    _workers(http_request).cancel(request)
    async with asyncio.timeout(_WAIT_S):
        await request.done.wait()
    return JSONResponse(request.to_dict())


async def _answer(request: Request) -> Response:
    done = _done(request)
    return JSONResponse({name: value for name, value in done.items() if name not in ("page", "files")})


async def _data(request: Request) -> Response:
    done = _done(request)
    if "page" not in done:
        raise Refused(404, "; ".join(done["problems"]) or "there is no page of it")
    return JSONResponse(done["page"])


async def _files(request: Request) -> Response:
    """Return a request's files as a zip; equal plans give equal bytes. Raises Refused (404) without files."""
    done = _done(request)
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


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


def _known(http_request: Request) -> Work:
    request = _workers(http_request).find(http_request.path_params["id"])
    if request is None:
        raise Refused(404, "there is no such request")
    return request


def _done(http_request: Request) -> dict[str, Any]:
    request = _known(http_request)
    if request.answer is None:
        raise Refused(409, "it failed" if request.state == "failed" else f"it is {request.state}")
    return request.answer
