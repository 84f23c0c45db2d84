"""What of a plan Megatron-LM's `args_defaults` can carry, and what it cannot.

`validate_args` looks at `args_defaults` in its middle, and takes a value only where the argument is None
(`megatron/training/arguments.py`, "Set input defaults", core_v0.12.1 to core_v0.19.0). So nothing reaches an option
that has a default of its own, such as every parallel degree, nor a switch; and what is read before that place (world
size over degrees, the microbatch calculator of later releases) is read too early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from symconfig.frameworks.megatron import flags
from symconfig.frameworks.megatron.flags import Flag
from symconfig.plans.plan import Plan
from symconfig.render import megatron

# Without a default of their own, but read before that place in one of these releases.
READ_EARLY = frozenset(
    (
        "batch_size",
        "ckpt_convert_format",
        "ckpt_convert_save",
        "exit_interval",
        "expert_tensor_parallel_size",
        "global_batch_size",
        "hierarchical_context_parallel_sizes",
        "inference_cuda_graph_scope",
        "load",
        "micro_batch_size",
        "model_parallel_size",
        "non_persistent_ckpt_type",
        "num_attention_heads",
        "num_experts",
        "pipeline_model_parallel_split_rank",
        "recompute_granularity",
        "save_interval",
        "seq_length",
        "spec",
        "tensor_parallel_num_weight_shards",
        "warmup",
        "yaml_cfg",
    )
)
_TYPES: Mapping[str | None, Callable[[str], Any]] = {None: str, "str": str, "int": int, "float": float}


def split(plan: Plan) -> tuple[dict[str, Any], list[str]]:
    """Split options: values by destination for `args_defaults`, and the words of all others.

    Raises as megatron.groups.
    """
    table = flags.flags(megatron.version(plan)).flags
    values: dict[str, Any] = {}
    words: list[str] = []
    for group in megatron.groups(plan):
        for option in group.options:
            name, joined, value = option[0].partition("=")
            given = [value] if joined else list(option[1:])
            flag = table[name]
            if len(given) == 1 and carried(flag):
                values[flag.dest] = _TYPES[flag.type](given[0])
            else:
                words += option
    return values, words


def carried(flag: Flag) -> bool:
    """Tell whether `args_defaults` reaches this option in any release."""
    return (
        flag.kind == "store"
        and flag.nargs is None
        and flag.default == "None"
        and flag.type in _TYPES
        and flag.dest not in READ_EARLY
    )
