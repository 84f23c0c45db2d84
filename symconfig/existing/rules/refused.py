"""Rules of the table of constraints: what options say of the facts that they ask for, and each sentence at the option
that it is about. What the options leave dark is UNKNOWN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.recover.megatron import PER_CHUNK
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.rule import BASES, GPUS_PER_NODE, Language, Row, Rule, rows_of
from symconfig.formats import megatron
from symconfig.formats.megatron_run import BY_FIELD, GRAPHED_MODULES
from symconfig.frameworks import shared
from symconfig.frameworks.constraint import NO_FLASH, Constraint, Fixed, Verdict, failing, in_force
from symconfig.frameworks.megatron import constraints as table
from symconfig.frameworks.megatron import option_constraints as options_table
from symconfig.frameworks.megatron import options, sparse
from symconfig.frameworks.megatron.flags import versions
from symconfig.plans.configuration_set import UNKNOWN, ConfigurationSet

ATTENTION = "experimental_attention_variant"
GROUPS, GQA, MLA = "num_query_groups", "group_query_attention", "multi_latent_attention"
LARGEST_WINDOW = 1  # no kernel that takes windows asks how large they are
# By the names of facts: destinations of the options that say them.
DESTINATIONS: Mapping[str, str] = {
    **megatron.DESTINATIONS,
    **{field: dests[0] for field, dests in BY_FIELD.items()},
    "seq_length": "seq_length",
    "latent": MLA,
    "indexed": ATTENTION,
    "shared_choice": sparse.FREQUENCY,
    "fused_loss": BY_FIELD["fused_loss"][1],
}
Read = Callable[[MegatronFacts], Any]


def _size(dest: str) -> Read:
    """Return a reader of a size by destination; it gives UNKNOWN below 1, which has a rule of its own."""
    return lambda facts: value if (value := facts.number(dest)) > 0 else UNKNOWN


def _on(name: str) -> Read:
    return lambda facts: facts.on(DESTINATIONS[name])


def _own(name: str) -> Read:
    return lambda facts: getattr(facts, name)


def _head_dim(facts: MegatronFacts) -> Any:
    given = facts.maybe("kv_channels")
    heads = max(facts.number("num_attention_heads"), 1)
    return facts.number("hidden_size") // heads if given is None else max(given, 1)


def _of_experts(*dests: str) -> Read:
    """Return a reader of the first non-zero of some sizes; 0 for dense models or if none is given."""
    return lambda facts: max(next(filter(None, map(facts.maybe, dests)), 0), 0) if facts.experts else 0


def exchanges(facts: MegatronFacts) -> tuple[str, ...]:
    """Return the values of --cp-comm-type: one for all layers, or one per layer."""
    value = facts["cp_comm_type"]
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


def group(facts: MegatronFacts) -> int:
    """Return the microbatch group of the interleaved schedule: pp by default; -1, below any minimum, for 0."""
    given = facts.maybe(DESTINATIONS["microbatch_group_size"])
    return facts.pp if given is None else given or -1


def _zero(facts: MegatronFacts) -> int:
    return 3 if facts.on("use_torch_fsdp2") else options.zero_stage(facts)


def _graphs(facts: MegatronFacts) -> str:
    """Return what CUDA graphs replay of a layer, in the planner's words; "none" without graphs.

    Without experts, graphs of moe modules are "outside experts" (with attn) or "router", which a constraint refuses.
    Raises NotKnown for choices that plans do not have: Transformer Engine's before core_v0.15, and experts padded to
    capacity.
    """
    if not options.graphs(facts):
        return "none"
    modules = options.graphed_modules(facts)
    if facts.on("external_cuda_graph") and not facts.at_least("core_v0.15.0"):
        raise NotKnown
    if not facts.experts and any(name.startswith("moe") for name in modules):
        return "outside experts" if "attn" in modules else "router"
    graphs = options.graphed(facts, facts.experts > 0)
    if graphs is None or (graphs in ("all", "full iteration") and facts.on("moe_pad_expert_input_to_capacity")):
        raise NotKnown
    return graphs


FIXED: Mapping[str, Read] = {
    **{name: _size(DESTINATIONS[name])
       for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    # Every head has key and value of its own without grouped-query attention.
    "num_key_value_heads": lambda facts: _size(GROUPS if facts.on(GQA) else "num_attention_heads")(facts),
    "head_dim": _head_dim,
    "latent": _on("latent"),
    "indexed": lambda facts: facts[ATTENTION] == sparse.NAME,
    "shared_choice": lambda facts: facts[ATTENTION] == sparse.NAME and (facts.maybe(sparse.FREQUENCY) or 1) > 1,
    "sliding_window": lambda facts: 0 if facts["window_size"] is None else LARGEST_WINDOW,
    "num_nextn_predict_layers": lambda facts: facts.maybe("mtp_num_layers") or 0,
    "num_experts": lambda facts: max(facts.experts, 0),
    "moe_intermediate_size": _of_experts("moe_ffn_hidden_size", "ffn_hidden_size"),
    "shared_expert_intermediate_size": _of_experts("moe_shared_expert_intermediate_size"),
    "expert_bias": lambda facts: bool(facts.experts) and facts.on("add_bias_linear"),
    "flash": lambda facts: UNKNOWN if facts.architecture is None else facts.architecture not in NO_FLASH,
    "attention_dropout": lambda facts: facts["attention_dropout"],
    "hidden_dropout": lambda facts: facts["hidden_dropout"],
    "joined": lambda facts: UNKNOWN if facts.joined is None else facts.joined,
    "architecture": lambda facts: UNKNOWN if facts.architecture is None else facts.architecture,
}  # fmt: skip
# Options first: a rule that has no words of its own is about the first of them that it asks for.
POINT: Mapping[str, Read] = {
    "overlap_tp_comm": _on("overlap_tp_comm"),
    # As it is given: NCCL EP is not predicted, and has rules.
    "moe_flex_backend": lambda facts: (
        str(facts["moe_flex_dispatcher_backend"] or "deepep") if facts.experts and options.flex_backend(facts) else ""
    ),
    "overlap_moe_a2a": _on("overlap_moe_a2a"),
    "expert_capacity": lambda facts: options.expert_capacity(facts) if facts.experts else 0.0,
    "paged_stash": _on("paged_stash"),
    "moe_dispatcher": lambda facts: str(facts["moe_token_dispatcher_type"]) if facts.experts else "",
    "cuda_graphs": _graphs,
    "fp8_param_gather": _on("fp8_param_gather"),
    "fused_loss": options.fuses_loss,
    "grad_bytes": lambda facts: options.gradient_bytes(facts, _zero(facts)),
    "zero_stage": _zero,
    "recompute": lambda facts: str(options.recomputed(facts)["recompute"]),
    "recompute_modules": lambda facts: options.recomputed(facts).get("recompute_modules", ()),
    "world_size": _own("gpus"),
    **{name: _own(name) for name in ("tp", "pp")},
    "vpp": lambda facts: facts.chunks if facts[PER_CHUNK] is None else 2,
    **{name: _own(name) for name in ("cp", "ep", "etp")},
    "dp": lambda facts: facts.dp or UNKNOWN,
    "micro": _size("micro_batch_size"),
    "global_batch": lambda facts: facts.number("global_batch_size"),
    "num_microbatches": lambda facts: facts.microbatches if facts.number("global_batch_size") else 0,
    "group": group,
    "seq_length": _size("seq_length"),
    "sequence_parallel": _on("sequence_parallel"),
    "cp_comm": lambda facts: " ".join(exchanges(facts)),
    "precision": lambda facts: options.precision(facts) or "fp32",
}


def known(facts: MegatronFacts) -> tuple[Fixed, ConfigurationSet]:
    """Return what the options tell of model and GPUs (`Fixed`) and of the configuration, with UNKNOWN for the rest."""

    def read(readers: Mapping[str, Read]) -> Iterator[tuple[str, Any]]:
        for name, reader in readers.items():
            with suppress(NotKnown):
                yield name, reader(facts)

    return Fixed(**dict(read(FIXED))), ConfigurationSet(**dict(read(POINT)))


def fails(constraint: Constraint, facts: MegatronFacts) -> bool:
    """Return whether the facts that are known show that the constraint fails; False if the verdict is open."""
    return constraint.verdict(*known(facts)) is Verdict.FAILS


def expressible(constraint: Constraint) -> bool:
    """Return whether options exist for all facts that the constraint asks for."""
    return not constraint.unsaid and constraint.asks <= FIXED.keys() | POINT.keys()


def _graph_options(value: str, example: Mapping[str, Any]) -> str:
    """Return the options that give a fact `cuda_graphs` of an example."""
    if value == "full iteration":
        return "--cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad"
    modules = ("attn", "moe") * ("num_experts" in example) if value == "all" else GRAPHED_MODULES[value]  # type: ignore[index]
    return " ".join(("--cuda-graph-impl transformer_engine", *(("--cuda-graph-modules", *modules) if modules else ())))


# The options that say a fact of an example, of its value and the example; the others are said by their own option.
AS_OPTIONS: Mapping[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "precision": lambda v, _: {"fp16": "--fp16", "bf16": "--bf16"}.get(v, f"--fp8-format hybrid --fp8-recipe {v}"),
    "num_key_value_heads": lambda v, e: (
        "" if v == e.get("num_attention_heads") else f"--group-query-attention --num-query-groups {v}"
    ),
    "num_experts": lambda v, e: (
        f"--num-experts {v} --disable-bias-linear --moe-grouped-gemm --moe-aux-loss-coeff 0.01 "
        f"--moe-token-dispatcher-type {e.get('moe_dispatcher', 'alltoall')}"
    ),
    "moe_dispatcher": lambda *_: "",  # with the experts
    "indexed": lambda *_: f"{sparse.VARIANT} {sparse.NAME}",
    "shared_choice": lambda *_: f"--{sparse.FREQUENCY} 2".replace("_", "-"),
    "sliding_window": lambda v, _: f"--window-size {v},0",
    "num_nextn_predict_layers": lambda v, _: f"--mtp-num-layers {v} --position-embedding-type rope",
    "seq_length": lambda v, _: f"--seq-length {v} --max-position-embeddings {v}",
    "cuda_graphs": _graph_options,
    "expert_capacity": lambda v, _: (
        f"--moe-expert-rank-capacity-factor {v} --use-transformer-engine-op-fuser" if v else ""
    ),
    "fused_loss": lambda *_: "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
    "recompute": lambda v, _: (
        f"--recompute-granularity {v}" + " --recompute-method uniform --recompute-num-layers 1" * (v == "full")
    ),
    "recompute_modules": lambda v, _: f"--recompute-modules {' '.join(v)}",
    "zero_stage": lambda v, _: "" if v else BASES["UNSHARDED"],
    "grad_bytes": lambda v, _: "--grad-reduce-in-bf16" * (v == 2),
}


def example_options(example: Mapping[str, Any]) -> str:
    """Return a constraint's example as a line of options; facts without an option, such as the GPUs, are left out.

    So are facts that are False, and degrees of 1. --sequence-parallel is added for tp above 1, lest another rule be
    broken.
    """
    whole = {"sequence_parallel": example.get("tp", 1) > 1, **example}  # else another rule would be broken
    words = []
    for name, value in whole.items():
        usual = value is False or (value == 1 and name in ("tp", "pp", "cp", "ep"))
        if name in AS_OPTIONS:
            words.append(AS_OPTIONS[name](value, whole))
        elif name in DESTINATIONS and not usual:
            words.append(f"--{DESTINATIONS[name].replace('_', '-')}" + ("" if value is True else f" {value}"))
    return " ".join(filter(None, words)).replace("--fp8-recipe fp8", "--fp8-recipe delayed")


# By constraint, how the audit reports it (rows/wordings.yaml).
_TABLES = {**vars(shared), **vars(table), **vars(options_table)}
WORDINGS: Mapping[Constraint, Row] = {_TABLES[name]: row for name, row in rows_of("wordings").items()}


def of_constraints(language: Language[MegatronFacts]) -> list[Rule[MegatronFacts]]:
    """Return the rules made of the table of constraints, one per name; of those that options express.

    language: reads the conditions of wordings.
    """
    by_name: dict[str, list[Constraint]] = {}
    for one in table.MEGATRON:
        name = _wording(one).get("rule")
        if name is not None and expressible(one):
            by_name.setdefault(name, []).append(one)
    return [_rule(name, constraints, language) for name, constraints in by_name.items()]


def _wording(constraint: Constraint) -> Row:
    return WORDINGS.get(constraint) or {"rule": constraint.name.translate(str.maketrans(" _/", "---")).lower()}


def _rule(name: str, constraints: Sequence[Constraint], language: Language[MegatronFacts]) -> Rule[MegatronFacts]:
    """Return one rule for constraints of one name, with the first one's severity and title and the last one's example.

    It covers the versions from the first one's start to the last one's end. Its check yields a problem for each
    constraint that is in force in the version, known to fail, and whose wording's conditions hold.
    """
    first, last = constraints[0], constraints[-1]
    example, held = last.example, [version for version in versions() if in_force(constraints, version)]

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        fixed, point = known(facts)
        for one in failing(in_force(constraints, facts.version), fixed, point):
            if language.holds(facts, _wording(one).get("if", {})):
                yield _problem(one, facts, one.sentence_at(fixed, point))

    return Rule(
        name,
        _wording(first).get("severity", "error"),
        first.rule[0].upper() + first.rule[1:],
        f"Read in {'; '.join(dict.fromkeys(one.source for one in constraints))}.",
        example_options(example),
        check,
        gpus=example.get("world_size", GPUS_PER_NODE),
        joined=example.get("joined"),
        architecture=example.get("architecture"),
        since=first.since and held[0],
        until=last.until and held[-1],
        constraints=tuple(constraints),
    )


def _problem(constraint: Constraint, facts: MegatronFacts, sentence: str) -> Problem:
    wording = _wording(constraint)
    dests = [DESTINATIONS[name] for name in (*POINT, *FIXED) if name in constraint.asks and name in DESTINATIONS]
    dest = wording.get("about") or next((dest for dest in dests if facts.names.given(dest)), dests[0])
    return facts.problem(sentence, dest, *dests, need=wording.get("need"))
