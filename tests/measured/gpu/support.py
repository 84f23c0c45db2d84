"""Folders of small plans, and what a GPU might have answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from symconfig.api import planning as api
from symconfig.descriptor.model import ModelDescriptor
from symconfig.measured.gpu.measure import Measurement, passes
from symconfig.measured.gpu.predict import expected
from symconfig.measured.gpu.rank import choose
from symconfig.measured.gpu.session import Memory, Step, Taken
from symconfig.plans.plan import Plan
from tests.sample_models import sample_cluster, sample_model
from tests.sample_plans import sample_plan

SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
    "head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def small_model(name: str = "llama2-13b") -> ModelDescriptor:
    """A model of this kind that a CPU runs in a second."""
    fields = sample_model(name).model_dump(mode="json", by_alias=True) | SMALL
    if fields.get("experts"):
        fields |= {"num_hidden_layers": 2, "experts": fields["experts"] | EXPERTS}
    return ModelDescriptor.model_validate_json(json.dumps(fields))


def small_folder(folder: Path, model: str = "llama2-13b", **overrides: Any) -> Plan:
    """The rendered folder of a small plan."""
    plan = sample_plan(small_model(model), "a100-80gb", seq_length=64, **overrides)
    api.write(plan, folder, api.Wanted("megatron"), force=False)
    return plan


def answered(plan: Plan, args: dict[str, Any], rank: str = "0", **more: Any) -> Measurement:
    """What the plan's own GPU might have answered: as predicted, but for a tenth in time and a GiB in memory."""
    run = choose(plan, rank, "3", None, "cuda")
    hope = expected(plan, run.stage, run.impl, run.attention)
    each = (1.1 * hope.forward_s,) * run.microbatches, (1.1 * hope.backward_s,) * run.microbatches
    peak = int(hope.peak_bytes) + 2**30
    gpu = sample_cluster("a100-80gb").gpu
    fields: dict[str, Any] = {
        "steps": (Step(*each, 1.1 * hope.optimizer_s, (), 1.0),) * 3,
        "memory": Memory(peak, peak + 2**29, peak + 2**30, int(gpu.memory_bytes.value)),
        "states_bytes": int(hope.states_bytes),
        "args": args,
        "software": {"gpu": "NVIDIA A100", "capability": [8, 0], "compute_units": gpu.compute_units, "torch": "2.13.0"},
    }
    taken = Taken(**(fields | more))
    return Measurement(plan, run, "0.19.2", hope, taken, passes(taken.steps, run.microbatches))
