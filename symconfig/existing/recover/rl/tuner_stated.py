"""Options of TRL, LLaMA-Factory and ms-swift that say what trains: the facts by which the three differ, and what holds
where nothing is stated.

Sources: TRL 1.16, trl/trainer/; LLaMA-Factory 0.9.5, hparams/parser.py, model/adapter.py; ms-swift 4.6.0,
swift/config/, swift/megatron/arguments/megatron_args.py, swift/trainers/arguments.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.recover.accelerate import Launched, launched
from symconfig.existing.recover.deepspeed import liger_loss
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl import bridged
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.trainers import DEEPSPEED, MEGATRON, REPLICAS, SHARDS, Workers
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.words import settings
from symconfig.frameworks.kernels import LOSSES
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.graph.implementation import LossKernel
from symconfig.plans.choices import Precision

ADAPTERS = ("lora", "qlora")
# What these have by a name of Megatron-LM's, and mean otherwise.
_OTHERWISE = ("micro_batch_size", "global_batch_size", "max_length", "bf16", "fp16", "optim", "load", "model", "seed")
_EXTRA = "megatron_extra_kwargs"
_EAGER = ("eager", "disabled")
_SHARDED = ("fsdp", "fsdp2")  # by LLaMA-Factory's second generation
# Of Megatron-Core, as ms-swift has it where nothing is stated; LLaMA-Factory's says what it has.
_SWIFT_MEGATRON: Mapping[str, Sequence[str]] = {
    "use_distributed_optimizer": ("--use-distributed-optimizer",),
    "recompute_granularity": ("--recompute-granularity", "selective"),
    "cross_entropy_loss_fusion": ("--cross-entropy-loss-fusion",),
    "expert_tensor_parallel_size": ("--expert-tensor-parallel-size", "1"),
    "moe_grouped_gemm": ("--moe-grouped-gemm",),
    "mtp_num_layers": ("--mtp-num-layers", "0"),
}


@dataclass(frozen=True, slots=True)
class Tuner:
    """What is particular to one of the three. targets: whose files are for it, without Megatron-Core and with it.
    shards: what trains in shards of FSDP. modules: its words for the modules of adapters. switched: adapters are
    switched on; else a word names the way to train, and full: with Megatron-Core it is all weights where none is named.
    halves: it computes in bf16, and holds weights so, where nothing is stated. casts: weights that it trains become
    32 bits; widens: in the shards of FSDP 2 all do, by the Accelerate that goes with it (1.11 or older,
    utils/fsdp_utils.py, fsdp2_prepare_model; later ones leave frozen weights). spreads: a process with several GPUs
    puts layers on one after the other. at_once: sequences of an update, at least, where no accumulation is stated.
    prompts: its options of the longest prompt, by rank. megatron: words of Megatron-LM's for its own defaults, by the
    option that replaces them."""

    targets: tuple[str, str]
    shards: Workers = SHARDS
    modules: Sequence[str] = ("--lora_target_modules", "all-linear")
    switched: bool = False
    full: bool = False
    halves: bool = False
    casts: bool = False
    widens: bool = False
    spreads: bool = False
    at_once: int = 1
    prompts: tuple[str, ...] = ("max_prompt_length",)
    megatron: Mapping[str, Sequence[str]] = field(default_factory=dict)


_TUNERS: Mapping[str, Tuner] = {
    tuners.TRL: Tuner(
        (tuners.TRL, tuners.TRL),
        replace(SHARDS, planned="fsdp"),  # for which it is planned, too
        modules=(),
        switched=True,
    ),
    tuners.LLAMAFACTORY: Tuner((tuners.LLAMAFACTORY, tuners.LLAMAFACTORY), casts=True, widens=True),
    tuners.SWIFT: Tuner(
        ("ms-swift-deepspeed", "ms-swift"),
        full=True,
        halves=True,
        spreads=True,
        at_once=16,
        prompts=("max_prompt_length", "max_length"),
        megatron=_SWIFT_MEGATRON,
    ),
    tuners.TRANSFORMERS: Tuner(
        (tuners.TRANSFORMERS, tuners.TRANSFORMERS), replace(SHARDS, planned="fsdp"), modules=(), switched=True
    ),
}


@dataclass(slots=True)
class TunerStated(Script):
    """One script; `program` is which of their programs it starts."""

    program: tuners.Program = field(init=False)
    launched: Launched = field(init=False)

    def __post_init__(self) -> None:
        started = tuners.program(self.reading) or tuners.of_trainer(self.reading)
        assert started is not None, "is what makes it one of theirs"
        self.program, self.launched = started, launched(self.reading)
        name = partial(tuners.called, started.trainer)
        options = [replace(each, name=name(each.name)) for each in self.reading.options]
        if not any(each.name == "model_name_or_path" for each in options):
            options += [replace(each, name="model_name_or_path") for each in options if each.name == "checkpoint"]
        self.values = Values(self.TRAINER, tuple(options))

    @property
    def tuner(self) -> Tuner:
        """Return what is particular to whose program it is."""
        return _TUNERS[self.program.trainer]

    @property
    def workers(self) -> Workers:
        """Return what trains."""
        if self.program.megatron:
            return replace(MEGATRON, target=self._target)
        if self.config is not None:
            return replace(DEEPSPEED, target=self._target)
        sharded = self.launched.shards or self.values.given("fsdp") or self._named in _SHARDED
        return replace(self.tuner.shards if sharded else REPLICAS, target=self._target)

    @property
    def _target(self) -> str:
        """Return the target whose files are for the same program."""
        return self.tuner.targets[self.program.megatron]

    @property
    def _named(self) -> str | None:
        """Return what LLaMA-Factory's second generation calls the way that weights are kept."""
        return self.values.text("dist_config.name")

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Return the JSON of DeepSpeed: a file's, one that comes with the program, or what Accelerate makes."""
        if (tree := self.reading.deepspeed) is not None:
            return tree.data if isinstance(tree.data, dict) else {}
        if (preset := tuners.DEEPSPEED_PRESETS.get(self.values.text("deepspeed") or "")) is not None:
            stage, away = preset
            host = {"device": "cpu", "pin_memory": True}
            parts = ("optimizer", "param")[: stage - 1] if away else ()
            return {"zero_optimization": {"stage": stage, **{f"offload_{part}": host for part in parts}}}
        return self.launched.config

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
        own = [f"--{self.precision or 'bf16'}"]
        for name, words in self.tuner.megatron.items():
            own += [] if values.given(name) else words
        stated = (inner for each in values.settings for inner in _passed_on(each))
        options = [each for each in stated if tuners.plain(each) not in _OTHERWISE and _says_something(each)]
        return (*settings(own, self.reading.file), *bridged.options(options))

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
        if self.tuner.switched:
            return "lora" if values.switch("use_peft") or values.switch("use_lora") else "full"
        if values.given("finetuning_type"):
            return values.text("finetuning_type") or "full"
        plain = self.program.megatron and self.tuner.full
        return "full" if plain or self._later else "lora"

    @property
    def _later(self) -> bool:
        """Tell whether it is LLaMA-Factory's second generation, whose defaults are others."""
        return any(self.values.given(each) for each in ("train_dataset", "dist_config.name", "model_class"))

    @property
    def precision(self) -> Precision | None:
        """Return what is computed in; None: 32 bits."""
        values, stated = self.values, (self.values.text("dtype") or "").rpartition(".")[2]
        launched = None if values.given("bf16") or values.given("fp16") else self.launched.precision
        if launched in ("bf16", "fp16"):
            return "bf16" if launched == "bf16" else "fp16"
        if values.switch("fp16") or stated in ("float16", "fp16"):
            return "fp16"
        if self.tuner.halves and not values.given("bf16"):
            return None if stated in ("float32", "fp32") else "bf16"
        usual = self._later and not values.given("bf16")
        return "bf16" if usual or values.switch("bf16") or values.switch("pure_bf16") else None

    @property
    def _in_16_bits(self) -> bool:
        """Tell whether weights that replicas hold are themselves in 16 bits."""
        if self.tuner.casts:  # model/adapter.py, cast_trainable_params_to_fp32
            return self._kind in ADAPTERS or self.values.switch("pure_bf16")
        stated = (self.values.text("dtype") or "").rpartition(".")[2]
        return stated in ("bfloat16", "float16", "bf16", "fp16") or self.tuner.halves

    @property
    def recomputes(self) -> bool:
        values, sharded = self.values, self.launched.sharded
        if values.given("disable_gradient_checkpointing"):
            return not values.switch("disable_gradient_checkpointing")
        stated = any(values.switch(f"{name}_checkpointing") for name in ("gradient", "activation"))
        return stated or sharded.get("activation_checkpointing") is True

    @property
    def recomputed_every(self) -> int:
        """Return n where each n-th layer runs again (Transformers' trainer.py)."""
        for name in ("activation", "gradient"):
            given = self.values.text(f"{name}_checkpointing_kwargs")
            if given and (stated := re.search(r"every_n_layers\W+(\d+)", given)):
                return max(1, int(stated[1]))
        return 1

    @property
    def _attention(self) -> str | None:
        return "eager" if self.values.text("attn_implementation") in _EAGER else None

    @property
    def _liger(self) -> bool:
        return self.values.switch("use_liger_kernel")

    @property
    def _loss(self) -> LossKernel | None:
        """Return the loss's kernel: Liger's, but losses of preferences do without its fused linear one; else that of
        TRL's SFT (trainer/sft_trainer.py); None: the framework's."""
        plain = self.program.method in ("pt", "sft") and self.values.text("task_type") != "seq_cls"
        if self._liger:
            return LOSSES[liger_loss(self.values.arguments) if plain else "fused"]
        return LossKernel.TILED if plain and self.program.trainer == tuners.TRL else None


def _passed_on(setting: Setting) -> Iterator[Setting]:
    """Yield the fields of Megatron-Core's configuration that ms-swift's megatron_extra_kwargs holds, or the option."""
    name = tuners.plain(setting)
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


def _says_something(setting: Setting) -> bool:
    """Tell whether an option says something: ms-swift's word for nothing is none."""
    return not (setting.values and setting.values[0].text.lower() in ("none", "null"))
