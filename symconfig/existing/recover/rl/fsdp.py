"""A model trained by PyTorch's FSDP around a Transformers model, or by replicas of it, which are shards of one.

Weights, gradients and Adam's moments are kept in fp32 in shards, and gathered in 16 bits; sequences are split by
Ulysses (verl/workers/engine/fsdp/transformer_impl.py, fsdp_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from symconfig.cost.framework import Bytes, Stepping
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.run import Described, Run
from symconfig.frameworks.behaviour import LIGER, PROGRAMS, Switches, switched
from symconfig.frameworks.extras import gradient_bytes
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, FSDP
from symconfig.frameworks.known import TORCH_RELEASE, built
from symconfig.plans.configuration import Precision, ZeroStage
from symconfig.plans.plan import Target
from symconfig.solve.pieces import WHOLE
from symconfig.solve.prospect import Setup, recomputing

_NARROW = Bytes(weight=2.0, gradient=2.0, optimizer=4.0)  # a model that is itself in bf16, without a master copy


def adam(values: Values, at: str) -> Mapping[str, Any]:
    """Return the framework's fields for torch's AdamW by switches in section `at`: {} if fused, foreach by default.

    Parameters are stepped one by one if either switch is given and none is on.
    """
    words = [f"{at}.{name}" for name in ("foreach", "fused")]
    if values.switch(words[1]):
        return {}
    in_turn = any(map(values.given, words)) and not values.switch(words[0])
    return {**EAGER_ADAM, "stepping": Stepping.IN_TURN} if in_turn else EAGER_ADAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Ranks of an FSDP trainer, and what they train on.

    Args:
        dp: replicas.
        tp: ranks per layer.
        ep: ranks that experts are split over.
        sp: ranks per sequence (Ulysses).
        copies: groups of GPUs that each hold all shards of a model.
        room: tokens of a sequence, or of a packed micro-batch, over all its ranks.
        micro: sequences per micro-batch.
        microbatches: per update, over all replicas.
        recompute: whether layers are recomputed.
        every: one layer in this many is recomputed.
        narrow: whether the model itself is in 16 bits, without a master copy.
        program: kernels and framework fields that differ from plain FSDP.
        liger: whether Liger's kernels are used.
        streamed: whether shards, gradients and optimizer states are offloaded to the host.
        whole: whether gathered weights stay from forward to backward, as in ZeRO 2.
    """

    dp: int
    sp: int
    room: int
    microbatches: int
    recompute: bool
    every: int = 1
    tp: int = 1
    ep: int = 1
    micro: int = 1
    copies: int = 1
    program: Switches = PROGRAMS["verl-fsdp", "fsdp"]
    precision: Precision = "bf16"
    narrow: bool = False
    liger: bool = False
    streamed: bool = False
    whole: bool = False


def ranks_of_verl(values: Values, role: str, optimizer: str, gpus: int) -> Ranks:
    """Return verl's FSDP workers of a role on `gpus` GPUs; `room` and `microbatches` are still 0.

    There are copies if shards span fewer GPUs than all. optimizer: the section of the optimizer's keys.
    """
    sp, size = values.whole(f"{role}.configuration.cp") or 1, values.number(f"{role}.shards")
    stepping = adam(values, f"{optimizer}.override_optimizer_config")
    return Ranks(
        dp=max(1, gpus // sp),
        sp=sp,
        room=0,
        microbatches=0,
        copies=int(gpus // size) if size is not None and 0 < size < gpus else 1,
        recompute=values.switch(f"{role}.recomputes"),
        narrow=values.text(f"{role}.dtype") in ("bf16", "bfloat16"),
        liger=values.switch(f"{role}.liger"),
        streamed=values.switch(f"{role}.streams"),
        program=replace(PROGRAMS["verl-fsdp", "fsdp"], framework=stepping),
    )


def run(ranks: Ranks, model: Described, cluster: ClusterDescriptor) -> Run:
    """Return the run of a model on FSDP ranks, no step around it: ZeRO 3, or ZeRO 2 if weights stay gathered (`whole`).

    As many copies (`instances`) as GPUs, which is DDP, are priced in the same way, without overlapped gathering.
    """
    program, model = ranks.program, replace(model, model=built(model.model, "fsdp"))
    if ranks.liger:
        program = replace(program, implementation={**program.implementation, **LIGER})
    # Offloaded shards are on the host; what a forward gathers of them, and keeps, is not.
    away = ranks.streamed and not ranks.whole
    framework = switched(FSDP, cluster.gpu.architecture, program)
    framework = replace(framework, optimizer_instances=ranks.copies)
    if ranks.narrow:
        moved = framework.adam_bytes / 2  # all that a step reads and writes is half as wide
        framework = replace(framework, bytes=_NARROW, shard_bytes=_NARROW.weight, adam_bytes=moved)
    if ranks.whole:  # the gathered copy is beside the shards, not a part of them
        sizes = framework.bytes
        framework = replace(framework, bytes=replace(sizes, optimizer=sizes.optimizer + sizes.weight))
    sharded: ZeroStage = 2 if ranks.whole else 3
    many, recomputed = ranks.dp * ranks.sp > 1, ceil(model.model.num_hidden_layers / ranks.every)
    replicated = ranks.copies >= ranks.dp * ranks.tp * ranks.sp
    again = recomputing(WHOLE, recomputed if ranks.every > 1 else 0) if ranks.recompute else {}
    configuration = Setup(
        tp=ranks.tp,
        cp=ranks.sp,
        ep=ranks.ep,
        dp=ranks.dp,
        micro=ranks.micro,
        global_batch=ranks.microbatches * ranks.micro,
        seq_length=ranks.room,
        **again,
        zero_stage=sharded,
        precision=ranks.precision,
        cp_comm="a2a" if ranks.sp > 1 else "p2p",
        overlap_grad_reduce=many,
        overlap_param_gather=many and not replicated,
        optimizer_offload=float(ranks.streamed),
        param_offload=away,
        moe_dispatcher="alltoall" if model.model.experts else None,
        grad_bytes=gradient_bytes(framework),
        instances=ranks.copies,
        framework=framework,
        backend="fsdp",
        version=TORCH_RELEASE,
    )
    return Run(Target("fsdp", TORCH_RELEASE), model, configuration)
