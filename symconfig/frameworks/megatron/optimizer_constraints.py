"""What releases of Megatron-LM refuse of optimizers other than AdamW with states in fp32.

`dist_muon` is the old name of `--optimizer muon --use-distributed-optimizer` (core_v0.18.2 to 0.19, arguments.py).
"""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.megatron.option_constraints import ARGUMENTS
from symconfig.plans.configuration_set import among

# Before it the ranks reduce every gradient to all, without overlap, and gather whole lists of weights: not priced.
MUON_SINCE = "core_v0.18.2"
_BUILT = "megatron/core/optimizer/__init__.py, _get_megatron_emerging_optimizer"
_CONFIG = "megatron/core/optimizer/optimizer_config.py, __post_init__"

_OF_OPTIMIZER = partial(Constraint, about="optimizer", got="{f.optimizer}", unsaid=True)
UNKNOWN_OPTIMIZER = _OF_OPTIMIZER(
    name="optimizer",
    predicate=lambda f, p: among(f.optimizer, frozenset(("adam8bit", "adafactor"))),
    rule="the optimizer must be adam, muon or sgd",
    sentence="Megatron-LM has no {f.optimizer}: its optimizers are adam (with narrower moments, too), muon and sgd",
    hint="--optimizer adam with exp_avg: bf16, or --backend deepspeed --target transformers",
    source="megatron/training/arguments.py, --optimizer",
    example={"optimizer": "adam8bit"},
)
MUON_RELEASE = _OF_OPTIMIZER(
    name="muon's release",
    predicate=lambda f, p: f.optimizer == "muon",
    rule="Muon is planned from core_v0.18.2 on, whose ranks share it with the distributed optimizer",
    hint="--megatron-version core_v0.19",
    until="core_v0.17.1",
    source=ARGUMENTS,
    example={"optimizer": "muon"},
)
MUON_SHARDED = Constraint(
    name="muon with megatron-fsdp",
    predicate=lambda f, p: (f.optimizer == "muon") & (p.zero_stage > 1),
    rule="Muon goes with ZeRO 0 and 1: Megatron-FSDP refuses it",
    pins=("zero=1", "zero=0"),
    since=MUON_SINCE,
    source=ARGUMENTS,
    example={"optimizer": "muon", "zero_stage": 3},
)
MUON_FP16 = Constraint(
    name="muon in fp16",
    predicate=lambda f, p: (f.optimizer == "muon") & (p.precision == "fp16"),
    rule="Muon does not go with fp16",
    pins=("precision=bf16",),
    since=MUON_SINCE,
    source=_BUILT,
    example={"optimizer": "muon", "precision": "fp16"},
)
MUON_EXPERT_BIAS = Constraint(
    name="muon with biases of experts",
    predicate=lambda f, p: (f.optimizer == "muon") & f.expert_bias & (p.zero_stage == 1),
    rule="with biases of experts Muon is not shared by ranks",
    pins=("zero=0",),
    since=MUON_SINCE,
    source=_BUILT,
    example={"optimizer": "muon", "num_experts": 8, "expert_bias": True, "zero_stage": 1},
)
MUON_ADAPTERS = _OF_OPTIMIZER(
    name="muon with adapters",
    predicate=lambda f, p: (f.optimizer == "muon") & f.adapted,
    rule="adapters are stepped by adam or sgd here: of Muon beside frozen weights nothing is known",
    since=MUON_SINCE,
    source="megatron-bridge 0.3.1, peft/: no recipe has another optimizer",
    example={"optimizer": "muon", "adapted": True},
)
OFFLOADED_OTHER = Constraint(
    name="another optimizer offloaded",
    predicate=lambda f, p: (p.optimizer_offload > 0) & among(f.optimizer, frozenset(("muon", "sgd"))),
    rule="only adam moves to the host",
    sentence="only adam moves to the host, and {f.optimizer} does not",
    pins=("optimizer_offload=0",),
    source=_CONFIG,
    example={"optimizer": "sgd", "optimizer_offload": 0.5, "zero_stage": 1},
)
NARROW_SHARDED = Constraint(
    name="narrow states without the distributed optimizer",
    predicate=lambda f, p: f.narrow_states & (p.zero_stage != 1),
    rule="states narrower than fp32 need the distributed optimizer, which is ZeRO 1",
    pins=("zero=1",),
    source=_CONFIG,
    example={"narrow_states": True, "zero_stage": 0},
)
NARROW_OFFLOADED = Constraint(
    name="narrow states on the host",
    predicate=lambda f, p: f.narrow_states & (p.optimizer_offload > 0),
    rule="states on the host are in fp32",
    pins=("optimizer_offload=0",),
    source="megatron/core/optimizer/__init__.py, param_update_in_fp32",
    example={"narrow_states": True, "optimizer_offload": 0.5, "zero_stage": 1},
)
OPTIMIZER_CONSTRAINTS = of_module(globals())
