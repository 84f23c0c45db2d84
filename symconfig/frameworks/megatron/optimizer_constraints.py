"""What releases of Megatron-LM refuse of optimizers other than AdamW with states in fp32, and of expert overlap.

`dist_muon` is the old name of `--optimizer muon --use-distributed-optimizer` (core_v0.18.2 to 0.19, arguments.py).
"""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.option_constraints import ARGUMENTS, CONFIG
from symconfig.frameworks.shared import MIXERS
from symconfig.plans.configuration_set import among, has

# Before it the ranks reduce every gradient to all, without overlap, and gather whole lists of weights: not priced.
MUON_SINCE = "core_v0.18.2"
_BUILT = "megatron/core/optimizer/__init__.py, _get_megatron_emerging_optimizer"
_CONFIG = "megatron/core/optimizer/optimizer_config.py, __post_init__"

_OF_OPTIMIZER = partial(Constraint, about="optimizer", got="{f.optimizer}", unsaid=True)
OPTIMIZER_CONSTRAINTS = (
    _OF_OPTIMIZER(
        name="optimizer",
        predicate=lambda f, p: among(f.optimizer, frozenset(("adam8bit", "adafactor"))),
        rule="the optimizer must be adam, muon or sgd",
        sentence="Megatron-LM has no {f.optimizer}: its optimizers are adam (with narrower moments, too), muon and sgd",
        hint="--optimizer adam with exp_avg: bf16, or --backend deepspeed --target transformers",
        source="megatron/training/arguments.py, --optimizer",
        example={"optimizer": "adam8bit"},
    ),
    _OF_OPTIMIZER(
        name="muon's release",
        predicate=lambda f, p: f.optimizer == "muon",
        rule="Muon is planned from core_v0.18.2 on, whose ranks share it with the distributed optimizer",
        hint="--megatron-version core_v0.19",
        until="core_v0.17.1",
        source=ARGUMENTS,
        example={"optimizer": "muon"},
    ),
    Constraint(
        name="muon with megatron-fsdp",
        predicate=lambda f, p: (f.optimizer == "muon") & (p.zero_stage > 1),
        rule="Muon goes with ZeRO 0 and 1: Megatron-FSDP refuses it",
        pins=("zero=1", "zero=0"),
        since=MUON_SINCE,
        source=ARGUMENTS,
        example={"optimizer": "muon", "zero_stage": 3},
    ),
    Constraint(
        name="muon in fp16",
        predicate=lambda f, p: (f.optimizer == "muon") & (p.precision == "fp16"),
        rule="Muon does not go with fp16",
        pins=("precision=bf16",),
        since=MUON_SINCE,
        source=_BUILT,
        example={"optimizer": "muon", "precision": "fp16"},
    ),
    Constraint(
        name="muon with biases of experts",
        predicate=lambda f, p: (f.optimizer == "muon") & f.expert_bias & (p.zero_stage == 1),
        rule="with biases of experts Muon is not shared by ranks",
        pins=("zero=0",),
        since=MUON_SINCE,
        source=_BUILT,
        example={"optimizer": "muon", "num_experts": 8, "expert_bias": True, "zero_stage": 1},
    ),
    _OF_OPTIMIZER(
        name="muon with adapters",
        predicate=lambda f, p: (f.optimizer == "muon") & f.adapted,
        rule="adapters are stepped by adam or sgd here: of Muon beside frozen weights nothing is known",
        since=MUON_SINCE,
        source="megatron-bridge 0.3.1, peft/: no recipe has another optimizer",
        example={"optimizer": "muon", "adapted": True},
    ),
    Constraint(
        name="another optimizer offloaded",
        predicate=lambda f, p: (p.optimizer_offload > 0) & among(f.optimizer, frozenset(("muon", "sgd"))),
        rule="only adam moves to the host",
        sentence="only adam moves to the host, and {f.optimizer} does not",
        pins=("optimizer_offload=0",),
        source=_CONFIG,
        example={"optimizer": "sgd", "optimizer_offload": 0.5, "zero_stage": 1},
    ),
    Constraint(
        name="narrow states without the distributed optimizer",
        predicate=lambda f, p: f.narrow_states & (p.zero_stage != 1),
        rule="states narrower than fp32 need the distributed optimizer, which is ZeRO 1",
        pins=("zero=1",),
        source=_CONFIG,
        example={"narrow_states": True, "zero_stage": 0},
    ),
    Constraint(
        name="narrow states on the host",
        predicate=lambda f, p: f.narrow_states & (p.optimizer_offload > 0),
        rule="states on the host are in fp32",
        pins=("optimizer_offload=0",),
        source="megatron/core/optimizer/__init__.py, param_update_in_fp32",
        example={"narrow_states": True, "optimizer_offload": 0.5, "zero_stage": 1},
    ),
)

OVERLAP_SINCE = "core_v0.14.0"  # --overlap-moe-expert-parallel-comm
OVERLAP = {"overlap_moe_a2a": True, "num_experts": 8, "ep": 2}  # of examples
_HIDING = partial(Constraint, about="moe_overlap", since=OVERLAP_SINCE, source=CONFIG)
OVERLAP_CONSTRAINTS = (
    Constraint(
        name="expert overlap of an old release",
        predicate=lambda f, p: p.overlap_moe_a2a,
        rule=f"hiding the experts' all-to-all needs {OVERLAP_SINCE} or later",
        about="moe_overlap",
        until="core_v0.13.0",
        unsaid=True,
        source=CONFIG,
        example=OVERLAP,
    ),
    _HIDING(
        name="expert overlap without virtual stages",
        predicate=lambda f, p: p.overlap_moe_a2a & (p.pp > 1) & (p.vpp == 1),
        rule="hiding the experts' all-to-all needs virtual pipeline stages",
        example=OVERLAP | {"pp": 2, "vpp": 1},
    ),
    _HIDING(
        name="expert overlap",
        predicate=lambda f, p: p.overlap_moe_a2a & ((p.ep == 1) | (f.num_experts == 0)),
        rule="hiding the experts' all-to-all needs expert parallelism",
        example=OVERLAP | {"ep": 1},
    ),
    _HIDING(
        name="expert overlap with recomputed experts",
        predicate=lambda f, p: p.overlap_moe_a2a & ((p.recompute == "full") | has(p.recompute_modules, "moe")),
        rule="hiding the experts' all-to-all recomputes no experts",
        example=OVERLAP | {"recompute": "full"},
    ),
    _HIDING(
        name="expert overlap with predictions",
        predicate=lambda f, p: p.overlap_moe_a2a & (f.num_nextn_predict_layers > 1),
        rule="hiding the experts' all-to-all goes with one multi-token-prediction layer at most",
        example=OVERLAP | {"num_nextn_predict_layers": 2, "pp": 2, "vpp": 2},
    ),
    _HIDING(
        name="expert overlap with a prediction on one stage",
        predicate=lambda f, p: p.overlap_moe_a2a & (f.num_nextn_predict_layers > 0) & (p.pp == 1),
        rule="hiding the experts' all-to-all with multi-token prediction needs pipeline stages before core_v0.18",
        until="core_v0.17.1",  # core_v0.14 and core_v0.15 do not say so yet
        example=OVERLAP | {"num_nextn_predict_layers": 1, "pp": 1},
    ),
    _HIDING(
        name="expert overlap with gathered tokens",
        predicate=lambda f, p: p.overlap_moe_a2a & (p.moe_dispatcher == "allgather"),
        rule="hiding the experts' all-to-all needs an all-to-all",
        example=OVERLAP | {"moe_dispatcher": "allgather"},
    ),
    Constraint(
        name="expert overlap of a hybrid model",
        predicate=lambda f, p: p.overlap_moe_a2a & f.hybrid,
        rule="hiding the experts' all-to-all needs a model whose layers all have attention",
        about="moe_overlap",
        source="megatron/core/models/common/model_chunk_schedule_plan.py",
        example={"mixers": MIXERS} | OVERLAP,
    ),
)
