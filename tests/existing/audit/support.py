"""Readings made of a line of options, without a file, and texts of files in cases/."""

from __future__ import annotations

from pathlib import Path

from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.existing.audit.audit import Audit, audit
from symconfig.existing.launch.reading import Reading, settings
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.run import Supplied

SEVENTY = (
    "--micro-batch-size 1 --global-batch-size 256 --seq-length 8192 --bf16 --tensor-model-parallel-size 8 "
    "--pipeline-model-parallel-size 4 --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1 --use-distributed-optimizer"
)
OVERLAPS = "--sequence-parallel --overlap-grad-reduce --overlap-param-gather"


CASES = Path(__file__).with_name("cases")


def text(name: str) -> str:
    return (CASES / name).read_text(encoding="utf-8")


def reading(line: str) -> Reading:
    words = line.split()
    return Reading("bash", (Text("line", line.encode()),), tuple(settings(words, "line")))


def audited(
    line: str, gpus: int, model: str = "llama3.1-70b", cluster: str = "h100", *, plan: bool = True, margin: float = 0.04
) -> Audit:
    return audit(
        reading(line), Supplied(load_model(model), gpus), load_cluster(cluster), Limits(memory_margin=margin), plan=plan
    )
