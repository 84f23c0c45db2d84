"""Ranks of a plan with adapters, built by megatron-core and Megatron-Bridge: what they train, counted.

The layers are megatron-core's own (Transformer Engine's need a GPU), without memory, among process groups that only
pretend; the adapters beside them are what LoRA and CanonicalLoRA put there.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


def trained_by_stage(config: Any, world: int) -> list[int]:
    """Elements that the first rank of each pipeline stage trains."""
    stages = config.model.pipeline_model_parallel_size
    return [_trained(config, world, stage * (world // stages)) for stage in range(stages)]


def _trained(config: Any, world: int, rank: int) -> int:
    fake: Any = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    state: Any = importlib.import_module("megatron.core.parallel_state")
    groups: Any = importlib.import_module("megatron.core.process_groups_config")
    specs: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=world)
    model = config.model
    try:
        state.initialize_model_parallel(
            model.tensor_model_parallel_size,
            model.pipeline_model_parallel_size,
            model.virtual_pipeline_model_parallel_size,
            context_parallel_size=model.context_parallel_size,
            create_gloo_process_groups=False,
        )
        model._pg_collection = groups.ProcessGroupCollection.use_mpu_process_groups()
        model.use_cpu_initialization, model.transformer_impl = True, "local"
        # No kernel is run; and torch's norms and attention know no split sequence, which changes no size.
        for name in ("apply_rope_fusion", "gradient_accumulation_fusion", "persist_layer_norm", "sequence_parallel"):
            setattr(model, name, False)
        model.context_parallel_size = 1
        for name in ("megatron.core.transformer.attention", "megatron.bridge.peft.utils"):
            importlib.import_module(name).HAVE_TE = False  # type: ignore[attr-defined]
        model.transformer_layer_spec = lambda config: specs.get_gpt_layer_local_spec(
            normalization=config.normalization, qk_layernorm=config.qk_layernorm
        )
        chunks = model.virtual_pipeline_model_parallel_size
        with torch.device("meta"):
            modules = [model.provide(vp_stage=chunk) for chunk in (range(chunks) if chunks else [None])]
            config.peft(modules, training=True)
        return sum(
            parameter.numel() for module in modules for parameter in module.parameters() if parameter.requires_grad
        )
    finally:
        state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
