"""The server's addresses for other programs, as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.job import Job
from symconfig.install import VERSION

NOT_SERVED = ("training", "edited")  # fields of a job that name files, or are for files that are written
_OBJECT = {"type": "object"}
_REQUEST = {
    "type": "object",
    "required": ["id", "kind", "state", "progress"],
    "properties": {
        "id": {"type": "string"},
        "kind": {"enum": ["plan", "audit"]},
        "state": {"enum": ["waiting", "running", "done", "cancelled", "failed"]},
        "progress": {
            "type": "object",
            "properties": {"words": {"type": "string"}, "share": {"type": "number", "minimum": 0, "maximum": 1}},
        },
    },
}
_SCRIPT = {
    "type": "object",
    "required": ["script"],
    "properties": {
        "script": {"type": "string", "description": "the text of a launch script or of a DeepSpeed file"},
        "cluster": {"type": "string"},
        "model": {"type": "string"},
        "gpus": {"type": "integer"},
        "seq_length": {"type": "integer"},
    },
}


def job_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (schema of a job as the server takes it, schemas of its sections).

    model and cluster are names of the zoo; `model_config` is a config.json. Fields in NOT_SERVED are left out.
    """
    schema = Job.model_json_schema(by_alias=True, ref_template="#/components/schemas/{model}")
    sections = schema.pop("$defs")
    taken = {name: field for name, field in schema["properties"].items() if name not in NOT_SERVED}
    return {**schema, "properties": {**taken, "model_config": _OBJECT}, "required": ["cluster", "gpus"]}, sections


def description() -> dict[str, Any]:
    """Return the OpenAPI description as a dict."""
    job, sections = job_schema()
    return {
        "openapi": "3.1.0",
        "info": {"title": "symconfig", "version": VERSION},
        "components": {"schemas": sections},
        "paths": {
            "/api/zoo": {"get": _answers("names of models and clusters", _OBJECT)},
            "/api/plan": {"post": _takes(job)},
            "/api/audit": {"post": _takes(_SCRIPT)},
            "/api/requests/{id}": {
                "parameters": [_ID],
                "get": _answers("how far it is", _REQUEST),
                "delete": _answers("stopped", _REQUEST),
            },
            "/api/requests/{id}/answer": {
                "parameters": [_ID],
                "get": _answers("what `plan --json` or `audit --json` print, with exit_code and problems", _OBJECT),
            },
            "/api/requests/{id}/page": {"parameters": [_ID], "get": _answers("the data of its page", _OBJECT)},
            "/api/requests/{id}/files.zip": {
                "parameters": [_ID],
                "get": {"responses": {"200": {"description": "its files", "content": {"application/zip": {}}}}},
            },
        },
    }


_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


def _answers(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"responses": {"200": {"description": what, "content": {"application/json": {"schema": schema}}}}}


def _takes(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an operation that takes a JSON body and answers 202 or 503."""
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "202": {"description": "taken", "content": {"application/json": {"schema": _REQUEST}}},
            "503": {"description": "too many requests are under way"},
        },
    }
