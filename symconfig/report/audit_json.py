"""An audit as plain data, and as SARIF for code review."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from symconfig.errors import Problem
from symconfig.existing.audit.audit import Audit
from symconfig.existing.audit.catalogue import rules
from symconfig.existing.audit.judge import Judged
from symconfig.existing.launch.read import ARGUMENTS
from symconfig.existing.launch.text import Place
from symconfig.existing.rules.rule import Finding
from symconfig.format import picked
from symconfig.install import VERSION

SCHEMA = "symconfig.audit/1"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
RULES_PAGE = "docs/reference/rules.md"


def to_dict(audit: Audit) -> dict[str, Any]:
    """Return the JSON of `symconfig audit --json`; predictions are None if nothing was predicted."""
    judged, reading, reader = audit.judged, audit.reading, audit.reader
    described = judged.run.described if judged is not None else None
    return {
        "schema": SCHEMA,
        "file": reading.file,
        "files": [text.file for text in reading.texts],
        "format": reading.format,
        "program": reading.program.text if reading.program is not None else None,
        "target": {"backend": reader.backend, "version": reader.version, "given": reader.version_given},
        "gpus": reader.gpus,
        "runs": audit.runs,
        "complete": reading.complete,
        "options": [
            {**_place(setting.place), **picked(setting, "name", "spelled")}
            | {"values": [None if word.unknown else word.text for word in setting.values]}
            for setting in reading.settings
        ],
        "environment": {name: word.text for name, word in reading.environment.items() if not word.unknown},
        "unread": [
            {**_place(item.place), **picked(item, "what", "why", "matters")}
            | {"hides": item.hides.value, "assumed": item.assumed}
            for item in reading.unread
        ],
        "assumptions": [{**_place(item.place), **picked(item, "what", "options")} for item in audit.assumptions],
        "model": None
        if described is None
        else {
            "zoo": described.zoo,
            "near": None
            if described.nearest is None
            else {"zoo": described.nearest[0], "fields": list(described.nearest[1])},
            "descriptor": described.model.model_dump(mode="json", by_alias=True),
        },
        "assumed": []
        if judged is None or described is None
        else [
            picked(item, "what", "value", "why") | _place(item.place)
            for item in (*described.assumed, *judged.run.assumed)
        ],
        "run": None if judged is None else judged.plan.best.to_dict(),
        "step": None if judged is None or judged.run.around is None else _step(judged),
        "fits": None if judged is None else judged.fits,
        "usable_bytes": None if judged is None else judged.plan.usable_bytes,
        "unpredicted": [asdict(problem) for problem in audit.unpredicted],
        "findings": [{**picked(each, "rule", "severity"), **asdict(each.problem)} for each in audit.findings],
        "best": None if audit.better is None else audit.better.best.to_dict(),
        "gain": audit.gain,
        "infeasible": audit.infeasible,
        "steps": [asdict(step) for step in audit.way],
    }


def _step(judged: Judged) -> dict[str, Any]:
    """Return a run with phases as JSON: its trainer and predicted parts; for RL also workers and job."""
    around, step = judged.run.around, judged.run.step
    assert around is not None, "is asked for of such a run"
    parts: dict[str, Any] = {"trainer": around.trainer.name}
    if step is not None:
        parts |= {"workers": step.workers.name, "job": step.rl.model_dump(mode="json")}
    return parts | judged.plan.steps[0].to_dict()


def _place(place: Place | None) -> dict[str, Any]:
    names = ("file", "line", "column")
    return dict.fromkeys(names) if place is None else picked(place, *names)


def sarif(audits: Iterable[Audit]) -> dict[str, Any]:
    """Return audits as SARIF 2.1.0 (OASIS): one run with a result per finding; unread places are notes of the rule
    `not-read`.
    """
    results = [result for audit in audits for result in (*map(_result, audit.findings), *_unread(audit))]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "symconfig",
                        "version": VERSION,
                        "rules": [
                            *(
                                {
                                    "id": rule.name,
                                    "shortDescription": {"text": rule.title},
                                    "fullDescription": {"text": rule.why},
                                    "help": {"text": f"See {RULES_PAGE}."},
                                    "defaultConfiguration": {"level": rule.severity},
                                }
                                for rule in rules()
                            ),
                            {
                                "id": "not-read",
                                "shortDescription": {"text": "A place that was not understood"},
                                "defaultConfiguration": {"level": "note"},
                            },
                        ],
                    }
                },
                "results": results,
            }
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    """Return a finding as a SARIF result; its place is in `locations`, and the message has neither place nor pins."""
    problem = finding.problem
    plain = Problem(problem.what, field=problem.field, got=problem.got, need=problem.need, hint=problem.hint)
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": str(plain)},
        "locations": _locations(problem.file, problem.line, problem.column),
    }


def _unread(audit: Audit) -> Iterable[dict[str, Any]]:
    """Yield a SARIF note for each place that was not understood."""
    for item in audit.reading.unread:
        yield {
            "ruleId": "not-read",
            "level": "note",
            "message": {"text": f"{item.what}: {item.why}"},
            "locations": _locations(item.place.file, item.place.line, item.place.column),
        }


def _locations(file: str | None, line: int | None, column: int | None) -> list[dict[str, Any]]:
    """Return the SARIF location of a place, with line and column if known; [] for command-line arguments or without a
    file. Absolute paths become file URIs.
    """
    if file is None or file == ARGUMENTS:
        return []
    region = {"startLine": line, **({"startColumn": column} if column else {})} if line else None
    path = PurePath(file)
    where: dict[str, Any] = {
        "artifactLocation": {"uri": path.as_uri() if path.is_absolute() else quote(path.as_posix())}
    }
    return [{"physicalLocation": where | ({"region": region} if region else {})}]
