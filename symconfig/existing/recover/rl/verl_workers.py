"""verl's workers of a trained model, Megatron's or FSDP's: what they are told, and how they run it.

Sources: verl 0.9.1, verl/workers/config/engine.py, verl/workers/engine/{fsdp,megatron}/transformer_impl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.errors import InputError
from symconfig.existing.launch.dialects import verl as dialect
from symconfig.existing.launch.dialects.override import entries_of
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import Setting
from symconfig.existing.recover.deepspeed_model import named_targets
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl import bridged, fsdp
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.sequences import Packed, in_a_row
from symconfig.existing.recover.rl.trainers import MEGATRON, VERL, Trainer, of_verl
from symconfig.existing.recover.rl.trainers import Workers as Kind
from symconfig.existing.recover.run import Described, Run
from symconfig.existing.recover.words import settings
from symconfig.frameworks.megatron.bridge import FUSES_ACTIVATION, FUSES_ROPE
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.frameworks.programs import PROGRAMS

ACTOR, CRITIC, MODEL = "actor_rollout_ref.actor", "critic", "actor_rollout_ref.model"
# Of megatron: what says nothing of the computation, or is read by itself.
_ASIDE = ("param_offload", "grad_offload", "optimizer_offload", "seed", "dtype", "forward_only", "load_weight")
_SECTIONS = {
    "override_transformer_config": "model",
    "override_ddp_config": "ddp",
    "override_optimizer_config": "optimizer",
}


@dataclass(slots=True)
class Workers(Script):
    """The workers of one script. gpus: all of them."""

    TRAINER: ClassVar[Trainer] = VERL

    @property
    def workers(self) -> Kind:
        return of_verl(dialect.workers(self.reading.settings))

    @property
    def apart(self) -> int:
        """Return the GPUs of an engine of its own; 0 where it has the actor's."""
        world = dialect.world(self.reading.settings)
        trained = (self.values.whole("trainer.nnodes") or 1) * (self.values.whole("trainer.n_gpus_per_node") or 8)
        return max(0, (world.gpus or 0) - trained)

    def _degree(self, at: str) -> int:
        """Return how many ranks share a sequence."""
        return self.values.whole(self._engine(at, self.workers.split)) or 1

    def _engine(self, at: str, key: str) -> str:
        """Return the name of a key of the workers of a trained model."""
        if self.workers is MEGATRON or at == ACTOR:
            return f"{at}.{self.workers.section}.{key}"
        old = f"{at}.model.fsdp_config.{key}"
        return old if self.values.given(old) else f"{at}.fsdp.{key}"

    def adapter(self, model: ModelDescriptor) -> Mapping[str, object] | None:
        """Return the fields of the adapters that the actor is trained by; None where all of it is trained."""
        values, bridge = self.values, self.workers.options
        at = f"{MODEL}.lora." if bridge else f"{MODEL}.lora_"
        if not (rank := values.number(f"{at}rank")):
            return None
        given = values.arguments.words(f"{at if bridge else f'{MODEL}.'}target_modules")
        targets = bridged.modules(given) if bridge else named_targets(given or ("all-linear",), model)
        return {
            "method": "lora",
            "r": int(rank),
            "target_modules": targets,
            "lora_alpha": values.number(f"{at}alpha"),
            "lora_dropout": values.number(f"{at}dropout") or 0.0,
        }

    @property
    def _trained_gpus(self) -> int:
        return self.gpus - self.apart

    def _trained(self, at: str, model: Described, rl: Rl, packed: Packed) -> tuple[Run, float]:
        """Return the run of a model that is trained, and the fill of its micro-batches."""
        make = self._of_megatron if self.workers.options else self._of_fsdp
        run = make(at, model, rl, packed)
        c = run.configuration
        return run, replace(packed, room=c.seq_length).fill(rl, c.global_batch)

    def _of_megatron(self, at: str, model: Described, rl: Rl, packed: Packed) -> Run:
        unfused = self._unfused(at, model.model)
        names = Namespace((*self.megatron(at, packed.room), *unfused), flags(self.version(at)))
        dp = max(1, self._trained_gpus // bridged.split(names))
        packed = packed.within(rl, dp)
        names = Namespace((*self.megatron(at, packed.room), *unfused), names.table)
        batch = packed.spread(rl, dp)
        whole = Namespace(
            (*names.settings, *settings(["--global-batch-size", str(batch)], self.reading.file)), names.table
        )
        key = f"{MODEL}.lora.rank"
        wrong = partial(self.problem, key)
        run = bridged.run(whole, self._trained_gpus, self.known_cluster, self.supplied, model, wrong)
        batch = packed.spread(rl, dp, in_a_row(run.configuration.degrees))
        return replace(run, configuration=replace(run.configuration, global_batch=batch))

    def _unfused(self, at: str, model: ModelDescriptor) -> tuple[Setting, ...]:
        """Return options that switch off what neither the script nor Megatron-Bridge has in one kernel."""

        def fused(word: str, families: frozenset[str]) -> bool:
            key = f"{at}.megatron.override_transformer_config.{word}"
            return self.values.switch(key) if self.values.given(key) else model.model_type in families

        words = ["--no-bias-swiglu-fusion"] * (not fused("bias_activation_fusion", FUSES_ACTIVATION))
        words += ["--no-rope-fusion"] * (not fused("apply_rope_fusion", FUSES_ROPE))
        return settings(words, self.reading.file)

    def version(self, at: str = ACTOR) -> str:
        """Return the Megatron-LM release that its workers are read as."""
        own = [item.name for item in self.megatron(at)]
        return resolve(self.supplied.megatron_version or version_of(own))

    def megatron(self, at: str = ACTOR, room: int | None = None) -> tuple[Setting, ...]:
        """Return what its Megatron workers are told, as Megatron-LM's options; nothing of others. room: tokens of a
        micro-batch; None: not asked."""
        if not self.workers.options:
            return ()
        renamed = []
        for setting in self.reading.settings:
            for prefix in (f"{at}.megatron.", f"{at}.optim."):
                key = setting.name.removeprefix(prefix)
                head, _, inner = key.partition(".")
                if key == setting.name or key in _ASIDE or (prefix.endswith("optim.") and head not in _SECTIONS):
                    continue
                name = f"{_SECTIONS[head]}.{inner}" if head in _SECTIONS else f"model.{key}"
                renamed.append(replace(setting, name=name))
        options, _ = translated(by_path(entries_of(renamed, False)))
        own = ["--bf16", "--use-distributed-optimizer", *bridged.EXPERTS]
        if not self.values.switch(f"{MODEL}.mtp.enable"):  # utils/megatron_utils.py, check_mtp_config
            own += ["--mtp-num-layers", "0"]
        own += [] if room is None else ["--micro-batch-size", "1", "--seq-length", str(room)]
        if self.values.switch(f"{at}.megatron.sequence_parallel"):
            tp = self.values.whole(f"{at}.megatron.tensor_model_parallel_size") or 1
            own += ["--sequence-parallel"] * (tp > 1)
        return (*settings(own, self.reading.file), *options)

    def _of_fsdp(self, at: str, model: Described, rl: Rl, packed: Packed) -> Run:
        def key(name: str) -> str:
            return self._engine(at, name)

        values, gpus, sp = self.values, self._trained_gpus, self._degree(at)
        size = values.number(key("fsdp_size"))
        copies = int(gpus // size) if size is not None and 0 < size < gpus else 1
        if size is not None and copies > 1 and gpus % size:
            raise InputError(self.problem(key("fsdp_size"), "does not divide the GPUs", got=f"{size:g} on {gpus}"))
        if gpus % sp:
            what = "does not divide the GPUs"
            raise InputError(self.problem(key("ulysses_sequence_parallel_size"), what, got=f"{sp} on {gpus}"))
        if model.model.num_key_value_heads % sp:
            what = "copies of key/value heads for the ranks of a sequence are not predicted"
            got = f"{model.model.num_key_value_heads} heads for {sp} ranks"
            raise InputError(self.problem(key("ulysses_sequence_parallel_size"), what, got=got))
        dp, models = gpus // sp, "critic.model" if at == CRITIC else MODEL
        packed = packed.within(rl, dp)
        layers = fsdp.Workers(
            dp=dp,
            sp=sp,
            room=packed.room,
            microbatches=packed.spread(rl, dp),
            copies=copies,
            recompute=values.switch(f"{models}.enable_gradient_checkpointing"),
            narrow=values.text(key("model_dtype")) in ("bf16", "bfloat16"),
            liger=values.switch(f"{models}.use_liger"),
            streamed=values.switch(key("offload_policy")),
            program=replace(
                PROGRAMS["verl-fsdp", "fsdp"], framework=fsdp.adam(values, f"{at}.optim.override_optimizer_config")
            ),
        )
        return fsdp.run(layers, model, self.known_cluster)
