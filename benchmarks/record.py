"""Keep what was measured: the latest figures of each row, the history of runs, the table of docs/evidence/speed.md."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT
from benchmarks.rows import PLANS, ROWS, Row, Target

RESULTS, HISTORY = (Path(__file__).with_name(name) for name in ("results.json", "history.jsonl"))
PAGE = ROOT / "docs" / "evidence" / "speed.md"
SOLVER = ("solve", "cost", "schedule", "graph")  # folders of symconfig that decide how fast it is
LETTERS = 16  # of a fingerprint
TABLE = re.compile(r"(<!-- speed: written by `make bench` -->\n).*?(<!-- end of speed -->)", re.DOTALL)


def fingerprint(package: Path = ROOT / "symconfig") -> str:
    """Return a digest of the solver's sources."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in SOLVER for path in (package / folder).rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:LETTERS]


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Return the recorded figures: `machine`, and `rows` by name."""
    if not path.exists():
        return {"machine": {}, "rows": {}}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def older(results: Mapping[str, Any], solver: str, names: list[str]) -> list[str]:
    """Return the names whose figures are of other sources of the solver, or that have none."""
    return [name for name in names if results["rows"].get(name, {}).get("solver") != solver]


def check(path: Path = RESULTS) -> str:
    """Return why the record does not say how fast this solver is; empty where it does."""
    names = [row.name for row in ROWS]
    missing = older(read(path), fingerprint(), names)
    if not missing:
        return ""
    rows = "no row was" if len(missing) == len(names) else f"{len(missing)} of {len(names)} rows were not"
    which = "" if len(missing) == len(names) else f" ({', '.join(missing)})"
    return f"{path.name} is older than the solver: {rows} measured with these sources{which}. Run make bench."


def put(figures: Mapping[str, Mapping[str, Any]], results: Path = RESULTS, history: Path = HISTORY) -> None:
    """Put the figures of rows in the place of the old ones, and add one entry to the history."""
    solver, machine = fingerprint(), of_machine()
    kept = read(results)["rows"]
    order = [row.name for row in ROWS]
    rows = {**{name: kept[name] for name in order if name in kept}}
    rows |= {name: {**new, "solver": solver} for name, new in figures.items()}
    whole = {"machine": machine, "rows": {name: rows[name] for name in order if name in rows}}
    results.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry = {"date": now, "commit": commit(), "solver": solver, "machine": machine, "rows": _numbers(figures)}
    with history.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def _numbers(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        name: {figure: value for figure, value in new.items() if isinstance(value, int | float)}
        for name, new in figures.items()
    }


def commit() -> str:
    """Return the commit that was measured, with a plus sign where files were changed since; empty outside git."""
    words = ("describe", "--always", "--dirty=+", "--exclude=*")
    ended = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.strip()


def of_machine() -> dict[str, Any]:
    """Return what the figures were measured on, as far as it matters to them."""
    load = [round(value, 1) for value in os.getloadavg()]
    return {"python": platform.python_version(), "system": platform.system(), "cpus": os.cpu_count(), "load": load}


def line(row: Row, figures: Mapping[str, Any]) -> str:
    """Return the row as printed: a line for each limit, with seconds and memory on the first."""
    spent = [f"{figures['cpu_s']:.3f} CPU s"] if "cpu_s" in figures else []
    spent += [f"{figures['peak_mib']:.0f} MiB"] if "peak_mib" in figures else []
    judged = [_judged(target, figures) for target in row.targets if target.figure in figures]
    if not judged:
        judged = [f"{figures['ratio']:>12,.6g} x import" if "ratio" in figures else ""]
    first = f"{row.shown:44}{judged[0]:54}{', '.join(spent)}".rstrip()
    return "\n".join([first, *(f"{'':44}{more}".rstrip() for more in judged[1:])])


def _judged(target: Target, figures: Mapping[str, Any]) -> str:
    sign, verdict = ">=" if target.at_least else "<=", "met" if target.met(figures) else "MISSED"
    return f"{figures[target.figure]:>12,.6g} {target.unit:11} {sign} {target.limit:<12,.12g} {verdict}"


def table(results: Mapping[str, Any]) -> str:
    """Return the table of a few rows."""
    rows = results["rows"]
    named = {row.name: row for row in ROWS}
    shown = [f"plan-{words[1]}" for words, _ in PLANS]
    more = ("unfit-plan", "partition-adaptive", "partition-exact", "partition-stages", "audit")
    shown += [name for name in more if name in rows]
    lines = ["| command | s | imports | MiB |", "|---|--:|--:|--:|"]
    for name in shown:
        if name in rows:
            one = rows[name]
            lines.append(f"| {named[name].shown} | {one['wall_s']:.1f} | {one['ratio']:.1f} | {one['peak_mib']:.0f} |")
    return "\n".join(lines) + "\n" + _others(rows)


def _others(rows: Mapping[str, Any]) -> str:
    """Return what the table's rows do not hold, as sentences."""
    sentences = []
    if "random-jobs" in rows:
        jobs = rows["random-jobs"]
        sentences.append(
            f"Of {jobs['jobs']} random jobs half take up to {jobs['p50']:.1f} imports, 99 in 100 up to "
            f"{jobs['p99']:.1f}."
        )
    if {"depth-adaptive", "depth-exact"} <= rows.keys():
        deeper = [rows[f"depth-{solver}"]["deeper"] for solver in ("adaptive", "exact")]
        sentences.append(
            f"To partition 126 layers takes {deeper[0]:.2f} times as long as 32, exactly {deeper[1]:.2f} times."
        )
    if "second-plan" in rows:
        sentences.append(f"A process's second plan takes {rows['second-plan']['cpu_s']:.2f} s.")
    if "sweep" in rows:
        sentences.append(f"A sweep on two cores makes {rows['sweep']['plans_per_s']:.1f} plans a second.")
    if "page" in rows:
        one = rows["page"]
        sentences.append(
            f"The page of the plan for 2,048 GPUs has {one['mb']:.1f} MB and is made in {one['cpu_s']:.1f} s."
        )
    return "\n" + "\n".join(sentences) + "\n" if sentences else ""


def write_page(results: Mapping[str, Any], page: Path = PAGE) -> None:
    """Put the table into its page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(TABLE.sub(lambda match: match[1] + table(results) + match[2], text), encoding="utf-8")
