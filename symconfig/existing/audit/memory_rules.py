"""Rules about what is predicted: they need the model of costs, and a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.audit.judge import Judged
from symconfig.existing.rules.rule import Rules
from symconfig.format import gib

EXAMPLE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length {seq} "
    "--max-position-embeddings {seq} --vocab-size 32000 --swiglu --disable-bias-linear --normalization RMSNorm "
    "--position-embedding-type rope --untie-embeddings-and-output-weights --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
)
MEMORY: Rules[Judged] = Rules()


@MEMORY.rule(
    "error",
    "A stage needs more memory than its GPUs have",
    "The peak of what PyTorch allocates on the fullest stage, with what its allocator holds back and what CUDA and "
    "NCCL take, is more than the GPU's memory without the margin (--memory-margin). It is predicted, by the model that "
    "the planner uses, whose error is stated beside it.",
    EXAMPLE.format(seq=8192),
)
def out_of_memory(judged: Judged) -> Iterator[Problem]:
    over, plan = judged.overfull, judged.plan
    predicted = plan.best.predicted
    if not over:
        return
    worst = max(over, key=lambda number: judged.stage_bytes[number])
    where = f"stage {worst}" if plan.best.parallel.pp > 1 else "every GPU"
    others = f", and stages {', '.join(map(str, over))} are too full" if len(over) > 1 else ""
    parts = sorted(predicted.memory.items(), key=lambda item: -item[1])[:2]
    most = " and ".join(f"{name} {gib(value)} GiB" for name, value in parts)
    yield Problem(
        f"runs out of memory on {where}{others}",
        field="memory",
        got=f"{gib(judged.stage_bytes[worst])} GiB, of which {most}",
        need=f"{gib(plan.usable_bytes)} GiB usable of {gib(plan.cluster.gpu.memory_bytes.value)} GiB",
    )


@MEMORY.rule(
    "warning",
    "The prediction of memory is closer to the limit than it is sure",
    "It fits, but nine in ten measured runs lie within an interval around the prediction whose upper end is more than "
    "the GPU has.",
    EXAMPLE.format(seq=5376),
)
def little_room(judged: Judged) -> Iterator[Problem]:
    plan = judged.plan
    if judged.fits and plan.may_not_fit:
        high = plan.best.predicted.interval["device_bytes"][1]
        yield Problem(
            "may run out of memory",
            field="memory",
            got=f"{gib(plan.best.predicted.device_bytes)} GiB, likely up to {gib(high)} GiB",
            need=f"{gib(plan.cluster.gpu.memory_bytes.value)} GiB",
        )
