"""Rules of constraints that have no rule of their own: the table's sentence, at the option that it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.known import FIXED, GQA, GROUPS, MLA, POINT, Known
from symconfig.existing.rules.rule import Rule
from symconfig.frameworks.constraint import Constraint
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
}


def options(example: Mapping[str, Any]) -> str:
    """Return the facts of an example as options. What is no option of its own, as the GPUs, is left out."""
    said = []
    for name, value in example.items():
        dest = DESTINATIONS.get(name, "")
        if name == "precision":
            said.append({"fp16": "--fp16", "bf16": "--bf16"}.get(value, f"--fp8-format hybrid --fp8-recipe {value}"))
        elif name == "num_key_value_heads":
            said.append(f"--{GQA} --{GROUPS} {value}".replace("_", "-"))
        elif name == "num_experts":
            said.append(f"--num-experts {value} --disable-bias-linear --moe-grouped-gemm --moe-aux-loss-coeff 0.01")
            said.append("--moe-token-dispatcher-type alltoall")
        elif name == "sliding_window":
            said.append(f"--window-size {value},0")
        elif name == "num_nextn_predict_layers":
            said.append(f"--mtp-num-layers {value} --position-embedding-type rope")
        elif name == "seq_length":
            said.append(f"--seq-length {value} --max-position-embeddings {value}")
        elif dest and value is not False:
            said.append(f"--{dest.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return " ".join(said).replace("--fp8-recipe fp8", "--fp8-recipe delayed")


def of_constraint(constraint: Constraint) -> Rule[MegatronFacts]:
    """Return the rule that says a constraint's sentence."""
    about = [DESTINATIONS[name] for name in (*POINT, *FIXED) if name in constraint.asks and name in DESTINATIONS]

    def check(facts: MegatronFacts) -> Iterator[Problem]:
        sentence = constraint.said(Known(facts, FIXED), Known(facts, POINT))
        yield facts.problem(sentence, next((dest for dest in about if facts.names.given(dest)), about[0]), *about)

    return Rule(
        constraint.name.replace(" ", "-").replace("_", "-").replace("/", "-").lower(),
        "error",
        constraint.rule[0].upper() + constraint.rule[1:],
        f"Read in {constraint.source}.",
        options(constraint.example),
        check,
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
