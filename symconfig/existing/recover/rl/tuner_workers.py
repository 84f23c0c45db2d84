"""Models that TRL, LLaMA-Factory and ms-swift train: by DeepSpeed, in shards of FSDP, as replicas, or by Megatron-Core.

Sources: TRL 1.16, trl/trainer/; LLaMA-Factory 0.9.5, hparams/parser.py, model/adapter.py; ms-swift 4.6.0,
swift/config/, swift/megatron/arguments/megatron_args.py; Transformers 5.24, trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from symconfig.descriptor.optimizer import Optimizer
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover import deepspeed
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import stepped
from symconfig.existing.recover.deepspeed_model import described as of_arguments
from symconfig.existing.recover.known import weight_bytes
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.rl import bridged, fsdp
from symconfig.existing.recover.rl.model import adapted, without_images
from symconfig.existing.recover.rl.trainers import SHARDS
from symconfig.existing.recover.rl.tuner_stated import ADAPTERS, TunerStated
from symconfig.existing.recover.run import Described, Run
from symconfig.existing.recover.words import settings
from symconfig.frameworks.behaviour import COMPILED, Switches
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO, TRAIN
from symconfig.frameworks.fsdp.behaviour import EAGER_ADAM, NARROW_REDUCTION, WIDE_FROZEN
from symconfig.frameworks.optimizers import stepping

_FULL = ("full", "")
_IN_4_BITS = 0.5  # bytes of a weight
# Accelerate's numbers are the places of PyTorch's ShardingStrategy, from 1.
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_BY_NUMBER = {str(number): name for number, name in enumerate(_STRATEGIES, 1)}
_HYBRID, _WHOLE = _STRATEGIES[3:], _STRATEGIES[2]
_ZERO_2 = ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "False", "false")  # the latter of FSDP 2's reshard_after_forward
# Ways to train fewer weights, or with other states, of which nothing is predicted.
_UNPREDICTED = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "use_llama_pro", "use_kt")


@dataclass(slots=True)
class TunerWorkers(TunerStated):
    """One script, whose workers are predicted."""

    def _untrained(self) -> Iterator[Problem]:
        """Yield what no prediction is made of, whatever the program does."""
        values = self.values
        if self._kind not in (*_FULL, *ADAPTERS):
            what, need = "weights that are trained in this way are not predicted", "full or lora"
            yield self.problem("finetuning_type", what, got=self._kind, need=need)
        for switch in _UNPREDICTED:
            if values.switch(switch):
                yield self.problem(switch, "is not predicted")
        if (spread := self._spread()) is not None:
            yield spread
        if self.precision is None:
            yield self.problem("bf16", "training in 32 bits is not predicted", need="bf16 or fp16")
        if self.gpus % self._sharing:
            what = "these degrees do not divide the GPUs"
            yield self.problem("sequence_parallel_size", what, got=f"{self.gpus} GPUs for {self._sharing}")

    def _spread(self) -> Problem | None:
        """Return why a process of ms-swift's with several GPUs is not predicted: it puts layers on one after the
        other."""
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
        """Return the model that is trained, with its adapters."""
        given = [each for each in self.values.settings if self._kind in ADAPTERS or not _of_adapters(each)]
        usual = self._adapters() if self._kind in ADAPTERS else ()
        arguments = Arguments((*settings(usual, self.reading.file), *given))
        if self.program.megatron:
            arguments = Arguments([each for each in arguments.settings if not _of_adapters(each)])
        model = of_arguments(self.reading, arguments, self.supplied, self.problems)
        self.problems += arguments.problems
        if model is None:
            return None
        model = without_images(model)
        if not self.program.megatron or self._kind not in ADAPTERS:
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
        return [*words, *self.tuner.modules]

    def _trained(self, model: Described, microbatches: int, length: int, micro: int = 1) -> Run:
        """Return the run of a model in so many micro-batches of all replicas. Raises InputError."""
        if self.program.megatron:
            return self._of_megatron(model, microbatches, length, micro)
        if (config := self.config) is not None:
            run = self._of_deepspeed(config, model, microbatches, length, micro)
        else:
            run = self._of_torch(model, microbatches, length, micro)
        return run if self._loss is None else run.with_loss(self._loss)

    def _of_deepspeed(
        self, config: Mapping[str, Any], model: Described, microbatches: int, length: int, micro: int
    ) -> Run:
        values, precision = self.values, self.precision
        own = {key: value for key, value in config.items() if key not in (TRAIN, "bf16", "fp16", "bfloat16")}
        own |= {MICRO: micro, ACCUMULATION: max(1, microbatches // self._dp)}
        own |= {name: {"enabled": precision == name} for name in ("bf16", "fp16")}
        if self._tp > 1:
            own["tensor_parallel"] = {"autotp_size": self._tp}
        if self._sp > 1:
            own["sequence_parallel_size"] = self._sp
        words = ["--gradient_checkpointing"] * self.recomputes + ["--use_liger_kernel"] * self._liger
        words += ["--torch_compile"] * values.switch("torch_compile")
        for name, value in (("attn_implementation", self._attention), ("optim", values.text("optim"))):
            words += [f"--{name}", value] if value else []
        supplied = replace(self.supplied, gpus=self.gpus, seq_length=length)
        return deepspeed.made(own, words, model, self.reading, self.known_cluster, supplied)

    def _of_torch(self, model: Described, microbatches: int, length: int, micro: int) -> Run:
        """Return the run of shards or replicas."""
        gpus, sharded, precision = self.gpus, self.launched.sharded, self.precision
        assert precision is not None, "is refused"
        given = [word.upper() for word in self.values.arguments.words("fsdp")]  # the Trainer's "full_shard auto_wrap"
        strategy = str(sharded.get("sharding_strategy", sharded.get("reshard_after_forward")))
        strategy = next((word for word in given if word in _STRATEGIES), strategy)
        strategy = _BY_NUMBER.get(strategy, strategy)
        kept = self.workers.name == SHARDS.name
        copies = 1 if kept and strategy != _WHOLE else gpus
        mesh = self.launched.parallel.get("dp_replicate_size")
        if strategy in _HYBRID:
            copies = self.reading.world.nodes or 1
        elif kept and isinstance(mesh, int) and mesh > 0:
            copies = mesh
        as_published = self._in_16_bits or self.program.trainer == tuners.TRANSFORMERS  # from_pretrained of release 5
        wide = not as_published or (self.tuner.widens and sharded.get("version") == 2)
        kernels: dict[str, Any] = {"attention": "torch"} if self._attention else {}
        kernels |= COMPILED if self.values.switch("torch_compile") else {}
        narrow = NARROW_REDUCTION if kept else {}
        eager = EAGER_ADAM if self.values.text("optim") == "adamw_torch" else {}
        layers = fsdp.Workers(
            dp=self._dp,
            sp=self._sp,
            room=length,
            micro=micro,
            microbatches=microbatches,
            copies=copies,
            recompute=self.recomputes,
            every=self.recomputed_every,
            narrow=self._in_16_bits and not kept,
            liger=self._liger,
            whole=strategy in _ZERO_2,
            streamed=sharded.get("offload_params") is True or "OFFLOAD" in given,
            program=Switches(implementation=kernels, framework={**narrow, **eager}, bytes=WIDE_FROZEN if wide else {}),
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
        wrong, adapted = partial(self.problem, "lora_r"), model.model.adapter is not None
        program = self._target if adapted and self.program.trainer == tuners.SWIFT else None
        return bridged.run(whole, self.gpus, self.known_cluster, self.supplied, model, wrong, program)


def _of_adapters(setting: Setting) -> bool:
    return tuners.plain(setting).startswith("lora_") or tuners.plain(setting) in ("use_peft", "finetuning_type")


def _stepping(run: Run, optimizer: Optimizer) -> Run:
    """Return a run with another optimizer."""
    framework = stepping(run.configuration.framework, optimizer)
    return replace(run, optimizer=optimizer, configuration=replace(run.configuration, framework=framework))
