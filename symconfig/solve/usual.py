"""What published layouts of such models on such GPUs have, the fastest measured runs of a model, and how much longer
than predicted fine-tuning on real data took.

All are tables of model_zoo (`python -m tools generate published`): one row a distinct layout, a best run, a run.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, log2
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from symconfig.cost.lattice import Array
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.model import parameters
from symconfig.plans.configuration import Configuration
from symconfig.resources import data_dir

SAME_SIZE = 0.02  # relative difference in parameters of one model, from vocabulary padding
UNPROVEN = 1.2  # times the best measured rate: a plan predicted to be faster is marked as unproven
PUBLISHED, MEASURED, REAL_DATA = "published.csv", "measured.csv", "real_data.csv"
ENOUGH = 8  # fewest layouts for a quantile
QUANTILE, RARE = 0.97, 0.03
DOUBLINGS = (1.0, 2.0, inf)  # of a model's size: layouts of models this close are taken, the closest first
# Factor on the time for 0, 1, 2, 3 or more unusual choices: how much longer than predicted such runs took, from dense
# measured rows; those with experts are too few to say anything else.
PREMIUM = (1.0, 1.04, 1.13, 1.18)
FLAGS = {"graphs": "CUDA graphs", "flex": "flex dispatcher", "user_buffers": "user buffers"}


class Layout(NamedTuple):
    """One published layout; a field that is not stated is empty.

    generation: the GPU's architecture; backend: megatron or other; recompute: none, selective or full; switches are 0
    or 1.
    """

    generation: str
    experts: int
    task: str
    backend: str
    billions: float
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    micro: int
    seq_length: int
    recompute: str
    graphs: int
    flex: int
    user_buffers: int


class Best(NamedTuple):
    """The fastest measured run of a model on one GPU product for one job. source: the title of its source."""

    model: str
    parameters: int
    layers: int
    gpu: str
    gpus: int
    task: str
    precision: str
    seq_length: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    micro: int
    tokens_per_s_per_gpu: float
    source: str


class RealData(NamedTuple):
    """A run of fine-tuning on packed real data. ratio: measured over predicted seconds."""

    model: str
    gpu: str
    gpus: int
    task: str
    seq_length: int
    ratio: float
    source: str


Row = TypeVar("Row", Layout, Best, RealData)


@dataclass(frozen=True, kw_only=True, slots=True)
class Usual:
    """What published layouts have. largest: 97 % quantiles of degrees, `micro-batch` and `tokens`.

    tokens: of a micro-batch on one context-parallel rank. rare: switches and kinds of recompute that fewer than 3 %
    have; joined: number of GPUs that fast links join; seq_length: of the job.
    """

    largest: Mapping[str, float]
    rare: frozenset[str]
    joined: int
    seq_length: int

    def rare_choices(self, c: Any, options: Configuration, recompute: Any) -> dict[str, Any]:
        """Return by name of a choice whether hardly any published layout has it: bools, or arrays that broadcast.

        Degrees, micro-batch and its tokens per rank of cp are rare beyond `largest` (never without data; cp may also be
        as large as the sequence length over the most tokens), tp beyond `joined`. Kinds of recompute and switches are
        there only if in `rare`, and true if the configuration has them.

        Args:
            c: configurations, with degrees and `micro` as numbers or arrays [n].
            options: has the switches.
            recompute: kind of recompute ("none", "selective" or "full"), one or an array.
        """
        sizes = {"tp": c.tp, "pp": c.pp, "vpp": c.vpp, "ep": c.ep, "micro-batch": c.micro}
        rare = {name: size > self.largest.get(name, inf) for name, size in sizes.items()}
        tokens = self.largest.get("tokens", inf)
        rare["tokens of a micro-batch"] = c.micro * self.seq_length > tokens * c.cp
        # A longer sequence needs more ranks than the published layouts have.
        rare["cp"] = c.cp > max(self.largest.get("cp", inf), self.seq_length / tokens)
        rare["tp beyond fast links"] = c.tp > self.joined
        rare |= {f"{kind} recompute": recompute == kind for kind in ("selective", "full") if kind in self.rare}
        on = {
            "graphs": options.cuda_graphs != "none",
            "flex": bool(options.moe_flex_backend),
            "user_buffers": options.overlap_tp_comm,
        }
        return rare | {FLAGS[name]: is_on for name, is_on in on.items() if name in self.rare}


def premium(unusual: Any) -> Array:
    """Return the factor on the step time, from PREMIUM, for numbers of unusual choices, in their shape."""
    result: Array = np.array(PREMIUM)[np.minimum(unusual, len(PREMIUM) - 1)]
    return result


def usual(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Usual:
    """Return what published layouts of similar models have on this GPU generation, for this task and framework.

    Similar: both dense or both with experts, and within a factor of two in size. With fewer than `ENOUGH` layouts, a
    factor of four, then any size, is tried; then the same without regard to the framework, to framework and task, to
    framework and generation. Without enough in any case, only tp beyond fast links is unusual. Quantiles are of layouts
    as close in size as possible, rare switches and recompute of layouts of all sizes: user buffers are counted at tp >
    1, the flex dispatcher at ep > 1 only.
    """
    generation, experts = cluster.gpu.architecture, int(model.experts is not None)
    task = job.task_of(model)
    task = task if task in ("pretrain", "lora") else "sft"
    backend = "megatron" if job.backend == "megatron" else "other"
    billions = parameters(model, with_mtp=False).total / 1e9
    similar = [row for row in _rows(PUBLISHED, Layout) if row.experts == experts]
    alike: Sequence[Callable[[Layout], bool]] = (
        lambda row: (row.generation, row.task, row.backend) == (generation, task, backend),
        lambda row: (row.generation, row.task) == (generation, task),
        lambda row: row.generation == generation,
        lambda row: row.task == task,
    )
    matching = [list(filter(same, similar)) for same in alike]
    near = (
        [row for row in rows if abs(log2(row.billions / billions)) <= far] for rows in matching for far in DOUBLINGS
    )
    # The rows of the first condition that ENOUGH of them meet; switches and recompute are counted over all sizes.
    sized, flagged = (next((rows for rows in each if len(rows) >= ENOUGH), []) for each in (near, matching))
    columns = {
        **{name: [getattr(row, name) for row in sized] for name in ("tp", "pp", "vpp", "cp", "ep")},
        "micro-batch": [row.micro for row in sized],
        "tokens": [row.micro * row.seq_length / row.cp for row in sized],
    }
    largest = {name: float(np.quantile(each, QUANTILE, method="higher")) for name, each in columns.items() if each}
    stated = [row.recompute for row in flagged if row.recompute]
    counts = {kind: (stated.count(kind), len(stated)) for kind in ("selective", "full")}
    # User buffers matter only with tensor parallelism, a dispatcher only with expert parallelism.
    useful = {"graphs": flagged, "flex": [row for row in flagged if row.ep > 1]}
    useful["user_buffers"] = [row for row in flagged if row.tp > 1]
    counts |= {name: (sum(getattr(row, name) for row in rows), len(rows)) for name, rows in useful.items()}
    rare = frozenset(name for name, (have, all_) in counts.items() if all_ >= ENOUGH and have < RARE * all_)
    return Usual(largest=largest, rare=rare, joined=cluster.joined_gpus, seq_length=int(job.seq_length or 0))


def real_data_ratios() -> tuple[float, ...]:
    """Return measured over predicted seconds of fine-tuning runs on packed real data, in rising order."""
    return tuple(sorted(row.ratio for row in _rows(REAL_DATA, RealData)))


def measured_runs(model: ModelDescriptor, cluster: ClusterDescriptor, task: str) -> list[Best]:
    """Return the measured runs of a model on the cluster's GPU product: of pre-training, of LoRA, or of other tasks.

    A run is of the model if the number of layers is the same and that of parameters within SAME_SIZE; empty without
    runs.
    """
    total, pretrained = parameters(model, with_mtp=False).total, task == "pretrain"
    return [
        run
        for run in _rows(MEASURED, Best)
        if run.gpu == cluster.gpu.product
        and run.layers == model.num_hidden_layers
        and abs(run.parameters / total - 1) < SAME_SIZE
        and (run.task == "pretrain") == pretrained
        and (run.task == "lora") == (task == "lora")
    ]


@cache
def _rows(name: str, kind: type[Row]) -> tuple[Row, ...]:
    """Return the rows of a CSV file of model_zoo, each field converted to the type that its class states. Cached."""
    types = get_type_hints(kind)
    with (data_dir("model_zoo") / name).open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return tuple(kind(**{field: types[field](text) for field, text in row.items()}) for row in rows)
