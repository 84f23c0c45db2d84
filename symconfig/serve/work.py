"""What a worker process does for the server: one request, plain data in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from symconfig.errors import InfeasibleError, InputError, Problem, SymconfigError
from symconfig.format import forget, masked
from symconfig.resources import PACKAGE, data_dir, only_below
from symconfig.serve.description import NOT_SERVED

Say = Callable[[str, float], None]
Answer = Callable[[Mapping[str, Any], Say, Path], dict[str, Any]]
UPLOADED = "config.json"  # the name of an uploaded model in messages
_NAMES = ("model", "cluster")
_SCRIPT = "launch.sh"
_LAUNCH_FIELDS = ("cluster", "model", "gpus", "seq_length")


def answer(kind: str, data: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Return the answer of a request ("plan" or "audit") as plain data. SymconfigErrors become answers with `problems`.

    say: called with progress (text, share). Files outside of symconfig and a temporary folder cannot be read; that
    folder's name is removed from the answer.
    """
    forget()
    ours = (PACKAGE, data_dir("model_zoo"), data_dir("templates"))
    with TemporaryDirectory(prefix="symconfig-") as folder, only_below(*ours, Path(folder)):
        try:
            made = _KINDS[kind](data, say, Path(folder))
        except SymconfigError as error:
            problems = [str(problem) for problem in error.problems]
            made = {"error": type(error).__name__, "exit_code": error.exit_code, "problems": problems}
        # Data without the name of the folder that a script lay in for a moment.
        text = masked(json.dumps(made))
        for name in {folder, str(Path(folder).resolve())}:
            text = text.replace(json.dumps(name + "/")[1:-1], "").replace(json.dumps(name)[1:-1], ".")
        return dict(json.loads(text))


def _plan(data: Mapping[str, Any], say: Say, folder: Path) -> dict[str, Any]:
    """Return a plan's page data, JSON and files; for an infeasible job a page, its problems and no files."""
    from symconfig.api.page import page_data
    from symconfig.api.planning import Wanted, page_files, read_job, solve
    from symconfig.descriptor.document import Document
    from symconfig.report.page.data import refused_data
    from symconfig.runs.best import prepared

    document, model = _job(data)
    written = Document(document, file="")
    try:
        result = solve(written, model, writes=True, compares=True, progress=say)
        if result.untold is not None:
            raise result.untold
    except InfeasibleError as error:
        job = read_job(written, model)
        where, what = prepared(job.model, job.cluster, job.job)
        page = refused_data(where, job.cluster, what, error)
        problems = [str(problem) for problem in error.problems]
        return {"page": page, "plan": None, "files": {}, "exit_code": error.exit_code, "problems": problems}
    made = page_files(result.plan, Wanted())
    return {
        "page": page_data(result.plan, made),
        "plan": result.to_dict(),
        "files": made,
        "exit_code": 0,
        "problems": [],
    }


def _job(data: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return (job fields, uploaded model or None). Raises InputError for fields that the server does not take and
    names not in the zoo.
    """
    from symconfig.descriptor.huggingface import import_config
    from symconfig.descriptor.load import zoo_clusters, zoo_models

    fields, problems = dict(data), list[Problem]()
    config = fields.pop("model_config", None)
    problems += [Problem("is not taken by the server", field=name) for name in NOT_SERVED if name in fields]
    known = {"model": zoo_models(), "cluster": zoo_clusters()}
    for name in _NAMES:
        if name == "model" and config is not None:
            continue
        value = fields.get(name)
        if not isinstance(value, str) or value.partition(" with ")[0].partition("@")[0] not in known[name]:
            need = f"a {name} of the zoo"
            problems.append(Problem("is not known here", field=name, got=str(value)[:80], need=need))
    if problems:
        raise InputError(problems)
    if config is None:
        return fields, None
    if not isinstance(config, Mapping):
        raise InputError("must hold one object", field="model_config")
    model = import_config(config, UPLOADED, str(config.get("_name_or_path") or "uploaded")[:80])
    return {**fields, "model": model.name}, model


def _audit(data: Mapping[str, Any], say: Say, folder: Path) -> dict[str, Any]:
    """Return an audit's page data and JSON; the script is written to `folder` and never executed."""
    from symconfig.api.existing import audit
    from symconfig.api.page import audited_data
    from symconfig.existing.launch import files
    from symconfig.report.audit_json import to_dict

    given = {name: data[name] for name in _LAUNCH_FIELDS if data.get(name) is not None}
    text = data.get("script")
    if not isinstance(text, str) or not text.strip():
        raise InputError("the text of a launch script is missing", field="script")
    _job({"model": given.get("model", "llama2-7b"), "cluster": given.get("cluster", "h100")})
    script = folder / _SCRIPT
    script.write_text(text, encoding="utf-8")
    with files.only_below(folder):
        done = audit(script, progress=lambda words: say(words.replace(f"{folder}/", ""), 0.0), **given)
    return {
        "page": audited_data(done, _SCRIPT),
        "audit": to_dict(done),
        "exit_code": 0 if done.runs else 1,
        "problems": [],
    }


_KINDS: dict[str, Answer] = {"plan": _plan, "audit": _audit}
