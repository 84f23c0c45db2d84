"""The server: a page with a form on this machine, and the answers of `plan` and `audit` as JSON.

A POST to /api/plan or /api/audit is answered by lines of JSON: {"progress": [text, share]} while a worker process
searches, and {"answer": ...} at the end. A client that closes the connection ends its search.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args

from symconfig.descriptor.job import Backend, Job, PrecisionName
from symconfig.descriptor.load import zoo_clusters, zoo_models
from symconfig.descriptor.task import PLAIN
from symconfig.errors import InputError
from symconfig.install import VERSION
from symconfig.report.page import form_page
from symconfig.serve.work import NOT_SERVED, failed, work

LOCAL = ("localhost", "127.0.0.1")
MOST_BYTES = 2 << 20  # of a body: a config.json or a launch script has thousands
MEMORY_BYTES = 4 << 30  # address space of one search
IDLE_S = 10.0  # that a client may take for the next bytes of its request
_WAITING = 16  # requests that may wait for a worker
_BEAT_S = 0.5  # between two lines, so that a closed connection is noticed
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Refused(Exception):
    """A request that is not answered. status: HTTP status code; why: its text."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Server(ThreadingHTTPServer):
    """A server on 127.0.0.1. workers: searches run in parallel; solve_s: limit of one search in seconds."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, workers: int = 2, solve_s: float = 300.0) -> None:
        """Listen on 127.0.0.1 at `port`; 0: any that is free. Raises InputError if that fails. workers: searches at
        once; _WAITING more requests may wait. solve_s: limit of one search.
        """
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            what = f"cannot listen on port {port}: {error.strerror or error}"
            raise InputError(what, field="--port", hint="--port 0 takes one that is free") from None
        self.solve_s = solve_s
        self.free = threading.Semaphore(workers)
        self.open = threading.Semaphore(workers + _WAITING)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["symconfig.serve.work", "symconfig.api.existing", "symconfig.report.page"])


class _Handler(BaseHTTPRequestHandler):
    """Answers one request. Other hosts (DNS rebinding) and pages of other origins are refused."""

    server: Server
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Send the page, the zoo's names, or the OpenAPI description."""
        self._guarded(self._get)

    def do_POST(self) -> None:
        """Solve or audit, and send the lines of JSON."""
        self._guarded(self._post)

    def _guarded(self, answer: Any) -> None:
        """Call `answer`, then close the connection. Not called, with status 421, if Host is not LOCAL; with 403 if
        Origin is not this host or Sec-Fetch-Site is neither same-origin nor none (both may be absent). A Refused is
        sent as JSON with its status, a timeout as 408; a closed connection is ignored.
        """
        try:
            host = self.headers.get("Host", "")
            if host.rpartition(":")[0] not in LOCAL and host not in LOCAL:
                raise Refused(421, f"this server is not {host[:80]!r}")
            site = self.headers.get("Sec-Fetch-Site", "same-origin")
            if self.headers.get("Origin", f"http://{host}") != f"http://{host}" or site not in ("same-origin", "none"):
                raise Refused(403, "pages of other origins are not answered")
            answer()
        except Refused as refused:
            self._send(refused.status, "application/json", json.dumps({"error": refused.why}))
        except TimeoutError:
            self._send(408, "application/json", json.dumps({"error": "the request did not come in time"}))
        except ConnectionError:  # the client has gone
            pass
        self.close_connection = True

    def _send(self, status: int, kind: str, text: str | None, **headers: str) -> None:
        """Send a response of content type `kind`, with `headers` (named as they are sent) in addition to _HEADERS and
        over them, and no Content-Length of its own; text: the body, whatever the method; None if it is sent afterwards.
        """
        self.send_response(status)
        for name, value in {"Content-Type": kind, **_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if text is not None:
            self.wfile.write(text.encode())

    def _get(self) -> None:
        """Send the form page at /, a JSON document of _DATA at its path, ignoring a query; else raise Refused (404)."""
        path = self.path.partition("?")[0]
        if path == "/":
            html, policy = form_page()
            self._send(200, "text/html; charset=utf-8", html, **{"Content-Security-Policy": policy})
        elif path in _DATA:
            self._send(200, "application/json", json.dumps(_DATA[path]()))
        else:
            raise Refused(404, "there is no such address")

    def _post(self) -> None:
        """Run a request to /api/plan or /api/audit in a worker process and send its lines of JSON with status 200.
        While all workers are busy, empty lines are sent. Raises Refused for another address (404), a bad body, or too
        many open requests (503); ConnectionError if the client has gone, which frees the worker.
        """
        kind = self.path.removeprefix("/api/")
        if kind not in ("plan", "audit"):
            raise Refused(404, "there is no such address")
        data, server = self._body(), self.server
        if not server.open.acquire(blocking=False):
            raise Refused(503, "too many requests are open; try again in a moment")
        try:
            self._send(200, "application/x-ndjson", None)
            while not server.free.acquire(timeout=_BEAT_S):
                self._line()
            try:
                self._solve(kind, data)
            finally:
                server.free.release()
        finally:
            server.open.release()

    def _solve(self, kind: str, data: dict[str, Any]) -> None:
        """Send the lines of one request: the worker's progress, an empty line every _BEAT_S without any, and the
        answer. The answer is a failed one if the worker ends without any or exceeds solve_s. The process is killed in
        every case. Raises ConnectionError if the client has gone.
        """
        mine, theirs = self.server.context.Pipe()
        process = self.server.context.Process(target=work, args=(theirs, kind, data, MEMORY_BYTES), daemon=True)
        process.start()
        theirs.close()
        ends, answer = time.monotonic() + self.server.solve_s, None
        try:
            while answer is None:
                if mine.poll(_BEAT_S):
                    message = mine.recv()
                    answer = message.get("answer")
                    if answer is None:
                        self._line(message)
                elif time.monotonic() > ends:
                    answer = failed("it took too long")
                else:
                    self._line()
        except EOFError:
            answer = failed("its worker ended; it may need more memory")
        finally:
            process.kill()
            process.join()
            mine.close()
        self._line({"answer": answer})

    def _line(self, data: dict[str, Any] | None = None) -> None:
        """Send a line of JSON; an empty one for None."""
        self.wfile.write(b"\n" if data is None else json.dumps(data).encode() + b"\n")
        self.wfile.flush()

    def _body(self) -> dict[str, Any]:
        """Return the request's JSON object. Raises Refused for another content type (415), no Content-Length or one
        above MOST_BYTES (413), or a body that is no JSON object in UTF-8 (400).
        """
        if self.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise Refused(415, "the body must be application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MOST_BYTES:
            raise Refused(413, f"the body must have a Content-Length of at most {MOST_BYTES:,} bytes")
        try:
            fields = json.loads(self.rfile.read(int(length)))
            json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError):
            raise Refused(400, "the body is no JSON") from None
        if not isinstance(fields, dict):
            raise Refused(400, "the body must be an object")
        return fields


def zoo() -> dict[str, list[str]]:
    """Return {field of the form: its choices}: the zoo's models and clusters, tasks, backends and precisions; "" stands
    for the default.
    """
    return {
        "model": list(zoo_models()),
        "cluster": list(zoo_clusters()),
        "task": ["", *PLAIN],
        "backend": ["", *get_args(Backend)],
        "precision": ["", *get_args(PrecisionName)],
    }


def description() -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of the addresses: /api/plan takes a job's fields without NOT_SERVED, with
    `model_config` (an uploaded config.json); cluster and gpus are required. /api/audit takes a script's text.
    """
    schema = Job.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    sections = schema.pop("$defs")
    kept = {name: field for name, field in schema["properties"].items() if name not in NOT_SERVED}
    job = {**schema, "properties": {**kept, "model_config": {"type": "object"}}, "required": ["cluster", "gpus"]}
    text = {name: {"type": "string"} for name in ("script", "cluster", "model")}
    script = {
        "type": "object",
        "required": ["script"],
        "properties": {**text, "gpus": {"type": "integer"}, "seq_length": {"type": "integer"}},
    }
    lines = "lines of JSON: progress, then {answer: {plan or audit, html, files, exit_code, problems}}"

    def operation(body: dict[str, Any]) -> dict[str, Any]:
        content = {"application/json": {"schema": body}}
        responses = {"200": {"description": lines, "content": {"application/x-ndjson": {}}}}
        return {"post": {"requestBody": {"required": True, "content": content}, "responses": responses}}

    names = {"get": {"responses": {"200": {"description": "names of models, clusters and choices"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "symconfig", "version": VERSION},
        "components": {"schemas": sections},
        "paths": {"/api/zoo": names, "/api/plan": operation(job), "/api/audit": operation(script)},
    }


_DATA = {"/api/zoo": zoo, "/api/openapi.json": description}
