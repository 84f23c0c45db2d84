"""What a job does with one rank beyond checking its arguments: `build` says what it holds, `trace` what autograd keeps.

Loaded by path in a forked child of megatron_runner, never imported by symconfig. Chunks, DistributedDataParallel and
optimizer are made as Megatron's trainer makes them, on the meta device: each tensor has its shape, its type and its
storage's identity and size, and no data.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

torch: Any = importlib.import_module("torch")  # by name: the package imports no framework
runner: Any = importlib.import_module("megatron_runner")
patches: Any = importlib.import_module("megatron_patches")
specs: Any = importlib.import_module("megatron_local_specs")

META = torch.device("meta")
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


def build(args: Any, config: Any) -> dict[str, Any]:
    """Build this process's rank on the meta device with its optimizer and return {coordinates, chunks, parameters
    (their number), gradient_buffer_bytes, optimizer_shard_bytes}.

    chunks: parameters of each virtual stage (name, elements, trainable) as built, before Megatron-FSDP replaces them by
    shards. Megatron-FSDP's main weights count as optimizer bytes. Patches Megatron for the rest of the process.
    """
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
        "coordinates": coordinates(),
        "chunks": held,
        "parameters": sum(elements for chunk in held for _, elements, _ in chunk["parameters"]),
        "gradient_buffer_bytes": _bytes(gradients),
        "optimizer_shard_bytes": _bytes(tensors),
    }


def trace(args: Any, config: Any) -> dict[str, Any]:
    """Run a microbatch through every chunk of this rank and return {saved_bytes: `saved_bytes` of all chunks}. Patches
    Megatron for the rest of the process.
    """
    with placed(args, config) as ready:
        patches.forward()
        return {"saved_bytes": sum(saved_bytes(args, ready, model) for model in modules(args, ready))}


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
        first, last = state.is_pipeline_first_stage(**ends), state.is_pipeline_last_stage(**ends)
        chunks.append(_chunk(args, config, pre_process=first, post_process=last, vp_stage=stage))
    return chunks


def _trained(args: Any, config: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return ([{"parameters": [[name, elements, trainable], …]} of each chunk as built], [the chunks as Megatron's
    get_model wraps them]).
    """
    held: list[dict[str, Any]] = []

    def provide(**offered: Any) -> Any:
        model = _chunk(args, **{**offered, "config": config})
        named = [[name, weight.numel(), weight.requires_grad] for name, weight in model.named_parameters()]
        held.append({"parameters": named})
        return model

    trainer = importlib.import_module("megatron.training.training")
    return held, list(trainer.get_model(provide))


def _chunk(
    args: Any,
    config: Any,
    pre_process: bool,
    post_process: bool,
    vp_stage: int | None = None,
    pg_collection: Any = None,
) -> Any:
    """Return one virtual stage, built with the GPU (or its stand-in) as default device by Megatron's GPTModelBuilder;
    with a hybrid pattern as in its hybrid_builders.py, of local modules. vp_stage: None without vpp; pg_collection:
    Megatron's groups by default, not used with a hybrid pattern.
    """
    ends = {"pre_process": pre_process, "post_process": post_process, "vp_stage": vp_stage}
    with torch.device("cuda"):
        if getattr(args, "hybrid_layer_pattern", None):
            return importlib.import_module("megatron.core.models.hybrid.hybrid_model").HybridModel(
                config=config,
                hybrid_stack_spec=specs.hybrid(config),
                vocab_size=args.padded_vocab_size,
                max_sequence_length=args.max_position_embeddings,
                hybrid_layer_pattern=args.hybrid_layer_pattern,
                fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
                parallel_output=True,
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                position_embedding_type=args.position_embedding_type,
                rotary_percent=args.rotary_percent,
                rotary_base=args.rotary_base,
                **ends,
            )
        models = importlib.import_module("megatron.training.models.gpt")
        groups = importlib.import_module("megatron.core.process_groups_config").ProcessGroupCollection
        described = importlib.import_module("megatron.training.argument_utils").gpt_config_from_args(args, config)
        builder = models.GPTModelBuilder(described)
        return builder.build_model(pg_collection or groups.use_mpu_process_groups(), **ends)


def _optimizer(args: Any, chunks: list[Any]) -> Any:
    """Return Megatron's optimizer over the chunks with its moments allocated: by each part's own function, and as zeros
    for sub-optimizers (offload).
    """
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


@dataclass(slots=True, weakref_slot=True)
class Kept:
    """A tensor that autograd keeps; it dies with the node of the graph."""

    tensor: Any


def saved_bytes(args: Any, config: Any, model: Any) -> int:
    """Return the bytes of all storages that the backward of one microbatch of a chunk would read. Parameters, buffers
    and what a second microbatch reads, too, which is held once, are left out; the forward runs twice.
    """
    chunk = model
    if args.bf16 or args.fp16:  # 16-bit weights and an fp32 loss, as the trainer has them
        chunk = importlib.import_module("megatron.core.transformer.module").Float16Module(config, model)
    packed: list[Any] = []

    def pack(tensor: Any) -> Kept:
        packed.append(weakref.ref(kept := Kept(tensor)))
        return kept

    microbatches: list[dict[int, Any]] = []  # {number: storage}, which keeps a number from being given again
    for _ in range(2):
        packed.clear()
        saving: Any = torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor)
        with torch.device("cpu"), saving:  # the default where Megatron runs, too
            end = _forward(args, config, model, chunk)
        gc.collect()  # what waits in a cycle of Python's is not kept by autograd
        # Now: the first forward replaces some (the router's bias becomes fp32).
        owned = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
        tensors = [kept.tensor for reference in packed if (kept := reference()) is not None]
        storages = [each.untyped_storage() for each in (*tensors, *_attributes(end)) if each.device == META]
        microbatches.append({each._cdata: each for each in storages if each._cdata not in owned})
    first, second = microbatches
    return sum(storage.nbytes() for number, storage in first.items() if number not in second)


def _forward(args: Any, config: Any, model: Any, chunk: Any) -> Any:
    """Run one microbatch (zeros, on meta) as pretrain_gpt.py does; return the loss on the last stage, else the output.
    Later stages get an empty input; a mask is made unless the release leaves it to attention.
    """
    sequence = args.seq_length // config.context_parallel_size
    tokens = torch.zeros(args.micro_batch_size, sequence, dtype=torch.long, device=META)
    mask = None
    if getattr(args, "create_attention_mask_in_dataloader", True):
        mask = torch.zeros(args.micro_batch_size, 1, sequence, sequence, dtype=torch.bool, device=META)
    if not model.pre_process:
        split = config.tensor_model_parallel_size if config.sequence_parallel else 1
        received = torch.empty(
            sequence // split,
            args.micro_batch_size,
            config.hidden_size,
            dtype=torch.float32 if config.fp32_residual_connection else config.params_dtype,
            requires_grad=True,
            device=META,
        )
        model.set_input_tensor(received)
    loss_mask = torch.ones(args.micro_batch_size, sequence, device=META)
    offered = {"labels": tokens, "loss_mask": loss_mask}
    output = chunk(tokens, tokens, mask, **runner.accepted(type(model).forward, offered))
    if not model.post_process:
        return output
    return torch.sum(output.view(-1).float() * loss_mask.view(-1))  # its loss function


def _attributes(end: Any) -> Iterator[Any]:
    """Yield the tensors among attributes of all autograd nodes below end.grad_fn, which custom functions keep and no
    hook reports.
    """
    waiting, seen = [end.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for value in getattr(node, "__dict__", {}).values():
            several = value if isinstance(value, tuple | list) else (value,)
            yield from (each for each in several if isinstance(each, torch.Tensor))
        waiting.extend(following for following, _ in node.next_functions)
