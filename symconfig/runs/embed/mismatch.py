"""Where the surroundings of a process are not those that its plan was made for, each as a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from symconfig.descriptor.load import load_cluster, zoo_clusters
from symconfig.errors import InputError, Problem
from symconfig.frameworks.deepspeed.releases import REQUIREMENTS
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from symconfig.render.summary import nodes
from symconfig.runs.embed.surroundings import Gpu, Surroundings
from symconfig.units import GIB

Framework = Literal["megatron", "deepspeed", "transformers"]
# A GPU whose total torch rounds otherwise, or that keeps a little for itself, is still the same one.
MEMORY_SHARE = 0.98
_NEWEST = (99, 0)  # megatron_release of a main branch


class MismatchError(InputError):
    """The process does not run on what the plan was made for. A check failed: exit code 1."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Mismatch:
    """curable: solving again for what was found makes it good."""

    problem: Problem
    curable: bool = False


def mismatches(plan: Plan, found: Surroundings, framework: Framework) -> list[Mismatch]:
    """All of them. Of what could not be found out nothing is said, but for the world size of more than one rank."""
    return [*_ranks(plan, found), *_gpu(plan, found.gpu), *_versions(plan, found, framework)]


def _ranks(plan: Plan, found: Surroundings) -> Iterator[Mismatch]:
    need = plan.best.parallel.world_size
    if found.world_size is None:
        if need > 1:
            yield Mismatch(
                Problem(
                    f"no launcher says how many ranks there are, and the plan is for {need}",
                    field="WORLD_SIZE",
                    hint='torchrun, or on_mismatch="ignore" to look at the values only',
                )
            )
        return
    if found.world_size != need:
        yield Mismatch(
            Problem(
                "the plan is for another number of ranks",
                field=found.said_by,
                got=str(found.world_size),
                need=str(need),
                hint=f'on_mismatch="replan", or symconfig replan PLAN.json --gpus {found.world_size}',
            ),
            curable=True,
        )
    elif found.local_world_size is not None and found.local_world_size != nodes(plan).gpus:
        yield Mismatch(
            Problem(
                "the plan is for another number of ranks on a node",
                field="LOCAL_WORLD_SIZE",
                got=str(found.local_world_size),
                need=str(nodes(plan).gpus),
                hint="a cluster descriptor with as many GPUs per node",
            )
        )


def _gpu(plan: Plan, found: Gpu | None) -> Iterator[Mismatch]:
    """By the driver's name where the zoo knows it, else by memory and compute units: names differ between drivers."""
    if found is None or found.product == plan.cluster.gpu.product:
        return
    gpu = plan.cluster.gpu
    known = next((name for name in zoo_clusters() if load_cluster(name).gpu.product == found.product), None)
    less = found.memory_bytes < MEMORY_SHARE * gpu.memory_bytes.value
    if known is None and not less and found.compute_units == gpu.compute_units:
        return
    yield Mismatch(
        Problem(
            "the plan is for another GPU",
            field="GPU",
            got=f"{found.product} with {found.memory_bytes / GIB:.1f} GiB",
            need=f"{gpu.product} with {gpu.memory_bytes.value / GIB:.1f} GiB",
            hint=f"symconfig plan --cluster {known or 'FILE.yaml'}",
        )
    )


def _versions(plan: Plan, found: Surroundings, framework: Framework) -> Iterator[Mismatch]:
    """Megatron's and DeepSpeed's options change between minor releases; Transformers' range is that of the files."""
    if framework == "megatron":
        yield from _megatron(plan, found.versions.get("megatron"))
        return
    yield from _deepspeed(plan, found.versions.get("deepspeed"))
    if framework == "transformers" and (version := found.versions.get("transformers")) is not None:
        need = REQUIREMENTS["transformers"].removeprefix("transformers")
        least, below = (_numbers(text) for text in need.split(","))
        if not least <= _numbers(version) < below:
            yield Mismatch(
                Problem("the plan's files are for other releases", field="transformers", got=version, need=need)
            )


def _megatron(plan: Plan, installed: str | None) -> Iterator[Mismatch]:
    need = megatron.version(plan)
    release = megatron_release(need)
    if installed is not None and release != _NEWEST and _numbers(installed)[:2] != release:
        found = f"core_v{installed}"
        yield Mismatch(
            Problem(
                "the plan is for another release",
                field="megatron-core",
                got=found,
                need=need,
                hint='on_mismatch="replan", or symconfig replan PLAN.json --megatron-version '
                f"core_v{'.'.join(installed.split('.')[:2])}",
            ),
            curable=True,
        )


def _deepspeed(plan: Plan, installed: str | None) -> Iterator[Mismatch]:
    target = plan.best.target
    if installed is None or target.backend != "deepspeed" or _numbers(installed)[:2] == _numbers(target.version)[:2]:
        return
    yield Mismatch(Problem("the plan is for another release", field="deepspeed", got=installed, need=target.version))


def _numbers(text: str) -> tuple[int, ...]:
    """0.19.8+cu128 -> (0, 19, 8): the release, without what a build adds."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[+a-z]", text.strip("<>= "))[0]))
