"""Megatron-LM's options of a run, each with its field of a plan: degrees, batch, precision, overlap, training.

A field that begins with "best." is a choice of the plan; adapting a script changes the options of it together. Read in
Megatron-LM's `arguments.py`, `transformer_config.py`, `training.py` and `transformer/moe/token_dispatcher.py` of
core_v0.12.1 to core_v0.19.0. What a release lacks is refused by the table of constraints
(`OLD_RELEASES` of `frameworks.megatron.option_constraints`), but for what has a sentence here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.formats.links import Link, Values, destinations, value_of
from symconfig.formats.megatron import always, router_dtype
from symconfig.frameworks.megatron.behaviour import Graphed
from symconfig.frameworks.megatron.hybrid import hybrid, known, parts_of_layer, pattern
from symconfig.frameworks.megatron.releases import (
    FULL_ITERATION_SINCE,
    GRAPHED_MODULES_SINCE,
    NO_ENGINE,
    NO_GROUPED_GEMM,
    SHARDING_STAGES,
)
from symconfig.plans.plan import Plan

COLLECTED_EVERY = 100  # steps between garbage collections: 238 of the 328 Megatron recipes of model_zoo/recipes
FULL, SELECTIVE = {"best.configuration.recompute": "full"}, {"best.configuration.recompute": "selective"}
ROUTER = ("moe_router", "moe_preprocess")
# Modules of a layer that graphs replay, by `Configuration.cuda_graphs`.
GRAPHED_MODULES: dict[Graphed, tuple[str, ...]] = {
    "router": ROUTER, "outside experts": ("attn", *ROUTER), "all": ("attn", "mlp")
}  # fmt: skip
GRAPHS: tuple[Graphed, ...] = (*GRAPHED_MODULES, "full iteration")
# Of --offload-modules, those that every layer has. A dense MLP has none. Norms count only where they stand alone:
# before MLA and before experts; elsewhere Transformer Engine fuses them into the linear layer behind.
OFFLOAD_ATTENTION, OFFLOAD_EXPERTS = ("qkv_linear", "core_attn", "attn_proj"), ("expert_fc1", "moe_act")
SGD, MUON = {"job.optimizer.name": "sgd"}, {"job.optimizer.name": "muon"}
NARROW, WSD = {"job.optimizer.narrow": True}, {"training.lr_decay_style": "WSD"}
FLEX, DELAYED = {"best.configuration.moe_dispatcher": "flex"}, {"best.configuration.fp8_recipe": "delayed"}
FP16 = {"best.configuration.precision": "fp16"}
MXFP8_ZERO1 = {"best.configuration.precision": "mxfp8", "best.configuration.zero_stage": 1}


def _same(section: str, names: str) -> tuple[Link, ...]:
    """Return links of fields of a section whose options have the same names. names: separated by blanks."""
    return tuple(Link(f"{section}.{name}", f"--{name.replace('_', '-')}") for name in names.split())


def _best(name: str, option: str, when: Values | None = None, **more: Any) -> Link:
    return Link(f"best.configuration.{name}", option, when or {}, **more)


def _if(holds: Callable[[Plan], object]) -> Callable[[Any, Plan], object]:
    """Return a `write` function that gives the field's value where `holds` is true of the plan, else None."""
    return lambda value, plan: value if holds(plan) else None


def iterations(plan: Plan) -> int:
    """Return --train-iters: the plan's, or more where larger batches of `history` are to be spanned."""
    end = plan.training.train_iters
    return max(end, plan.history.spanned(end, plan.best.configuration.global_batch))


def _gc_interval(value: int | None, plan: Plan) -> int | None:
    return (COLLECTED_EVERY if plan.best.configuration.world_size > 1 else None) if value is None else value or None


def _folder(plan: Plan) -> str:
    return f"{plan.training.save.rstrip('/')}/" if plan.training.save else ""


def _tensorboard(value: str | None, plan: Plan) -> str | None:
    """Return the TensorBoard folder `value`; by default one for Weights & Biases, which needs it, else None."""
    return value or (f"{_folder(plan)}tensorboard" if plan.training.wandb_project is not None else None)


def _stages_by_counts(plan: Plan) -> bool:
    """Return whether numbers of layers describe the stages: pp above 1, and neither a layout nor a hybrid pattern."""
    return plan.best.configuration.pp > 1 and not hybrid(plan.model) and plan.best.configuration.pipeline_layout is None


def _sequence_parallel(plan: Plan) -> bool:
    return plan.best.configuration.sequence_parallel and plan.best.configuration.tp > 1


def _grouped(architecture: str, plan: Plan) -> bool:
    """Return whether the experts have grouped GEMM kernels; until core_v0.16 not in fp16."""
    return architecture not in NO_GROUPED_GEMM and plan.best.configuration.precision != "fp16"


def _fsdp(plan: Plan) -> bool:
    return plan.best.configuration.zero_stage >= 2


def _replicated(plan: Plan) -> bool:
    return plan.best.configuration.dp * plan.best.configuration.cp > 1


def _gather_overlapped(value: bool, plan: Plan) -> bool:
    """Return whether the gather of weights overlaps with compute, which needs overlapped reduction, too."""
    zero, reduced = plan.best.configuration.zero_stage, plan.best.configuration.overlap_grad_reduce or _fsdp(plan)
    return _replicated(plan) and reduced and (zero == 3 or (value and zero >= 1))


def offloaded_modules(model: ModelDescriptor, recomputed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules whose input activations are offloaded to the host, for `--offload-modules`.

    Those of attention, with MLA its norm, with experts the MLP's norm, and the experts' unless "moe" is recomputed.
    """
    attention_norm = ("attn_norm",) if model.latent is not None else ()
    experts: tuple[str, ...] = ()
    if model.experts is not None:
        experts = ("mlp_norm", *(OFFLOAD_EXPERTS if "moe" not in recomputed else ()))
    return (*attention_norm, *OFFLOAD_ATTENTION, *experts)


fromkeys = dict.fromkeys
# By the bash arrays of launch.sh, in their order. Those of MOE_ARGS follow `EXPERTS`.
RUN: Mapping[str, tuple[Link, ...]] = {
    "MOE_ARGS": (
        _best("moe_dispatcher", "--moe-token-dispatcher-type", write=lambda v, _: v or "alltoall"),
        _best("moe_flex_backend", "--moe-flex-dispatcher-backend", FLEX, optional=True,
              write=lambda v, _: v or "deepep"),
        _best("moe_dispatcher", "--moe-enable-deepep", words={"flex": True}, until="core_v0.16.1"),
        # Both take the router's probabilities in fp32 only: others are widened, and every layer of every microbatch
        # warns (token_dispatcher.py, dispatch).
        Link("model", "--moe-router-dtype", FLEX, write=lambda v, _: None if router_dtype(None, v) else "fp32"),
        _best("overlap_moe_a2a", "--overlap-moe-expert-parallel-comm", optional=True),
        Link("cluster.gpu.architecture", "--moe-grouped-gemm", write=_grouped, until="core_v0.16.1"),
        Link("cluster.gpu.architecture", "--moe-grouped-gemm", since="core_v0.16.1",
             write=lambda v, _: v not in NO_GROUPED_GEMM),
        always("--moe-permute-fusion", {}, True),
        Link("cluster.gpu.architecture", "--moe-router-fusion", write=lambda v, _: v not in NO_ENGINE, optional=True),
        _best("expert_capacity", "--moe-expert-rank-capacity-factor", write=lambda v, _: v or None),
        _best("expert_capacity", "--use-transformer-engine-op-fuser", write=lambda v, _: v > 0),  # refused without
        _best("paged_stash", "--moe-paged-stash"),
    ),
    "TRAINING_ARGS": (
        _best("micro", "--micro-batch-size"),
        _best("global_batch", "--global-batch-size"),
        Link("", "--train-iters", write=lambda _, p: iterations(p)),
        Link("training.train_iters", "--exit-interval", write=_if(lambda p: p.training.train_iters < iterations(p))),
        # Muon steps embeddings, head, norms and biases with Adam, whose settings go with it.
        Link("job.optimizer.name", "--optimizer"),
        *_same("training", "adam_beta1 adam_beta2 adam_eps"),
        Link("job.optimizer.narrow", "--use-precision-aware-optimizer"),
        Link("job.optimizer.main_params", "--main-params-dtype", NARROW),
        Link("job.optimizer.exp_avg", "--exp-avg-dtype", NARROW),
        Link("job.optimizer.exp_avg_sq", "--exp-avg-sq-dtype", NARROW),
        Link("job.optimizer.speed", "--sgd-momentum", SGD),
        Link("job.optimizer.speed", "--muon-momentum", MUON),
        Link("job.optimizer.nesterov", "--muon-nesterov", MUON),
        Link("job.optimizer.ns_steps", "--muon-num-ns-steps", MUON),
        Link("job.optimizer.scale_mode", "--muon-scale-mode", MUON),
        Link("job.optimizer.extra_scale_factor", "--muon-extra-scale-factor", MUON),
        Link("job.optimizer.tp_mode", "--muon-tp-mode", MUON),
        *_same("training", "weight_decay clip_grad seed distributed_timeout_minutes lr min_lr lr_decay_style"),
        Link("training.decay_iters", "--lr-decay-iters"),
        *_same("training", "lr_warmup_iters"),
        Link("training.wsd_decay_iters", "--lr-wsd-decay-iters", WSD),
        always("--lr-wsd-decay-style", WSD, "linear"),  # as every other format decays; the default is exponential
        Link("training.manual_gc_interval", "--manual-gc", write=lambda v, p: _gc_interval(v, p) is not None),
        Link("training.manual_gc_interval", "--manual-gc-interval", write=_gc_interval),
        _best("fused_loss", "--cross-entropy-loss-fusion"),
        _best("fused_loss", "--cross-entropy-fusion-impl", words={True: "te"}),
        _best("cuda_graphs", "--cuda-graph-impl", optional=True, until=FULL_ITERATION_SINCE,
              words=fromkeys(GRAPHED_MODULES, "transformer_engine") | {"full iteration": "local"}),
        _best("cuda_graphs", "--cuda-graph-impl", since=FULL_ITERATION_SINCE,
              words=fromkeys(GRAPHED_MODULES, "transformer_engine") | {"full iteration": "full_iteration"}),
        _best("cuda_graphs", "--external-cuda-graph", words=fromkeys(GRAPHED_MODULES, True), until="core_v0.15.0"),
        _best("cuda_graphs", "--cuda-graph-modules", words=GRAPHED_MODULES, optional=True),
        _best("cuda_graphs", "--cuda-graph-scope", since=GRAPHED_MODULES_SINCE, until=FULL_ITERATION_SINCE,
              words={**GRAPHED_MODULES, "full iteration": "full_iteration"}),
        _best("cuda_graphs", "--cuda-graph-scope", until=GRAPHED_MODULES_SINCE,
              words=fromkeys(GRAPHED_MODULES, "full") | {"full iteration": "full_iteration"}),
        _best("cuda_graphs", "--no-check-for-nan-in-loss-and-grad", words={"full iteration": True}),
        # Steps before graphs are captured: its default since core_v0.12.1.
        _best("cuda_graphs", "--cuda-graph-warmup-steps", words=fromkeys(GRAPHS, 3)),
        # core_v0.13 stops without it, later ones set it and warn.
        _best("cuda_graphs", "--te-rng-tracker", words=fromkeys(GRAPHS, True)),
    ),
    "PRECISION_ARGS": (  # FP8 and FP4 sit on top of bf16
        _best("precision", "--fp16", words={"fp16": True}),
        _best("precision", "--bf16", words=fromkeys(("bf16", "fp8", "mxfp8", "nvfp4"), True)),
        _best("precision", "--fp8-format", words={"fp8": "hybrid", "mxfp8": "e4m3"}),
        _best("precision", "--fp8-recipe", write=lambda _, p: p.best.configuration.fp8_recipe or None),
        _best("precision", "--fp8-amax-history-len", DELAYED, words={"fp8": 1024}),
        _best("precision", "--fp8-amax-compute-algo", DELAYED, words={"fp8": "max"}),
        _best("precision", "--fp4-format", words={"nvfp4": "e2m1"}, why="it has no FP4"),
        _best("precision", "--fp4-recipe", words={"nvfp4": "nvfp4"}, optional=True),
        _best("grad_bytes", "--grad-reduce-in-bf16",
              write=lambda v, p: v == 2 and p.best.configuration.precision != "fp16"),
        _best("grad_bytes", "--accumulate-allreduce-grads-in-fp32", FP16, words={4: True}),  # bf16 does so by itself
        _best("fp8_param_gather", "--fp8-param-gather"),
        # Weights in mxfp8 have two copies, of other layouts: they are gathered through the gradients' buffer, but by
        # Megatron-FSDP, which has a way of its own (distributed_data_parallel.py, mcore_fsdp_adapter.py).
        _best("fp8_param_gather", "--reuse-grad-buf-for-mxfp8-param-ag", MXFP8_ZERO1),
    ),
    "MODEL_PARALLEL_ARGS": (
        _best("tp", "--tensor-model-parallel-size"),
        _best("gtp", "--tensor-parallel-num-weight-shards",
              write=lambda v, p: v * p.best.configuration.tp if v > 1 else None),
        _best("pp", "--pipeline-model-parallel-size"),
        _best("cp", "--context-parallel-size"),
        _best("cp_comm", "--cp-comm-type", write=lambda v, p: (v or "p2p") if p.best.configuration.cp > 1 else None),
        _best("ep", "--expert-model-parallel-size", write=_if(lambda p: p.model.experts)),
        # By default it is tp, not 1.
        _best("etp", "--expert-tensor-parallel-size", write=_if(lambda p: p.model.experts)),
        _best("sequence_parallel", "--sequence-parallel", write=_if(_sequence_parallel)),
        _best("overlap_tp_comm", "--tp-comm-overlap", write=_if(_sequence_parallel)),
        Link("model", "--hybrid-layer-pattern",
             write=lambda v, p: pattern(v, p.best.chunks) if hybrid(v) and known(v) else None),
        _best("vpp", "--num-virtual-stages-per-pipeline-rank", default=1, write=_if(_stages_by_counts)),
        _best("pipeline_layout", "--pipeline-model-parallel-layout", why="it has no layouts of stages",
                 write=_if(lambda p: p.best.configuration.pp > 1 and not hybrid(p.model))),
        _best("first_stage_layers", "--decoder-first-pipeline-num-layers", write=_if(_stages_by_counts)),
        _best("last_stage_layers", "--decoder-last-pipeline-num-layers", write=_if(_stages_by_counts)),
        _best("account_for_embedding", "--account-for-embedding-in-pipeline-split", write=_if(_stages_by_counts)),
        _best("account_for_loss", "--account-for-loss-in-pipeline-split", write=_if(_stages_by_counts)),
        _best("microbatch_group_size", "--microbatch-group-size-per-virtual-pipeline-stage",
                 write=lambda v, p: v if 1 < p.best.configuration.pp != v and p.best.configuration.vpp > 1 else None),
        # With two stages Megatron insists on the overlap.
        _best("overlap_pp_p2p", "--no-overlap-p2p-communication",
                 write=lambda v, p: not v and p.best.configuration.pp > 2 and p.best.configuration.vpp > 1),
    ),
    "DATA_PARALLEL_ARGS": (  # stage 1 is Megatron's distributed optimizer, 2 and 3 are Megatron-FSDP
        _best("zero_stage", "--use-distributed-optimizer", words=fromkeys((1, 2, 3), True)),
        _best("zero_stage", "--use-megatron-fsdp", words=fromkeys((2, 3), True), optional=True),
        _best("zero_stage", "--use-custom-fsdp", words=fromkeys((2, 3), True), until="core_v0.14.0"),
        _best("zero_stage", "--data-parallel-sharding-strategy",
                 words={stage: strategy for strategy, stage in SHARDING_STAGES.items() if stage >= 2}),
        # An error until core_v0.13, later a warning.
        _best("zero_stage", "--no-gradient-accumulation-fusion", words=fromkeys((2, 3), True)),
        # Else every rank first builds the whole model.
        _best("zero_stage", "--init-model-with-meta-device", words={3: True}),
        # By default bf16, whatever --grad-reduce-in-bf16 says.
        _best("grad_bytes", "--megatron-fsdp-main-grads-dtype", optional=True,
                 write=lambda v, p: "fp32" if v == 4 and p.best.configuration.zero_stage >= 2 else None),
        _best("overlap_grad_reduce", "--overlap-grad-reduce", write=lambda v, p: _replicated(p) and (v or _fsdp(p))),
        _best("overlap_param_gather", "--overlap-param-gather", write=_gather_overlapped),
        _best("optimizer_offload", "--use-precision-aware-optimizer", write=lambda v, _: v > 0),
        _best("optimizer_offload", "--optimizer-cpu-offload", write=lambda v, _: v > 0),
        _best("optimizer_offload", "--optimizer-offload-fraction", write=lambda v, _: v or None),
    ),
    "RECOMPUTE_ARGS": (
        _best("recompute", "--recompute-granularity", write=lambda v, _: None if v == "none" else v),
        _best("recompute_method", "--recompute-method", FULL, write=lambda v, _: v or "uniform"),
        _best("recompute_layers", "--recompute-num-layers", FULL,
                 write=lambda v, p: (v or 1) * (parts_of_layer(p.model) or 1)),
        _best("recompute_modules", "--recompute-modules", SELECTIVE, write=lambda v, _: v or None),
        _best("activation_offload", "--fine-grained-activation-offloading"),
        _best("activation_offload", "--offload-modules",
                 write=lambda v, p: offloaded_modules(p.model, p.best.configuration.recompute_modules) if v else None),
    ),
    "DATA_ARGS": (  # mock data, unless the job names real data
        Link("training.data_path", "--data-path", write=lambda v, _: v or None),
        Link("training.split", "--split", write=_if(lambda p: p.training.data_path)),
        Link("training.data_path", "--mock-data", write=lambda v, _: not v),
        Link("training.tokenizer_type", "--tokenizer-type",
             write=lambda v, p: (v or "HuggingFaceTokenizer") if p.training.data_path else "NullTokenizer"),
        Link("training.tokenizer_model", "--tokenizer-model",
             write=lambda v, p: (v or p.model.huggingface_id) if p.training.data_path else None),
        # Transformer Engine masks causally by itself; a mask in the batch costs seq_length^2 bytes a sequence.
        always("--no-create-attention-mask-in-dataloader", {}, True),
    ),
    "EVAL_AND_LOGGING_ARGS": (
        *_same("training", "eval_iters eval_interval log_interval"),
        always("--log-throughput", {}, True),
        Link("training.tensorboard_dir", "--tensorboard-dir", write=_tensorboard),
        Link("training.wandb_project", "--wandb-project"),
        Link("training.wandb_project", "--wandb-exp-name",
             write=lambda v, p: v and (p.training.wandb_name or p.model.name)),
        Link("training.wandb_project", "--wandb-save-dir", write=lambda v, p: v and f"{_folder(p)}wandb"),
        always("--ckpt-format", {}, "torch_dist", until="core_v0.14.0"),
        Link("", "--ckpt-format", since="core_v0.14.0",
             write=lambda _, p: "fsdp_dtensor" if _fsdp(p) else "torch_dist"),
        Link("training.save", "--save"),
        Link("training.save_interval", "--save-interval", write=_if(lambda p: p.training.save is not None)),
        Link("training.load", "--load"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """Fields of a plan that options set together.

    fields: of `plans.plan.Candidate`, separated by blanks; none for kernels, which are only ever added. also: further
    destinations that set the same. exclusive: switches of which the parser accepts only one.
    """

    fields: str
    also: str = ""
    exclusive: str = ""

    @property
    def dests(self) -> tuple[str, ...]:
        """Return the destinations of all options that set these fields, without repeats."""
        linked = (dest for field in self.fields.split() for dest in BY_FIELD[field])
        return tuple(dict.fromkeys((*linked, *self.also.split())))

    def meaning(self, configuration: object) -> tuple[object, ...]:
        return tuple(value_of(configuration, field) for field in self.fields.split())


BY_FIELD: dict[str, tuple[str, ...]] = {}  # destinations of the options that say a choice of a plan, by its field
for _link in (link for links in RUN.values() for link in links if link.name.startswith("best.")):
    _field = _link.name.removeprefix("best.configuration.")
    BY_FIELD[_field] = (*BY_FIELD.get(_field, ()), *destinations(_link.option))
# In the order in which a person would look for them, which is also where a new option goes: after the options of its
# own family, or of the nearest one before it.
FAMILIES = (
    Family("micro", "batch_size"),
    Family("global_batch"),
    Family("precision", exclusive="bf16 fp16"),
    *map(Family, ("grad_bytes", "fp8_param_gather", "fused_loss")),
    Family("tp", "model_parallel_size"),
    *map(Family, ("gtp", "sequence_parallel", "overlap_tp_comm")),
    Family("pp vpp pipeline_layout first_stage_layers last_stage_layers "
           "account_for_embedding account_for_loss", "num_layers_per_virtual_pipeline_stage"),
    *map(Family, ("microbatch_group_size", "overlap_pp_p2p", "cp cp_comm")),
    *map(Family, ("ep", "etp", "moe_dispatcher moe_flex_backend", "expert_capacity", "paged_stash")),
    Family("", "moe_grouped_gemm moe_permute_fusion moe_router_fusion"),
    *map(Family, ("overlap_moe_a2a", "zero_stage", "overlap_grad_reduce")),
    *map(Family, ("overlap_param_gather", "optimizer_offload")),
    Family("recompute recompute_method recompute_layers recompute_modules",
           "recompute_activations moe_layer_recompute"),
    Family("activation_offload"),
    Family("cuda_graphs", "enable_cuda_graph"),
)  # fmt: skip
DECIDED = frozenset(dest for family in FAMILIES for dest in family.dests)
STAGES = next(family.dests for family in FAMILIES if "pp" in family.fields)  # which layers a stage has
