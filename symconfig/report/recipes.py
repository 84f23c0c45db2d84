"""`symconfig list recipes`: the list, and one recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symconfig.descriptor.recipe import spelled
from symconfig.format import several
from symconfig.report.grid import Block, Grid

Stated = Mapping[str, Any]  # a recipe as `symconfig list recipes --json` has it


def listed(recipes: Sequence[Stated]) -> list[Block]:
    """Return each recipe's name with its job and layout below, and how many there are."""
    count = several(len(recipes), "recipe")
    if not recipes:
        return [f"{count}. Fewer filters find more."]
    lines = (line for one in recipes for line in (one["id"], f"  {job_words(one)}: {layout_words(one['layout'])}"))
    return [
        "\n".join(lines),
        f"{count}. `symconfig list recipes NAME` shows one, `symconfig plan --like NAME` plans from it.",
    ]


def shown(one: Stated) -> list[Block]:
    """Return the table of everything that a recipe states, with its pins."""
    source = one["source"]
    place = ", ".join(str(source[name]) for name in ("title", "repository", "release") if name in source)
    rows = (
        ("job", job_words(one)),
        ("source", place),
        ("entry", one["entry"]),
        ("framework", one["framework"]),
        ("kind", one["kind"]),
        *((name, spelled(value)) for name, value in one["layout"].items()),
        *((name.replace("_", " "), spelled(value)) for name, value in one["options"].items()),
        ("as pins", " ".join(f"{name}={value}" for name, value in one["pins"].items())),
    )
    return [Grid.pairs(rows, one["id"])]


def job_words(one: Stated) -> str:
    """Return a recipe's job as text: llama3.1-70b on 64 x h100, batch 128, 8,192 tokens, bf16."""
    job = one["job"]
    task = "" if job["task"] == "pretrain" else f", {job['task']}"
    return (
        f"{one['model']} on {job['gpus']:,} x {job['cluster']}, batch {job['global_batch_size']:,}, "
        f"{job['seq_length']:,} tokens, {job['precision']}{task}"
    )


def layout_words(layout: Stated) -> str:
    """Return a layout as text: degrees above 1, micro-batch, ZeRO stage other than 0 and 1, recomputation."""
    degrees = [f"{name} {layout[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp") if layout.get(name, 1) > 1]
    micro = [f"micro {layout['micro']}"] if layout.get("micro") else []
    zero = [f"zero {layout['zero']}"] if layout.get("zero") not in (None, 0, 1) else []
    recomputed = (layout.get("recompute") or "none").partition(":")[0]
    return " ".join([*degrees, *micro, *zero, *([recomputed] if recomputed != "none" else [])])
