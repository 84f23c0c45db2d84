"""Degrees, switches and what the job passes on -> Megatron-LM options. Nothing of the architecture."""

from __future__ import annotations

from symconfig.descriptor import learning_rate
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.frameworks.megatron.hybrid import DELTA, hybrid, parts_of_layer
from symconfig.frameworks.megatron.releases import (
    KEPT_INPUTS,
    KEPT_INPUTS_SINCE,
    LAYOUT_MTP_ALONE_SINCE,
    LAYOUT_MTP_SINCE,
    RECOMPUTE_SINCE,
)
from symconfig.plans.plan import Candidate, Plan
from symconfig.render.megatron_args import Arguments
from symconfig.render.megatron_extras import gathered_args, switched_args
from symconfig.render.megatron_mixers import stages_args

# Of --offload-modules, those that every layer has. A dense MLP has none. Norms count only where they stand alone:
# before MLA and before experts; elsewhere Transformer Engine fuses them into the linear layer behind.
OFFLOAD_ATTENTION = ("qkv_linear", "core_attn", "attn_proj")
OFFLOAD_EXPERTS = ("expert_fc1", "moe_act")
FSDP_GRADIENTS = "--megatron-fsdp-main-grads-dtype"  # by default bf16, whatever --grad-reduce-in-bf16 says


def training_args(out: Arguments, plan: Plan) -> None:
    """Add batch, optimizer and schedule, as the job says, and what runs each step faster."""
    training, batch = plan.training, plan.best.batch
    out.group = "TRAINING_ARGS"
    out.put("--micro-batch-size", batch.micro)
    out.put("--global-batch-size", batch.global_)
    # Add the run's length. Megatron-LM makes --train-iters x --global-batch-size samples (training.py,
    # get_train_valid_test_num_samples, core_v0.12 to core_v0.19) and goes on behind those that its checkpoint has seen:
    # after steps of a larger batch they would run out, so that it is told of more iterations and where to exit.
    end = plan.training.train_iters
    sampled = plan.history.spanned(end, plan.best.batch.global_)
    out.put("--train-iters", max(end, sampled))
    if sampled > end:  # a multiple of it is the end alone: the run goes on before it and does not come to twice as many
        out.put("--exit-interval", end)
    optimizer_args(out, plan)
    out.put("--weight-decay", training.weight_decay)
    out.put("--clip-grad", training.clip_grad)
    out.put("--seed", training.seed)
    out.put("--distributed-timeout-minutes", training.distributed_timeout_minutes)
    learning_rate.check(training)
    out.put("--lr", training.lr)
    out.put("--min-lr", training.min_lr)
    out.put("--lr-decay-style", training.lr_decay_style)
    out.put("--lr-decay-iters", training.decay_iters)
    out.put("--lr-warmup-iters", training.lr_warmup_iters)
    if training.lr_decay_style == "WSD":
        out.put("--lr-wsd-decay-iters", training.wsd_decay_iters)
        out.put("--lr-wsd-decay-style", "linear")
    switched_args(out, plan)


# as every other format decays; the default is exponential


def precision_args(out: Arguments, best: Candidate) -> None:
    """Number formats. FP8 and FP4 sit on top of bf16."""
    out.group = "PRECISION_ARGS"
    precision = best.options.precision
    out.put("--fp16" if precision == "fp16" else "--bf16")
    if precision in ("fp8", "mxfp8") and out.needs("precision", "--fp8-recipe", "it has no FP8 recipes", precision):
        out.put("--fp8-format", "hybrid" if precision == "fp8" else "e4m3")
        # Scales of the tensor at hand; an offloaded optimizer writes 8-bit weights with those of a history only.
        delayed = precision == "fp8" and best.options.fp8_param_gather and best.options.optimizer_offload > 0
        out.put("--fp8-recipe", "mxfp8" if precision == "mxfp8" else "delayed" if delayed else "tensorwise")
        modules = sorted(KEPT_INPUTS & {*best.options.recompute.modules})
        if delayed and modules and out.at_least(KEPT_INPUTS_SINCE):
            what = "an offloaded optimizer writes 8-bit weights with delayed scaling only, which has no such recompute"
            out.refuse("recompute.modules", what, ", ".join(modules))
        if delayed:
            out.put("--fp8-amax-history-len", 1024)
            out.put("--fp8-amax-compute-algo", "max")
    if precision == "nvfp4" and out.needs("precision", "--fp4-format", "it has no FP4", precision):
        out.put("--fp4-format", "e2m1")
        out.put("--fp4-recipe", "nvfp4")
    if precision == "fp16" and best.options.grad_bytes == 4:
        out.put("--accumulate-allreduce-grads-in-fp32")  # as it does with bf16 by itself
    elif precision != "fp16" and best.options.grad_bytes == 2:
        out.put("--grad-reduce-in-bf16")
    gathered_args(out, best.options)


def parallel_args(out: Arguments, plan: Plan) -> None:
    """Add tp, pp, vpp, cp, ep, etp and what depends on them."""
    best, model = plan.best, plan.model
    parallel, options = best.parallel, best.options
    out.group = "MODEL_PARALLEL_ARGS"
    out.put("--tensor-model-parallel-size", parallel.tp)
    out.put("--pipeline-model-parallel-size", parallel.pp)
    out.put("--context-parallel-size", parallel.cp)
    if parallel.cp > 1:
        out.put("--cp-comm-type", options.cp_comm or "p2p")
    if model.experts is not None:
        out.put("--expert-model-parallel-size", parallel.ep)
        out.put("--expert-tensor-parallel-size", parallel.etp)  # the default would be tp, not 1
    if options.sequence_parallel and parallel.tp > 1:
        out.put("--sequence-parallel")
        out.put("--tp-comm-overlap", options.overlap.tp_comm)
    _pipeline(out, plan)


def _pipeline(out: Arguments, plan: Plan) -> None:
    parallel, options = plan.best.parallel, plan.best.options
    if hybrid(plan.model):
        stages_args(out, plan)
    if parallel.pp == 1:
        return
    if hybrid(plan.model):
        pass  # the pattern says the stages
    elif options.pipeline_layout is not None:
        _layout(out, options.pipeline_layout)
    else:
        if parallel.vpp > 1:
            out.put("--num-virtual-stages-per-pipeline-rank", parallel.vpp)
        out.put("--decoder-first-pipeline-num-layers", options.first_stage_layers)
        out.put("--decoder-last-pipeline-num-layers", options.last_stage_layers)
        out.put("--account-for-embedding-in-pipeline-split", options.account_for_embedding)
        out.put("--account-for-loss-in-pipeline-split", options.account_for_loss)
    if parallel.vpp > 1:
        if options.microbatch_group_size not in (None, parallel.pp):
            out.put("--microbatch-group-size-per-virtual-pipeline-stage", options.microbatch_group_size)
        # With two stages Megatron insists on the overlap.
        out.put("--no-overlap-p2p-communication", not options.overlap.pp_p2p and parallel.pp > 2)


def _layout(out: Arguments, layout: str) -> None:
    """Add the layout string, which says the virtual stages, too."""
    if out.needs("pipeline_layout", "--pipeline-model-parallel-layout", "it has no layouts of stages", layout):
        out.put("--pipeline-model-parallel-layout", layout)
    if "m" in layout and not out.at_least(LAYOUT_MTP_SINCE):
        out.refuse("pipeline_layout", "layouts have no multi-token prediction", layout, since=LAYOUT_MTP_SINCE)
    elif "m" in layout.replace(",", "").rpartition("|")[0] and not out.at_least(LAYOUT_MTP_ALONE_SINCE):
        out.refuse("pipeline_layout", "multi-token prediction goes with the loss", layout, since=LAYOUT_MTP_ALONE_SINCE)


def data_parallel_args(out: Arguments, best: Candidate) -> None:
    """Add ZeRO: stage 1 is Megatron's distributed optimizer; 2 and 3 are Megatron-FSDP."""
    parallel, options = best.parallel, best.options
    out.group = "DATA_PARALLEL_ARGS"
    replicated = parallel.dp * parallel.cp > 1
    grad_reduce, param_gather = options.overlap.grad_reduce, options.overlap.param_gather
    out.put("--use-distributed-optimizer", options.zero_stage >= 1)
    if options.zero_stage >= 2:
        grad_reduce = True  # Megatron-FSDP switches these on by itself
        param_gather = param_gather or options.zero_stage == 3
        _fsdp(out, options.zero_stage)
        if options.grad_bytes == 4 and out.known(FSDP_GRADIENTS):
            out.put(FSDP_GRADIENTS, "fp32")
    if replicated and grad_reduce:
        out.put("--overlap-grad-reduce")
        out.put("--overlap-param-gather", param_gather and options.zero_stage >= 1)
    if options.optimizer_offload > 0 and out.needs(
        "optimizer_offload", "--optimizer-cpu-offload", "its optimizer stays on the GPU"
    ):
        out.put("--use-precision-aware-optimizer")
        out.put("--optimizer-cpu-offload")
        out.put("--optimizer-offload-fraction", options.optimizer_offload)


def _fsdp(out: Arguments, stage: int) -> None:
    flag = "--use-megatron-fsdp" if out.known("--use-megatron-fsdp") else "--use-custom-fsdp"
    if not out.needs("zero_stage", flag, "it has no FSDP of its own", stage):
        return
    out.put(flag)
    out.put("--data-parallel-sharding-strategy", "optim_grads" if stage == 2 else "optim_grads_params")
    out.put("--no-gradient-accumulation-fusion")  # an error until core_v0.13, later a warning
    out.put("--init-model-with-meta-device", stage == 3)  # else every rank first builds the whole model


def offloaded_modules(model: ModelDescriptor, recomputed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules whose inputs can wait on the host."""
    attention_norm = ("attn_norm",) if model.latent is not None else ()
    experts: tuple[str, ...] = ()
    if model.experts is not None:
        experts = ("mlp_norm", *(OFFLOAD_EXPERTS if "moe" not in recomputed else ()))
    return (*attention_norm, *OFFLOAD_ATTENTION, *experts)


def recompute_args(out: Arguments, plan: Plan) -> None:
    """Add what is done with activations: computed again, or kept on the host."""
    options, recompute = plan.best.options, plan.best.options.recompute
    out.group = "RECOMPUTE_ARGS"
    if recompute.granularity == "full":
        out.put("--recompute-granularity", "full")
        out.put("--recompute-method", recompute.method or "uniform")
        out.put("--recompute-num-layers", (recompute.num_layers or 1) * (parts_of_layer(plan.model) or 1))
    elif recompute.granularity == "selective":
        out.put("--recompute-granularity", "selective")
        refuses = out.at_least("core_v0.13.0") and not out.at_least(KEPT_INPUTS_SINCE)
        for module in recompute.modules:
            since = RECOMPUTE_SINCE.get(module)
            if since is None or not out.at_least(since):
                out.refuse("recompute.modules", "there is no such module", module, since=since)
            elif not _has_module(out, plan, module):
                out.refuse("recompute.modules", "the model has no such module, and it refuses the name", module)
            elif module in KEPT_INPUTS and "fp8" in options.precision and refuses:
                what = "this module is not recomputed with fp8"
                out.refuse("recompute.modules", what, module, since=KEPT_INPUTS_SINCE)
        if recompute.modules:
            out.put("--recompute-modules", *recompute.modules)
    if options.activation_offload:
        out.put("--fine-grained-activation-offloading")
        out.put("--offload-modules", *offloaded_modules(plan.model, recompute.modules))


def _has_module(out: Arguments, plan: Plan, module: str) -> bool:
    """Return the names that TransformerConfig refuses for a model or kernel without them; the others it ignores."""
    if module == "moe_act":
        return ("--moe-grouped-gemm",) in out.filled["MOE_ARGS"]
    if module == "gdn_norm_out":
        return any(mixer.block == DELTA for mixer in plan.model.mixers) and not hybrid(plan.model)
    return module != "mla_up_proj" or plan.model.latent is not None


def data_args(out: Arguments, plan: Plan) -> None:
    """Add mock data, unless the job names real data."""
    training = plan.training
    out.group = "DATA_ARGS"
    if training.data_path:
        out.put("--data-path", *training.data_path)
        out.put("--split", training.split)
        tokenizer = training.tokenizer_model or plan.model.huggingface_id
        kind = training.tokenizer_type or "HuggingFaceTokenizer"
        out.put("--tokenizer-type", kind)
        if tokenizer is None and kind != "NullTokenizer":
            raise InputError(
                "is needed with real data",
                field="training.tokenizer_model",
                hint="the tokenizer's folder or Hugging Face name",
            )
        out.put("--tokenizer-model", tokenizer)
    else:
        out.put("--mock-data")
        out.put("--tokenizer-type", "NullTokenizer")
    # Transformer Engine masks causally by itself; a mask in the batch costs seq_length^2 bytes a sequence.
    out.put("--no-create-attention-mask-in-dataloader")


def logging_args(out: Arguments, plan: Plan) -> None:
    """Add evaluation, logs and checkpoints."""
    training = plan.training
    out.group = "EVAL_AND_LOGGING_ARGS"
    out.put("--eval-iters", training.eval_iters)
    out.put("--eval-interval", training.eval_interval)
    out.put("--log-interval", training.log_interval)
    out.put("--log-throughput")
    _monitored(out, plan)
    fsdp = plan.best.options.zero_stage >= 2 and out.known("--use-megatron-fsdp")
    out.put("--ckpt-format", "fsdp_dtensor" if fsdp else "torch_dist")
    if training.save is not None:
        out.put("--save", training.save)
        out.put("--save-interval", training.save_interval)
    out.put("--load", training.load)


def _monitored(out: Arguments, plan: Plan) -> None:
    """Add TensorBoard and Weights & Biases. Megatron-LM logs to the second only where it has a folder for the first,
    and puts its files into --save unless it is told another folder (core_v0.12.1 to core_v0.19.0: training_log of
    training.py, _set_wandb_writer of global_vars.py).
    """
    training = plan.training
    folder = f"{training.save.rstrip('/')}/" if training.save else ""
    if training.tensorboard_dir is not None or training.wandb_project is not None:
        out.put("--tensorboard-dir", training.tensorboard_dir or f"{folder}tensorboard")
    if training.wandb_project is not None:
        out.put("--wandb-project", training.wandb_project)
        out.put("--wandb-exp-name", training.wandb_name or plan.model.name)
        out.put("--wandb-save-dir", f"{folder}wandb")


def optimizer_args(out: Arguments, plan: Plan) -> None:
    """Put the optimizer and its settings into the current group. What a release lacks is in its table of constraints.

    Muon steps embeddings, head, norms and biases with Adam, whose settings go with it.
    """
    optimizer, training = plan.job.optimizer, plan.training
    out.put("--optimizer", optimizer.name)
    out.put("--adam-beta1", training.adam_beta1)
    out.put("--adam-beta2", training.adam_beta2)
    out.put("--adam-eps", training.adam_eps)
    if optimizer.narrow:
        out.put("--use-precision-aware-optimizer")
        out.put("--main-params-dtype", optimizer.main_params)
        out.put("--exp-avg-dtype", optimizer.exp_avg)
        out.put("--exp-avg-sq-dtype", optimizer.exp_avg_sq)
    if optimizer.name == "sgd":
        out.put("--sgd-momentum", optimizer.speed)
    if optimizer.name == "muon":
        out.put("--muon-momentum", optimizer.speed)
        out.put("--muon-nesterov", optimizer.nesterov)
        out.put("--muon-num-ns-steps", optimizer.ns_steps)
        out.put("--muon-scale-mode", optimizer.scale_mode)
        out.put("--muon-extra-scale-factor", optimizer.extra_scale_factor)
        out.put("--muon-tp-mode", optimizer.tp_mode)
