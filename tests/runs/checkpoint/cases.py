"""Pairs of plans, the kind of checkpoint between them, and what `loadable` says: each is done with the real framework.

The models are too small to take time; their degrees are what matters. `python -m tools verify checkpoints` runs all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.table import Verdict
from tests.sample_models import sample_model
from tests.sample_plans import sample_plan

TINY: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1000, "max_position_embeddings": 64,
}  # fmt: skip
ALONE = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 1}


def dense(**fields: Any) -> ModelDescriptor:
    return sample_model("llama2-13b", **{**TINY, **fields})


def experts() -> ModelDescriptor:
    model = sample_model("mixtral-8x7b", **{**TINY, "intermediate_size": 0, "sliding_window": None})
    small = model.experts.model_copy(update={"num_experts": 4, "moe_intermediate_size": 96})
    return model.model_copy(update={"experts": small})


def plan(version: str = "core_v0.19.0", model: ModelDescriptor | None = None, **fields: Any) -> Plan:
    """For Megatron-LM, on one GPU but for the degrees in `fields`. Without clipping, whose norm is summed in another
    order by every layout."""
    return sample_plan(
        model or dense(),
        "h100",
        version=version,
        **{
            **ALONE,
            "global_batch": 8,
            "seq_length": 64,
            "training": {"clip_grad": 0.0, "lr_warmup_iters": 1},
            **fields,
        },
    )


@dataclass(frozen=True, slots=True)
class Case:
    """old, new: fields of `plan`. kind: of the checkpoint; None: what the old plan's files write. writes, reads: whose
    code saves and loads. refused: a part of what the framework says when it is not told what `loadable` says."""

    old: dict[str, Any]
    new: dict[str, Any]
    verdict: Verdict
    kind: str | None = None
    refused: str = ""
    model: ModelDescriptor | None = None
    other: ModelDescriptor | None = None  # the new plan's, where it is another one
    writes: str = "core_v0.19.0"
    reads: str = "core_v0.19.0"

    def plans(self) -> tuple[Plan, Plan]:
        return (plan(self.writes, self.model, **self.old), plan(self.reads, self.other or self.model, **self.new))


WHOLE = "torch_dist:fully_reshardable"
MISMATCH, ABSENT = "(TP, PP) mismatch after resume", "from model not in state dict"
FLATTENED = "ShardedTensor.flattened_range is not supported"
AS_IS, RESHARDED, CONVERTED, WEIGHTS, NO = Verdict

CASES: dict[str, Case] = {
    "nothing changes": Case({"dp": 2}, {"dp": 2}, AS_IS),
    "dp 2 to 1": Case({"dp": 2}, {"dp": 1}, RESHARDED),
    "dp 2 to 4": Case({"dp": 2}, {"dp": 4}, RESHARDED),
    "dp 2 to cp 2": Case({"dp": 2}, {"cp": 2}, RESHARDED),
    "tp 2 to 1": Case({"tp": 2, "dp": 2}, {"dp": 2}, CONVERTED, refused=MISMATCH),
    "tp 2 to pp 2": Case({"tp": 2}, {"pp": 2}, CONVERTED, refused=MISMATCH),
    "vpp 2 to 1": Case({"pp": 2, "vpp": 2}, {"pp": 2}, CONVERTED, refused="shape mismatch"),
    "gradients in 16 bits": Case({"dp": 2}, {"dp": 2, "grad_bytes": 2}, CONVERTED, refused=ABSENT),
    "bf16 to fp16": Case({"dp": 2}, {"dp": 2, "precision": "fp16"}, CONVERTED, refused=ABSENT),
    "tp 2 to pp 2, whole": Case({"tp": 2, "dp": 2}, {"pp": 2, "dp": 2}, RESHARDED, WHOLE),
    "vpp 2 to tp 2, whole": Case({"pp": 2, "vpp": 2}, {"tp": 2, "dp": 2}, RESHARDED, WHOLE),
    "padding of the vocabulary, whole": Case({"dp": 2}, {"tp": 2}, RESHARDED, WHOLE, model=dense(vocab_size=1100)),
    "tp 2 to pp 2, unsharded": Case({"tp": 2, "zero_stage": 0}, {"pp": 2, "zero_stage": 0}, RESHARDED),
    "padding of the vocabulary, unsharded": Case(
        {"zero_stage": 0}, {"tp": 2, "zero_stage": 0}, RESHARDED, model=dense(vocab_size=1100)
    ),
    "unsharded to sharded": Case({"dp": 2, "zero_stage": 0}, {"dp": 2}, WEIGHTS, refused=FLATTENED),
    "sharded to unsharded": Case({"dp": 2}, {"dp": 2, "zero_stage": 0}, WEIGHTS, refused=ABSENT),
    "sharded to unsharded, whole": Case({"dp": 2}, {"dp": 2, "zero_stage": 0}, WEIGHTS, WHOLE, refused=ABSENT),
    "global batch 8 to 32": Case({"dp": 2}, {"dp": 2, "global_batch": 32}, AS_IS, refused="do not match"),
    "ep 2 to 4": Case({"ep": 2, "dp": 2}, {"ep": 4, "dp": 4}, CONVERTED, model=experts(), refused="shape mismatch"),
    "ep 2 to 4, whole": Case({"ep": 2, "dp": 2}, {"ep": 4, "dp": 4}, RESHARDED, WHOLE, model=experts()),
    "ep 2, dp 2 to 4": Case({"ep": 2, "dp": 2}, {"ep": 2, "dp": 4}, RESHARDED, model=experts()),
    "ep 2 to 1": Case({"ep": 2, "dp": 2}, {"dp": 2}, WEIGHTS, WHOLE, refused="optimizer", model=experts()),
    "etp 2 to ep 2": Case(
        {"tp": 2, "etp": 2, "sequence_parallel": True},
        {"tp": 2, "ep": 2, "sequence_parallel": True},
        WEIGHTS,
        WHOLE,
        refused="entries in state dict",
        model=experts(),
    ),
    "more layers": Case({"dp": 2}, {"dp": 2}, NO, refused="shape mismatch", other=dense(num_hidden_layers=6)),
    "a wider MLP": Case({"dp": 2}, {"dp": 2}, NO, refused="shape mismatch", other=dense(intermediate_size=128)),
    "untied output layer": Case(
        {"dp": 2},
        {"dp": 2},
        NO,
        WHOLE,
        refused="output_layer.weight",
        model=dense(tie_word_embeddings=True),
        other=dense(),
    ),
    "tied output layer": Case({"dp": 2}, {"dp": 2}, AS_IS, WHOLE, other=dense(tie_word_embeddings=True)),
    "more MTP": Case({"dp": 2}, {"dp": 2}, NO, WHOLE, refused=ABSENT, other=dense(num_nextn_predict_layers=1)),
    "fewer MTP": Case({"dp": 2}, {"dp": 2}, AS_IS, WHOLE, model=dense(num_nextn_predict_layers=1), other=dense()),
    "files, dp 2 to 1": Case({"dp": 2}, {"dp": 1}, RESHARDED, "torch"),
    "files, tp 2 to 1": Case({"tp": 2}, {"tp": 1}, CONVERTED, "torch", refused="size mismatch"),
    "core_v0.14 to 0.15": Case({"dp": 2}, {"dp": 2}, AS_IS, writes="core_v0.14.0", reads="core_v0.15.0"),
    "core_v0.12 to 0.15, tp 2 to pp 2": Case(
        {"tp": 2}, {"pp": 2}, RESHARDED, writes="core_v0.12.1", reads="core_v0.15.0"
    ),
    "core_v0.14 to 0.16": Case(
        {"dp": 2}, {"dp": 2}, CONVERTED, refused=FLATTENED, writes="core_v0.14.0", reads="core_v0.16.1"
    ),
    "core_v0.14 to 0.19, tp 2 to pp 2": Case({"tp": 2}, {"pp": 2}, CONVERTED, refused=FLATTENED, writes="core_v0.14.0"),
    "core_v0.14 to 0.19, unsharded": Case(
        {"dp": 2, "zero_stage": 0}, {"dp": 2, "zero_stage": 0}, AS_IS, writes="core_v0.14.0"
    ),
    "core_v0.15 to 0.19": Case({"dp": 2}, {"dp": 4}, RESHARDED, writes="core_v0.15.0"),
    "core_v0.18 to 0.19": Case({"dp": 2}, {"dp": 4}, RESHARDED, writes="core_v0.18.2"),
    "core_v0.15 to 0.14": Case(
        {"dp": 2}, {"dp": 2}, NO, refused="Unknown sharding_type", writes="core_v0.15.0", reads="core_v0.14.0"
    ),
    "core_v0.19 to 0.18": Case({"dp": 2}, {"dp": 2}, NO, refused="common.pt", reads="core_v0.18.2"),
}
