"""What trains in a script of TRL, LLaMA-Factory or ms-swift, or around Transformers' Trainer: a model with its adapters
by DeepSpeed, in shards of FSDP, as replicas, or by Megatron-Core."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.reading import Setting, Word, settings
from symconfig.existing.recover.arguments import Arguments, Launched, accelerate_settings
from symconfig.existing.recover.deepspeed import liger_loss, optimizer_of
from symconfig.existing.recover.deepspeed_model import adapted
from symconfig.existing.recover.deepspeed_model import described as of_arguments
from symconfig.existing.recover.rl import fsdp
from symconfig.existing.recover.rl.script import Script, megatron_options, without_images
from symconfig.existing.recover.rl.values import DEEPSPEED, MEGATRON, REPLICAS, SHARDS, Values, Workers
from symconfig.existing.recover.run import Described, Run
from symconfig.existing.recover.zoo import weight_bytes
from symconfig.formats.tuners import LORA, SWIFT, TRL, Tuner
from symconfig.frameworks.behaviour import COMPILED, LIGER, LOSSES, Switches, stepping
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO, TRAIN
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, NARROW_REDUCTION, WIDE_FROZEN
from symconfig.graph.implementation import LossKernel
from symconfig.plans.configuration import Precision

_ADAPTERS = ("lora", "qlora")
_ALL_LINEAR = ("--lora_target_modules", "all-linear")  # by default, of programs other than PEFT's
_IN_4_BITS = 0.5  # bytes of a weight
_BF16, _FP16, _FP32 = ("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")
# What these have by a name of Megatron-LM's, and mean otherwise.
_OTHERWISE = ("micro_batch_size", "global_batch_size", "max_length", "bf16", "fp16", "optim", "load", "model", "seed")
_EXTRA = "megatron_extra_kwargs"
_SWITCHES = {"true": True, "false": False, "True": True, "False": False}
_NONE = ("none", "null")  # values that say nothing
# Accelerate's numbers are the places of PyTorch's ShardingStrategy, from 1.
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_HYBRID, _WHOLE = _STRATEGIES[3:], _STRATEGIES[2]
_ZERO_2 = ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "False", "false")  # the latter of FSDP 2's reshard_after_forward
# Ways to train fewer weights, or with other states, of which nothing is predicted.
_UNPREDICTED = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "use_llama_pro", "use_kt")


class TunerWorkers(Script):
    """Base reader of a script of TRL, LLaMA-Factory, ms-swift or Transformers' Trainer; makes the trained model's run.

    program: which of their programs the script starts. launched: what Accelerate sets.
    """

    program: tuners.Program
    launched: Launched

    def __post_init__(self) -> None:
        started = tuners.program(self.reading) or tuners.of_trainer(self.reading)
        assert started is not None, "is what makes it one of theirs"
        self.program, self.launched = started, accelerate_settings(self.reading)
        options = [replace(each, name=self.tuner.called(each.name)) for each in self.reading.options]
        if not any(each.name == "model_name_or_path" for each in options):
            options += [replace(each, name="model_name_or_path") for each in options if each.name == "checkpoint"]
        self.trainer = self.tuner
        self.values = Values(tuple(options), trainer=self.trainer, keys=self.tuner.keys)
        own = {each.name.partition(".")[2]: each for each in options if each.name.startswith("fsdp_config.")}
        if own:  # Axolotl's, or the Trainer's in a YAML
            sharded = {name.removeprefix("fsdp_"): _SWITCHES.get(each.text, each.text) for name, each in own.items()}
            parallel = {name: self.values.whole(name) for name in ("dp_replicate_size",) if self.values.given(name)}
            self.launched = replace(self.launched, shards=True, sharded=sharded, parallel=parallel)

    @property
    def tuner(self) -> Tuner:
        return self.program.tuner

    @property
    def workers(self) -> Workers:
        """Return the kind of workers: Megatron-Core, DeepSpeed, FSDP, else plain replicas (DDP)."""
        if self.program.megatron:
            return MEGATRON
        kind = DEEPSPEED
        if self.config is None:
            sharded = self.launched.shards or self.values.given("fsdp")
            kind = replace(SHARDS, planned=self.tuner.planned) if sharded else REPLICAS
        return replace(kind, target=self.tuner.target)

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Return DeepSpeed's JSON: a file's ({} if no object), a preset's or Accelerate's; None without DeepSpeed."""
        if (tree := self.reading.deepspeed) is not None:
            return tree.data if isinstance(tree.data, dict) else {}
        return tuners.DEEPSPEED_PRESETS.get(self.values.text("deepspeed") or "", self.launched.config)

    def megatron(self) -> tuple[Setting, ...]:
        """Return the workers' settings as Megatron-LM's options, after the precision and the program's defaults.

        () unless the program trains by Megatron-Core.
        """
        if not self.program.megatron:
            return ()
        own = [f"--{self.precision or 'bf16'}"]
        for name, words in self.tuner.megatron.items():
            own += [] if self.values.given(name) else words
        stated = (inner for each in self.values.settings for inner in _passed_on(each))
        options = [each for each in stated if each.key not in _OTHERWISE and each.text.lower() not in _NONE]
        return (*settings(own, self.reading.file), *megatron_options(options))

    @property
    def _tp(self) -> int:
        return self.values.whole("deepspeed_autotp_size") or 1

    @property
    def _sp(self) -> int:
        """Return the ranks that share a sequence: of Accelerate's mesh, else `sequence_parallel_size`, else 1."""
        mesh = self.launched.parallel
        stated = mesh.get("sp_size") or mesh.get("cp_size")
        return stated if isinstance(stated, int) and stated > 0 else self.values.whole("sequence_parallel_size") or 1

    @property
    def ranks(self) -> int:
        return self._tp * self._sp

    @property
    def _kind(self) -> str:
        """Return "full", "lora" or another method: by use_peft, use_lora or finetuning_type, else the program's own."""
        if self.tuner.switched:
            return "lora" if self.values.switch("use_peft") or self.values.switch("use_lora") else "full"
        if self.values.given("finetuning_type"):
            return self.values.text("finetuning_type") or "full"
        return self.tuner.kinds[self.program.megatron]

    @property
    def adapts(self) -> bool:
        """Return whether an adapter is trained: by the way of tuning."""
        return self._kind in _ADAPTERS

    @property
    def _dtype(self) -> str:
        return (self.values.text("dtype") or "").rpartition(".")[2]

    @property
    def precision(self) -> Precision | None:
        """Return the precision of computation; None means fp32.

        Accelerate's, unless the script gives bf16 or fp16; else by its switches and dtype; else the program's default.
        """
        values, given = self.values, self.values.given
        if not (given("bf16") or given("fp16")) and self.launched.precision in ("bf16", "fp16"):
            return "bf16" if self.launched.precision == "bf16" else "fp16"
        if values.switch("fp16") or self._dtype in _FP16:
            return "fp16"
        if self.tuner.halves and not given("bf16"):
            return None if self._dtype in _FP32 else "bf16"
        return "bf16" if values.switch("bf16") or values.switch("pure_bf16") else None

    @property
    def _in_16_bits(self) -> bool:
        """Return whether replicas hold the weights themselves in 16 bits."""
        if self.tuner.casts:  # model/adapter.py, cast_trainable_params_to_fp32
            return self.adapts or self.values.switch("pure_bf16")
        return self._dtype in (*_BF16, *_FP16) or self.tuner.halves

    @property
    def recomputes(self) -> bool:
        values = self.values
        if values.given("disable_gradient_checkpointing"):
            return not values.switch("disable_gradient_checkpointing")
        stated = values.switch("gradient_checkpointing") or values.switch("activation_checkpointing")
        return stated or self.launched.sharded.get("activation_checkpointing") is True

    @property
    def recomputed_every(self) -> int:
        """Return n if every n-th layer is recomputed (Transformers' trainer.py); 1 means all layers."""
        for name in ("activation", "gradient"):
            given = self.values.text(f"{name}_checkpointing_kwargs")
            if given and (stated := re.search(r"every_n_layers\W+(\d+)", given)):
                return max(1, int(stated[1]))
        return 1

    @property
    def _eager(self) -> bool:
        return self.values.text("attn_implementation") in ("eager", "disabled")

    @property
    def _loss(self) -> LossKernel | None:
        """Return Liger's loss kernel (for pt and sft with the output layer), or for these TRL's tiled one, or None."""
        plain = self.program.method in ("pt", "sft") and self.values.text("task_type") != "seq_cls"
        if self.values.switch("use_liger_kernel"):
            return LOSSES[liger_loss(self.values) if plain else "fused"]
        return LossKernel.TILED if plain and self.tuner is TRL else None

    def _untrained(self) -> Iterator[Problem]:
        """Yield problems of training itself: another way to tune than full or LoRA, the switches _UNPREDICTED, layers
        that one process spreads (`_spread`), fp32, and degrees that do not divide the GPUs.
        """
        if self._kind not in ("full", *_ADAPTERS):
            what, need = "weights that are trained in this way are not predicted", "full or lora"
            yield self.problem("finetuning_type", what, got=self._kind, need=need)
        for switch in filter(self.values.switch, _UNPREDICTED):
            yield self.problem(switch, "is not predicted")
        if (spread := self._spread()) is not None:
            yield spread
        if self.precision is None:
            yield self.problem("bf16", "training in 32 bits is not predicted", need="bf16 or fp16")
        if self.gpus % self.sharing:
            what = "these degrees do not divide the GPUs"
            yield self.problem("sequence_parallel_size", what, got=f"{self.gpus} GPUs for {self.sharing}")

    def _spread(self) -> Problem | None:
        """Return the problem that one process of ms-swift spreads the layers over several GPUs; None if not, under a
        launcher, or if CUDA_VISIBLE_DEVICES is unset or unknown. NPROC_PER_NODE is 1 by default.
        """
        environment = self.reading.environment
        seen, each = environment.get("CUDA_VISIBLE_DEVICES"), environment.get("NPROC_PER_NODE")
        alone = self.tuner.spreads and not self.program.megatron and not self.reading.launcher
        if not alone or seen is None or seen.unknown or (each is not None and not each.text.isdecimal()):
            return None
        devices, processes = len(seen.text.split(",")), 1 if each is None else int(each.text)
        if devices <= processes:
            return None
        what = "layers that one process spreads over its GPUs are not predicted"
        got = f"{devices} GPUs for {processes} process{'es' * (processes > 1)}"
        return seen.place.problem(what, field="CUDA_VISIBLE_DEVICES", got=got, need=f"NPROC_PER_NODE={devices}")

    def _model(self) -> Described | None:
        """Return the trained model with its adapter and without a vision tower; None with the reasons in `problems`.

        Adapters have rank 8, alpha 2 x rank and no dropout by default, and 4-bit weights if the model's name says so.
        With Megatron-Core they are plain LoRA on that program's modules.
        """
        values, adapts, words = self.values, self.adapts, list[str]()
        if adapts and not self.program.megatron:
            words += ["--load_in_4bit"] * (weight_bytes(values.text("model_name_or_path") or "") == _IN_4_BITS)
            usual = (f"--{name}={text}" for name in LORA[:3] if (text := values.text(name)) is not None)
            words += ["--use_peft", *usual, *([] if self.tuner.switched else _ALL_LINEAR)]
        own = ("use_peft", "finetuning_type")
        given = [each for each in values.settings if words or not (each.key.startswith("lora_") or each.key in own)]
        arguments = Arguments((*settings(words, self.reading.file), *given))
        model = of_arguments(self.reading, arguments, self.supplied, self.problems)
        self.problems += arguments.problems
        if model is None or not (adapts and self.program.megatron):
            return model and without_images(model)
        try:
            fields = self.adapter(model.model)
            return None if fields is None else adapted(without_images(model), self.reading, fields)
        except InputError as error:
            self.problems += error.problems
            return None

    def _trained(self, model: Described, microbatches: int, length: int, micro: int = 1) -> Run:
        """Return the run of a model with `microbatches` per update over all replicas. Raises InputError.

        length: tokens per sequence; micro: sequences per micro-batch.
        """
        if self.program.megatron:
            program = self.tuner.name if model.model.adapter is not None and self.tuner is SWIFT else None
            return self.of_megatron(model, microbatches, length, micro, "lora_r", program)
        if (config := self.config) is not None:
            run = self._of_deepspeed(config, model, microbatches, length, micro)
        else:
            run = self._of_torch(model, microbatches, length, micro)
        return run if self._loss is None else run.with_loss(self._loss)

    def _of_deepspeed(
        self, config: Mapping[str, Any], model: Described, microbatches: int, length: int, micro: int
    ) -> Run:
        """Return the run by DeepSpeed's JSON, in which sizes, degrees and precision of the script win.

        Checkpointing, kernels and optimizer are passed as the Trainer's arguments. Raises InputError.
        """
        values, optimizer = self.values, self.values.text("optim")
        own = {key: value for key, value in config.items() if key not in (TRAIN, "bf16", "fp16", "bfloat16")}
        own |= {MICRO: micro, ACCUMULATION: max(1, microbatches // self.replicas)}
        own |= {name: {"enabled": self.precision == name} for name in ("bf16", "fp16")}
        own |= {"tensor_parallel": {"autotp_size": self._tp}} if self._tp > 1 else {}
        own |= {"sequence_parallel_size": self._sp} if self._sp > 1 else {}
        words = ["--gradient_checkpointing"] * self.recomputes
        words += [f"--{name}" for name in ("use_liger_kernel", "torch_compile") if values.switch(name)]
        words += ["--attn_implementation", "eager"] * self._eager + (["--optim", optimizer] if optimizer else [])
        return self.of_json(own, words, model, self.gpus, length)

    def _of_torch(self, model: Described, microbatches: int, length: int, micro: int) -> Run:
        """Return the run by PyTorch's FSDP, or by replicas (DDP), with the Trainer's compile, Liger, offload and
        optimizer; parameters: see `_trained`. Precision must be known.

        The Trainer's `fsdp` takes precedence over Accelerate's strategy; an unknown one is ZeRO-3. The model has a copy
        per node with a hybrid strategy, per GPU with DDP or NO_SHARD, else the mesh's dp_replicate_size or 1.
        """
        values, sharded, precision = self.values, self.launched.sharded, self.precision
        assert precision is not None, "is refused"
        given = [word.upper() for word in values.words("fsdp")]  # the Trainer's "full_shard auto_wrap"
        strategy = str(sharded.get("sharding_strategy", sharded.get("reshard_after_forward")))
        strategy = next((word for word in given if word in _STRATEGIES), strategy)
        if strategy in map(str, range(1, 1 + len(_STRATEGIES))):
            strategy = _STRATEGIES[int(strategy) - 1]
        kept, mesh = self.workers.name == SHARDS.name, self.launched.parallel.get("dp_replicate_size")
        copies = mesh if isinstance(mesh, int) and mesh > 0 else 1
        if not kept or strategy == _WHOLE:  # replicas, whatever a mesh says
            copies = self.gpus
        elif strategy in _HYBRID:
            copies = self.reading.world.nodes or 1
        wide = not (self._in_16_bits or self.tuner.published) or (self.tuner.casts and sharded.get("version") == 2)
        program = Switches(
            implementation={
                **({"attention": "torch"} if self._eager else {}),
                **(COMPILED if values.switch("torch_compile") else {}),
                **(LIGER if values.switch("use_liger_kernel") else {}),
            },
            framework={
                **(NARROW_REDUCTION if kept else {}),
                **(EAGER_ADAM if values.text("optim") == "adamw_torch" else {}),
            },
            bytes=WIDE_FROZEN if wide else {},
        )
        run = fsdp.run(
            model,
            self.known_cluster,
            program,
            recompute=self.recomputes,
            every=self.recomputed_every,
            narrow=self._in_16_bits and not kept,
            whole=strategy in _ZERO_2,
            streamed=sharded.get("offload_params") is True or "OFFLOAD" in given,
            dp=self.replicas,
            cp=self._sp,
            micro=micro,
            global_batch=microbatches * micro,
            seq_length=length,
            instances=copies,
            precision=precision,
        )
        optimizer, taken = optimizer_of({}, values)
        made = replace(run.configuration, framework=stepping(run.configuration.framework, optimizer))
        return replace(run, optimizer=optimizer, configuration=made, assumed=(*run.assumed, *taken))


def _passed_on(setting: Setting) -> Iterator[Setting]:
    """Yield the setting without the prefix megatron_extra_kwargs, if it has that; for this key itself one setting per
    field of its JSON object, nothing if its text is no such object.
    """
    name = setting.key
    if name != _EXTRA:
        yield replace(setting, name=name.removeprefix(f"{_EXTRA}."))
        return
    try:
        held = json.loads(setting.text)
    except ValueError:
        held = None
    for key, value in held.items() if isinstance(held, dict) else ():
        text = value if isinstance(value, str) else json.dumps(value)
        yield replace(setting, name=key, values=(Word.of(text, setting.place),))
