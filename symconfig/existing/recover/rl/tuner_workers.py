"""Models that TRL, LLaMA-Factory and ms-swift train: by DeepSpeed, in shards of FSDP, as replicas, or by Megatron-Core.

Sources: TRL 1.16, trl/trainer/; LLaMA-Factory 0.9.5, hparams/parser.py, model/adapter.py; ms-swift 4.6.0,
swift/config/, swift/megatron/arguments/megatron_args.py; Transformers 5.24, trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from symconfig.descriptor.optimizer import Optimizer
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover import deepspeed
from symconfig.existing.recover.accelerate import Launched, launched
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed_model import described as of_arguments
from symconfig.existing.recover.deepspeed_optimizer import stepped
from symconfig.existing.recover.known import weight_bytes
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl import bridged, fsdp
from symconfig.existing.recover.rl.model import adapted, without_images
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.trainers import DEEPSPEED, MEGATRON, REPLICAS, SHARDS, Workers
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.run import Described, Run
from symconfig.existing.recover.words import settings
from symconfig.frameworks.behaviour import COMPILED
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO, TRAIN
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.frameworks.optimizers import stepping
from symconfig.plans.choices import Precision

_FULL, _ADAPTERS = ("full", ""), ("lora", "qlora")
_IN_4_BITS = 0.5  # bytes of a weight
_EAGER = ("eager", "disabled")
_HYBRID, _WHOLE = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"), ("NO_SHARD",)
# Of Megatron-Core, as ms-swift has it where nothing is stated; LLaMA-Factory's says what it has.
_MEGATRON_DEFAULTS: Mapping[str, Sequence[str]] = {
    "use_distributed_optimizer": ("--use-distributed-optimizer",),
    "recompute_granularity": ("--recompute-granularity", "selective"),
    "cross_entropy_loss_fusion": ("--cross-entropy-loss-fusion",),
    "expert_tensor_parallel_size": ("--expert-tensor-parallel-size", "1"),
    "moe_grouped_gemm": ("--moe-grouped-gemm",),
}
# What these have by a name of Megatron-LM's, and mean otherwise.
_OTHERWISE = ("micro_batch_size", "global_batch_size", "max_length", "bf16", "fp16", "optim", "load", "model", "seed")
_ABLE = ("adapter of experts",)  # each has its own (mcore-bridge 1.6.5, tuners/lora.py)
# Ways to train fewer weights, or with other states, of which nothing is predicted.
_UNPREDICTED = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "use_llama_pro", "use_kt")


@dataclass(slots=True)
class TunerWorkers(Script):
    """One script; `program` is which of their programs it starts."""

    program: tuners.Program = field(init=False)
    launched: Launched = field(init=False)

    def __post_init__(self) -> None:
        started = tuners.program(self.reading)
        assert started is not None, "is what makes it one of theirs"
        self.program, self.launched = started, launched(self.reading)
        name = partial(tuners.called, started.trainer)
        self.values = Values(self.TRAINER, tuple(replace(each, name=name(each.name)) for each in self.reading.options))

    @property
    def workers(self) -> Workers:
        """Return what trains."""
        if self.program.megatron:
            return replace(MEGATRON, target=self._target)
        if self._config is not None:
            return replace(DEEPSPEED, target=self._target)
        sharded = self.launched.kept == "fsdp" or self.values.given("fsdp") or self._named in ("fsdp", "fsdp2")
        if sharded and self.program.trainer == tuners.TRL:  # which is planned for FSDP, too
            return replace(SHARDS, planned="fsdp", target=self._target)
        return replace(SHARDS if sharded else REPLICAS, target=self._target)

    @property
    def _target(self) -> str:
        """Return the target whose files are for the same program."""
        if self.program.trainer != tuners.SWIFT:
            return self.program.trainer
        return "ms-swift-rlhf" if self.program.megatron else "ms-swift-deepspeed"

    @property
    def _named(self) -> str | None:
        """Return what LLaMA-Factory's second generation calls the way that weights are kept."""
        return self.values.text("dist_config.name")

    @property
    def _config(self) -> Mapping[str, Any] | None:
        """Return the JSON of DeepSpeed: a file's, one that comes with the program, or what Accelerate makes."""
        if (tree := self.reading.deepspeed) is not None:
            return tree.data if isinstance(tree.data, dict) else {}
        if (preset := tuners.DEEPSPEED_PRESETS.get(self.values.text("deepspeed") or "")) is not None:
            stage, away = preset
            host = {"device": "cpu", "pin_memory": True}
            parts = ("optimizer", "param")[: stage - 1] if away else ()
            return {"zero_optimization": {"stage": stage, **{f"offload_{part}": host for part in parts}}}
        return self.launched.config

    @property
    def _tp(self) -> int:
        return self.values.whole("deepspeed_autotp_size") or 1

    @property
    def _sp(self) -> int:
        """Return how many ranks share a sequence."""
        mesh = self.launched.parallel
        stated = mesh.get("sp_size") or mesh.get("cp_size")
        return stated if isinstance(stated, int) and stated > 0 else self.values.whole("sequence_parallel_size") or 1

    @property
    def _sharing(self) -> int:
        """Return the ranks that share a micro-batch."""
        if self.program.megatron:
            return bridged.split(self._names())
        return self._tp * self._sp

    @property
    def _dp(self) -> int:
        return max(1, self.gpus // self._sharing)

    @property
    def _kind(self) -> str:
        """Return how weights are trained: full, lora, or another by its name."""
        values = self.values
        if self.program.trainer == tuners.TRL:
            return "lora" if values.switch("use_peft") else "full"
        if values.given("finetuning_type"):
            return values.text("finetuning_type") or "full"
        plain = self.program.megatron and self.program.trainer == tuners.SWIFT
        return "full" if plain or self._later else "lora"

    @property
    def _later(self) -> bool:
        """Tell whether it is LLaMA-Factory's second generation, whose defaults are others."""
        return any(self.values.given(each) for each in ("train_dataset", "dist_config.name", "model_class"))

    @property
    def _precision(self) -> Precision | None:
        """Return what is computed in; None: 32 bits."""
        values, stated = self.values, (self.values.text("dtype") or "").rpartition(".")[2]
        if values.switch("fp16") or stated in ("float16", "fp16"):
            return "fp16"
        if self.program.trainer == tuners.SWIFT and not values.given("bf16"):
            return None if stated in ("float32", "fp32") else "bf16"
        usual = self._later and not values.given("bf16")
        return "bf16" if usual or values.switch("bf16") or values.switch("pure_bf16") else None

    @property
    def _in_16_bits(self) -> bool:
        """Tell whether weights that replicas hold are themselves in 16 bits."""
        if self.program.trainer == tuners.LLAMAFACTORY:  # model/adapter.py, cast_trainable_params_to_fp32
            return self._kind in _ADAPTERS or self.values.switch("pure_bf16")
        stated = (self.values.text("dtype") or "").rpartition(".")[2]
        return stated in ("bfloat16", "float16", "bf16", "fp16") or (self.program.trainer == tuners.SWIFT)

    def _untrained(self) -> Iterator[Problem]:
        """Yield what no prediction is made of, whatever the program does."""
        values = self.values
        if self._kind not in (*_FULL, *_ADAPTERS):
            what, need = "weights that are trained in this way are not predicted", "full or lora"
            yield self.problem("finetuning_type", what, got=self._kind, need=need)
        for switch in _UNPREDICTED:
            if values.switch(switch):
                yield self.problem(switch, "is not predicted")
        if (spread := self._spread()) is not None:
            yield spread
        if self._precision is None:
            yield self.problem("bf16", "training in 32 bits is not predicted", need="bf16 or fp16")
        if self.gpus % self._sharing:
            what = "these degrees do not divide the GPUs"
            yield self.problem("sequence_parallel_size", what, got=f"{self.gpus} GPUs for {self._sharing}")

    def _spread(self) -> Problem | None:
        """Return why a process of ms-swift's with several GPUs is not predicted: it puts layers on one after the
        other."""
        environment = self.reading.environment
        seen, each = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("NPROC_PER_NODE")
        alone = self.program.trainer == tuners.SWIFT and not self.program.megatron and not self.reading.launcher
        if not alone or seen is None or seen.unknown or (each is not None and not each.text.isdecimal()):
            return None
        devices, processes = len(seen.text.split(",")), 1 if each is None else int(each.text)
        if devices <= processes:
            return None
        what = "layers that one process spreads over its GPUs are not predicted"
        got = f"{devices} GPUs for {processes} process{'es' * (processes > 1)}"
        return seen.place.problem(what, field="CUDA_VISIBLE_DEVICES", got=got, need=f"NPROC_PER_NODE={devices}")

    def _model(self) -> Described | None:
        """Return the model that is trained, with its adapters."""
        given = [each for each in self.values.settings if self._kind in _ADAPTERS or not _of_adapters(each)]
        usual = self._adapters() if self._kind in _ADAPTERS else ()
        arguments = Arguments((*settings(usual, self.reading.file), *given))
        if self.program.megatron:
            arguments = Arguments([each for each in arguments.settings if not _of_adapters(each)])
        model = of_arguments(self.reading, arguments, self.supplied, self.problems)
        self.problems += arguments.problems
        if model is None:
            return None
        model = without_images(model)
        if not self.program.megatron or self._kind not in _ADAPTERS:
            return model
        values = self.values
        fields = {
            "method": "lora",
            "r": values.whole("lora_r") or 8,
            "target_modules": bridged.modules(values.arguments.words("lora_target_modules")),
            "lora_alpha": values.number("lora_alpha") or 32.0,
            "lora_dropout": values.number("lora_dropout") or 0.0,
        }
        try:
            return adapted(model, self.reading, fields)
        except InputError as error:
            self.problems += error.problems
            return None

    def _adapters(self) -> Sequence[str]:
        """Return what the program says of adapters where nothing is stated."""
        values = self.values
        rank, alpha = values.whole("lora_r") or 8, values.number("lora_alpha")
        named = values.text("model_name_or_path") or ""
        words = ["--load_in_4bit"] * (weight_bytes(named) == _IN_4_BITS)
        words += ["--use_peft", "--lora_r", str(rank), "--lora_alpha", f"{alpha or 2 * rank:g}"]
        words += ["--lora_dropout", f"{values.number('lora_dropout') or 0.0:g}"]
        return words if self.program.trainer == tuners.TRL else [*words, "--lora_target_modules", "all-linear"]

    def _trained(self, model: Described, microbatches: int, length: int, micro: int = 1) -> Run:
        """Return the run of a model in so many micro-batches of all replicas. Raises InputError."""
        if self.program.megatron:
            return self._of_megatron(model, microbatches, length, micro)
        if (config := self._config) is not None:
            return self._of_deepspeed(config, model, microbatches, length, micro)
        return self._of_torch(model, microbatches, length, micro)

    @property
    def _recomputes(self) -> bool:
        values, sharded = self.values, self.launched.sharded
        if values.given("disable_gradient_checkpointing"):
            return not values.switch("disable_gradient_checkpointing")
        return values.switch("gradient_checkpointing") or sharded.get("activation_checkpointing") is True

    def _of_deepspeed(
        self, config: Mapping[str, Any], model: Described, microbatches: int, length: int, micro: int
    ) -> Run:
        values, precision = self.values, self._precision
        own = {key: value for key, value in config.items() if key not in (TRAIN, "bf16", "fp16", "bfloat16")}
        own |= {MICRO: micro, ACCUMULATION: max(1, microbatches // self._dp)}
        own |= {name: {"enabled": precision == name} for name in ("bf16", "fp16")}
        if self._tp > 1:
            own["tensor_parallel"] = {"autotp_size": self._tp}
        if self._sp > 1:
            own["sequence_parallel_size"] = self._sp
        words = ["--gradient_checkpointing"] * self._recomputes + ["--use_liger_kernel"] * self._liger
        words += ["--torch_compile"] * values.switch("torch_compile")
        for name, value in (("attn_implementation", self._attention), ("optim", values.text("optim"))):
            words += [f"--{name}", value] if value else []
        supplied = replace(self.supplied, gpus=self.gpus, seq_length=length)
        return deepspeed.made(own, words, model, self.reading, self.known_cluster, supplied)

    @property
    def _attention(self) -> str | None:
        return "eager" if self.values.text("attn_implementation") in _EAGER else None

    @property
    def _liger(self) -> bool:
        return self.values.switch("use_liger_kernel")

    def _of_torch(self, model: Described, microbatches: int, length: int, micro: int) -> Run:
        """Return the run of shards or replicas."""
        gpus, sharded, precision = self.gpus, self.launched.sharded, self._precision
        assert precision is not None, "is refused"
        strategy = sharded.get("sharding_strategy", sharded.get("reshard_after_forward"))
        kept = self.workers.name == SHARDS.name
        copies = 1 if kept and strategy not in _WHOLE else gpus
        mesh = self.launched.parallel.get("dp_replicate_size")
        if strategy in _HYBRID:
            copies = self.reading.world.nodes or 1
        elif kept and isinstance(mesh, int) and mesh > 0:
            copies = mesh
        kernels: dict[str, Any] = {"attention": "torch"} if self._attention else {}
        kernels |= COMPILED if self.values.switch("torch_compile") else {}
        layers = fsdp.Workers(
            dp=self._dp,
            sp=self._sp,
            room=length,
            micro=micro,
            microbatches=microbatches,
            copies=copies,
            recompute=self._recomputes,
            narrow=self._in_16_bits and (not kept or model.model.adapter is not None),
            liger=self._liger,
            streamed=sharded.get("offload_params") is True,
            kernels=kernels,
            precision=precision,
        )
        run = fsdp.run(layers, model, self.known_cluster)
        optimizer, taken = stepped({}, self.values.arguments)
        return _stepping(replace(run, assumed=(*run.assumed, *taken)), optimizer)

    def _of_megatron(self, model: Described, microbatches: int, length: int, micro: int) -> Run:
        names = self._names()
        own = ["--micro-batch-size", str(micro), "--global-batch-size", str(microbatches * micro)]
        own += ["--seq-length", str(length)]
        whole = Namespace((*names.settings, *settings(own, self.reading.file)), names.table)
        wrong = partial(self.problem, "lora_r")
        return bridged.run(whole, self.gpus, self.known_cluster, self.supplied, model, wrong, _ABLE)

    def _names(self) -> Namespace:
        return Namespace(self.megatron(), flags(self.version()))

    def version(self) -> str:
        """Return the Megatron-LM release that its workers are read as."""
        return resolve(self.supplied.megatron_version or version_of([each.name for each in self.megatron()]))

    def megatron(self) -> tuple[Setting, ...]:
        """Return what Megatron-Core is told as Megatron-LM's options; nothing of other workers."""
        if not self.program.megatron:
            return ()
        values = self.values
        own = [f"--{self._precision or 'bf16'}"]
        for name, words in _MEGATRON_DEFAULTS.items() if self.program.trainer == tuners.SWIFT else ():
            own += [] if values.given(name) else words
        options = [each for each in values.settings if tuners.plain(each) not in _OTHERWISE and _says_something(each)]
        return (*settings(own, self.reading.file), *bridged.options(options))


def _of_adapters(setting: Setting) -> bool:
    return tuners.plain(setting).startswith("lora_") or tuners.plain(setting) in ("use_peft", "finetuning_type")


def _says_something(setting: Setting) -> bool:
    """Tell whether an option says something: ms-swift's word for nothing is none."""
    return not (setting.values and setting.values[0].text.lower() in ("none", "null"))


def _stepping(run: Run, optimizer: Optimizer) -> Run:
    """Return a run with another optimizer."""
    framework = stepping(run.configuration.framework, optimizer)
    return replace(run, optimizer=optimizer, configuration=replace(run.configuration, framework=framework))
