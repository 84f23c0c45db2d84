"""What a worker process does for the server: one request, plain data in and out."""

from __future__ import annotations

import json
import resource
import signal
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from symconfig.errors import InputError, Problem, Problems, SymconfigError
from symconfig.format import forget, masked
from symconfig.resources import PACKAGE, data_dir, only_below

Say = Callable[[str, float], None]
Answer = Callable[[Mapping[str, Any], Say, Path], dict[str, Any]]
NOT_SERVED = ("training", "edited")  # fields of a job that name files, or are for files that are written
UPLOADED = "config.json"  # the name of an uploaded model in messages
_NAMES = ("model", "cluster")
_SCRIPT = "launch.sh"
_LAUNCH_FIELDS = ("cluster", "model", "gpus", "seq_length")


def work(pipe: Connection, kind: str, data: Mapping[str, Any], memory_bytes: int) -> None:
    """Send the progress and the answer of one request through the pipe, with at most `memory_bytes` of address space
    (if the system can limit it). For a process of its own: SIGINT is ignored. MemoryError and any other exception
    become failed answers; the latter's traceback is printed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's to handle
    with suppress(OSError, ValueError):  # a system without the limit, or with a lower one
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        made = answer(kind, data, lambda words, share: pipe.send({"progress": (words, share)}))
    except MemoryError:
        made = failed(f"it needs more than {memory_bytes >> 20:,} MiB of memory")
    except Exception as error:
        traceback.print_exc()
        made = failed(f"a defect of symconfig: {type(error).__name__}")
    pipe.send({"answer": made})


def failed(why: str) -> dict[str, Any]:
    """Return the answer of a request that gave none."""
    return {"error": "FailedError", "exit_code": 70, "problems": [why]}


def answer(kind: str, data: Mapping[str, Any], say: Say) -> dict[str, Any]:
    """Return the answer of a request ("plan" or "audit") as plain data. A SymconfigError becomes {error, exit_code,
    problems}; other exceptions pass. say: called with progress (text, share). Files outside of the package, its data
    folders and a temporary folder cannot be read; that folder's name and masked values are removed from the answer.
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
    """Return {html: a plan's page, plan: its JSON, files: {name: text} without the trace, exit_code: 0, problems: []};
    the other fine-tuning framework is searched, too. Raises InputError, InfeasibleError, and UnsupportedError if no
    target can express the model.
    """
    from symconfig.api.files import Wanted, page_files
    from symconfig.api.planning import solve
    from symconfig.descriptor.document import Document
    from symconfig.report.page import plan_page

    document, model = _job(data)
    result = solve(Document(document, file=""), model, writes=True, compares=True, progress=say)
    if result.inexpressible is not None:
        raise result.inexpressible
    files = page_files(result.plan, Wanted())
    return {
        "html": plan_page(result.plan, files),
        "plan": result.to_dict(),
        "files": files,
        "exit_code": 0,
        "problems": [],
    }


def _job(data: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return (job fields, uploaded model or None); an uploaded `model_config` replaces `model`, with its name. Raises
    InputError for NOT_SERVED fields, a cluster or model (unless uploaded) not in the zoo (changes after " with " or "@"
    are allowed), and an upload that is no model.
    """
    from symconfig.descriptor.huggingface import import_config
    from symconfig.descriptor.load import zoo_clusters, zoo_models

    fields, problems = dict(data), Problems()
    config = fields.pop("model_config", None)
    problems.add(*(Problem("is not taken by the server", field=name) for name in NOT_SERVED if name in fields))
    known = {"model": zoo_models(), "cluster": zoo_clusters()}
    for name in _NAMES:
        if name == "model" and config is not None:
            continue
        value = fields.get(name)
        if not isinstance(value, str) or value.partition(" with ")[0].partition("@")[0] not in known[name]:
            need = f"a {name} of the zoo"
            problems.add(Problem("is not known here", field=name, got=str(value)[:80], need=need))
    problems.check()
    if config is None:
        return fields, None
    if not isinstance(config, Mapping):
        raise InputError("must hold one object", field="model_config")
    model = import_config(config, UPLOADED, str(config.get("_name_or_path") or "uploaded")[:80])
    return {**fields, "model": model.name}, model


def _audit(data: Mapping[str, Any], say: Say, folder: Path) -> dict[str, Any]:
    """Return {html: an audit's page, audit: its JSON, exit_code: 1 if the script does not run as it is, else 0,
    problems: []}. Only _LAUNCH_FIELDS and `script` of `data` are used. The script's text is written to `folder`, the
    only one it may name files in, and never executed. Raises InputError without text, or for names not in the zoo.
    """
    from symconfig.api.existing import audit, audit_page
    from symconfig.existing.launch.text import below
    from symconfig.report.audit import to_dict

    given = {name: data[name] for name in _LAUNCH_FIELDS if data.get(name) is not None}
    text = data.get("script")
    if not isinstance(text, str) or not text.strip():
        raise InputError("the text of a launch script is missing", field="script")
    _job({"model": given.get("model", "llama2-7b"), "cluster": given.get("cluster", "h100")})
    script = folder / _SCRIPT
    script.write_text(text, encoding="utf-8")
    with below(folder):
        done = audit(script, progress=lambda words: say(words.replace(f"{folder}/", ""), 0.0), **given)
    return {
        "html": audit_page(done, _SCRIPT),
        "audit": to_dict(done),
        "exit_code": 0 if done.runs else 1,
        "problems": [],
    }


_KINDS: dict[str, Answer] = {"plan": _plan, "audit": _audit}
