"""Turn a collection of published layouts into model_zoo/recipes: `python -m tools recipes-import FOLDER`.

The collection (schema symconfig.recipes/1) has one file a source, as its README says. Kept are rows of models and
clusters of the zoo that state GPUs, batch and sequence and that can run; of those that are the same job with the same
layout, the first in the order of ORDER, bf16 before other precisions.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.recipe import ENDS_AS_LAYERS
from symconfig.plans.pipeline_layout import expanded
from tools.pages import ROOT

ZOO = ROOT / "model_zoo" / "recipes"
# The newest and the tuned before the older and the shipped.
ORDER = (
    "megatron_bridge_perf_v0.6.0",
    "megatron_moe_recipes",
    "megatron_moe_model_zoo",
    "megatron_bridge_perf_v0.4.0",
    "megatron_bridge_perf_v0.2.0",
    "nemo_performance",
    "megatron_bridge_library_v0.6.0",
    "nemo_library",
    "megatron_examples",
    "papers",
    "torchtitan",
    "llm_foundry",
    "nemo_automodel",
    "amd_primus",
    "ascend_mindspeed",
)
DUALPIPE = "DualPipe"
MODULES = {"rmsnorm": "layernorm"}  # words of papers for what is recomputed
# Degrees that a row lacks, by its id. Megatron-LM's files of them (examples/moe_recipes/qwen3_235b, 256f6065 and
# 6cb71dbc) state num_layers_per_virtual_pipeline_stage, 3 and 2, of 96 places on 8 and on 4 stages.
LEFT_OUT: Mapping[str, Mapping[str, int]] = {
    "mlm-recipe-qwen3-235b-a22b-h100-bf16-256gpu-tp2pp8ep32": {"vpp": 4},
    "mlm-recipe-qwen3-235b-a22b-b200-mxfp8-128gpu-tp2pp4ep16": {"vpp": 12},
}
MODELS = {
    "meta-llama/Meta-Llama-3-8B": "llama3.1-8b",  # but for rotary embeddings the same sizes
    "meta-llama/Meta-Llama-3.1-8B": "llama3.1-8b",
    "meta-llama/Meta-Llama-3-70B": "llama3.1-70b",
    "meta-llama/Meta-Llama-3.1-70B": "llama3.1-70b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3.1-70b",
    "meta-llama/Meta-Llama-3.1-405B": "llama3.1-405b",
    "meta-llama/Llama-3.1-405B": "llama3.1-405b",
    "meta-llama/Llama-2-7b-hf": "llama2-7b",
    "meta-llama/Llama-2-13b-hf": "llama2-13b",
    "meta-llama/Llama-2-70b-hf": "llama2-70b",
    "GPT-3 175B": "gpt3-175b",
    "GPT-175B (MegaScale)": "gpt3-175b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    "Qwen/Qwen2.5-72B": "qwen2.5-72b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "mistralai/Mixtral-8x22B-v0.1": "mixtral-8x22b",
}
DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")
CP_COMM = {"a2a": "a2a", "allgather": "all_gather", "all_gather": "all_gather", "p2p": "p2p", "ulysses_cp_algo": "a2a"}
FUSED_LOSSES = {"te": True, "native": False, False: False}  # a row that says true does not say whose
_PER_STAGE = re.compile(r"layers per stage ([\d,]+)")


class Unusable(Exception):
    """A row that is left out, and why."""


def converted(row: Mapping[str, Any], clusters: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the zoo model and the recipe of a row, without its source. Raises Unusable."""
    asked, cluster, batch = row["model"], row.get("cluster") or {}, row.get("batch") or {}
    if row["task"] not in ("pretrain", "sft"):
        raise Unusable(f"task {row['task']}: adapters, and training with generation")
    model = MODELS.get(asked.get("hf_id") or asked["name"])
    if model is None:
        raise Unusable(f"a model that the zoo lacks ({asked['kind']})")
    gpus = cluster.get("train_gpus", cluster.get("gpus"))
    if None in (cluster.get("gpu"), gpus, batch.get("global"), batch.get("seq_length"), row.get("parallel")):
        raise Unusable("no GPU type, number of GPUs, batch, sequence or degrees stated")
    if cluster["gpu"] not in clusters:
        raise Unusable("a GPU that the zoo lacks")
    job = {
        "cluster": clusters[cluster["gpu"]],
        "gpus": gpus,
        "global_batch_size": batch["global"],
        "seq_length": batch["seq_length"],
        "precision": (row.get("precision") or {}).get("name", "bf16"),
        "task": row["task"],
    }
    layout = _layout(row, model)
    _check(model, job, layout)
    recipe = {"id": row["id"], "framework": _framework(row), "entry": _entry(row), "kind": row["kind"]}
    return model, {**recipe, "job": job, "layout": layout, "options": _options(row)}


def _layout(row: Mapping[str, Any], model: str) -> dict[str, Any]:
    degrees, found = row["parallel"] | LEFT_OUT.get(row["id"], {}), dict[str, Any]()
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp"):
        if degrees.get(name) not in (None, 1, "none"):
            found[name] = degrees[name]
    if (micro := row["batch"].get("micro")) is not None:
        found["micro"] = micro
    if found.get("tp", 1) > 1 and degrees.get("sp") is not None:
        found["sp"] = degrees["sp"]
    if (zero := (row.get("sharding") or {}).get("zero_stage")) is not None:
        found["zero"] = zero
    if again := row.get("recompute"):
        found["recompute"] = _recompute(again)
    if stages := _stages(row.get("layout"), found.get("pp", 1), model):
        found["stages"] = stages
    if not all(isinstance(value, int | str) for value in found.values()):
        raise Unusable("a degree that is no number")
    return found


def _recompute(again: Mapping[str, Any]) -> str:
    granularity = again.get("granularity", "none")
    if granularity == "full" and again.get("method") == "block" and again.get("layers"):
        return f"full:block:{again['layers']}"
    known = [MODULES.get(name, name) for name in again.get("modules") or () if name not in ("swiglu",)]
    return f"selective:{','.join(known)}" if granularity == "selective" and known else str(granularity)


def _stages(text: Any, pp: int, model: str) -> str | None:
    """Return Megatron's layout string of what a row says of its stages; None: nothing, or nothing that it can say."""
    if not isinstance(text, str) or pp == 1:
        return None
    if text == "account_for_embedding_and_loss":
        return ENDS_AS_LAYERS
    if counts := _PER_STAGE.fullmatch(text):
        layers = counts[1].split(",")
        last = "m" * (_sizes(model).num_nextn_predict_layers or 0) + "L"
        return "|".join([f"Et*{layers[0]}", *(f"t*{count}" for count in layers[1:-1]), f"t*{layers[-1]}{last}"])
    return text.replace(",", "") if text.startswith("E") else None


def _options(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the switches that symconfig has a word for."""
    comm, flags = row.get("comm") or {}, row.get("flags") or {}
    own = _own(comm, flags)
    found = {
        "dispatcher": next((name for name in DISPATCHERS if str(comm.get("dispatcher", "")).startswith(name)), None),
        "tp_comm": None if "tp_comm" in own else comm.get("tp_comm"),
        "moe_overlap": None if "moe_a2a" in own else comm.get("moe_a2a"),
        "grad_reduce": _switch(comm.get("grad_reduce")),
        "param_gather": _switch(comm.get("param_gather")),
        "cp_comm": CP_COMM.get(str(comm.get("cp_comm"))),
        "cuda_graphs": _graphs(row.get("cuda_graphs") or {}),
        "gradients": (row.get("grads") or {}).get("reduce"),
        "fp8_param_gather": (row.get("precision") or {}).get("fp8_param_gather"),
        "fused_loss": FUSED_LOSSES.get(flags.get("cross_entropy_fusion")),
        "fsdp": (row.get("sharding") or {}).get("fsdp"),
        "offload": ", ".join(f"{name} {value}" for name, value in (row.get("offload") or {}).items()) or None,
        "manual_gc": flags.get("manual_gc_interval"),
        "own": ", ".join(own.values()) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _own(comm: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    """Return overlaps that are none of Megatron-LM's, by the key that would say they are: MindSpeed's products in
    pieces need no user buffers, and neither its pairs of passes nor DualPipe need several chunks a stage."""
    named = {key: comm[key] for key in ("tp_comm", "moe_a2a") if isinstance(comm.get(key), str)}
    return named | ({"moe_a2a": DUALPIPE} if flags.get("pp_schedule") == DUALPIPE else {})


def _switch(value: Any) -> bool | None:
    """Return whether something that is off, on, or on in a certain way is on."""
    return None if value is None else value not in (False, "none")


def _graphs(graphs: Mapping[str, Any]) -> str | None:
    if not graphs or graphs.get("impl") == "none" or graphs.get("enabled") is False:
        return "none" if graphs else None
    whole = "full_iteration" if graphs.get("impl") == "full_iteration" else "on"
    return ", ".join(graphs.get("scope") or ()) or whole


@cache
def _sizes(model: str) -> ModelDescriptor:
    return load_model(model)


def _check(model: str, job: Mapping[str, Any], layout: Mapping[str, Any]) -> None:
    """Raises Unusable for what cannot run."""
    tp, pp, vpp, cp, ep, etp = (layout.get(name, 1) for name in ("tp", "pp", "vpp", "cp", "ep", "etp"))
    ranks, left = divmod(job["gpus"], pp)
    dp, rest = divmod(ranks, tp * cp)
    if left or rest or not dp:
        raise Unusable("degrees that do not multiply to the GPUs")
    if ranks % (ep * etp):
        raise Unusable("more expert ranks than a stage has, or not a divisor of them")
    if job["global_batch_size"] % (dp * (layout.get("micro") or 1)):
        raise Unusable("a batch that the data-parallel ranks do not divide")
    sizes = _sizes(model)
    experts = sizes.experts.num_experts if sizes.experts else 1
    if experts % ep or sizes.num_attention_heads % tp:
        raise Unusable("ranks that do not divide heads or experts")
    stages = layout.get("stages")
    if stages not in (None, ENDS_AS_LAYERS):
        chunks = expanded(stages)
        layers = sum(chunk.count("t") for chunk in chunks)
        if len(chunks) != pp * vpp or layers != sizes.num_hidden_layers:
            raise Unusable("a layout string of another number of chunks or layers")


def _framework(row: Mapping[str, Any]) -> str:
    framework = row.get("framework") or {}
    return " ".join(str(framework[name]) for name in ("name", "version") if name in framework) or "not stated"


def _entry(row: Mapping[str, Any]) -> str:
    source = row["source"]
    return " ".join(str(source[name]) for name in ("path", "entry") if name in source) or row["id"]


def rows(folder: Path) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield every row with the name and the head of its file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    names = {path.stem: path for path in folder.glob("*.yaml")}
    for name in (*ORDER, *sorted(names.keys() - set(ORDER))):
        data = yaml.load(names[name].read_text(encoding="utf-8"), loader)
        for row in sorted(data["recipes"], key=lambda row: (row.get("precision") or {}).get("name") != "bf16"):
            yield name, data["source"], row


def gathered(folder: Path) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """Return the files by model, and how many rows were left out, by why."""
    clusters = {alias: name for name in zoo_clusters() for alias in (name, *load_cluster(name).aliases)}
    files, out, seen = dict[str, dict[str, Any]](), Counter[str](), set[str]()
    for name, head, row in rows(folder):
        try:
            model, recipe = converted(row, clusters)
        except Unusable as why:
            out[str(why)] += 1
            continue
        key = _key(model, recipe)
        if key in seen:
            out["the same job and layout in another precision, release or source"] += 1
            continue
        seen.add(key)
        file = files.setdefault(model, {"sources": {}, "recipes": []})
        source = row["source"]
        release = source.get("release") or source.get("commit") or head.get("release")
        title = source.get("title") or head["title"]
        short = f"{name.split('_v')[0].replace('_', '-')}"
        if name == "papers":
            short, release = re.sub(r"[^a-z0-9]+", "-", title.lower())[:40].strip("-"), release or recipe["entry"]
        short = short if name == "papers" else f"{short}-{str(release or head['commit'])[:12]}"
        repository = source.get("repository") or head.get("repository")
        file["sources"][short] = {
            "title": title,
            **({"repository": repository} if repository not in (None, "none") else {}),
            "release": str(release or head["commit"]),
        }
        file["recipes"].append({"id": recipe.pop("id"), "source": short, **recipe})
    return files, out


def _key(model: str, recipe: Mapping[str, Any]) -> str:
    """Return what tells recipes apart: not what one states and another leaves to the same default."""
    job = {field: value for field, value in recipe["job"].items() if field != "precision"}
    layout = {field: value for field, value in recipe["layout"].items() if field != "sp"}
    layout |= {"recompute": layout.get("recompute", "none"), "zero": layout.get("zero") in (2, 3)}
    return repr((model, sorted(job.items()), sorted(layout.items())))


def written(model: str, file: Mapping[str, Any]) -> str:
    """Return a file of recipes as a person writes it: a line for what belongs together."""
    lines = ["schema: symconfig.recipes/2", f"model: {model}", "sources:"]
    lines += [f"  {name}: {_flow(source)}" for name, source in sorted(file["sources"].items())]
    lines.append("recipes:")
    by_cluster = sorted(file["recipes"], key=lambda recipe: (recipe["job"]["cluster"], recipe["job"]["gpus"]))
    for cluster, group in groupby(by_cluster, key=lambda recipe: recipe["job"]["cluster"]):
        lines.append(f"# {cluster}")
        for recipe in group:
            inner = [f"{name}: {value if isinstance(value, str) and _plain(value) else _flow(value)}"
                     for name, value in recipe.items() if value != {}]  # fmt: skip
            lines.append("- " + "\n  ".join(inner))
    return "\n".join(lines) + "\n"


def _plain(text: str) -> bool:
    return bool(yaml.safe_load(f"a: {text}") == {"a": text}) if ": " not in text and "#" not in text else False


def _flow(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    files, out = gathered(parser.parse_args().folder)
    ZOO.mkdir(exist_ok=True)
    for old in ZOO.glob("*.yaml"):
        old.unlink()
    for model, file in files.items():
        (ZOO / f"{model}.yaml").write_text(written(model, file), encoding="utf-8")
        print(f"{len(file['recipes']):4} {model}")
    print(f"{sum(len(file['recipes']) for file in files.values())} recipes; left out:", file=sys.stderr)
    for why, count in out.most_common():
        print(f"{count:5} {why}", file=sys.stderr)
