"""What each target refuses, by name and with its reason: tests over points of the lattice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.model import Attention, ModelDescriptor
from symconfig.frameworks.deepspeed.releases import AUTOEP_MODELS, AUTOTP_MODELS
from symconfig.frameworks.megatron import adapters
from symconfig.plans.columns import Columns

Refusal = tuple[str, str, Callable[[ModelDescriptor, Columns], Any]]  # the test gives one truth value a point
OfDegrees = tuple[str, str, Callable[[Any, Columns], Any]]  # one that asks nothing of the model


def _divides(what: str, size: Callable[[ModelDescriptor], int], axis: str) -> Refusal:
    return (what, f"{what} must divide over {axis}", lambda model, p: size(model) % getattr(p, axis) != 0)


SHARED: tuple[Refusal, ...] = (
    _divides("num_attention_heads", lambda m: m.num_attention_heads, "tp"),
    (
        "num_key_value_heads",
        "key/value heads must divide over tp",
        lambda m, p: (m.attention is Attention.GQA) & (m.num_key_value_heads % p.tp != 0),
    ),
    _divides("intermediate_size", lambda m: m.intermediate_size, "tp"),
    (
        "shared_expert_intermediate_size",
        "the shared expert's width must divide over tp",
        lambda m, p: m.experts is not None and m.experts.shared_expert_intermediate_size % p.tp != 0,
    ),
    (
        "num_experts",
        "experts must divide over ep",
        lambda m, p: m.experts is not None and m.experts.num_experts % p.ep != 0,
    ),
    (
        "moe_intermediate_size",
        "the experts' width must divide over etp",
        lambda m, p: m.experts is not None and m.experts.moe_intermediate_size % p.etp != 0,
    ),
    ("expert grid", "ep x etp must divide tp x cp x dp", lambda m, p: (p.tp * p.cp * p.dp) % (p.ep * p.etp) != 0),
    (
        "ulysses heads",
        "heads must divide over tp x cp for all-to-all context parallelism",
        lambda m, p: (
            (p.cp > 1)
            & (p.cp_comm == "a2a")
            & ((m.num_attention_heads % (p.tp * p.cp) != 0) | (m.num_key_value_heads % (p.tp * p.cp) != 0))
        ),
    ),
)

MEGATRON: tuple[Refusal, ...] = (
    *SHARED,
    (
        "sequence parallel",
        "the sequence must divide over tp x cp",
        lambda m, p: p.sequence_parallel and p.seq_length % (p.tp * p.cp) != 0,
    ),
    (
        "context parallel",
        "the sequence must divide by 2 cp",
        lambda m, p: (p.cp > 1) & (p.seq_length % (2 * p.cp) != 0),
    ),
    (
        "context parallel window",
        "context parallelism does not go with sliding-window attention here",
        lambda m, p: (p.cp > 1) & any(m.sliding_layers),
    ),
    (
        "context parallel sinks",
        "context parallelism does not go with attention sinks",
        lambda m, p: (p.cp > 1) & m.attention_sinks,
    ),
    (
        "experts with tp",
        "experts with tensor parallelism need sequence parallelism",
        lambda m, p: (m.experts is not None and not p.sequence_parallel) & (p.tp > 1),
    ),
    (
        "ulysses latent",
        "all-to-all context parallelism takes one head size for queries and values",
        lambda m, p: (p.cp > 1) & (p.cp_comm == "a2a" and m.attention is Attention.MLA),
    ),
    (
        "expert bias",
        "biases of experts need etp 1",
        lambda m, p: (m.experts is not None and m.experts.expert_bias) & (p.etp > 1),
    ),
    (
        "fp8 sizes",
        "low precision needs local dims that divide by 16 (fp8) or 32",
        lambda m, p: (
            (p.precision in LOW_PRECISION)
            & (
                (p.seq_length * p.micro // (p.cp * (p.tp if p.sequence_parallel else 1)))
                % (16 if p.precision == "fp8" else 32)
                != 0
            )
        ),
    ),
)


def _rank_over_tp(model: ModelDescriptor, points: Columns) -> Any:
    """Megatron-Bridge splits the rank itself beside column-parallel layers (peft/utils.py, ParallelLinearAdapter)."""
    found = adapters.targets(model)
    if found is None or model.adapter is None or not found.by_columns:
        return np.zeros_like(points.tp, dtype=bool)
    return model.adapter.r % points.tp != 0


MEGATRON_ADAPTERS: tuple[Refusal, ...] = (
    ("adapter rank", "the adapter's rank must divide over tp beside column-parallel layers", _rank_over_tp),
    (
        "adapter columns",
        "hidden_size must divide over tp beside row-parallel layers with adapters",
        lambda m, p: m.hidden_size % p.tp != 0,
    ),
)

# Asked for every interleaving of the points that one chunk a stage leaves; the others do not depend on it.
INTERLEAVED: tuple[Refusal, ...] = (
    (
        "interleaving",
        "interleaving needs microbatches that divide by pp",
        lambda m, p: p.num_microbatches % p.pp != 0,
    ),
)

# Refusals that a later version lifts: (first version without it, refusal).
MEGATRON_UNTIL: tuple[tuple[tuple[int, int], Refusal], ...] = (
    (
        (0, 14),
        (
            "mtp context",
            "multi-token prediction does not go with context parallelism before core_v0.14",
            lambda m, p: (m.num_nextn_predict_layers > 0) & (p.cp > 1),
        ),
    ),
    (
        (0, 16),
        (
            "fp16 experts",
            "expert parallelism does not go with fp16 before core_v0.16",
            lambda m, p: (p.precision == "fp16") & (p.ep > 1),
        ),
    ),
)

# Transformer Engine 2.x, pytorch/attention/dot_product_attention/utils.py, get_attention_backend: flash and fused
# attention are disabled below compute capability 8.0, and unfused attention under context parallelism.
NO_FLASH = ("volta",)
WITHOUT_FLASH: tuple[Refusal, ...] = (
    (
        "context parallel kernel",
        "context parallelism needs flash attention, which this GPU or job does not have",
        lambda m, p: p.cp > 1,
    ),
)

DEEPSPEED_DEGREES: tuple[OfDegrees, ...] = (
    ("ring", "DeepSpeed's context parallelism is Ulysses", lambda m, p: (p.cp > 1) & (p.cp_comm != "a2a")),
    ("autotp with ulysses", "AutoTP and Ulysses do not combine", lambda m, p: (p.tp > 1) & (p.cp > 1)),
    ("autoep with ulysses", "AutoEP with Ulysses is not validated", lambda m, p: (p.ep > 1) & (p.cp > 1)),
    ("autoep with etp", "AutoEP has no tensor parallelism inside an expert", lambda m, p: p.etp > 1),
)
DEEPSPEED: tuple[Refusal, ...] = (
    *SHARED,
    *DEEPSPEED_DEGREES,
    ("ulysses sequence", "the sequence must divide over cp", lambda m, p: (p.cp > 1) & (p.seq_length % p.cp != 0)),
    (
        "autoep preset",
        "AutoEP knows Mixtral, Qwen3-MoE and DeepSeek-V3 only",
        lambda m, p: (p.ep > 1) & (m.model_type not in AUTOEP_MODELS),
    ),
    (
        "autotp model",
        "AutoTP is known to split dense Llama, Mistral and Qwen models only",
        lambda m, p: (p.tp > 1) & (m.experts is not None or m.model_type not in AUTOTP_MODELS),
    ),
    (
        "multi-token prediction",
        "Transformers trains no multi-token-prediction layers",
        lambda m, p: (p.tp > 0) & (m.num_nextn_predict_layers > 0),
    ),
    (
        "ulysses latent",
        "Ulysses takes one head size for queries and values",
        lambda m, p: (p.cp > 1) & (m.attention is Attention.MLA),
    ),
    ("ulysses sinks", "Ulysses refuses eager attention, which sinks need", lambda m, p: (p.cp > 1) & m.attention_sinks),
    ("ulysses window", "Ulysses drops the mask of a sliding window", lambda m, p: (p.cp > 1) & any(m.sliding_layers)),
    ("adapter with tp", "AutoTP does not split adapter layers", lambda m, p: (m.adapter is not None) & (p.tp > 1)),
    ("adapter with ep", "AutoEP does not know adapter layers", lambda m, p: (m.adapter is not None) & (p.ep > 1)),
)
