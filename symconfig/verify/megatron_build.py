"""Builds one rank as Megatron's trainer does: chunks, DistributedDataParallel, optimizer; then says what they hold.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. `run` is the task of a job; `modules`
and `build` are for other tasks too. Nothing is allocated on the meta device.
"""

from __future__ import annotations

import contextlib
import importlib
import resource
import time
from collections.abc import Iterator
from typing import Any

patches: Any = importlib.import_module("megatron_patches")
specs: Any = importlib.import_module("megatron_local_specs")

KIB = 1024  # ru_maxrss is in KiB on Linux
# Ranks within groups, by their names in megatron.core.parallel_state: get_<name>_rank.
COORDINATES = {
    "tp": "tensor_model_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "pp": "pipeline_model_parallel",
    "ep": "expert_model_parallel",
    "etp": "expert_tensor_parallel",
    "edp": "expert_data_parallel",
}


def run(args: Any, config: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Build this process's rank on the meta device with its optimizer and return {rank, coordinates, chunks, parameters
    (their number), gradient_buffer_bytes, optimizer_shard_bytes, seconds, max_rss_bytes}.

    chunks: parameters of each virtual stage (name, elements, trainable) as built, before Megatron-FSDP replaces them by
    shards. Megatron-FSDP's main weights count as optimizer bytes. Patches Megatron for the rest of the process.
    """
    start = time.perf_counter()
    with placed(args, config) as ready:
        held, chunks = _trained(args, ready)
        tensors = [tensor for part in parts(_optimizer(args, chunks)) for tensor in shard(part)]
    groups = [group for chunk in chunks for group in _fsdp_groups(chunk)]
    tensors += [group.main_weight_buffer.data for group in groups if group.main_weight_buffer is not None]
    gradients = [group.main_grad_buffer.data for group in groups if group.main_grad_buffer is not None]
    gradients += [
        buffer.grad_data
        for chunk in chunks
        if not _fsdp_groups(chunk)
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
    ]
    return {
        "rank": job["rank"],
        "coordinates": coordinates(),
        "chunks": held,
        "parameters": sum(elements for chunk in held for _, elements, _ in chunk["parameters"]),
        "gradient_buffer_bytes": _bytes(gradients),
        "optimizer_shard_bytes": _bytes(tensors),
        "seconds": time.perf_counter() - start,
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
    }


@contextlib.contextmanager
def placed(args: Any, config: Any, device: str = "meta") -> Iterator[Any]:
    """Yield a copy of the transformer config with which Megatron's own layers can be built on a device. Patches
    Megatron for good and sets its global arguments; changes `args`. On the meta device nothing is allocated or
    initialized, on another one weights are.
    """
    args.transformer_impl = "local"
    ready = patches.local(config)
    patches.refusals()
    specs.scans()
    specs.variants()
    patches.network()
    ready.use_cpu_initialization, ready.perform_initialization = False, device != "meta"
    args.init_model_with_meta_device = ready.init_model_with_meta_device = False  # already where it shall be
    importlib.import_module("megatron.training.global_vars").set_args(args)
    with patches.device(device):
        yield ready


def modules(args: Any, config: Any) -> list[Any]:
    """Return this rank's unwrapped models (GPTModel or HybridModel), one per virtual stage; sets Megatron's virtual
    rank to the last. config: as yielded by `placed`.
    """
    virtual = config.virtual_pipeline_model_parallel_size
    state = importlib.import_module("megatron.core.parallel_state")
    chunks = []
    for place in range(virtual or 1):
        stage = place if virtual else None
        if virtual:
            state.set_virtual_pipeline_model_parallel_rank(place)
        ends = {"ignore_virtual": False, "vp_stage": stage}
        chunks.append(
            _chunk(
                args,
                config,
                {
                    "pre_process": state.is_pipeline_first_stage(**ends),
                    "post_process": state.is_pipeline_last_stage(**ends),
                    "vp_stage": stage,
                },
            )
        )
    return chunks


def _trained(args: Any, config: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return ([{"parameters": [[name, elements, trainable], …]} of each chunk as built], [the chunks as Megatron's
    get_model wraps them]).
    """
    held: list[dict[str, Any]] = []

    def provide(**offered: Any) -> Any:
        model = _chunk(args, config, offered)
        named = [[name, weight.numel(), weight.requires_grad] for name, weight in model.named_parameters()]
        held.append({"parameters": named})
        return model

    trainer = importlib.import_module("megatron.training.training")
    return held, list(trainer.get_model(provide))


def _chunk(args: Any, config: Any, place: dict[str, Any]) -> Any:
    """Return one virtual stage, built with the GPU (or its stand-in) as default device."""
    import torch

    with torch.device("cuda"):
        return _model(args, config, place)


def _model(args: Any, config: Any, place: dict[str, Any]) -> Any:
    """Return a chunk built by Megatron's builder, or `_hybrid` with a hybrid pattern. place: pre_process, post_process,
    and optionally vp_stage and pg_collection (default: Megatron's groups; not used with a hybrid pattern).
    """
    stage = place.get("vp_stage")
    if getattr(args, "hybrid_layer_pattern", None):
        return _hybrid(args, config, place["pre_process"], place["post_process"], stage)
    models = importlib.import_module("megatron.training.models.gpt")
    groups = importlib.import_module("megatron.core.process_groups_config").ProcessGroupCollection
    described = importlib.import_module("megatron.training.argument_utils").gpt_config_from_args(args, config)
    return models.GPTModelBuilder(described).build_model(
        place.get("pg_collection") or groups.use_mpu_process_groups(),
        pre_process=place["pre_process"],
        post_process=place["post_process"],
        vp_stage=stage,
    )


def _hybrid(args: Any, config: Any, pre_process: bool, post_process: bool, stage: int | None) -> Any:
    """Return a chunk of a HybridModel built as in Megatron's hybrid_builders.py, of local modules. stage: the virtual
    one; None without vpp.
    """
    model = importlib.import_module("megatron.core.models.hybrid.hybrid_model").HybridModel
    return model(
        config=config,
        hybrid_stack_spec=specs.hybrid(config),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        hybrid_layer_pattern=args.hybrid_layer_pattern,
        pre_process=pre_process,
        post_process=post_process,
        fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        vp_stage=stage,
    )


def _optimizer(args: Any, chunks: list[Any]) -> Any:
    """Return Megatron's optimizer over the chunks with its moments allocated: by each part's own function, and as zeros
    for sub-optimizers (offload).
    """
    import torch

    config, overrides = importlib.import_module("megatron.training.training").get_megatron_optimizer_config(args)
    make = importlib.import_module("megatron.core.optimizer").get_megatron_optimizer
    optimizer = make(config, chunks, config_overrides=overrides, use_gloo_process_groups=False)
    for part in parts(optimizer):
        if part.optimizer is not None and part.init_state_fn is not None:
            part.init_state_fn(part.optimizer, config)
        for inner in getattr(part.optimizer, "sub_optimizers", ()):
            for group in inner.param_groups:
                for weight in group["params"]:
                    inner.state[weight].update({name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")})
    return optimizer


def parts(optimizer: Any) -> list[Any]:
    """Return the optimizers within a chained one, or the optimizer alone."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def _bytes(tensors: list[Any]) -> int:
    """Return the bytes of tensors on this rank; only the local part of a DTensor counts."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def coordinates() -> dict[str, int]:
    """Return {axis: this rank's index in its group} for tp, cp, dp, pp, ep, etp and edp."""
    state = importlib.import_module("megatron.core.parallel_state")
    return {axis: int(getattr(state, f"get_{name}_rank")()) for axis, name in COORDINATES.items()}


def _fsdp_groups(chunk: Any) -> list[Any]:
    """Return Megatron-FSDP's parameter groups of a chunk; [] if DistributedDataParallel wraps it."""
    whole = getattr(chunk, "param_and_grad_buffer", None)
    return list(whole.parameter_groups) if whole is not None else []


def shard(part: Any) -> list[Any]:
    """Return the tensors that an optimizer allocated, each once: main weights, offloaded copies, and states of a
    weight's shape (moments). [] for an optimizer part without weights on this rank.
    """
    if part.optimizer is None:  # a rank without such a weight
        return []
    inners = getattr(part.optimizer, "sub_optimizers", [part.optimizer])
    theirs = {id(weight) for group in part.optimizer.param_groups for weight in group["params"]}
    made = {id(weight): weight for group in main_weights(part) for weight in group if weight is not None}
    for inner in inners:
        for group in inner.param_groups:  # optimizer offload: copies of its own
            made.update({id(weight): weight for weight in group["params"] if id(weight) not in theirs})
        for weight, state in inner.state.items():
            made.update(
                {
                    id(value): value
                    for value in state.values()
                    if hasattr(value, "shape") and value.shape == weight.shape
                }
            )
    return list(made.values())


def main_weights(part: Any) -> list[list[Any]]:
    """Return groups of fp32 copies of 16-bit weights, sharded with the distributed optimizer; [] without any."""
    for name in ("shard_fp32_from_float16_groups", "fp32_from_float16_groups"):
        if hasattr(part, name):
            return list(getattr(part, name))
    return []
