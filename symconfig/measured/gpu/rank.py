"""Which rank of a plan is run, and how: its stage, its share of the microbatches, the layers, what stands in."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from symconfig.cost.machine import LOW_PRECISION
from symconfig.errors import InputError, Problem
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron.behaviour import TransformerImpl
from symconfig.measured.gpu.predict import Attention
from symconfig.plans.plan import Plan
from symconfig.solve.costed import costed
from symconfig.solve.restore import restore
from symconfig.verify.states.grid import first_rank, stage_of

Device = Literal["cuda", "cpu"]
HEAVIEST = "heaviest"
STEPS = 3  # the first warms up
# Passes beyond those that fill the pipeline, so that some run in its steady state.
STEADY = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One rank's run. microbatches: of a step here, `planned` in the plan; steps: with the warm-up."""

    rank: int
    stage: int
    microbatches: int
    planned: int
    steps: int
    device: Device
    impl: TransformerImpl
    attention: Attention


def choose(plan: Plan, rank: str, steps: str, impl: str | None, device: str) -> Run:
    """Return the run that the options choose. Raises InputError with every option that is wrong."""
    problems = list(_refused(plan, rank, steps, impl, device))
    if problems:
        raise InputError(problems)
    chosen: TransformerImpl = impl or default_impl(device)  # type: ignore[assignment]
    parallel = plan.best.parallel
    number = first_rank(parallel, _heaviest(plan)) if rank == HEAVIEST else int(rank)
    stage = stage_of(parallel, number)
    if chosen == "local" and (problem := _beyond_local(plan)):
        raise InputError(problem)
    return Run(
        rank=number,
        stage=stage,
        microbatches=microbatches(plan, stage),
        planned=plan.best.batch.num_microbatches,
        steps=int(steps),
        device=device,  # type: ignore[arg-type]
        impl=chosen,
        attention=_attention(plan),
    )


def _attention(plan: Plan) -> Attention:
    """Choose the attention: PyTorch's flash attention has neither a window nor sinks.

    Megatron's own then runs as it is.
    """
    return "unfused" if plan.model.sliding_window is not None or plan.model.attention_sinks else "flash"


def default_impl(device: str) -> TransformerImpl:
    """Return Transformer Engine where it is installed and can run, else the local layers."""
    there = importlib.util.find_spec("transformer_engine") is not None
    return "transformer_engine" if there and device == "cuda" else "local"


def _refused(plan: Plan, rank: str, steps: str, impl: str | None, device: str) -> Iterator[Problem]:
    if not BACKENDS[plan.best.target.backend].lone_ranks:
        yield Problem(
            "only ranks of Megatron-LM are run",
            field="DIR",
            got=plan.best.target.backend,
            hint="train.py of the folder, which DeepSpeed runs on one GPU, too",
        )
    world = plan.best.parallel.world_size
    if rank != HEAVIEST and not (_is_whole(rank) and int(rank) < world):
        yield Problem("the plan has no such rank", field="--rank", got=rank, need=f"0 to {world - 1}, or {HEAVIEST}")
    if not (_is_whole(steps) and 2 <= int(steps) <= 1000):
        yield Problem("out of range", field="--steps", got=steps, need="2 to 1000, of which the first warms up")
    if impl not in (None, *get_args(TransformerImpl)):
        yield Problem("wrong value", field="--transformer-impl", got=impl, need=" or ".join(get_args(TransformerImpl)))
    if device not in get_args(Device):
        yield Problem("wrong value", field="--device", got=device, need=" or ".join(get_args(Device)))
    if device == "cpu" and plan.best.options.optimizer_offload:
        yield Problem(
            "this plan keeps optimizer state in host memory, which on a CPU is the same memory",
            field="--device",
            got=device,
            need="cuda",
        )
    if impl == "transformer_engine" and device == "cpu":
        yield Problem("Transformer Engine's layers need a GPU", field="--transformer-impl", got=impl, need="local")
    elif impl == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        yield Problem(
            "Transformer Engine is not installed",
            field="--transformer-impl",
            got=impl,
            hint="pip install 'transformer_engine[pytorch]', or --transformer-impl local",
        )


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _beyond_local(plan: Plan) -> Problem | None:
    """Report what only Transformer Engine's layers do, so that the rank would not be the plan's."""
    engine = "pip install 'transformer_engine[pytorch]'"
    if plan.best.parallel.cp > 1:
        return Problem(
            "Megatron's own attention has no context parallelism, so that it would see this rank's part of "
            "the sequence only",
            field="--transformer-impl",
            got="local",
            hint=engine,
        )
    if plan.best.options.precision in LOW_PRECISION:
        return Problem(
            f"Megatron's own layers have no {plan.best.options.precision}",
            field="--transformer-impl",
            got="local",
            hint=engine,
        )
    return None


def _heaviest(plan: Plan) -> int:
    """Return the stage that needs most memory."""
    peaks = costed(restore(plan, plan.best)).allocated
    return peaks.index(max(peaks))


def microbatches(plan: Plan, stage: int) -> int:
    """Count as many microbatches as fill what this stage holds in Megatron's schedule, and some more.

    1F1B holds one for each stage from this one on. An interleaved schedule holds nearly a group of microbatches in
    every chunk, and then begins the next group; it takes whole groups only.
    """
    p, planned = plan.best.parallel, plan.best.batch.num_microbatches
    if p.vpp > 1:
        return min(planned, 2 * (plan.best.options.microbatch_group_size or p.pp))
    return min(planned, p.pp - stage - 1 + STEADY)
