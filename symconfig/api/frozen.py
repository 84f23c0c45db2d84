"""Whether what was written from a plan is still what it says: `symconfig.verify_frozen("out/")`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from symconfig.api.files import Wanted, files
from symconfig.api.replan import FALLBACK
from symconfig.descriptor.load import find, find_cluster, load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, SymconfigError
from symconfig.plans.file import load_plan
from symconfig.plans.plan import Plan
from symconfig.render.files import File, sh
from symconfig.render.manifest import NAME, Manifest, read_manifest
from symconfig.render.several import node_folder
from symconfig.runs.adapted import as_trained
from symconfig.runs.replan.frozen import Checked, Finding, of_files, of_input, of_templates

Input = Literal["model", "cluster"]
_PLAN = re.compile(r"nodes-([0-9]{1,6})/plan\.json")
_OF_ALL = ("input", "templates")  # findings that are no file's, and the same for every number of nodes


def verify_frozen(path: str | Path, templates: str | Path | None = None) -> Checked:
    """Return how a folder of rendered files, or a plan file, differs from what symconfig would write now. Writes
    nothing.

    A folder, or a file named plan.json beside a manifest: edited, missing and stale files are findings, too;
    another plan file: only edits of the plan and changed model or cluster, with a note. A folder of `replan
    --lose-nodes` is checked with its inner folders. templates: own templates with which it was written. Raises
    InputError for a folder without manifest, or a file that is no plan.
    """
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    manifest = read_manifest(folder) if place.is_dir() or place.name == "plan.json" else None
    if manifest is None and place.is_dir():
        below = sorted(str(path.parent) for path in folder.glob(f"*/{NAME}"))  # as `replan --lose-nodes` writes them
        what = f"there is no {NAME} in this folder, and without it the files that were written are not known"
        hint = f"one of {', '.join(below)}" if below else "symconfig render DIR/plan.json --out DIR --force"
        raise InputError(what, file=str(folder), hint=hint)
    mine = Path(templates) if templates else None
    if manifest is not None and FALLBACK in manifest.files and place.is_dir():
        return _several(folder, manifest, mine)
    plan, findings = _plan(place)
    notes: list[str] = []
    if manifest is not None:
        findings += _files(folder, manifest, plan if not findings else None, mine)
    else:
        notes.append(f"there is no {NAME} beside the plan: no files were looked at")
    others = _inputs(plan, notes)
    findings += others.values()
    return Checked(
        place=place,
        plan=folder / "plan.json" if place.is_dir() else place,
        manifest=manifest,
        findings=tuple(findings),
        notes=tuple(notes),
        templates=mine,
        inputs={kind: getattr(plan.job, kind) for kind in others},
    )


def _plan(place: Path) -> tuple[Plan, list[Finding]]:
    """Return (plan, []), or after an InputError the plan read with edits accepted and one finding "edited" for each of
    the error's problems. Raises InputError if it cannot be read even so.
    """
    try:
        return load_plan(place), []
    except InputError as error:
        plan = load_plan(place, accept_edits=True)
        return plan, [
            Finding("edited", "plan.json", f"{problem.field}: {problem.what}", problem.line)
            for problem in error.problems
        ]


def _files(folder: Path, manifest: Manifest, plan: Plan | None, templates: Path | None) -> list[Finding]:
    """Return the findings on a folder's files and templates. plan: None if it was edited: then no file
    is rendered anew, so staleness is not checked, and no finding on plan.json is repeated. A plan that can no longer be
    rendered gives one finding "stale" for each problem.
    """
    findings = list(of_templates(manifest, templates))
    now: Mapping[str, File] = {}
    if plan is not None:
        try:
            fresh = files(plan, Wanted(manifest.target, manifest.launchers, templates))
            now = {item.path: item for item in fresh if item.path != NAME}
        except SymconfigError as error:
            findings += (
                Finding("stale", each.file or manifest.target, f"cannot be written any more: {each}")
                for each in error.problems
            )
    edited = [each for each in of_files(folder, manifest, now) if plan is not None or each.path != "plan.json"]
    return [*findings, *edited]


def _several(folder: Path, manifest: Manifest, templates: Path | None) -> Checked:
    """Return the check of a folder of `replan --lose-nodes`: the findings of each nodes-N/ with plan.json and manifest
    (paths prefixed; on inputs and templates those of the largest N, as are plan, notes and inputs), and those on all
    other files by the outer manifest. again: the `replan` arguments that write it anew.
    """
    numbers = [int(match[1]) for match in filter(None, map(_PLAN.fullmatch, manifest.files))]
    parts = {
        nodes: verify_frozen(folder / node_folder(nodes), templates)
        for nodes in numbers
        if all((folder / node_folder(nodes) / name).is_file() for name in (NAME, "plan.json"))
    }
    most = max(parts or numbers, default=0)
    lost = [most - nodes for nodes in parts if nodes != most] or [1]
    within = tuple(f"{node_folder(nodes)}/" for nodes in parts)
    above = {path: each for path, each in manifest.files.items() if path.endswith(NAME) or not path.startswith(within)}
    findings = [
        each if each.kind in _OF_ALL else replace(each, path=f"{node_folder(nodes)}/{each.path}")
        for nodes, part in parts.items()
        for each in part.findings
        if nodes == most or each.kind not in _OF_ALL
    ]
    return Checked(
        place=folder,
        plan=folder / node_folder(most) / "plan.json",
        manifest=manifest,
        findings=(*findings, *of_files(folder, manifest.model_copy(update={"files": above}), {})),
        notes=parts[most].notes if parts else (),
        templates=templates,
        inputs=parts[most].inputs if parts else {},
        again=f"replan {sh(folder / node_folder(most))} --lose-nodes {min(lost)}..{max(lost)}",
    )


def _inputs(plan: Plan, notes: list[str]) -> dict[Input, Finding]:
    """Return {"model" or "cluster": finding} for those that now differ from the plan's; the model is compared with the
    job's adapters applied. A name that cannot be found adds a sentence to `notes` and has no finding. Raises InputError
    if the file found is no model or cluster.
    """
    loads: Mapping[Input, Callable[[str], BaseModel]] = {"model": load_model, "cluster": load_cluster}
    findings: dict[Input, Finding] = {}
    for kind, load in loads.items():
        name: str = getattr(plan.job, kind)
        try:
            find(name, f"{kind}s", None) if kind == "model" else find_cluster(name)
        except InputError:
            notes.append(f"the {kind} {name} is not found from here: whether it has changed is not known")
            continue
        now = load(name)
        if isinstance(now, ModelDescriptor):
            now, _ = as_trained(now, plan.job)
        for each in of_input(plan, kind, now):
            findings[kind] = each
    return findings
