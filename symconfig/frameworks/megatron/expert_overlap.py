"""What releases of Megatron-LM refuse of overlapping the experts' all-to-all with compute."""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.megatron.option_constraints import CONFIG
from symconfig.frameworks.shared import MIXERS
from symconfig.plans.configuration_set import has

OVERLAP_SINCE = "core_v0.14.0"  # --overlap-moe-expert-parallel-comm
OVERLAP = {"overlap_moe_a2a": True, "num_experts": 8, "ep": 2}  # of examples

OVERLAP_RELEASE = Constraint(
    name="expert overlap of an old release",
    predicate=lambda f, p: p.overlap_moe_a2a,
    rule=f"hiding the experts' all-to-all needs {OVERLAP_SINCE} or later",
    about="moe_overlap",
    until="core_v0.13.0",
    unsaid=True,
    source=CONFIG,
    example=OVERLAP,
)
_HIDING = partial(Constraint, about="moe_overlap", since=OVERLAP_SINCE, source=CONFIG)
OVERLAP_STAGES = _HIDING(
    name="expert overlap without virtual stages",
    predicate=lambda f, p: p.overlap_moe_a2a & (p.pp > 1) & (p.vpp == 1),
    rule="hiding the experts' all-to-all needs virtual pipeline stages",
    example=OVERLAP | {"pp": 2, "vpp": 1},
)
OVERLAP_EXPERTS = _HIDING(
    name="expert overlap",
    predicate=lambda f, p: p.overlap_moe_a2a & ((p.ep == 1) | (f.num_experts == 0)),
    rule="hiding the experts' all-to-all needs expert parallelism",
    example=OVERLAP | {"ep": 1},
)
OVERLAP_RECOMPUTE = _HIDING(
    name="expert overlap with recomputed experts",
    predicate=lambda f, p: p.overlap_moe_a2a & ((p.recompute == "full") | has(p.recompute_modules, "moe")),
    rule="hiding the experts' all-to-all recomputes no experts",
    example=OVERLAP | {"recompute": "full"},
)
OVERLAP_MTP = _HIDING(
    name="expert overlap with predictions",
    predicate=lambda f, p: p.overlap_moe_a2a & (f.num_nextn_predict_layers > 1),
    rule="hiding the experts' all-to-all goes with one multi-token-prediction layer at most",
    example=OVERLAP | {"num_nextn_predict_layers": 2, "pp": 2, "vpp": 2},
)
OVERLAP_MTP_ALONE = _HIDING(
    name="expert overlap with a prediction on one stage",
    predicate=lambda f, p: p.overlap_moe_a2a & (f.num_nextn_predict_layers > 0) & (p.pp == 1),
    rule="hiding the experts' all-to-all with multi-token prediction needs pipeline stages before core_v0.18",
    until="core_v0.17.1",  # core_v0.14 and core_v0.15 do not say so yet
    example=OVERLAP | {"num_nextn_predict_layers": 1, "pp": 1},
)
OVERLAP_DISPATCHER = _HIDING(
    name="expert overlap with gathered tokens",
    predicate=lambda f, p: p.overlap_moe_a2a & (p.moe_dispatcher == "allgather"),
    rule="hiding the experts' all-to-all needs an all-to-all",
    example=OVERLAP | {"moe_dispatcher": "allgather"},
)
HYBRID_OVERLAP = Constraint(
    name="expert overlap of a hybrid model",
    predicate=lambda f, p: p.overlap_moe_a2a & f.hybrid,
    rule="hiding the experts' all-to-all needs a model whose layers all have attention",
    about="moe_overlap",
    source="megatron/core/models/common/model_chunk_schedule_plan.py",
    example={"mixers": MIXERS} | OVERLAP,
)

OVERLAP_CONSTRAINTS = of_module(globals())
