"""Write the layouts that others published, and the best measured runs: `python -m tools generate published`.

model_zoo/published.csv lists the distinct layouts of the collections in ../shared/recipes; model_zoo/measured.csv holds
the fastest measured run of each model, GPU, task, precision, number of GPUs and sequence in ../shared/truth*, and
model_zoo/real_data.csv those that fine-tuned on packed real data, with what they took over what is predicted.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.descriptor.measurements import Row, load_measurements
from symconfig.errors import SymconfigError
from symconfig.graph.model import parameters
from symconfig.measured.judge import judge
from symconfig.solve.usual import MEASURED, PUBLISHED, REAL_DATA, Best, Layout, RealData
from tools.pages import ROOT

SHARED = ROOT.parent / "shared"
ZOO = ROOT / "model_zoo"
OTHERS = re.compile(r"titan|llm-foundry|automodel|llama-factory|fsdp|deepspeed|neox|hai-llm|ms-swift$|^$")
FLEX = re.compile(r"deepep|hybridep|flex")
# Whose fine-tuning is on real data, and its longest sequence that is compared: beyond it runs are slow for reasons that
# are not printed.
ON_REAL_DATA, LONGEST = "megatron_bridge_cards", 16384
TUNED = ("sft", "lora", "qlora", "dpo", "kto", "rm", "cpo", "orpo", "simpo")


def main() -> None:
    """Write both tables; leave them as they are where the collections are not there."""
    if not SHARED.is_dir():
        return
    _write(PUBLISHED, Layout._fields, sorted(_layouts(), key=_sorted))
    _write(MEASURED, Best._fields, sorted(_best(), key=_sorted))
    _write(REAL_DATA, RealData._fields, sorted(_on_real_data(), key=_sorted))


def _write(name: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with (ZOO / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _sorted(row: Iterable[object]) -> tuple[str, ...]:
    return tuple(f"{each:012.3f}" if isinstance(each, int | float) else str(each) for each in row)


def _generations() -> dict[str, str]:
    """Return the architecture of each GPU by the names that sources have for it."""
    clusters = [load_cluster(name) for name in zoo_clusters()]
    return {name: each.gpu.architecture for each in clusters for name in (each.name, *each.aliases)}


def _layouts() -> Iterator[Layout]:
    generations, seen = _generations(), set[tuple[Any, ...]]()
    for path in sorted((SHARED / "recipes").glob("*.yaml")):
        for row in yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)["recipes"]:
            if (found := _layout(row, generations)) is not None:
                seen.add(found)
    yield from (Layout(*row) for row in seen)


def _layout(row: Mapping[str, Any], generations: Mapping[str, str]) -> tuple[Any, ...] | None:
    """Return one row of a collection as a layout; None where it states no size, degrees or micro-batch."""
    model, degrees, batch = row["model"], row.get("parallel") or {}, row.get("batch") or {}
    sizes = [degrees.get(name, 1) for name in ("tp", "pp", "vpp", "cp", "ep")]
    sizes = [1 if size in (None, "none") else size for size in sizes]
    numbers = (model.get("params_b"), batch.get("micro"), batch.get("seq_length"), *sizes)
    if not all(isinstance(number, int | float) for number in numbers) or row["task"] not in ("pretrain", *TUNED):
        return None
    framework = (row.get("framework") or {}).get("name") or ""
    communication, graphs = row.get("comm") or {}, (row.get("cuda_graphs") or {}).get("impl")
    return (
        generations.get((row.get("cluster") or {}).get("gpu"), ""),
        int("moe" in model.get("kind", "")),
        "pretrain" if row["task"] == "pretrain" else "lora" if "lora" in row["task"] else "sft",
        "other" if OTHERS.search(framework) else "megatron",
        float(f"{model['params_b']:.2g}"),
        *sizes,
        batch["micro"],
        batch["seq_length"],
        (row.get("recompute") or {}).get("granularity") or "",
        int(graphs not in (None, "none")),
        int(bool(FLEX.match(str(communication.get("dispatcher"))))),
        int(communication.get("tp_comm") is True),
    )


def _best() -> Iterator[Best]:
    best: dict[tuple[object, ...], Best] = {}
    for path in sorted(SHARED.glob("truth*/*.yaml"), key=lambda path: (path.parent.name, path.name)):
        for found in _runs(path):
            key = (*found[: Best._fields.index("tp")],)
            if key not in best or found.tokens_per_s_per_gpu > best[key].tokens_per_s_per_gpu:
                best[key] = found
    yield from best.values()


def _on_real_data() -> Iterator[RealData]:
    for path in SHARED.glob(f"truth*/{ON_REAL_DATA}.yaml"):
        for title, row, judged in _judged(path):
            c, (predicted, seconds) = judged.case.configuration, judged.time
            if row.task in TUNED and c.seq_length <= LONGEST:
                gpu, gpus = judged.case.cluster.gpu.product, c.world_size
                ratio = float(f"{seconds / predicted:.3g}")
                yield RealData(judged.case.model.name, gpu, gpus, row.task, c.seq_length, ratio, title)


def _judged(path: Path) -> Iterator[tuple[str, Row, Any]]:
    """Yield the title, and each row whose step is measured with its prediction."""
    file = load_measurements(path)
    for row in file.rows:
        with suppress(SymconfigError):
            judged = judge(path.stem, row)
            if judged.time is not None and row.measured.stage_forward_ms is None:
                yield str(file.source["title"]).partition(":")[0], row, judged


def _runs(path: Path) -> Iterator[Best]:
    for title, row, judged in _judged(path):
        c, model = judged.case.configuration, judged.case.model
        yield Best(
            model=model.name,
            parameters=parameters(model, with_mtp=False).total,
            layers=model.num_hidden_layers,
            gpu=judged.case.cluster.gpu.product,
            gpus=c.world_size,
            task=row.task,
            precision=str(c.precision),
            seq_length=c.seq_length,
            tp=c.tp,
            pp=c.pp,
            vpp=c.vpp,
            cp=c.cp,
            ep=c.ep,
            micro=c.micro,
            tokens_per_s_per_gpu=float(f"{c.global_batch * c.seq_length / c.world_size / judged.time[1]:.4g}"),
            source=title,
        )
