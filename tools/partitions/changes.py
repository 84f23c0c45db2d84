"""A model or a batch that changes under a strategy, for docs/evidence/partitions.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import of_cluster
from symconfig.graph.implementation import Implementation
from symconfig.units import GIB
from tools.pages import table
from tools.partitions.cases import Question, Weighed, answer, customary, kept, question


def changes(cluster: str, gpus: int) -> Iterator[tuple[str, Question, Question]]:
    each = gpus
    eager = replace(question("llama2-13b", cluster, gpus, each), how=Implementation().attending("torch"))
    yield "llama2-13b: unfused attention -> flash", eager, replace(eager, how=None)
    dense = question("llama2-7b", cluster, gpus, 4 * each)
    yield "llama2-7b -> mixtral-8x7b", dense, replace(dense, model=load_model("mixtral-8x7b"))
    lora = question("qwen-7b-lora", cluster, gpus, each, 2048)
    yield "qwen-7b-lora: batch x 4 (8 -> 32 on 8 GPUs)", lora, replace(lora, batch=4 * lora.batch)


def adapted(cluster: str, gpus: int) -> Iterator[Sequence[str]]:
    for name, before, after in changes(cluster, gpus):
        old, new = before.solved(), after.solved()
        axes = (
            new.axes
            if new is not None
            else old.axes
            if old is not None
            else of_cluster(after.cluster, after.gpus).axes()
        )
        plans: list[Weighed | str | None] = [kept(old, after) if old is not None else None, customary(after, axes),
                                             answer(new) if new is not None else None]  # fmt: skip
        told = [_speed(after, plan) for plan in plans]
        fit = [p.cost for p in (plans[0], plans[2]) if isinstance(p, Weighed) and p.fits(after.limit_bytes)]
        gain = f"{fit[0] / fit[1]:.2f}" if len(fit) == 2 else "-"
        yield (name, f"{gpus} x {cluster}", *told, gain)


def _speed(asked: Question, plan: Weighed | str | None) -> str:
    if plan is None or isinstance(plan, str):
        return plan or "nothing fits"
    memory = f"{plan.memory / GIB:.0f} GiB"
    if not plan.fits(asked.limit_bytes):
        return f"**out of memory**, {memory}"
    return f"{asked.tokens / plan.cost:,.0f}, {memory}"


def adaptability() -> str:
    rows: list[Sequence[str]] = [("change", "on", "kept", "Megatron's customary", "replanned", "replanned / kept")]
    for cluster in ("h100", "ascend-910b"):
        for gpus in (8, 64):
            rows += list(adapted(cluster, gpus))
    return table(rows[0], rows[1:])
