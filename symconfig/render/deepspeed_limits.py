"""What the pinned DeepSpeed release and the generated training script cannot run, by name."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.constraint import other
from symconfig.frameworks.deepspeed.releases import AUTOEP_MODELS, AUTOTP_MODELS
from symconfig.plans.plan import Plan


def refuse(plan: Plan, *others: Problem) -> None:
    """Raise InfeasibleError with everything in the plan that DeepSpeed cannot run, and with `others`."""
    if found := (*problems(plan), *others):
        raise InfeasibleError(found)


def data_problems(plan: Plan, reader: str) -> Iterator[Problem]:
    """Data that only Megatron-LM reads."""
    if plan.job.training.blended:
        yield Problem(
            f"{reader} takes files without weights",
            field="training.data_path",
            got=" ".join(plan.job.training.data_path),
            need=" ".join(plan.job.training.data_path[1::2]),
        )


def problems(plan: Plan) -> tuple[Problem, ...]:
    """Everything in the plan that DeepSpeed cannot run."""
    found = [Problem(what, field=field, pins=pins) for field, what, pins in _choices(plan)]
    if plan.model.num_nextn_predict_layers:
        found.append(
            Problem(
                "Transformers trains no multi-token-prediction layers",
                field="num_nextn_predict_layers",
                hint="num_nextn_predict_layers: 0 in a copy of the descriptor",
            )
        )
    return tuple(found)


def _choices(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(field, what is wrong, pins of which all else has one) for every choice that cannot run."""
    yield from _axes(plan)
    yield from _combinations(plan)
    yield from _switches(plan)


def _axes(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    p, model = plan.best.parallel, plan.model
    if p.pp > 1:
        yield (
            "pp",
            (
                f"the training script runs a Transformers model, and DeepSpeed's pipeline (pp {p.pp}) needs a "
                "PipelineModule"
            ),
            ("pp=1",),
        )
    if p.vpp > 1:
        yield "vpp", "DeepSpeed has no interleaved pipeline", ("vpp=1",)
    if p.etp > 1:
        yield "etp", f"DeepSpeed has no tensor parallelism inside an expert (got etp {p.etp})", ("etp=1",)
    if p.ep > 1:
        if model.experts is None:
            yield "ep", "the model has no experts", ("ep=1",)
        elif model.model_type not in AUTOEP_MODELS:
            yield "ep", f"AutoEP has no preset for model_type {model.model_type}", ("ep=1",)
        elif model.experts.num_experts % p.ep:
            yield "ep", f"{model.experts.num_experts} experts do not divide over ep {p.ep}", other("ep", p.ep)
    if p.tp > 1 and (model.model_type not in AUTOTP_MODELS or model.experts is not None):
        yield "tp", f"AutoTP does not split model_type {model.model_type}", ("tp=1",)
    if p.tp > 1 and model.num_key_value_heads % p.tp:
        yield (
            "tp",
            (f"AutoTP gives every rank whole key-value heads ({model.num_key_value_heads} do not divide over {p.tp})"),
            other("tp", p.tp),
        )
    if p.cp > 1:
        yield from _ulysses(plan)


def _ulysses(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    cp, model, options = plan.best.parallel.cp, plan.model, plan.best.options
    if options.cp_comm not in (None, "a2a"):
        yield "cp_comm", f"DeepSpeed has Ulysses (a2a) only, not {options.cp_comm}", ("cp_comm=a2a", "cp=1")
    if model.num_attention_heads % cp:
        yield "cp", f"Ulysses needs heads that divide ({model.num_attention_heads} heads, cp {cp})", other("cp", cp)
    if model.num_key_value_heads % cp and cp % model.num_key_value_heads:
        yield (
            "cp",
            f"Ulysses needs key-value heads that divide cp or are divided by it "
            f"({model.num_key_value_heads} heads, cp {cp})",
            other("cp", cp),
        )
    if plan.best.batch.seq_length % cp:
        yield "cp", f"sequence length {plan.best.batch.seq_length} does not divide over cp {cp}", other("cp", cp)
    if model.latent is not None:
        yield "cp", "Ulysses of this release takes one head size for queries and values; MLA has two", ("cp=1",)
    if model.attention_sinks:
        yield "cp", "Ulysses refuses the eager attention that attention sinks need", ("cp=1",)
    if any(model.sliding_layers) and model.sliding_window and model.sliding_window < plan.best.batch.seq_length:
        yield "cp", "Ulysses drops the mask of a sliding window", ("cp=1",)
    if options.zero_stage == 1 and options.grad_bytes == 4 and not options.optimizer_offload:
        yield (
            "zero",
            ("ZeRO-1 with fp32 gradients uses DeepSpeed's BF16_Optimizer, whose gradient norm fails under Ulysses"),
            ("zero=2..", "cp=1", "zero=0"),
        )


def _combinations(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    p, model = plan.best.parallel, plan.model
    if p.tp > 1 and p.cp > 1:
        yield "tp", "AutoTP and Ulysses do not combine", ("cp=1", "tp=1")
    if p.ep > 1 and p.cp > 1:
        yield "ep", "AutoEP with Ulysses is not validated in this release", ("cp=1", "ep=1")
    if model.adapter is not None:
        if p.tp > 1:
            yield "tp", "AutoTP does not split PEFT's adapter layers", ("tp=1",)
        if p.ep > 1:
            yield "ep", "AutoEP does not know PEFT's adapter layers", ("ep=1",)


def _switches(plan: Plan) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    options = plan.best.options
    if options.precision not in ("bf16", "fp16"):
        yield (
            "precision",
            f"the training script has bf16 and fp16, not {options.precision}",
            ("precision=bf16", "precision=fp16"),
        )
    if options.sequence_parallel:
        yield "sp", "AutoTP has no sequence parallelism between its regions", ("sp=0",)
    if options.recompute.granularity == "selective":
        yield "recompute", "Transformers recomputes whole layers only", ("recompute=full", "recompute=none")
    if options.recompute.method == "uniform" and (options.recompute.num_layers or 1) > 1:
        yield "recompute", "Transformers recomputes layer by layer, not in chunks of several", ("recompute=none",)
    if options.overlap.moe_a2a:
        yield "moe_overlap", "AutoEP waits for the experts' all-to-all", ("moe_overlap=off",)
    if options.activation_offload:
        yield "activation_offload", "the training script keeps activations on the GPU", ("activation_offload=0",)
    if options.param_offload and options.zero_stage != 3:
        yield "zero", f"parameters can be offloaded at ZeRO-3 only (got stage {options.zero_stage})", ("zero=3",)
    if 0 < options.optimizer_offload < 1 and options.zero_stage != 3:
        yield (
            "optimizer_offload",
            (f"a part of the optimizer state can be offloaded at ZeRO-3 only (got stage {options.zero_stage})"),
            ("optimizer_offload=1", "optimizer_offload=0", "zero=3"),
        )
    if options.optimizer_offload and options.zero_stage == 0:
        yield "optimizer_offload", "offload needs ZeRO", ("zero=1..", "optimizer_offload=0")
    if options.zero_stage == 0 and options.grad_bytes != 2:
        yield "zero", "without ZeRO, gradients have the weights' precision", ("zero=1..",)
