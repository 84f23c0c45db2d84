"""What options say of the facts that constraints ask for; what they leave dark is UNKNOWN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from symconfig.existing.rules.facts import PER_CHUNK, MegatronFacts, NotKnown
from symconfig.frameworks.constraint import Constraint, Verdict
from symconfig.frameworks.facts import NO_FLASH
from symconfig.frameworks.megatron import options, sparse
from symconfig.frameworks.megatron.flags import Value
from symconfig.plans.plan import Recompute
from symconfig.plans.unknown import UNKNOWN

Facts = TypeVar("Facts")
Readers = Mapping[str, Callable[[Facts], Any]]
ATTENTION = "experimental_attention_variant"
GROUPS, GQA, MLA = "num_query_groups", "group_query_attention", "multi_latent_attention"
GROUP = "microbatch_group_size_per_vp_stage"
LARGEST_WINDOW = 1  # no kernel that takes windows asks how large they are
WHOLE_STEP = "full_iteration"  # of --cuda-graph-impl and of --cuda-graph-scope: one graph, and none of a layer


class Known(Generic[Facts]):
    """Facts by their names, each read when it is asked for."""

    __slots__ = ("_facts", "_readers")

    def __init__(self, facts: Facts, readers: Readers[Facts]) -> None:
        self._facts, self._readers = facts, readers

    def __getattr__(self, name: str) -> Any:
        read = self._readers.get(name)
        try:
            return UNKNOWN if read is None else read(self._facts)
        except NotKnown:
            return UNKNOWN


def _size(dest: str) -> Callable[[MegatronFacts], Any]:
    """Read a size; one below 1 has a rule of its own."""

    def read(facts: MegatronFacts) -> Any:
        value = facts.number(dest)
        return value if value > 0 else UNKNOWN

    return read


def _groups(facts: MegatronFacts) -> Any:
    """Read the key/value heads: every head has its own without grouped-query attention."""
    return _size(GROUPS if facts.on(GQA) else "num_attention_heads")(facts)


def _head_dim(facts: MegatronFacts) -> Any:
    given = facts.maybe("kv_channels")
    heads = max(facts.number("num_attention_heads"), 1)
    return facts.number("hidden_size") // heads if given is None else max(given, 1)


def _expert_width(facts: MegatronFacts) -> Any:
    if not facts.experts:
        return 0
    return max(facts.maybe("moe_ffn_hidden_size") or facts.maybe("ffn_hidden_size") or 0, 0)


def _shared_expert(facts: MegatronFacts) -> Any:
    return max(facts.maybe("moe_shared_expert_intermediate_size") or 0, 0) if facts.experts else 0


def exchanges(facts: MegatronFacts) -> tuple[str, ...]:
    """Return how context-parallel ranks exchange, one word for all layers or one for each."""
    value = facts.value("cp_comm_type")
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def _flash(facts: MegatronFacts) -> Any:
    return UNKNOWN if facts.architecture is None else facts.architecture not in NO_FLASH


def _precision(facts: MegatronFacts) -> str:
    if facts.value("fp4") is not None:
        return "nvfp4"
    if facts.value("fp8") is not None:
        return "mxfp8" if facts.value("fp8_recipe") == "mxfp8" else "fp8"
    return "fp16" if facts.on("fp16") else "bf16" if facts.on("bf16") else "fp32"


def _chunks(facts: MegatronFacts) -> int:
    return facts.chunks if facts.value(PER_CHUNK) is None else 2


def microbatches(facts: MegatronFacts) -> int:
    """Return the micro-batches of a replica in a step, of a batch that is said."""
    return facts.number("global_batch_size") // max(1, facts.number("micro_batch_size") * facts.dp)


def group(facts: MegatronFacts) -> int:
    """Return the micro-batches of a round of the interleaved schedule; a group of none is less than any."""
    given = facts.maybe(GROUP)
    return facts.pp if given is None else given or -1


def _read(facts: MegatronFacts, *dests: str) -> Mapping[str, Value]:
    """Return the options, where these are known."""
    for dest in dests:
        facts.value(dest)
    return facts.names


def _zero(facts: MegatronFacts) -> int:
    if facts.on("use_torch_fsdp2"):
        return 3
    dests = ("use_megatron_fsdp", "use_custom_fsdp", "data_parallel_sharding_strategy", "use_distributed_optimizer")
    return options.zero_stage(_read(facts, *dests))


def _gradient_bytes(facts: MegatronFacts) -> int:
    dests = ("megatron_fsdp_main_grads_dtype", "grad_reduce_in_bf16", "fp16", "bf16", "main_grads_dtype")
    return options.gradient_bytes(_read(facts, *dests, "accumulate_allreduce_grads_in_fp32"), _zero(facts))


def _recompute(facts: MegatronFacts) -> str:
    """Read the granularity; --recompute-activations overrides full recompute (validate_args)."""
    return "selective" if facts.on("recompute_activations") else _recomputed(facts).granularity


def _recomputed(facts: MegatronFacts) -> Recompute:
    return options.recomputed(_read(facts, "recompute_granularity", "recompute_modules", "moe_layer_recompute"))


def _dispatcher(facts: MegatronFacts) -> str:
    return str(facts.value("moe_token_dispatcher_type")) if facts.experts else ""


def _flex_backend(facts: MegatronFacts) -> str:
    return str(facts.value("moe_flex_dispatcher_backend") or "deepep") if _dispatcher(facts) == "flex" else ""


def _graphs(facts: MegatronFacts) -> str:
    """Read what graphs replay of a layer. Raises NotKnown where that is nothing that plans have.

    Before core_v0.15 nothing is asked of Transformer Engine's graphs, and experts with padded places can be graphed.
    """
    old = ("enable_cuda_graph", "external_cuda_graph")
    names = _read(facts, *old, "cuda_graph_impl", "cuda_graph_modules", "cuda_graph_scope_deprecated")
    if not options.graphs(names):
        return "none"
    modules = options.graphed_modules(_read(facts, "cuda_graph_scope"))
    if names.get("cuda_graph_impl") == WHOLE_STEP or WHOLE_STEP in modules:
        raise NotKnown
    if facts.on("external_cuda_graph") and not facts.at_least("core_v0.15.0"):
        raise NotKnown
    if not facts.experts and any(name.startswith("moe") for name in modules):
        return "outside experts" if "attn" in modules else "router"
    graphs = options.graphed(names, facts.experts > 0)
    if graphs is None or (graphs == "all" and facts.on("moe_pad_expert_input_to_capacity")):
        raise NotKnown
    return graphs


FIXED: Readers[MegatronFacts] = {
    "hidden_size": _size("hidden_size"),
    "intermediate_size": _size("ffn_hidden_size"),
    "num_hidden_layers": _size("num_layers"),
    "num_attention_heads": _size("num_attention_heads"),
    "num_key_value_heads": _groups,
    "head_dim": _head_dim,
    "latent": lambda facts: facts.on(MLA),
    "indexed": lambda facts: facts.value(ATTENTION) == sparse.NAME,
    "shared_choice": lambda facts: facts.value(ATTENTION) == sparse.NAME and (facts.maybe(sparse.FREQUENCY) or 1) > 1,
    "sliding_window": lambda facts: 0 if facts.value("window_size") is None else LARGEST_WINDOW,
    "num_nextn_predict_layers": lambda facts: facts.maybe("mtp_num_layers") or 0,
    "num_experts": lambda facts: max(facts.experts, 0),
    "moe_intermediate_size": _expert_width,
    "shared_expert_intermediate_size": _shared_expert,
    "expert_bias": lambda facts: bool(facts.experts) and facts.on("add_bias_linear"),
    "flash": _flash,
    "attention_dropout": lambda facts: facts.real("attention_dropout"),
    "hidden_dropout": lambda facts: facts.real("hidden_dropout"),
    "joined": lambda facts: UNKNOWN if facts.joined is None else facts.joined,
    "architecture": lambda facts: UNKNOWN if facts.architecture is None else facts.architecture,
}
# Options first: a rule that has no words of its own is about the first of them that it asks for.
POINT: Readers[MegatronFacts] = {
    "tp_comm": lambda facts: facts.on("tp_comm_overlap"),
    "flex_backend": _flex_backend,
    "moe_overlap": lambda facts: facts.on("overlap_moe_expert_parallel_comm"),
    "moe_dispatcher": _dispatcher,
    "graphs": _graphs,
    "fp8_param_gather": lambda facts: facts.on("fp8_param_gather"),
    "fused_loss": lambda facts: (
        facts.on("cross_entropy_loss_fusion") and facts.value("cross_entropy_fusion_impl") == "te"
    ),
    "grad_bytes": _gradient_bytes,
    "zero": _zero,
    "recompute": _recompute,
    "modules": lambda facts: _recomputed(facts).modules,
    "gpus": lambda facts: facts.gpus,
    "tp": lambda facts: facts.tp,
    "pp": lambda facts: facts.pp,
    "vpp": _chunks,
    "cp": lambda facts: facts.cp,
    "ep": lambda facts: facts.ep,
    "etp": lambda facts: facts.etp,
    "dp": lambda facts: facts.dp or UNKNOWN,
    "micro": _size("micro_batch_size"),
    "global_batch": lambda facts: facts.number("global_batch_size"),
    "num_microbatches": microbatches,
    "group": group,
    "seq_length": _size("seq_length"),
    "sequence_parallel": lambda facts: facts.on("sequence_parallel"),
    "cp_comm": lambda facts: " ".join(exchanges(facts)),
    "precision": _precision,
}


def fails(constraint: Constraint, facts: MegatronFacts) -> bool:
    """Return whether a launch is known to fail a constraint."""
    return constraint.verdict(Known(facts, FIXED), Known(facts, POINT)) is Verdict.FAILS


def expressible(constraint: Constraint) -> bool:
    """Return whether options of its releases can say all that a constraint asks for."""
    return not constraint.unsaid and constraint.asks <= FIXED.keys() | POINT.keys()
