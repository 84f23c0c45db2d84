"""A model trained by PyTorch's FSDP around a Transformers model, or by replicas of it, which are shards of one.

Weights, gradients and Adam's moments are kept in fp32 in shards, and gathered in 16 bits; sequences are split by
Ulysses (verl/workers/engine/fsdp/transformer_impl.py, fsdp_utils.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from symconfig.cost.framework import Bytes, Stepping
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.run import Described, Run
from symconfig.frameworks.behaviour import Switches, switched
from symconfig.frameworks.extras import gradient_bytes
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, FSDP
from symconfig.frameworks.known import TORCH_RELEASE, built
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


def run(
    model: Described,
    cluster: ClusterDescriptor,
    program: Switches,
    *,
    recompute: bool,
    every: int = 1,
    narrow: bool = False,
    streamed: bool = False,
    whole: bool = False,
    **degrees: Any,
) -> Run:
    """Return the run of a model on FSDP ranks, no step around it: ZeRO 3, or ZeRO 2 if weights stay gathered.

    As many copies (`instances`) as GPUs, which is DDP, are priced in the same way, without overlapped gathering.

    Args:
        program: kernels and framework fields that differ from plain FSDP.
        recompute: whether layers are recomputed, one in `every`.
        narrow: whether the model itself is in 16 bits, without a master copy.
        streamed: whether shards, gradients and optimizer states are offloaded to the host.
        whole: whether gathered weights stay from forward to backward.
        degrees: fields of the configuration: degrees, batch, tokens of a sequence over all its ranks.
    """
    model = replace(model, model=built(model.model, "fsdp"))
    framework = switched(FSDP, cluster.gpu.architecture, program)
    if narrow:
        moved = framework.adam_bytes / 2  # all that a step reads and writes is half as wide
        framework = replace(framework, bytes=_NARROW, shard_bytes=_NARROW.weight, adam_bytes=moved)
    if whole:  # the gathered copy is beside the shards, not a part of them
        sizes = framework.bytes
        framework = replace(framework, bytes=replace(sizes, optimizer=sizes.optimizer + sizes.weight))
    block = ceil(model.model.num_hidden_layers / every) if every > 1 else 0
    plain = Setup(**degrees, **(recomputing(WHOLE, block) if recompute else {}))
    framework = replace(framework, optimizer_instances=plain.instances)
    ranks = plain.tp * plain.cp * plain.dp
    configuration = replace(
        plain,
        zero_stage=2 if whole else 3,
        cp_comm="a2a" if plain.cp > 1 else "p2p",
        overlap_grad_reduce=plain.dp * plain.cp > 1,
        overlap_param_gather=plain.dp * plain.cp > 1 and plain.instances < ranks,
        optimizer_offload=float(streamed),
        # Offloaded shards are on the host; what a forward gathers of them, and keeps, is not.
        param_offload=streamed and not whole,
        moe_dispatcher="alltoall" if model.model.experts else None,
        grad_bytes=gradient_bytes(framework),
        framework=framework,
        backend="fsdp",
        version=TORCH_RELEASE,
    )
    return Run(Target("fsdp", TORCH_RELEASE), model, configuration)
