"""What `symconfig verify --frozen` found, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from symconfig.format import count
from symconfig.render.files import sh
from symconfig.report.grid import Block, Grid, present

if TYPE_CHECKING:
    from symconfig.runs.replan.frozen import Checked, Finding


def blocks(checked: Checked) -> list[Block]:
    """Return a table of findings with the differing lines below each, the verdict with a command to try, and notes."""
    rows = tuple(row for finding in checked.findings for row in _rows(finding))
    grid = Grid(("", "file", "line", "found"), rows, left=(0, 1, 3), title=f"Check of {checked.place}")
    return present(grid, _verdict(checked), *(f"{note[0].upper()}{note[1:]}." for note in checked.notes))


def _rows(finding: Finding) -> list[tuple[str, str, str, str]]:
    place = "" if finding.line is None else str(finding.line)
    rows: list[tuple[str, str, str, str]] = [(finding.kind, finding.path, place, finding.said)]
    if finding.written is not None:
        rows += [("", "", "", f"written: {finding.written}"), ("", "", "", f"now:     {finding.found}")]
    return rows


def _verdict(checked: Checked) -> str:
    """Return the sentence with the number of failing findings and the command to try."""
    failed = [finding for finding in checked.findings if finding.fails]
    files = f"{count(len(checked.manifest.files))} files" if checked.manifest is not None else "the plan"
    if not failed:
        return f"Nothing is edited or stale: {files} of {checked.place} as symconfig writes them now."
    things = "1 thing is" if len(failed) == 1 else f"{count(len(failed))} things are"
    return f"{things} not as written or not as it would be written now. Try: {_command(checked)}."


def _command(checked: Checked) -> str:
    """Return the command that repairs the findings: replan for changed inputs or an edited plan, else rendering
    again.
    """
    options = _options(checked)
    kinds = {finding.kind for finding in checked.findings}
    edited = any(finding.path == "plan.json" and finding.kind == "edited" for finding in checked.findings)
    if checked.inputs or (not checked.again and (edited or checked.manifest is None or kinds & {"input", "answer"})):
        changed = "".join(f" --{name} {sh(value)}" for name, value in checked.inputs.items())
        return f"symconfig replan {sh(checked.plan)}{' --accept-edits' if edited else ''}{changed}{options} --out NEW"
    if checked.again:
        return f"symconfig {checked.again}{options} --out {sh(checked.place)} --force"
    return f"symconfig render {sh(checked.plan)}{options} --out {sh(checked.plan.parent)} --force"


def _options(checked: Checked) -> str:
    """Return the options for the same target, launchers and templates; "" without a manifest."""
    if checked.manifest is None:
        return ""
    launchers = "".join(f" --launcher {sh(name)}" for name in checked.manifest.launchers)
    templates = "" if checked.templates is None else f" --templates {sh(checked.templates)}"
    return f" --target {sh(checked.manifest.target)}{launchers}{templates}"


def to_dict(checked: Checked) -> dict[str, Any]:
    """Return the JSON of `symconfig verify --frozen --json`."""
    manifest = checked.manifest
    return {
        "schema": "symconfig.check/1",
        "place": str(checked.place),
        "passed": checked.passed,
        "target": manifest.target if manifest is not None else None,
        "files": len(manifest.files) if manifest is not None else 0,
        "findings": [{**asdict(finding), "fails": finding.fails} for finding in checked.findings],
        "notes": list(checked.notes),
    }
