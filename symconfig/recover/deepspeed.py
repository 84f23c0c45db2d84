"""A DeepSpeed launch as a run: the way back from `render.deepspeed` and `render.deepspeed_launch`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.cost.framework import DEEPSPEED, Framework
from symconfig.cost.stages import Offload
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.graph.operator import LAYER
from symconfig.launch.reading import Reading
from symconfig.plan import Options, Overlap, Recompute, Target
from symconfig.recover.arguments import Arguments
from symconfig.recover.asked import Asked
from symconfig.recover.deepspeed_auto import AUTO, ZERO, filled, uses_trainer
from symconfig.recover.deepspeed_batch import Grid, Sizes, sizes
from symconfig.recover.deepspeed_model import described
from symconfig.recover.run import Assumed, Run
from symconfig.solve.predict import Configuration
from symconfig.targets import DEEPSPEED_RELEASE

Json = dict[str, Any]
# Of the training programs around Transformers: its own examples, TRL, LLaMA-Factory, Axolotl, and our train.py.
SEQUENCE = ("seq_length", "seq_len", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "sequence_len",
            "block_size", "max_length")
_RECOMPUTE = ("gradient_checkpointing", "use_gradient_checkpointing")
_KERNELS = ("attn_implementation", "attention_implementation")
_PREFETCH = 50_000_000  # elements, by default (runtime/zero/config.py)


@dataclass(frozen=True, slots=True)
class Zero:
    """The section zero_optimization, with DeepSpeed's defaults. overlap: gradients are reduced beside the backward.
    prefetch: stage 3 gathers weights ahead. scatters: gradients go to their owner, not to all."""

    stage: int = 0
    offload: Offload = field(default_factory=Offload)
    overlap: bool = False
    prefetch: bool = True
    scatters: bool = True


def zero_of(config: Any) -> Zero:
    """Of a DeepSpeed JSON's data. A stage that DeepSpeed refuses counts as none: the rules tell it."""
    section = _section(config, ZERO)
    stage = int(section.get("stage", 0)) if str(section.get("stage", 0)) in ("0", "1", "2", "3") else 0
    optimizer = section.get("offload_optimizer")
    if section.get("cpu_offload") is True and not optimizer:
        optimizer = {"device": "cpu"}
    ratio = _section(section, "offload_optimizer").get("ratio", 1.0) if _on(optimizer) and stage else 0.0
    overlap = section.get("overlap_comm")
    return Zero(
        stage,
        Offload(float(ratio) if isinstance(ratio, (int, float)) else 1.0,
                stage == 3 and (_on(section.get("offload_param")) or section.get("cpu_offload_param") is True)),
        stage == 3 if not isinstance(overlap, bool) else overlap,
        section.get("stage3_prefetch_bucket_size", section.get("prefetch_bucket_size", _PREFETCH)) != 0,
        section.get("reduce_scatter") is not False,
    )


def gradient_bytes_of(config: Any) -> int:
    """Bytes of an accumulated gradient: the weights' two, unless data_types says otherwise."""
    return 4 if _section(config, "data_types").get("grad_accum_dtype") in ("fp32", "float32", "float") else 2


def with_zero(framework: Framework, zero: Zero, gradient_bytes: int, replicas: int) -> Framework:
    """The framework's habits with what the JSON switches. replicas: ranks that the same weights would be on."""
    hide = framework.hide
    if replicas > 1 and zero.stage and not zero.overlap:
        hide = replace(hide, data=0.0)
    if replicas > 1 and zero.stage == 3 and not zero.prefetch:
        hide = replace(hide, sharded_weights=0.0)
    return replace(framework, hide=hide, bytes=replace(framework.bytes, gradient=float(gradient_bytes)),
                   all_reduced_gradients=zero.stage in (1, 2) and not zero.scatters)


def run(reading: Reading, cluster: ClusterDescriptor, asked: Asked) -> Run:
    """What the JSON and the program's arguments run. Raises InputError with everything that is missing or wrong."""
    arguments, problems = Arguments(reading.settings), list[Problem]()
    if reading.deepspeed is None:
        raise InputError(Problem("names no DeepSpeed JSON that could be read", file=reading.file))
    file, data = reading.deepspeed.text.file, reading.deepspeed.data
    if not isinstance(data, dict):
        raise InputError(Problem("is not a JSON object", file=file))
    model = described(reading, arguments, asked, problems)
    hidden = model.model.hidden_size if model else None
    config = filled(data, arguments, hidden) if uses_trainer(arguments) else data
    grid = Grid(_degree(config, "tensor_parallel", "autotp_size", file, problems),
                _degree(config, "sequence_parallel_size", None, file, problems))
    experts = _degree(config, "expert_parallel", "autoep_size", file, problems) \
        if _section(config, "expert_parallel").get("enabled") is True else 1
    batch, assumed = sizes(data, arguments, asked.gpus or reading.world.gpus, grid, file, problems)
    length = asked.seq_length or arguments.whole(*SEQUENCE)
    if length is None:
        problems.append(Problem("the length of the sequences is not said", file=reading.file, hint="--seq-length N"))
    precision, guessed = _precision(data, config, arguments, cluster, file, problems)
    recompute = _recompute(arguments)
    problems += arguments.problems
    if problems or model is None or batch is None or length is None:
        raise InputError(list(dict.fromkeys(problems)))
    found = _configuration(config, batch, grid, experts, length, precision, recompute)
    framework = _kernels(found.framework, arguments, model.model)
    return Run(Target("deepspeed", DEEPSPEED_RELEASE), model, replace(found, framework=framework),
               _options(config, found, recompute, model.model), (*assumed, *guessed))


def _configuration(config: Json, batch: Sizes, grid: Grid, experts: int, length: int, precision: str,
                   recompute: Recompute) -> Configuration:
    zero, dp = zero_of(config), batch.gpus // (grid.tensor * grid.sequence)
    replicas = batch.gpus // grid.tensor
    return Configuration(
        tp=grid.tensor, pp=1, dp=dp, micro=batch.micro, global_batch=batch.micro * batch.steps * dp, seq_length=length,
        cp=grid.sequence, ep=experts, precision=precision, cp_comm="a2a" if grid.sequence > 1 else "p2p",
        modules=frozenset({LAYER}) if recompute.granularity == "full" else frozenset(),
        block_layers=recompute.num_layers or 0 if recompute.method == "block" else 0, zero=zero.stage,
        framework=with_zero(DEEPSPEED, zero, gradient_bytes_of(config), replicas), backend="deepspeed",
        version=DEEPSPEED_RELEASE, offload=zero.offload)


def _options(config: Json, c: Configuration, recompute: Recompute, model: ModelDescriptor) -> Options:
    zero, replicated = zero_of(config), c.dp * c.cp > 1
    return Options(
        sequence_parallel=False, recompute=recompute, zero_stage=zero.stage,  # type: ignore[arg-type]
        precision=c.precision, cp_comm="a2a" if c.cp > 1 else None,  # type: ignore[arg-type]
        overlap=Overlap(grad_reduce=replicated and (zero.overlap or zero.stage == 0),
                        param_gather=replicated and zero.stage > 0 and (zero.prefetch or zero.stage < 3),
                        tp_comm=False, pp_p2p=False),
        optimizer_offload=zero.offload.optimizer, activation_offload=False, param_offload=zero.offload.weights,
        pipeline_layout=None, account_for_embedding=False, account_for_loss=False, microbatch_group_size=None,
        moe_dispatcher="alltoall" if model.experts else None, grad_bytes=gradient_bytes_of(config), schedule="none")


def _recompute(arguments: Arguments) -> Recompute:
    """Transformers recomputes whole layers: all, or with our train.py the first ones."""
    whole = Recompute("full", method="uniform", num_layers=1)
    layers = arguments.text("recompute_layers")
    if layers is not None and layers not in ("0", "-1"):
        count = arguments.whole("recompute_layers")
        return Recompute("full", method="block", num_layers=count) if count else whole
    return whole if layers == "-1" or arguments.switch(*_RECOMPUTE) else Recompute("none")


def _precision(data: Json, config: Json, arguments: Arguments, cluster: ClusterDescriptor, file: str,
               problems: list[Problem]) -> tuple[str, tuple[Assumed, ...]]:
    """bf16 or fp16. A bare JSON whose precision is "auto" runs as the GPU can."""
    for name, key in (("bf16", "bf16"), ("bf16", "bfloat16"), ("fp16", "fp16")):
        if _section(config, key).get("enabled") is True:
            return name, ()
    left = [key for key in ("bf16", "fp16") if _section(data, key).get("enabled") == AUTO]
    if left and not arguments.settings:
        name = "bf16" if cluster.gpu.peak_flops.bf16 else "fp16"
        return name, (Assumed("precision", name, f'{left[0]}.enabled is "auto", and the GPU has it'),)
    problems.append(Problem("neither bf16 nor fp16 is on, and training in 32 bits cannot be predicted", file=file,
                            hint='"bf16": {"enabled": true}' + (" or --bf16 True" if left else "")))
    return "bf16", ()


def _kernels(framework: Framework, arguments: Arguments, model: ModelDescriptor) -> Framework:
    """With the kernels that the arguments choose. Where a model can only run eager attention, plans take it so, too."""
    how = framework.implementation
    only = model.attention_sinks or model.attn_logit_softcapping is not None
    if arguments.text(*_KERNELS) == "eager" and not only:
        how = replace(how, attention="torch")
    if arguments.switch("use_liger_kernel", "enable_liger_kernel"):
        how = replace(how, fused_norm=True, fused_activation=True, fused_rope=True, loss="fused")
    if arguments.switch("torch_compile"):
        how = replace(how, fused_norm=True, fused_activation=True, fused_rope=True, fused_yarn=True)
    return replace(framework, implementation=how)


def _degree(config: Json, section: str, key: str | None, file: str, problems: list[Problem]) -> int:
    value = config.get(section) if key is None else _section(config, section).get(key)
    if value in (None, 0, AUTO):
        return 1
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    field = section if key is None else f"{section}.{key}"
    problems.append(Problem("is no degree", file=file, field=field, got=repr(value)[:60],
                            need="a whole number above zero"))
    return 1


def _section(config: Any, name: str) -> Json:
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _on(section: Any) -> bool:
    return isinstance(section, dict) and section.get("device", "none") not in ("none", AUTO)
