"""What releases of Megatron-LM refuse beside the experts' all-to-all under another microbatch."""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.shared import MIXERS
from symconfig.plans.unknown import has

OVERLAP_SINCE = "core_v0.14.0"  # --overlap-moe-expert-parallel-comm
OVERLAP_SOURCE = "megatron/core/transformer/transformer_config.py, __post_init__"
OVERLAP = {"moe_overlap": True, "num_experts": 8, "ep": 2}  # of examples

OVERLAP_RELEASE = Constraint(
    name="expert overlap of an old release",
    predicate=lambda f, p: p.moe_overlap,
    rule=f"hiding the experts' all-to-all needs {OVERLAP_SINCE} or later",
    sentence="it cannot hide the experts' all-to-all",
    about="overlap.moe_a2a",
    until="core_v0.13.0",
    unsaid=True,
    source=OVERLAP_SOURCE,
    example=OVERLAP,
)
_HIDING = partial(Constraint, about="overlap.moe_a2a", since=OVERLAP_SINCE, source=OVERLAP_SOURCE)
OVERLAP_STAGES = _HIDING(
    name="expert overlap without virtual stages",
    predicate=lambda f, p: p.moe_overlap & (p.pp > 1) & (p.vpp == 1),
    rule="hiding the experts' all-to-all needs virtual pipeline stages",
    sentence="hiding the experts' all-to-all: with pipeline stages it needs virtual ones",
    got="vpp of the plan",
    example=OVERLAP | {"pp": 2, "vpp": 1},
)
OVERLAP_EXPERTS = _HIDING(
    name="expert overlap",
    predicate=lambda f, p: p.moe_overlap & ((p.ep == 1) | (f.num_experts == 0)),
    rule="hiding the experts' all-to-all needs expert parallelism",
    sentence="hiding the experts' all-to-all: without expert parallelism there is nothing to hide",
    got="ep of the plan",
    example=OVERLAP | {"ep": 1},
)
OVERLAP_RECOMPUTE = _HIDING(
    name="expert overlap with recomputed experts",
    predicate=lambda f, p: p.moe_overlap & ((p.recompute == "full") | has(p.modules, "moe")),
    rule="hiding the experts' all-to-all recomputes no experts",
    sentence="hiding the experts' all-to-all: experts are not recomputed",
    got="recompute of the plan",
    example=OVERLAP | {"recompute": "full"},
)
OVERLAP_MTP = _HIDING(
    name="expert overlap with predictions",
    predicate=lambda f, p: p.moe_overlap & (f.num_nextn_predict_layers > 1),
    rule="hiding the experts' all-to-all goes with one multi-token-prediction layer at most",
    sentence="hiding the experts' all-to-all: it goes with one multi-token-prediction layer at most",
    got="stages of the plan",
    example=OVERLAP | {"num_nextn_predict_layers": 2, "pp": 2, "vpp": 2},
)
OVERLAP_MTP_ALONE = _HIDING(
    name="expert overlap with a prediction on one stage",
    predicate=lambda f, p: p.moe_overlap & (f.num_nextn_predict_layers > 0) & (p.pp == 1),
    rule="hiding the experts' all-to-all with multi-token prediction needs pipeline stages before core_v0.18",
    sentence="hiding the experts' all-to-all: with multi-token prediction it needs pipeline stages",
    got="pp of the plan",
    until="core_v0.17.1",  # core_v0.14 and core_v0.15 do not say so yet
    example=OVERLAP | {"num_nextn_predict_layers": 1, "pp": 1},
)
OVERLAP_DISPATCHER = _HIDING(
    name="expert overlap with gathered tokens",
    predicate=lambda f, p: p.moe_overlap & (p.moe_dispatcher == "allgather"),
    rule="hiding the experts' all-to-all needs an all-to-all",
    sentence="hiding the experts' all-to-all: the allgather dispatcher has no all-to-all",
    got="moe_dispatcher of the plan",
    example=OVERLAP | {"moe_dispatcher": "allgather"},
)
HYBRID_OVERLAP = Constraint(
    name="expert overlap of a hybrid model",
    predicate=lambda f, p: p.moe_overlap & f.hybrid,
    rule="hiding the experts' all-to-all needs a model whose layers all have attention",
    sentence="hiding the experts' all-to-all: HybridModel has no schedule for it",
    about="overlap.moe_a2a",
    got="layers of the model",
    source="megatron/core/models/common/model_chunk_schedule_plan.py",
    example={"mixers": MIXERS} | OVERLAP,
)

OVERLAP_CONSTRAINTS = of_module(globals())
