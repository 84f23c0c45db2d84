"""What `symconfig list` shows of models, clusters, recipes and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from symconfig.descriptor.cluster import NETWORK, ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.recipe import spelled
from symconfig.errors import Problem, SymconfigError
from symconfig.format import count, gb_per_s, grouped, picked, several
from symconfig.graph.model import parameters
from symconfig.plans.plan import Plan
from symconfig.render import every_launcher, overlaid, render
from symconfig.render import targets as every_target
from symconfig.report.grid import Block, Grid
from symconfig.units import GIB

Stated = Mapping[str, Any]  # a line or a recipe as `symconfig list recipes --json` has it


def cluster_line(cluster: ClusterDescriptor) -> dict[str, Any]:
    """Return a cluster's summary. Rates are of one GPU and one direction; peak_flops: dense, bf16, or fp16 without
    bf16; link: the fastest, within its node or rack; the network's rate is None without a network.
    """
    inner, gpu = cluster.levels[0], cluster.gpu
    network = next((level for level in cluster.levels if level.name in NETWORK), None)
    return {
        "name": cluster.name,
        "gpu": gpu.product,
        "gpus_per_node": cluster.gpus_per_node,
        "memory_bytes": gpu.memory_bytes.value,
        "peak_flops": (gpu.peak_flops.bf16 or gpu.peak_flops.fp16).value,
        "link": inner.name,
        "link_bytes_per_s": inner.bandwidth_bytes_per_s.value,
        "network_bytes_per_s": network.bandwidth_bytes_per_s.value if network is not None else None,
    }


def model_line(model: ModelDescriptor) -> dict[str, Any]:
    """Return a model's summary: name, huggingface_id, task ("lora" with an adapter, else "pretrain"), total, active
    (for one token) and trainable parameters, layers, hidden_size, max_position_embeddings, num_experts (None: dense).
    """
    total = parameters(model)
    return {
        "name": model.name,
        "huggingface_id": model.huggingface_id,
        "task": "pretrain" if model.adapter is None else "lora",
        "parameters": total.total,
        "active_parameters": total.active,
        "trainable_parameters": total.trainable,
        **picked(model, "num_hidden_layers", "hidden_size", "max_position_embeddings"),
        "num_experts": model.experts.num_experts if model.experts is not None else None,
    }


def cluster_list(lines: Sequence[Stated]) -> list[Block]:
    """Return the table of clusters (name, GPU, memory in GiB, peak in TFLOP/s, GPUs of a node, rates of links and
    network in GB/s or "none") and a text on its columns.
    """
    rows = (
        {
            "name": one["name"],
            "GPU": one["gpu"],
            "GiB": f"{one['memory_bytes'] / GIB:.1f}",
            "TFLOP/s": f"{one['peak_flops'] / 1e12:,.0f}",
            "a node": str(one["gpus_per_node"]),
            "link": gb_per_s(one["link_bytes_per_s"]),
            "network": "none" if one["network_bytes_per_s"] is None else gb_per_s(one["network_bytes_per_s"]),
        }
        for one in lines
    )
    return [
        Grid.of(rows, words=("name", "GPU")),
        "TFLOP/s: dense, bf16 (fp16 where there is no bf16). a node: its GPUs. link, network: GB/s of a GPU in one "
        "direction, within its node or rack and between them.\n"
        "`symconfig list clusters NAME` shows one with its sources; `--set network=4x200Gb/s` changes one.",
    ]


def model_list(lines: Sequence[Stated]) -> list[Block]:
    """Return the table of models (name, parameters, active ones, layers, hidden size, longest sequence, experts,
    adapter; the last two "" without) and a text on its columns.
    """
    rows = (
        {
            "name": one["name"],
            "parameters": _parameters(one["parameters"]),
            "active": _parameters(one["active_parameters"]),
            "layers": str(one["num_hidden_layers"]),
            "hidden": count(one["hidden_size"]),
            "tokens": count(one["max_position_embeddings"]),
            "experts": str(one["num_experts"] or ""),
            "adapter": "" if one["task"] == "pretrain" else one["task"],
        }
        for one in lines
    )
    return [
        Grid.of(rows, words=("name", "adapter")),
        "active: parameters used by one token. tokens: the longest sequence.\n"
        "`symconfig list models NAME` shows one; `--model PATH` takes the config.json of any other.",
    ]


def model_sizes(model: ModelDescriptor) -> str:
    """Return a line with a model's total and active parameters, and the trainable ones if not all are trained."""
    size = parameters(model)
    trained = f", {count(size.trainable)} trained" if size.trainable != size.total else ""
    return (
        f"{count(size.total)} parameters ({_parameters(size.total)}), {count(size.active)} active for a token{trained}"
    )


def _parameters(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e8 else f"{number / 1e6:.0f} M"


def recipe_list(recipes: Sequence[Stated]) -> list[Block]:
    """Return each recipe's name with its job and layout below, and how many there are; one sentence for none."""
    found = several(len(recipes), "recipe")
    if not recipes:
        return [f"{found}. Fewer filters find more."]
    lines = (line for one in recipes for line in (one["id"], f"  {job_words(one)}: {layout_words(one['layout'])}"))
    return [
        "\n".join(lines),
        f"{found}. `symconfig list recipes NAME` shows one, `symconfig plan --like NAME` plans from it.",
    ]


def recipe_table(one: Stated) -> list[Block]:
    """Return [the table of a recipe]: job, source, place in it, framework, layout, options, and pins that give its
    layout.
    """
    source = one["source"]
    rows = (
        ("job", job_words(one)),
        ("source", ", ".join(str(source[name]) for name in ("title", "repository", "release") if name in source)),
        *((name, one[name]) for name in ("entry", "framework", "kind")),
        *((name, spelled(value)) for name, value in one["layout"].items()),
        *((name.replace("_", " "), spelled(value)) for name, value in one["options"].items()),
        ("as pins", " ".join(f"{name}={value}" for name, value in one["pins"].items())),
    )
    return [Grid(("", ""), rows, left=(0, 1), title=one["id"])]


def job_words(one: Stated) -> str:
    """Return a recipe's job as text, without "pretrain": llama3.1-70b on 64 x h100, batch 128, 8,192 tokens, bf16."""
    job = one["job"]
    task = "" if job["task"] == "pretrain" else f", {job['task']}"
    return (
        f"{one['model']} on {job['gpus']:,} x {job['cluster']}, batch {job['global_batch_size']:,}, "
        f"{job['seq_length']:,} tokens, {job['precision']}{task}"
    )


def layout_words(layout: Stated) -> str:
    """Return a layout as text: degrees above 1, micro-batch, ZeRO stage other than 0 and 1, kind of recompute but
    "none".
    """
    degrees = [f"{name} {layout[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "etp") if layout.get(name, 1) > 1]
    micro = [f"micro {layout['micro']}"] if layout.get("micro") else []
    zero = [f"zero {layout['zero']}"] if layout.get("zero") not in (None, 0, 1) else []
    recomputed = (layout.get("recompute") or "none").partition(":")[0]
    return " ".join([*degrees, *micro, *zero, *([recomputed] if recomputed != "none" else [])])


def targets(plan: Plan | None, templates: Path | None) -> tuple[dict[str, Any], list[Block]]:
    """Return (JSON, tables) of targets and launchers; with a plan also whether each target can express it ("another":
    only this plan's choices are in the way), and why others cannot. templates: a folder of folders by target's name,
    whose templates replace built-in ones; it adds no target. Raises InputError for an invalid folder, also for one with
    a folder that is no target's.
    """
    known = every_target() if templates is None else overlaid(templates)
    problems = {name: () if plan is None else _problems(plan, name, templates) for name in known}
    # Only this plan's choices are in the way, so that the target could express another plan.
    another = {name: bool(each) and all(problem.pins for problem in each) for name, each in problems.items()}
    launchers = [(name, source.does) for name, source in every_launcher().items()]
    data, rows = list[dict[str, Any]](), list[dict[str, str]]()
    for name, each in problems.items():
        judged = {"carries": not each, "another": another[name], "reasons": list(map(str, each))}
        fits = {"this plan": "another" if another[name] else "no" if each else "yes"}
        data.append({"name": name, "does": known[name].does, **({} if plan is None else judged)})
        rows.append({"target": name, **({} if plan is None else fits), "writes": known[name].does})
    blocks: list[Block] = [Grid.of(rows, "Targets (--target)", words=tuple(rows[0]))]
    if any(another.values()):
        blocks.append("another: symconfig replan PLAN.json --target T finds the best plan that it supports.")
    blocks.append(Grid(("launcher", "writes"), tuple(launchers), left=(0, 1), title="Launchers (--launcher)"))
    reasons = grouped((str(problem), name) for name, each in problems.items() for problem in each)
    if reasons:
        why = tuple((", ".join(names), text) for text, names in reasons.items())
        blocks.append(Grid(("target", "does not support"), why, left=(0, 1), title="Why not"))
    starts = [{"name": name, "does": does} for name, does in launchers]
    return {"schema": "symconfig.formats/1", "targets": data, "launchers": starts}, blocks


def _problems(plan: Plan, target: str, templates: Path | None) -> tuple[Problem, ...]:
    try:
        render(plan, target, (), templates)
    except SymconfigError as error:
        return error.problems
    return ()
