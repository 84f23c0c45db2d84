"""What options say of the facts that constraints ask for; what they leave dark is UNKNOWN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.frameworks.constraint import Constraint, Verdict
from symconfig.frameworks.facts import NO_FLASH
from symconfig.plans.unknown import UNKNOWN

Facts = TypeVar("Facts")
Readers = Mapping[str, Callable[[Facts], Any]]
GROUPS, GQA, MLA = "num_query_groups", "group_query_attention", "multi_latent_attention"
GROUP, PER_CHUNK = "microbatch_group_size_per_vp_stage", "num_layers_per_virtual_pipeline_stage"
LARGEST_WINDOW = 1  # no kernel that takes windows asks how large they are


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
    said = facts.maybe("kv_channels")
    heads = max(facts.number("num_attention_heads"), 1)
    return facts.number("hidden_size") // heads if said is None else max(said, 1)


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
    said = facts.maybe(GROUP)
    return facts.pp if said is None else said or -1


FIXED: Readers[MegatronFacts] = {
    "hidden_size": _size("hidden_size"),
    "intermediate_size": _size("ffn_hidden_size"),
    "num_hidden_layers": _size("num_layers"),
    "num_attention_heads": _size("num_attention_heads"),
    "num_key_value_heads": _groups,
    "head_dim": _head_dim,
    "latent": lambda facts: facts.on(MLA),
    "sliding_window": lambda facts: 0 if facts.value("window_size") is None else LARGEST_WINDOW,
    "num_nextn_predict_layers": lambda facts: facts.maybe("mtp_num_layers") or 0,
    "num_experts": lambda facts: max(facts.experts, 0),
    "moe_intermediate_size": _expert_width,
    "shared_expert_intermediate_size": _shared_expert,
    "expert_bias": lambda facts: bool(facts.experts) and facts.on("add_bias_linear"),
    "flash": _flash,
}
POINT: Readers[MegatronFacts] = {
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
    """Return whether options can say all that a constraint asks for."""
    return constraint.asks <= FIXED.keys() | POINT.keys()
