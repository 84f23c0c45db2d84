"""Tables of pages that show plans: adaptability, columns and speed of sweeps, formulas of a plan.

A function returns the parts of its page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import symconfig
from symconfig.api.planning import PlanResult
from symconfig.report.explanation import formulas, spaced
from symconfig.report.grid import Block, plain
from symconfig.report.whatif import ranges
from symconfig.runs.sweep.columns import COLUMNS
from tools.pages import table

# --- adaptability -----------------------------------------------------------------------------------------------------


# What SymTensor's authors report of each change: the new strategy over the kept one.
CASES = (
    (
        "13B: unfused attention, then flash",
        "1.446",
        "--model llama2-13b --cluster {cluster} --gpus {gpus} --global-batch-size {gpus} --attention unfused",
        "attention=flash",
    ),
    (
        "dense 7B, then Mixtral",
        "2.216",
        "--model llama2-7b --cluster {cluster} --gpus {gpus} --global-batch-size {more}",
        "model=mixtral-8x7b",
    ),
    (
        "LoRA: batch 8, then 32",
        "out of memory, then runs",
        "--model qwen-7b-lora --cluster {cluster} --gpus 8 --global-batch-size 8 --seq-length {length}",
        "global_batch_size=32",
    ),
)
WHERE = (("h100", 8), ("h100", 64), ("a100-80gb", 64), ("a100-40gb", 8))
# Layouts by Megatron's rules of thumb after each change: tensor parallelism fills the node, no expert parallelism,
# and for LoRA a rank's examples are one microbatch.
CUSTOMARY = (
    ("13B with flash attention", "1.446", "--model llama2-13b --gpus 64 --global-batch-size 64", "tp=8 pp=1 zero=1"),
    (
        "13B with flash attention",
        "1.446",
        "--model llama2-13b --gpus 64 --global-batch-size 64",
        "tp=8 pp=2 vpp=1 zero=1",
    ),
    ("Mixtral", "2.216", "--model mixtral-8x7b --gpus 64 --global-batch-size 256", "tp=8 pp=1 ep=1 zero=1"),
    (
        "LoRA, batch 8",
        "runs",
        "--model qwen-7b-lora --gpus 8 --global-batch-size 8 --seq-length 4096",
        "tp=1 pp=1 mbs=1 recompute=none",
    ),
    (
        "LoRA, batch 32",
        "out of memory, then runs",
        "--model qwen-7b-lora --gpus 8 --global-batch-size 32 --seq-length 4096",
        "tp=1 pp=1 mbs=4 recompute=none",
    ),
)


def adaptability() -> dict[str, str]:
    """Return the commands of each case and cluster, and what a kept plan loses in each."""
    head, rows = ("change", "published", "on", "kept", "replanned", "gain"), []
    shown = []
    for name, published, words, change in CASES:
        for cluster, gpus in WHERE:
            if "--gpus 8 " in words and gpus != 8:
                continue
            line = words.format(cluster=cluster, gpus=gpus, more=4 * gpus, length=4096)
            answer = _run(line, change)
            if answer is None:
                rows.append((name, published, f"{gpus} x {cluster}", "nothing fits before the change", "", ""))
                continue
            (case,) = json.loads(answer)["changes"]
            kept, replanned = _told(case["kept"]), _told(case["replanned"])
            rows.append((name, published, f"{gpus} x {cluster}", kept, replanned, _gain(case)))
            if (cluster, gpus) == WHERE[1]:
                shown += [f"symconfig plan {line} --out run", f"symconfig whatif run --change {change}"]
    commands = "\n".join(shown)
    changes = table(head, rows, (1, 5))
    return {"commands": f"```bash\n{commands}\n```", "changes": changes, "customary": _customary()}


def _customary() -> str:
    """Return a table of the tokens per second of CUSTOMARY layouts and of what `symconfig plan` finds instead."""
    rows = []
    for name, published, words, layout in CUSTOMARY:
        for cluster in ("h100", "a100-80gb"):
            job = ["--cluster", cluster, *words.split()]
            pins = [word for pin in layout.split() for word in ("--pin", pin)]
            kept, found = _tokens_per_s([*job, *pins]), _tokens_per_s(job)
            told = [f"{speed:,.0f} tokens/s" if speed else "out of memory" for speed in (kept, found)]
            gain = f"{found / kept:.3f}" if found and kept else "runs again" if found else ""
            rows.append((name, published, f"{words.split()[3]} x {cluster}", f"`{layout}`", *told, gain))
    return table(("job", "published", "on", "layout", "with it", "planned", "gain"), rows, (1, 6))


def _tokens_per_s(words: list[str]) -> float | None:
    """Return the tokens per second of all GPUs of a job's first plan, None if nothing fits."""
    command = [sys.executable, "-m", "symconfig", "plan", *words, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise RuntimeError(ended.stderr)
    if ended.returncode == 1:
        return None
    speed: float = json.loads(ended.stdout)["best"]["predicted"]["tokens_per_s_per_gpu"]
    return speed * int(words[words.index("--gpus") + 1])


def _run(line: str, change: str) -> str | None:
    command = [sys.executable, "-m", "symconfig"]
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        ended = subprocess.run([*command, "plan", *line.split(), "--json"], capture_output=True, text=True, check=False)
        if ended.returncode:
            return None
        plan.write_text(ended.stdout, encoding="utf-8")
        words = [*command, "whatif", str(plan), "--change", change, "--json"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def _told(one: dict[str, object]) -> str:
    return f"{one['tokens_per_s']:,.0f} tokens/s" if one["plan"] else "does not run"


def _gain(change: dict[str, Any]) -> str:
    gain = change["gain"]
    return f"{gain:.3f}" if isinstance(gain, float) else "runs again" if change["replanned"]["plan"] else ""


# --- sweep ------------------------------------------------------------------------------------------------------------


def columns() -> str:
    """One row a column."""
    return table(("column", "what it is"), ((f"`{column.name}`", column.says) for column in COLUMNS))


def sweep() -> dict[str, str]:
    """Return the columns of now."""
    return {"columns": columns()}


# --- symbols ----------------------------------------------------------------------------------------------------------


JOB = {"model": "llama3.1-8b", "cluster": "h100", "gpus": 16, "global_batch_size": 256}
WIDTH = 120
LONGEST = 400
VARY = ("global_batch_size=64..4096", "network=0.5..2x")


def symbols() -> dict[str, str]:
    """Return the plan's formulas of parts of the step and of the first stage's memory, its symbols, and where it stays
    the best. Formulas of more than LONGEST letters are left out.
    """
    result = symconfig.plan(**JOB)
    symbolic = result.symbolic()
    *noted, symbol_table = formulas(symbolic)
    parts = (*symbolic.seconds.values(), *next(iter(symbolic.bytes), {}).values())
    tops = {term.line for term in parts if hasattr(term, "line")}
    written = {one: symbolic.formulas.text(one.line) for one in symbolic.formulas if one.line in tops}
    lines = [
        f"{one.name} = {spaced(text)}\n  = {one.value:.6g}" for one, text in written.items() if len(text) <= LONGEST
    ]
    shown_formulas = ["\n".join(lines), *noted[1:]]
    shown = {"formulas": shown_formulas, "symbols": [symbol_table], "ranges": _ranges(result)}
    return {name: f"```\n{plain(blocks, WIDTH).rstrip()}\n```\n" for name, blocks in shown.items()}


def _ranges(result: PlanResult) -> list[Block]:
    return ranges(symconfig.whatif(result, list(VARY)))
