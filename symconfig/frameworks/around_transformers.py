"""Constraints of all frameworks around a Transformers model, whose layers stay one module and whose heads Ulysses
exchanges: DeepSpeed's, and that of trainers beside FSDP (verl 0.9.1).
"""

from __future__ import annotations

from functools import partial

from symconfig.descriptor.sections import Mixer
from symconfig.frameworks.constraint import Constraint, of_module, only
from symconfig.plans.configuration_set import has, no

ULYSSES = {"cp": 2, "cp_comm": "a2a"}
_ULYSSES = (
    "deepspeed/runtime/sequence_parallel/ulysses_sp.py, __init__ and register_with_transformers; "
    "verl/utils/ulysses.py and models/transformers/monkey_patch.py"
)

RING = Constraint(
    name="ring",
    predicate=lambda f, p: (p.cp > 1) & no(has(p.cp_comm, "a2a")),
    rule="sequences around a Transformers model are split by Ulysses",
    sentence="around a Transformers model sequences are split by Ulysses (a2a) only, not {p.cp_comm}",
    pins=("cp_comm=a2a", "cp=1"),
    source=_ULYSSES,
    example={"cp": 2, "cp_comm": "p2p"},
)
_OF_HEADS = partial(Constraint, pins=("cp",), divides=True, source=_ULYSSES)
ULYSSES_HEADS = _OF_HEADS(
    name="ulysses heads",
    predicate=lambda f, p: (p.cp > 1) & (f.num_attention_heads % p.cp != 0),
    rule="heads must divide over cp for Ulysses",
    sentence="{f.num_attention_heads} heads do not divide over {p.cp} ranks of Ulysses",
    example={"num_attention_heads": 20, "num_key_value_heads": 20, "cp": 8, "cp_comm": "a2a"},
)
ULYSSES_KV_HEADS = _OF_HEADS(
    name="ulysses key/value heads",
    predicate=lambda f, p: (p.cp > 1) & (f.num_key_value_heads % p.cp != 0) & (p.cp % f.num_key_value_heads != 0),
    rule="key/value heads must be a multiple or a divisor of cp for Ulysses",
    sentence="{f.num_key_value_heads} key-value heads neither divide over {p.cp} ranks of Ulysses, nor are shared",
    example={"num_attention_heads": 24, "num_key_value_heads": 6, "cp": 4, "cp_comm": "a2a"},
)
ULYSSES_SEQUENCE = Constraint(
    name="ulysses sequence",
    predicate=lambda f, p: (p.cp > 1) & (p.seq_length % p.cp != 0),
    rule="the sequence must divide over cp",
    sentence="sequence length {p.seq_length} does not divide over cp {p.cp}",
    pins=("cp",),
    source=_ULYSSES,
    example=ULYSSES | {"seq_length": 2047},
)
_WITHOUT_CP = partial(Constraint, pins=("cp=1",), source=_ULYSSES)
ULYSSES_LATENT = _WITHOUT_CP(
    name="ulysses latent",
    predicate=lambda f, p: (p.cp > 1) & f.latent,
    rule="Ulysses takes one head size for queries and values; MLA has two",
    example=ULYSSES | {"latent": True},
)
ULYSSES_SINKS = _WITHOUT_CP(
    name="ulysses sinks",
    predicate=lambda f, p: (p.cp > 1) & f.attention_sinks,
    rule="Ulysses refuses eager attention, which sinks need",
    example=ULYSSES | {"attention_sinks": True},
)
ULYSSES_BLOCKS = _WITHOUT_CP(
    name="ulysses blocks",
    predicate=lambda f, p: (p.cp > 1) & f.scans,
    rule="Ulysses exchanges attention only, while scans and convolutions need the whole sequence",
    example=ULYSSES | {"mixers": (Mixer(block="short_conv", sizes={"conv_L_cache": 3}),)},
)
ULYSSES_ATTENTION = _WITHOUT_CP(
    name="ulysses attention",
    predicate=lambda f, p: (p.cp > 1) & f.own_attention,
    rule="Ulysses replaces attention that Transformers takes from its table of kernels",
    sentence="Transformers' {f.model_type} has attention in code of its own, which Ulysses cannot replace",
    example=ULYSSES | {"model_type": "bloom"},
)
WITHOUT_PREDICTION = "num_nextn_predict_layers: 0 in a copy of the descriptor"  # what is done where nothing trains it
MULTI_TOKEN = Constraint(
    name="multi-token prediction",
    predicate=lambda f, p: (p.tp > 0) & (f.num_nextn_predict_layers > 0),
    rule="Transformers trains no multi-token-prediction layers",
    about="num_nextn_predict_layers",
    hint=WITHOUT_PREDICTION,
    source="transformers, models/deepseek_v3/modeling_deepseek_v3.py",
    example={"num_nextn_predict_layers": 1},
)
PIPELINE = only(
    "pp", (1,), 2, "pp=1", "a Transformers model is no PipelineModule", name="pipeline",
    sentence="the model is one module of Transformers and no PipelineModule that a pipeline (pp {p.pp}) cuts",
    source="deepspeed/runtime/pipe/module.py; torch/distributed/pipelining",
)  # fmt: skip
VIRTUAL_STAGES = only(
    "vpp", (1,), 2, "vpp=1", "a Transformers model has no interleaved pipeline", name="virtual stages", got=None,
    source="deepspeed/runtime/pipe/schedule.py; torch/distributed/pipelining", example={"pp": 2},
)  # fmt: skip
PRECISION = only(
    "precision", ("bf16", "fp16"), "fp8", "precision=bf16 precision=fp16",
    "a Transformers model is planned in bf16 and fp16", name="precision",
    sentence="a Transformers model is planned in bf16 and fp16, not in {p.precision}",
    source="templates/deepspeed/train.py",
)  # fmt: skip
SELECTIVE = only(
    "recompute", ("full", "none"), "selective", "recompute=full recompute=none",
    "Transformers recomputes whole layers only", name="selective recompute", got=None,
    source="transformers/modeling_layers.py, GradientCheckpointingLayer",
    example={"recompute_method": None, "recompute_layers": 1},
)  # fmt: skip
RECOMPUTED_CHUNKS = Constraint(
    name="recompute of several layers at once",
    predicate=lambda f, p: (p.recompute_method == "uniform") & (p.recompute_layers > 1),
    rule="Transformers recomputes layer by layer, not in chunks of several",
    pins=("recompute=none",),
    source="transformers/modeling_layers.py, GradientCheckpointingLayer",
    example={"recompute": "full", "recompute_method": "uniform", "recompute_layers": 2},
)
ACTIVATION_OFFLOAD = only(
    "activation_offload", (False,), True, "activation_offload=0", "activations of a Transformers model stay on the GPU",
    name="activation offload", source="templates/deepspeed/train.py",
)  # fmt: skip

AROUND_TRANSFORMERS = of_module(globals())
