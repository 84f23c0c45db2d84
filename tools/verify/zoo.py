"""Every zoo model x every cluster that can hold it x every target, planned and held against the real frameworks.

`python -m tools verify zoo` runs all of them; tests/test_spread.py a spread. Frameworks are started once for many
plans.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import symconfig
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.graph.model import parameters
from symconfig.plans.plan import Plan
from symconfig.render import own_target
from symconfig.runs.best import best_plan
from symconfig.verify import deepspeed, megatron, megatron_source, shell
from symconfig.verify.checks import Check, Options

BACKENDS = ("megatron", "deepspeed")
MAX_GPUS = 4096
BATCH = 512  # sequences a step, or one for each GPU where there are more
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Pair:
    """What is planned: a model on a cluster for a target. room: times the fewest GPUs that could hold it."""

    model: str
    cluster: str
    backend: str
    room: int = 1

    def __str__(self) -> str:
        return f"{self.model} on {self.cluster} for {self.backend}"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A plan with its folder."""

    pair: Pair
    plan: Plan
    folder: Path


def every_pair() -> list[Pair]:
    """All of them; whether a target can express a model is found out by asking."""
    return [Pair(*three) for three in itertools.product(zoo_models(), zoo_clusters(), BACKENDS)]


def spread() -> list[Pair]:
    """Every model with every target, and every cluster with every target: a model's two targets are on two clusters.

    Adapters are for DeepSpeed only. Every other model has room: to plan where hardly anything fits takes several
    searches. The step from a model's cluster to the next one's has no factor in common with their number.
    """
    clusters = zoo_clusters()
    step = next(step for step in itertools.count(3, 2) if math.gcd(step, len(clusters)) == 1)
    bare = [model for model in zoo_models() if load_model(model).adapter is None]
    return [
        Pair(model, clusters[(step * index + first) % len(clusters)], backend, room=1 + index % 2)
        for backend, models, first in (("megatron", bare, 3), ("deepspeed", zoo_models(), 8))
        for index, model in enumerate(models)
    ]


def sizes(pair: Pair) -> Iterator[int]:
    """GPU counts to try, fewest first: whole nodes from where 12 bytes a parameter would fit so many times over."""
    machine = load_cluster(pair.cluster)
    total = parameters(load_model(pair.model)).total
    least = 12 * total / machine.gpu.memory_bytes.value
    gpus, most = machine.gpus_per_node, min(MAX_GPUS, machine.max_gpus or MAX_GPUS)
    while gpus <= most:
        if gpus >= least * pair.room or least <= gpus == most:
            yield gpus
        gpus *= 2


def plan(pair: Pair) -> Plan | str:
    """The plan on the fewest GPUs that hold it, or why there is none."""
    reason = f"over {MAX_GPUS} GPUs"
    for gpus in sizes(pair):
        try:
            job = Job(model=pair.model, cluster=pair.cluster, gpus=gpus, global_batch_size=max(BATCH, gpus),
                      backend=pair.backend)  # fmt: skip
            return best_plan(load_model(pair.model), load_cluster(pair.cluster), job, top=1)
        except InfeasibleError as error:
            reason = str(error.problems[0])
            if error.problems[0].field is not None:  # a field that the target cannot express: more GPUs do not help
                return reason
    return reason


def render(pairs: Iterable[Pair], root: Path) -> tuple[list[Rendered], dict[Pair, str]]:
    """Plans written below `root`, and the pairs that have none with the reason."""
    done, without = [], {}
    for number, pair in enumerate(pairs):
        started = time.perf_counter()
        folder, found = root / str(number), plan(pair)
        if isinstance(found, Plan):
            found = _written(found, folder)
        if isinstance(found, Plan):
            done.append(Rendered(pair, found, folder))
            said = f"{found.best.configuration.world_size} GPUs"
        else:
            without[pair] = said = found
        print(f"{time.perf_counter() - started:6.1f} s  {pair}: {said}", file=sys.stderr)
    return done, without


def _written(found: Plan, folder: Path) -> Plan | str:
    """Write a plan's files, or return what its framework's own code must be changed for before it has them."""
    try:
        symconfig.PlanResult(found).write(folder)
    except InfeasibleError as error:
        if all(problem.edit for problem in error.problems):
            return str(error.problems[0])
        raise
    return found


def judge(rendered: Sequence[Rendered]) -> dict[Pair, list[Check]]:
    """Every check of every folder."""
    options = Options(timeout_s=TIMEOUT_S)
    found = {item.pair: list(shell.checks(item.folder, item.plan, options)) for item in rendered}
    for part in (_megatron(rendered), _deepspeed(rendered, options)):
        for pair, checks in part.items():
            found[pair] += checks
    return found


def _megatron(rendered: Sequence[Rendered]) -> Mapping[Pair, list[Check]]:
    # A plan for another program on Megatron-Core has its format's own checks, in `python -m tools verify formats`.
    own = [item for item in rendered if item.pair.backend == "megatron" and own_target(item.plan) == "megatron"]
    items = {str(item.pair): item for item in own}
    jobs = {
        name: megatron.Rendered(
            item.plan, shell.arguments(item.folder), shell.dry_run(item.folder, "launch.sh", TIMEOUT_S).exported
        )
        for name, item in items.items()
    }
    checked = megatron.check_many(jobs, megatron_source.find(), TIMEOUT_S)
    return {items[name].pair: checks for name, checks in checked.items()}


def _deepspeed(rendered: Sequence[Rendered], options: Options) -> Mapping[Pair, list[Check]]:
    """One process answers for all: a first pass collects what the folders ask DeepSpeed, a second has the answers."""
    items = [item for item in rendered if item.pair.backend == "deepspeed"]
    asked: list[Any] = []

    def collect(requests: list[Any], timeout_s: float) -> list[Any]:
        asked.extend(requests)
        return [{"ok": False, "error": "not asked yet"}] * len(requests)

    with mock.patch.object(deepspeed, "run", collect):
        for item in items:
            list(deepspeed.checks(item.folder, item.plan, options))
    answers = iter(deepspeed.run(asked, TIMEOUT_S + 2.0 * len(asked)) if asked else [])
    with mock.patch.object(deepspeed, "run", lambda requests, timeout_s: [next(answers) for _ in requests]):
        return {item.pair: list(deepspeed.checks(item.folder, item.plan, options)) for item in items}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spread", action="store_true", help="only the pairs that the tests take")
    parser.add_argument("--only", metavar="TEXT", default="", help="only pairs whose name holds this")
    arguments = parser.parse_args()
    pairs = [pair for pair in (spread() if arguments.spread else every_pair()) if arguments.only in str(pair)]
    with tempfile.TemporaryDirectory() as root:
        rendered, without = render(pairs, Path(root))
        checked = judge(rendered)
    wrong = {pair: [check for check in checks if check.status == "failed"] for pair, checks in checked.items()}
    for pair, checks in wrong.items():
        for check in checks:
            print(f"FAILED  {pair}: {check}")
    for reason, times in Counter(without.values()).most_common():
        print(f"no plan {times:4} x {reason}")
    statuses = Counter(check.status for checks in checked.values() for check in checks)
    accepted = sum(not checks for checks in wrong.values())
    print(
        f"{len(pairs)} pairs: {len(rendered)} planned, {accepted} accepted, {len(without)} without a plan; "
        + ", ".join(f"{times} checks {status}" for status, times in sorted(statuses.items()))
    )
    return 0 if accepted == len(rendered) else 1
