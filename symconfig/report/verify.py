"""The checks of `symconfig verify`, with the real frameworks and with --frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.format import count, grouped, seconds
from symconfig.render.files import sh
from symconfig.report.grid import Block, Grid, present

if TYPE_CHECKING:
    from symconfig.runs.replan.frozen import Checked
    from symconfig.verify.checks import Check


def checked(folder: Path, checks: Sequence[Check]) -> list[Block]:
    """Return a table of checks (status, name, seconds, detail), one of the numbers compared with the framework's if
    there are any, and a sentence: the number of checks by status, and which were skipped and why.
    """
    rows = tuple((check.status, check.name, seconds(check.seconds), " ".join(check.detail.split())) for check in checks)
    counts = Counter(check.status for check in checks)
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no check applies"
    grid = Grid(("", "check", "s", "found"), rows, left=(0, 1, 3), title=f"Checks of {folder}")
    skipped = grouped((" ".join(check.detail.split()), check.name) for check in checks if check.status == "skipped")
    why = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in skipped.items())
    return [grid, *present(_numbers(checks)), f"{summary}.{f' Not checked: {why}.' if why else ''}"]


def _numbers(checks: Sequence[Check]) -> Grid:
    """Return the table of numbers (parameters, bytes …) by symconfig and by the framework: check, quantity, both,
    difference (of bytes also in percent). A check's name only stands in its first row.
    """
    rows = []
    for check in checks:
        for place, pair in enumerate(check.compared):
            is_bytes = pair.unit == "bytes"
            share = f" ({100 * pair.difference:+.2f} %)" if is_bytes and pair.real else ""
            difference = "0" if pair.ours == pair.real else f"{pair.ours - pair.real:+,.0f}{share}"
            name, what = "" if place else check.name, f"{pair.what}, bytes" if is_bytes else pair.what
            rows.append((name, what, count(pair.ours), count(pair.real), difference))
    headers = ("built and compared", "of it", "symconfig", "framework", "difference")
    return Grid(headers, tuple(rows), left=(0, 1), title="Numbers of the real framework")


def frozen(checked: Checked) -> list[Block]:
    """Return a table of findings (kind, file, line, text; below a finding with a differing line that line as written
    and as it is now), a sentence with the verdict and a command that repairs, and the notes.
    """
    rows: list[tuple[str, ...]] = []
    for each in checked.findings:
        rows.append((each.kind, each.path, "" if each.line is None else str(each.line), each.said))
        if each.written is not None:
            rows += [("", "", "", f"written: {each.written}"), ("", "", "", f"now:     {each.found}")]
    grid = Grid(("", "file", "line", "found"), tuple(rows), left=(0, 1, 3), title=f"Check of {checked.place}")
    files = f"{count(len(checked.manifest.files))} files" if checked.manifest is not None else "the plan"
    verdict = f"Nothing is edited or stale: {files} of {checked.place} as symconfig writes them now."
    if failed := len(checked.findings):
        things = "1 thing is" if failed == 1 else f"{count(failed)} things are"
        verdict = f"{things} not as written or not as it would be written now. Try: {_command(checked)}."
    return present(grid, verdict, *(f"{note[0].upper()}{note[1:]}." for note in checked.notes))


def _command(checked: Checked) -> str:
    """Return the command that repairs the findings, with the manifest's target and launchers and the templates used.

    `replan` into a new folder (--accept-edits if plan.json was edited) if model or cluster changed, or, unless the
    folder has a command of its own (`again`), if plan.json was edited, there is a finding on an input, or no manifest;
    else that command, or `render` again, with --force.
    """
    options = ""  # the manifest's target and launchers, and the templates used
    if checked.manifest is not None:
        launchers = "".join(f" --launcher {sh(name)}" for name in checked.manifest.launchers)
        templates = "" if checked.templates is None else f" --templates {sh(checked.templates)}"
        options = f" --target {sh(checked.manifest.target)}{launchers}{templates}"
    kinds = {finding.kind for finding in checked.findings}
    edited = any(finding.path == "plan.json" and finding.kind == "edited" for finding in checked.findings)
    if checked.inputs or (not checked.again and (edited or checked.manifest is None or "input" in kinds)):
        changed = "".join(f" --{name} {sh(value)}" for name, value in checked.inputs.items())
        return f"symconfig replan {sh(checked.plan)}{' --accept-edits' if edited else ''}{changed}{options} --out NEW"
    if checked.again:
        return f"symconfig {checked.again}{options} --out {sh(checked.place)} --force"
    return f"symconfig render {sh(checked.plan)}{options} --out {sh(checked.plan.parent)} --force"


def frozen_data(checked: Checked) -> dict[str, Any]:
    """Return the JSON of `verify --frozen --json`: place, whether it passed, target (None without a manifest), number
    of files in the manifest (then 0), findings, and notes.
    """
    manifest = checked.manifest
    return {
        "schema": "symconfig.check/1",
        "place": str(checked.place),
        "passed": checked.passed,
        "target": manifest.target if manifest is not None else None,
        "files": len(manifest.files) if manifest is not None else 0,
        "findings": [asdict(finding) for finding in checked.findings],
        "notes": list(checked.notes),
    }
