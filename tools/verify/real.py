"""Every zoo model at a realistic size, planned, rendered and built for real: predicted against real, as a table.

`python -m tools verify real` runs all of them and writes the table of docs/evidence/built.md;
--only TEXT some of them, which are only printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from symconfig.plans.file import load_plan
from symconfig.plans.plan import Plan
from symconfig.units import GIB, MIB
from symconfig.verify.checks import Compared
from tools.pages import EVIDENCE, ROOT, fill, table

JOBS = Path(__file__).with_suffix(".yaml")
PAGE = EVIDENCE / "built.md"
# The columns, each with what the frameworks' checks call it.
QUANTITIES = {
    "parameters": ("parameters", "parameters before ZeRO"),
    "gradient buffers": ("gradient buffers",),
    "optimizer shard": ("optimizer shard", "optimizer state"),
    "activations": ("all of the stage",),
}
CHECKS = {"megatron": ("--build", "--trace"), "deepspeed": ("--build",)}
COMMAND = (sys.executable, "-m", "symconfig")
_KIB = 1024
PADDING = 1e-4  # relative: what is predicted has none


@dataclass(frozen=True, slots=True)
class Judged:
    """One job's folder after `verify --build --trace`.

    ranks: how many were built. peak_bytes: resident, of the largest process.
    """

    job: dict[str, Any]
    plan: Plan
    code: int
    failures: tuple[str, ...]
    ranks: int
    compared: tuple[Compared, ...]
    seconds: float
    peak_bytes: float


def jobs(path: Path = JOBS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def judge(job: dict[str, Any], folder: Path) -> Judged:
    """Plans, writes and verifies one job, each in a process of its own: this one stays small, because a child's peak
    counts its parent's from before it became itself."""
    options = [word for name, value in job.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    subprocess.run(
        [*COMMAND, "plan", *options, "--top", "1", "--out", str(folder), "--json"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    plan = load_plan(folder)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        command = [*COMMAND, "verify", str(folder), *CHECKS[plan.best.target.backend], "--json"]
        process = subprocess.Popen(command, stdout=out, cwd=ROOT)
        _, status, used = os.wait4(process.pid, 0)  # its own peak and that of the processes that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        data = json.loads(out.read() or b"{}")
    checks = data.get("checks", [])
    failures = [f"{check['name']}: {check['detail']}" for check in checks if check["status"] == "failed"]
    failures += [str(problem["what"]) for problem in data.get("problems", [])]
    compared = tuple(Compared(**item) for check in checks for item in check.get("compared", ()))
    ranks = sum(any(item["what"] in QUANTITIES["parameters"] for item in check.get("compared", ())) for check in checks)
    return Judged(
        job,
        plan,
        process.returncode,
        tuple(failures),
        ranks,
        compared,
        time.perf_counter() - started,
        used.ru_maxrss * _KIB,
    )


def markdown(judged: Sequence[Judged]) -> str:
    """One row a model: the largest real number of its ranks, and how far off symconfig is."""
    heads = ("model", "on", "layout", "ranks", *QUANTITIES, "check")
    rows = (
        (
            item.job["model"],
            f"{item.job['gpus']:,} x {item.job['cluster']}",
            _layout(item.plan),
            str(item.ranks),
            *(_cell(_of(item.compared, names)) for names in QUANTITIES.values()),
            f"{'failed, ' if item.code else ''}{item.seconds:.0f} s, {item.peak_bytes / GIB:.2f} GiB",
        )
        for item in judged
    )
    return table(heads, rows)


def _layout(plan: Plan) -> str:
    """Degrees above one."""
    parallel = plan.best.configuration
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")
    return " ".join(f"{name}{value}" for name in names if (value := getattr(parallel, name)) > 1) or "one GPU"


def _of(compared: Iterable[Compared], names: Sequence[str]) -> list[Compared]:
    return [item for item in compared if item.what in names]


def _cell(items: Sequence[Compared]) -> str:
    if not items:
        return "-"
    largest = max(items, key=lambda item: item.real)
    shown = f"{largest.real:,.0f}" if largest.unit == "count" else f"{largest.real / MIB:,.0f} MiB"
    return f"{shown} ({_differences(items)})"


def _differences(items: Sequence[Compared]) -> str:
    """Equal but for padding, or the range of the relative differences."""
    if all(abs(item.difference) < PADDING for item in items):
        return "equal"
    low, high = (100 * pick(item.difference for item in items) for pick in (min, max))
    return f"{low:+.2g} %" if low == high else f"{low:+.2g} to {high:+.2g} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", default="", help="only models whose name holds this; writes nothing")
    arguments = parser.parse_args()
    judged = []
    with tempfile.TemporaryDirectory() as root:
        for job in jobs():
            if arguments.only in job["model"]:
                judged.append(judge(job, Path(root) / job["model"]))
                done = judged[-1]
                said = "; ".join(done.failures) or f"{len(done.compared)} numbers compared"
                print(f"{done.seconds:6.1f} s  {job['model']}: exit {done.code}, {said}", file=sys.stderr)
    print(markdown(judged))
    if not arguments.only:
        fill(PAGE, {"real": markdown(judged)})
    return 0 if all(item.code == 0 for item in judged) else 1
