"""Rules of constraints that have no rule of their own: the table's sentence, at the option that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.rules.examples import GPUS_PER_NODE, UNSHARDED
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import ATTENTION, FIXED, GQA, GROUPS, MLA, POINT, Known
from symconfig.existing.rules.rule import Rule
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron import sparse
from symconfig.frameworks.megatron.flags import versions
from symconfig.frameworks.megatron.releases import megatron_release

# By the names of facts: destinations of the options that say them.
DESTINATIONS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "num_virtual_stages_per_pipeline_rank",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "micro": "micro_batch_size",
    "global_batch": "global_batch_size",
    "seq_length": "seq_length",
    "cp_comm": "cp_comm_type",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": GROUPS,
    "head_dim": "kv_channels",
    "num_experts": "num_experts",
    "moe_intermediate_size": "moe_ffn_hidden_size",
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "num_nextn_predict_layers": "mtp_num_layers",
    "sliding_window": "window_size",
    "sequence_parallel": "sequence_parallel",
    "precision": "fp16",
    "latent": MLA,
    "indexed": ATTENTION,
    "shared_choice": sparse.FREQUENCY,
    "tp_comm": "tp_comm_overlap",
    "moe_dispatcher": "moe_token_dispatcher_type",
    "flex_backend": "moe_flex_dispatcher_backend",
    "graphs": "cuda_graph_impl",
    "fp8_param_gather": "fp8_param_gather",
    "fused_loss": "cross_entropy_fusion_impl",
    "grad_bytes": "grad_reduce_in_bf16",
    "zero": "use_distributed_optimizer",
    "recompute": "recompute_granularity",
    "modules": "recompute_modules",
    "attention_dropout": "attention_dropout",
    "hidden_dropout": "hidden_dropout",
}
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
# What CUDA graphs replay, as modules; without them they replay all of a layer.
MODULES = {"router": "moe_router moe_preprocess", "outside experts": "attn moe_router moe_preprocess"}


def options(example: Mapping[str, Any]) -> str:
    """Return the facts of an example as options. What is no option of its own, as the GPUs, is left out."""
    words = (word for name, value in example.items() for word in _options(name, value, example))
    return " ".join(words).replace("--fp8-recipe fp8", "--fp8-recipe delayed")


def _options(name: str, value: Any, example: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that say one fact of an example."""
    match name:
        case "precision":
            yield {"fp16": "--fp16", "bf16": "--bf16"}.get(value, f"--fp8-format hybrid --fp8-recipe {value}")
        case "num_key_value_heads":
            yield f"--{GQA} --{GROUPS} {value}".replace("_", "-")
        case "num_experts":
            yield f"--num-experts {value} --disable-bias-linear --moe-grouped-gemm --moe-aux-loss-coeff 0.01"
            yield f"--moe-token-dispatcher-type {example.get('moe_dispatcher', 'alltoall')}"
        case "indexed":
            yield f"{sparse.VARIANT} {sparse.NAME}"
        case "shared_choice":
            yield f"--{sparse.FREQUENCY} 2".replace("_", "-")
        case "moe_dispatcher":
            return  # with the experts
        case "sliding_window":
            yield f"--window-size {value},0"
        case "num_nextn_predict_layers":
            yield f"--mtp-num-layers {value} --position-embedding-type rope"
        case "seq_length":
            yield f"--seq-length {value} --max-position-embeddings {value}"
        case "graphs":
            yield "--cuda-graph-impl transformer_engine"
            if modules := MODULES.get(value, "attn moe" if "num_experts" in example else ""):
                yield f"--cuda-graph-modules {modules}"
        case "fused_loss":
            yield "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
        case "recompute":
            yield FULL if value == "full" else f"--recompute-granularity {value}"
        case "modules":
            yield f"--recompute-modules {' '.join(value)}"
        case "zero":
            yield from () if value else (UNSHARDED,)
        case "grad_bytes":
            yield from ("--grad-reduce-in-bf16",) if value == 2 else ()
        case _:
            if name in DESTINATIONS and value is not False:
                yield f"--{DESTINATIONS[name].replace('_', '-')}" + ("" if value is True else f" {value}")


def of_constraint(constraint: Constraint) -> Rule[MegatronFacts]:
    """Return the rule that says a constraint's sentence."""
    about = [DESTINATIONS[name] for name in (*POINT, *FIXED) if name in constraint.asks and name in DESTINATIONS]

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        sentence = constraint.sentence_at(Known(facts, FIXED), Known(facts, POINT))
        yield facts.problem(sentence, next((dest for dest in about if facts.names.given(dest)), about[0]), *about)

    return Rule(
        constraint.name.replace(" ", "-").replace("_", "-").replace("/", "-").lower(),
        "error",
        constraint.rule[0].upper() + constraint.rule[1:],
        f"Read in {constraint.source}.",
        options(constraint.example),
        check,
        gpus=constraint.example.get("gpus", GPUS_PER_NODE),
        near=constraint.example.get("near"),
        architecture=constraint.example.get("architecture"),
        since=None if constraint.since is None else _first(constraint.since),
        until=None if constraint.until is None else _last(constraint.until),
        constraints=(constraint,),
    )


def _first(release: str) -> str:
    """Return the first version of the tables that is the release or a later one."""
    return next(name for name in versions() if megatron_release(name) >= megatron_release(release))


def _last(release: str) -> str:
    """Return the last version of the tables that is the release or an earlier one."""
    return [name for name in versions() if megatron_release(name) <= megatron_release(release)][-1]
