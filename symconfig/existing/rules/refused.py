"""Rules of the table of constraints: its sentence, at the option that it is about."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import ATTENTION, FIXED, GQA, GROUPS, MLA, POINT, Known, expressible, fails
from symconfig.existing.rules.rule import GPUS_PER_NODE, UNSHARDED, Rule, Severity
from symconfig.formats import megatron
from symconfig.frameworks import shared
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron import constraints as table
from symconfig.frameworks.megatron import option_constraints as options_table
from symconfig.frameworks.megatron import sparse
from symconfig.frameworks.megatron.flags import versions
from symconfig.frameworks.megatron.releases import megatron_release

# By the names of facts: destinations of the options that say them.
DESTINATIONS = {
    **megatron.DESTINATIONS,
    **megatron.DEGREES,
    "vpp": "num_virtual_stages_per_pipeline_rank",
    "micro": "micro_batch_size",
    "global_batch": "global_batch_size",
    "seq_length": "seq_length",
    "cp_comm": "cp_comm_type",
    "sequence_parallel": "sequence_parallel",
    "precision": "fp16",
    "latent": MLA,
    "indexed": ATTENTION,
    "shared_choice": sparse.FREQUENCY,
    "tp_comm": "tp_comm_overlap",
    "moe_overlap": "overlap_moe_expert_parallel_comm",
    "moe_dispatcher": "moe_token_dispatcher_type",
    "flex_backend": "moe_flex_dispatcher_backend",
    "graphs": "cuda_graph_impl",
    "fp8_param_gather": "fp8_param_gather",
    "fused_loss": "cross_entropy_fusion_impl",
    "grad_bytes": "grad_reduce_in_bf16",
    "zero": "use_distributed_optimizer",
    "recompute": "recompute_granularity",
    "modules": "recompute_modules",
}
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
# What CUDA graphs replay, as modules; without them they replay all of a layer.
MODULES = {"router": "moe_router moe_preprocess", "outside experts": "attn moe_router moe_preprocess"}


def options(example: Mapping[str, Any]) -> str:
    """Return the facts of an example as options. What is no option of its own, as the GPUs, is left out."""
    whole = {"sequence_parallel": example.get("tp", 1) > 1, **example}  # else another rule would be broken
    words = (word for name, value in whole.items() for word in _options(name, value, whole))
    return " ".join(words).replace("--fp8-recipe fp8", "--fp8-recipe delayed")


def _options(name: str, value: Any, example: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that say one fact of an example."""
    match name:
        case "precision":
            yield {"fp16": "--fp16", "bf16": "--bf16"}.get(value, f"--fp8-format hybrid --fp8-recipe {value}")
        case "num_key_value_heads":
            if value != example.get("num_attention_heads"):
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
            usual = name in ("tp", "pp", "cp", "ep") and value == 1
            if name in DESTINATIONS and value is not False and not usual:
                yield f"--{DESTINATIONS[name].replace('_', '-')}" + ("" if value is True else f" {value}")


@dataclass(frozen=True, slots=True)
class Wording:
    """How the audit tells a constraint, where that does not follow from the table.

    rule: its name; constraints may share one. about: the option that is to blame, before the others that it asks for.
    need: what that must be. where: what else it takes, since else another rule says it.
    """

    rule: str
    about: str = ""
    need: str | None = None
    severity: Severity = "error"
    where: Callable[[MegatronFacts], bool] = lambda facts: True


def _whole_tokens(facts: MegatronFacts) -> bool:
    """Tell whether each rank has as many tokens of a microbatch."""
    ranks = facts.cp * (facts.tp if facts.on("sequence_parallel") else 1)
    return facts.number("seq_length") * facts.number("micro_batch_size") % ranks == 0


def _no_rampup(facts: MegatronFacts) -> bool:
    return facts.value("rampup_batch_size") is None


def _grouped(facts: MegatronFacts) -> bool:
    return facts.on(GQA)


def _by_engine(facts: MegatronFacts) -> bool:
    return facts.value("cuda_graph_impl") == "transformer_engine" or facts.on("external_cuda_graph")


_GROUPS, _GRAPHS = "query-groups-over-tp", "graphs-of-parts-refused"
WORDINGS: Mapping[Constraint, Wording] = {
    shared.BATCH: Wording("batch-over-replicas", "global_batch_size", where=_no_rampup),
    shared.HEADS: Wording("heads-over-tp", "num_attention_heads"),
    shared.FFN: Wording("mlp-over-tp", "ffn_hidden_size"),
    shared.EXPERTS: Wording("experts-over-ep", "num_experts"),
    shared.EXPERT_GRID: Wording("stage-over-expert-grid", "expert_model_parallel_size"),
    shared.EXPERT_WIDTH: Wording("expert-over-etp", "moe_ffn_hidden_size"),
    shared.SHARED_EXPERT: Wording("shared-expert-over-tp", "moe_shared_expert_intermediate_size"),
    shared.CONTEXT_KERNEL: Wording("cp-without-kernels", "context_parallel_size", "1"),
    table.KV_HEADS_ALONE: Wording(_GROUPS, GROUPS, where=_grouped),
    table.KV_HEADS: Wording(_GROUPS, GROUPS, where=_grouped),
    table.SEQUENCE_OVER_CP: Wording("sequence-over-cp", "seq_length"),
    table.SEQUENCE_OVER_TP: Wording("sequence-over-tp", "seq_length"),
    table.LOW_PRECISION_SIZES: Wording("low-precision-sizes", "seq_length", where=_whole_tokens),
    table.EXPERTS_WITHOUT_SEQUENCE: Wording("experts-need-sequence-parallel", "sequence_parallel", "it"),
    table.ULYSSES_HEADS: Wording("heads-over-cp", "num_attention_heads"),
    table.WINDOWS_OVER_RING: Wording("windows-over-ring", "cp_comm_type", "a2a or all_gather"),
    table.MTP_OVER_CP: Wording("mtp-over-cp", "mtp_num_layers"),
    table.INTERLEAVING: Wording("interleaving-group", "microbatch_group_size_per_vp_stage"),
    options_table.LOSS_REFUSED: Wording("fused-loss-refused", "cross_entropy_fusion_impl", "native"),
    options_table.GRAPHS_RECOMPUTE: Wording(_GRAPHS, "recompute_granularity", "selective"),
    options_table.GRAPHS_EXPERT_RECOMPUTE: Wording(_GRAPHS, "recompute_modules", where=_by_engine),
    options_table.GRAPHS_DENSE: Wording(_GRAPHS, "cuda_graph_impl"),
    options_table.GATHER_SHARDING: Wording("gathered-quantised-weights", "fp8_param_gather"),
    options_table.BUFFERS_SEQUENCE: Wording("tp-overlap-without-sequence-parallel", "tp_comm_overlap"),
    options_table.BUFFERS_LATENT: Wording("tp-overlap-of-latent-attention", "tp_comm_overlap", severity="warning"),
    options_table.HYBRIDEP_SIZES: Wording("hybridep-on-one-rank", "moe_flex_dispatcher_backend", severity="warning"),
}


def of_constraints(but: Collection[Constraint]) -> list[Rule[MegatronFacts]]:
    """Return the rules of the table, but for constraints that are a reason of another rule."""
    by_name: dict[str, list[Constraint]] = {}
    for one in table.MEGATRON:
        if one not in but and expressible(one):
            by_name.setdefault(_worded(one).rule, []).append(one)
    return [_rule(name, constraints) for name, constraints in by_name.items()]


def _worded(constraint: Constraint) -> Wording:
    return WORDINGS.get(constraint) or Wording(constraint.name.translate(str.maketrans(" _/", "---")).lower())


def _rule(name: str, constraints: Sequence[Constraint]) -> Rule[MegatronFacts]:
    """Return the rule that says the sentences of constraints."""
    first, example = constraints[0], constraints[-1].example

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        for one in constraints:
            if one.in_force(facts.version) and fails(one, facts) and _worded(one).where(facts):
                yield _problem(one, facts)

    return Rule(
        name,
        _worded(first).severity,
        first.rule[0].upper() + first.rule[1:],
        f"Read in {'; '.join(dict.fromkeys(one.source for one in constraints))}.",
        options(example),
        check,
        gpus=example.get("gpus", GPUS_PER_NODE),
        joined=example.get("joined"),
        architecture=example.get("architecture"),
        since=None
        if first.since is None
        else next(name for name in versions() if megatron_release(name) >= megatron_release(first.since)),
        until=None
        if (last := constraints[-1].until) is None
        else [name for name in versions() if megatron_release(name) <= megatron_release(last)][-1],
        constraints=tuple(constraints),
    )


def _problem(constraint: Constraint, facts: MegatronFacts) -> Problem:
    wording = _worded(constraint)
    dests = [DESTINATIONS[name] for name in (*POINT, *FIXED) if name in constraint.asks and name in DESTINATIONS]
    dest = wording.about or next((dest for dest in dests if facts.names.given(dest)), dests[0])
    sentence = constraint.sentence_at(Known(facts, FIXED), Known(facts, POINT))
    return facts.problem(sentence, dest, *dests, need=wording.need)
