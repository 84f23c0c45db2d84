"""NeMo-RL's workers of a policy, Megatron-Core's or DTensor's: what they are told, and how they run it.

Sources: NeMo-RL 0.7.0, nemo_rl/models/policy/__init__.py, nemo_rl/models/megatron/setup.py (setup_model_config),
nemo_rl/models/automodel/setup.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting, settings
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.rl import bridged, fsdp
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.trainers import DTENSOR, MEGATRON, NEMO, Trainer, Workers
from symconfig.existing.recover.run import Described, Run
from symconfig.formats.keys import Keys
from symconfig.formats.nemo_rl import DTENSOR as _DTENSOR
from symconfig.formats.nemo_rl import KEYS, POLICY
from symconfig.formats.nemo_rl import MEGATRON as _MEGATRON
from symconfig.frameworks.behaviour import Switches
from symconfig.frameworks.fsdp.behaviour import WIDE_FROZEN
from symconfig.frameworks.megatron.flags import flags

_OPTIMIZER = f"{POLICY}.optimizer"
_PASSED_ON = ("", "optimizer.", "distributed_data_parallel_config.")  # sections of Megatron-Core's part
# Of its part: what is read by itself, or means another thing than Megatron-LM's option of the name.
_ASIDE = (
    "enabled",
    "activation_checkpointing",
    "recompute_granularity",
    "recompute_modules",
    "sequence_parallel",
    "bf16",
    "fp16",
    "lr",
    "use_custom_fsdp",
    "data_parallel_sharding_strategy",
    "params_dtype",
    "offload_modules",
    "fine_grained_activation_offloading",
    "moe_router_load_balancing_type",
    "bias_activation_fusion",  # of whichever activation the model has
    "empty_unused_memory_level",  # between its phases
)


@dataclass(slots=True)
class NemoWorkers(Script):
    """The workers of one configuration."""

    TRAINER: ClassVar[Trainer] = NEMO

    @property
    def keys(self) -> Keys:
        return KEYS[self.workers.name]

    @property
    def workers(self) -> Workers:
        """Return what trains."""
        bridge = Arguments(self.reading.options).switch(f"{_MEGATRON}.enabled")
        return replace(MEGATRON, target="nemo-rl") if bridge else DTENSOR

    @property
    def apart(self) -> int:
        """Return the GPUs of an engine of its own; 0 where it has the policy's."""
        values, at = self.values, f"{POLICY}.generation.colocated"
        if not values.given(f"{POLICY}.generation.backend") or values.switch(f"{at}.enabled"):
            return 0
        nodes, each = values.whole(f"{at}.resources.num_nodes"), values.whole(f"{at}.resources.gpus_per_node")
        return (nodes or 1) * (each or values.whole("cluster.gpus_per_node") or 1)

    @property
    def _trained_gpus(self) -> int:
        return self.gpus - self.apart

    def _degree(self, name: str) -> int:
        return self.values.whole(f"actor.parallel.{name}") or 1

    @property
    def _sharing(self) -> int:
        """Return the GPUs of a replica."""
        if self.workers.options:
            return bridged.split(Namespace(self.megatron(), flags(self.version())))
        return self._degree("tp") * self._degree("cp")

    @property
    def _dp(self) -> int:
        return max(1, self._trained_gpus // self._sharing)

    def _untrained(self) -> Iterator[Problem]:
        """Yield what no prediction is made of, whatever the program does."""
        if self._trained_gpus < 1:
            what = "leaves no GPU to train on"
            yield self.problem(f"{POLICY}.generation.colocated.resources.num_nodes", what, got=f"{self.apart}")
        if self.values.text(f"{POLICY}.precision") == "float32":
            yield self.problem(f"{POLICY}.precision", "training in 32 bits is not predicted", got="float32")

    def adapter(self, model: ModelDescriptor) -> Mapping[str, object] | None:
        """Return the fields of the adapters that the model is trained by; None where all of it is trained."""
        return Script.adapter(self, model) if self.values.switch("adapter.enabled") else None

    def _trained(self, model: Described, microbatches: int, length: int, micro: int = 1) -> Run:
        """Return the run of a model in so many micro-batches of all replicas. Raises InputError."""
        if self.workers.options:
            return self._of_megatron(model, microbatches, length, micro)
        values = self.values
        eager = (values.text(f"{_OPTIMIZER}.name") or "torch.").startswith("torch.")
        layers = fsdp.Workers(
            dp=self._dp,
            tp=self._degree("tp"),
            ep=self._degree("ep"),
            sp=self._degree("cp"),
            room=length,
            micro=micro,
            microbatches=microbatches,
            copies=values.whole(f"{_DTENSOR}.dp_replicate_size") or 1,
            recompute=values.switch(f"{_DTENSOR}.activation_checkpointing"),
            streamed=values.switch(f"{_DTENSOR}.cpu_offload"),
            program=Switches(
                framework=fsdp.adam(values, f"{_OPTIMIZER}.kwargs") if eager else {},
                bytes=WIDE_FROZEN,  # it loads in fp32
            ),
        )
        return fsdp.run(layers, model, self.known_cluster)

    def _of_megatron(self, model: Described, microbatches: int, length: int, micro: int) -> Run:
        own = ["--micro-batch-size", str(micro), "--global-batch-size", str(microbatches * micro)]
        own += ["--seq-length", str(length)]
        names = Namespace((*self.megatron(), *settings(own, self.reading.file)), flags(self.version()))
        wrong = partial(self.problem, f"{_MEGATRON}.peft.target_modules")
        return bridged.run(names, self._trained_gpus, self.known_cluster, self.supplied, model, wrong)

    def megatron(self) -> tuple[Setting, ...]:
        """Return what Megatron-Core is told as Megatron-LM's options; nothing of DTensor's."""
        if not self.workers.options:
            return ()
        values, passed = self.values, []
        for setting in (each for each in self.reading.settings if each.values):  # the others are null
            key = setting.name.removeprefix(f"{_MEGATRON}.")
            for section in _PASSED_ON:
                name = key.removeprefix(section)
                if key.startswith(section) and "." not in name and name not in _ASIDE and key != setting.name:
                    passed.append(replace(setting, name=name))
                    break
        own = ["--fp16" if values.text(f"{POLICY}.precision") == "float16" else "--bf16", *self._recompute()]
        own.append("--moe-grouped-gemm")  # as Megatron-Bridge has it
        split = (values.whole(f"{_MEGATRON}.tensor_model_parallel_size") or 1) > 1
        own += ["--sequence-parallel"] * (split and values.switch(f"{_MEGATRON}.sequence_parallel"))
        return (*settings(own, self.reading.file), *bridged.options(passed))

    def _recompute(self) -> list[str]:
        values = self.values
        if not values.switch(f"{_MEGATRON}.activation_checkpointing"):
            return []
        if (values.text(f"{_MEGATRON}.recompute_granularity") or "full") == "full":
            return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
        modules = values.arguments.words(f"{_MEGATRON}.recompute_modules") or ("core_attn",)
        return ["--recompute-granularity", "selective", "--recompute-modules", *modules]
