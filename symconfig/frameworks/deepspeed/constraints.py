"""What the pinned DeepSpeed release cannot run around a Transformers model, and what is known of its options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from symconfig.frameworks import shared
from symconfig.frameworks.backend import Maturity, Option
from symconfig.frameworks.constraint import Constraint, of_module, only
from symconfig.frameworks.deepspeed.behaviour import AUTOEP_MODELS, AUTOTP_MODELS
from symconfig.frameworks.megatron import maturity as megatron
from symconfig.plans.configuration_set import among, no

ETP = only(
    "etp", (1,), 2, "etp=1", "AutoEP has no tensor parallelism inside an expert", name="autoep with etp",
    sentence="DeepSpeed has no tensor parallelism inside an expert (got etp {p.etp})",
    source="deepspeed/module_inject/auto_ep_config.py, validate_autoep_config",
    example={"num_experts": 8, "model_type": "mixtral", "ep": 2},
)  # fmt: skip
_WITHOUT_EP = partial(Constraint, pins=("ep=1",))
NO_EXPERTS = _WITHOUT_EP(
    name="autoep without experts",
    predicate=lambda f, p: (p.ep > 1) & (f.num_experts == 0),
    rule="expert parallelism needs a model with experts",
    source="deepspeed/module_inject/auto_ep_config.py",
    example={"ep": 2},
)
AUTOEP_PRESET = _WITHOUT_EP(
    name="autoep preset",
    predicate=lambda f, p: (p.ep > 1) & (f.num_experts > 0) & no(among(f.model_type, AUTOEP_MODELS)),
    rule="AutoEP knows Mixtral, Qwen3-MoE and DeepSeek-V3 only",
    sentence="AutoEP has no preset for model_type {f.model_type}",
    source="deepspeed/module_inject/auto_ep_presets",
    example={"num_experts": 8, "model_type": "gpt_oss", "ep": 2},
)
_WITHOUT_TP = partial(Constraint, pins=("tp=1",))
AUTOTP_MODEL = _WITHOUT_TP(
    name="autotp model",
    predicate=lambda f, p: (p.tp > 1) & ((f.num_experts > 0) | no(among(f.model_type, AUTOTP_MODELS))),
    rule="AutoTP is known to split dense Llama, Mistral and Qwen models only",
    sentence="AutoTP does not split model_type {f.model_type}",
    source="deepspeed/module_inject/auto_tp.py",
    example={"model_type": "gpt2", "tp": 2},
)
KV_HEADS = shared.OVER_TP(
    name="num_key_value_heads",
    predicate=lambda f, p: f.num_key_value_heads % p.tp != 0,
    rule="key/value heads must divide over tp",
    sentence="{f.num_key_value_heads} key-value heads do not divide over {p.tp} ranks of AutoTP",
    source="deepspeed/module_inject/tp_shard.py",
    example={"num_attention_heads": 32, "num_key_value_heads": 4, "tp": 8},
)
ULYSSES_WINDOW = Constraint(
    name="ulysses window",
    predicate=lambda f, p: (p.cp > 1) & (f.sliding_window > 0) & (f.sliding_window < p.seq_length),
    rule="Ulysses drops the mask of a sliding window",
    pins=("cp=1",),
    source="deepspeed/runtime/sequence_parallel/ulysses_sp.py",
    example=shared.ULYSSES | {"sliding_window": 1024},
)
ULYSSES_NORM = Constraint(
    name="ulysses norm",
    predicate=lambda f, p: (p.cp > 1) & (p.zero_stage == 1) & (p.grad_bytes == 4) & (p.optimizer_offload == 0),
    rule="ZeRO-1 with fp32 gradients does not go with Ulysses",
    pins=("zero=2..", "cp=1", "zero=0"),
    source="deepspeed/runtime/bf16_optimizer.py",
    example=shared.ULYSSES | {"zero_stage": 1, "grad_bytes": 4, "optimizer_offload": 0.0},
)
AUTOTP_WITH_ULYSSES = Constraint(
    name="autotp with ulysses",
    predicate=lambda f, p: (p.tp > 1) & (p.cp > 1),
    rule="AutoTP and Ulysses do not combine",
    about="tp",
    pins=("cp=1", "tp=1"),
    source="deepspeed/utils/groups.py",
    example=shared.ULYSSES | {"tp": 2},
)
AUTOEP_WITH_ULYSSES = Constraint(
    name="autoep with ulysses",
    predicate=lambda f, p: (p.ep > 1) & (p.cp > 1),
    rule="AutoEP with Ulysses is not validated in this release",
    about="ep",
    pins=("cp=1", "ep=1"),
    source="deepspeed/module_inject/auto_ep_config.py",
    example=shared.ULYSSES | {"num_experts": 8, "model_type": "mixtral", "ep": 2},
)
ADAPTER_WITH_TP = _WITHOUT_TP(
    name="adapter with tp",
    predicate=lambda f, p: f.adapted & (p.tp > 1),
    rule="AutoTP does not split adapter layers",
    source="deepspeed/module_inject/auto_tp.py",
    example={"adapted": True, "tp": 2},
)
ADAPTER_WITH_EP = _WITHOUT_EP(
    name="adapter with ep",
    predicate=lambda f, p: f.adapted & (p.ep > 1),
    rule="AutoEP does not know adapter layers",
    source="deepspeed/module_inject/auto_ep_config.py",
    example={"adapted": True, "num_experts": 8, "model_type": "mixtral", "ep": 2},
)
PARAM_OFFLOAD = Constraint(
    name="parameters offloaded below stage 3",
    predicate=lambda f, p: p.param_offload & (p.zero_stage != 3),
    rule="parameters can be offloaded at ZeRO-3 only",
    sentence="parameters can be offloaded at ZeRO-3 only (got stage {p.zero_stage})",
    pins=("zero=3",),
    source="deepspeed/runtime/zero/config.py",
    example={"zero_stage": 2, "param_offload": True, "optimizer_offload": 1.0},
)
PARTIAL_OFFLOAD = Constraint(
    name="part of the optimizer offloaded below stage 3",
    predicate=lambda f, p: (p.optimizer_offload > 0) & (p.optimizer_offload < 1) & (p.zero_stage != 3),
    rule="a part of the optimizer state can be offloaded at ZeRO-3 only",
    sentence="a part of the optimizer state can be offloaded at ZeRO-3 only (got stage {p.zero_stage})",
    pins=("optimizer_offload=1", "optimizer_offload=0", "zero=3"),
    source="deepspeed/runtime/zero/offload_config.py, ratio",
    example={"zero_stage": 2, "param_offload": False, "optimizer_offload": 0.5},
)
OFFLOAD_WITHOUT_ZERO = Constraint(
    name="optimizer offloaded without ZeRO",
    predicate=lambda f, p: (p.optimizer_offload > 0) & (p.zero_stage == 0),
    rule="offload needs ZeRO",
    about="optimizer_offload",
    pins=("zero=1..", "optimizer_offload=0"),
    source="deepspeed/runtime/engine.py, _configure_zero_optimizer",
    example={"zero_stage": 0, "param_offload": False, "optimizer_offload": 1.0},
)
GROUPS = only(
    "instances", (1,), 2, "instances=1", "one group of all ranks shares what ZeRO cuts", name="groups of shards",
    sentence="DeepSpeed's files are written for one group of shards, not for {p.instances}", hint="--backend fsdp",
    source="deepspeed/runtime/zero/mics.py is a way of its own, which is not written", example={"zero_stage": 3},
)  # fmt: skip
SEQUENCE_PARALLEL = only(
    "sequence_parallel", (False,), True, "sp=0", "AutoTP has no sequence parallelism between its regions",
    name="sequence parallel", source="deepspeed/module_inject/layers.py", example={"tp": 2},
)  # fmt: skip
MOE_OVERLAP = only(
    "overlap_moe_a2a", (False,), True, "moe_overlap=off", "AutoEP waits for the experts' all-to-all",
    name="expert overlap", hint="--backend megatron", source="deepspeed/module_inject/auto_ep_layer.py",
    example={"num_experts": 8, "model_type": "mixtral", "ep": 2},
)  # fmt: skip
WHOLE_GRADIENTS = Constraint(
    name="gradients without ZeRO",
    predicate=lambda f, p: (p.zero_stage == 0) & (p.grad_bytes != 2),
    rule="without ZeRO, gradients have the weights' precision",
    pins=("zero=1..",),
    source="deepspeed/runtime/engine.py",
    example={"zero_stage": 0, "grad_bytes": 4},
)

MUON = Constraint(
    name="muon",
    predicate=lambda f, p: f.optimizer == "muon",
    rule="Muon is planned with Megatron-LM",
    about="optimizer",
    got="{f.optimizer}",
    hint="--backend megatron",
    unsaid=True,
    source="deepspeed/runtime/zero/stage3.py, _muon_update_sub_group; stage_1_and_2.py",
    example={"optimizer": "muon"},
)
NARROW = Constraint(
    name="narrow states",
    predicate=lambda f, p: f.narrow_states,
    rule="AdamW's states are in fp32",
    about="optimizer",
    hint="--optimizer adam8bit",
    unsaid=True,
    source="deepspeed/runtime/zero/stage_1_and_2.py, single_partition_of_fp32_groups",
    example={"narrow_states": True},
)
OFFLOADED_OTHER = Constraint(
    name="another optimizer offloaded",
    predicate=lambda f, p: (p.optimizer_offload > 0) & among(f.optimizer, frozenset(("adam8bit", "adafactor", "sgd"))),
    rule="only adam moves to the host",
    sentence="only DeepSpeed's own Adam moves to the host, and {f.optimizer} is none of its own",
    pins=("optimizer_offload=0",),
    source="deepspeed/runtime/engine.py, zero_force_ds_cpu_optimizer",
    example={"optimizer": "adam8bit", "optimizer_offload": 1.0, "zero_stage": 3, "param_offload": False},
)

DEEPSPEED: tuple[Constraint, ...] = (
    shared.BATCH,
    *shared.SHARED,
    shared.CONTEXT_KERNEL,
    *shared.AROUND_TRANSFORMERS,
    *of_module(globals()),
)


SHORTEST_SEQUENCE = 8192  # tokens, of the shortest run in the benchmarks that are cited below

SHORT_ULYSSES = Option(
    name="short_ulysses",
    label=f"Ulysses with sequences of less than {SHORTEST_SEQUENCE:,} tokens",
    uses=lambda f, p: (p.cp > 1) & (p.seq_length < SHORTEST_SEQUENCE),
    about="cp",
    example={"cp": 2, "cp_comm": "a2a", "seq_length": 2048},
    maturity=Maturity.UNUSUAL,
    why="runs published with it have 8,192 tokens or more, and are no faster at 8,192 than without",
    source="huggingface.co/blog/ulysses-sp, Benchmarks: ZeRO-3 with 4 ranks of Ulysses, 8,192 to 98,304 tokens",
)

BF16_GRADIENTS = replace(
    megatron.BF16_GRADIENTS,
    label="gradients added up in bf16",
    why="microbatches are added with 8 bits of mantissa, so that small gradients are lost beside large sums",
    source="deepspeed/runtime/engine.py, get_data_types: without grad_accum_dtype the sum has the weights' type",
)

OPTIONS: tuple[Option, ...] = (SHORT_ULYSSES, BF16_GRADIENTS)
