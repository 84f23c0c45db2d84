"""Overrides of verl as a run: its actor and critic with Megatron's workers or FSDP's, and the step around them.

Sources: verl 0.9.1, workers/config/{actor,engine,rollout}.py, workers/engine/{fsdp,megatron}/transformer_impl.py,
and utils/seqlen_balancing.py (a micro-batch's tokens are those of all ranks of a sequence).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects import verl as dialect
from symconfig.existing.launch.dialects.override import entries_of
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import Setting, settings
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.rl import fsdp
from symconfig.existing.recover.rl.script import EXPERTS, Script, gpus_per_replica
from symconfig.existing.recover.rl.step import Packed, Step, in_a_row
from symconfig.existing.recover.rl.values import FSDP, MEGATRON, Workers
from symconfig.existing.recover.run import Described, Run
from symconfig.formats.keys import Keys
from symconfig.formats.verl import ADVANTAGES, ENGINES, KEYS, SECTIONS, VERL
from symconfig.frameworks.behaviour import LIGER, PROGRAMS
from symconfig.frameworks.megatron.flags import flags
from symconfig.frameworks.megatron.releases import FUSES_ACTIVATION, FUSES_ROPE
from symconfig.plans.rl import PlannedReward, ReferencePlace

# Of megatron: what says nothing of the computation, or is read by itself.
_ASIDE = ("param_offload", "grad_offload", "optimizer_offload", "seed", "dtype", "forward_only", "load_weight")
_PARTS = {
    "override_transformer_config": "model",
    "override_ddp_config": "ddp",
    "override_optimizer_config": "optimizer",
}
_ALGORITHMS = {name: algorithm for algorithm, name in ADVANTAGES.items() if name != "grpo"}  # its kin cost what it does


class Reader(Script):
    """Reader of verl's actor, critic and step on `gpus` GPUs in total; collects problems and assumptions."""

    trainer = VERL

    @property
    def keys(self) -> Keys:
        return KEYS.get(self.workers.name, KEYS["fsdp"])

    @property
    def workers(self) -> Workers:
        """Return the workers by their name; ones that are not predicted for an unknown name."""
        name = dialect.workers(self.reading.settings)
        return next((each for each in (MEGATRON, FSDP) if each.name == name), Workers(name, predicted=False))

    @property
    def apart(self) -> int:
        """Return the GPUs of the inference engine alone; 0 if it shares the actor's."""
        world = dialect.world(self.reading.settings)
        trained = (self.values.whole("world.nodes") or 1) * (self.values.whole("world.gpus") or 8)
        return max(0, (world.gpus or 0) - trained)

    def made(self) -> Run | None:
        """Return the actor's run with the step around it, and the critic's if there is one.

        The critic has its own model only if the script gives one and none is supplied.
        """
        self.problems += self._refused()
        model = self.model("actor.model")
        rl = self._rl()
        packed = None if rl is None else self._packed("actor", rl)
        if self.problems or self.values.problems or model is None or rl is None or packed is None:
            return None
        actor = self._trained("actor", model, rl, packed)
        step, critic = self._step(rl, actor, packed), None
        if self.values.switch("rewards.enabled"):  # on the actor's GPUs, or a pool of its own
            step = self.rewarded(step, "rewards.model", self._reward())
        if rl.has_critic:
            own: Described | None = model
            if self.values.given("critic.model") and self.supplied.model is None:
                own = self.model("critic.model", adapts=False)
            packed = self._packed("critic", rl)
            if own is None or packed is None or self.problems:
                return None
            critic = self._trained("critic", own, rl, packed)
            c = critic.configuration
            step = replace(step, critic_fill=packed.within(rl, c.dp).fill(rl, c.global_batch))
        return None if self.values.problems else replace(actor, step=step, critic=critic)

    def _refused(self) -> Iterator[Problem]:
        """Yield problems: workers or an engine that are not predicted, and adapters read from a folder."""
        values = self.values
        if not self.workers.predicted:
            yield self.problem("actor.strategy", "workers of this kind are not predicted", got=self.workers.name)
        engine = values.text("rl.rollout.engine")
        if engine is not None and engine not in ENGINES:
            what = "this engine is not predicted"
            yield self.problem("rl.rollout.engine", what, got=engine, need=" or ".join(ENGINES))
        if values.text("adapter.path"):
            what = "the adapters that are trained on stand in a folder, which is not read"
            yield self.problem("adapter.path", what)

    def _reward(self) -> PlannedReward:
        """Return the placement of the reward model."""
        values = self.values
        gpus = (values.whole("rewards.nodes") or 0) * (values.whole("rewards.gpus") or 0)
        tp, share = values.whole("rewards.planned.tp") or 1, values.number("rewards.planned.memory_share") or 0.0
        return PlannedReward(gpus=gpus * values.switch("rewards.apart"), tp=tp, memory_share=share)

    def _rl(self) -> Rl | None:
        """Return the step as a job's section; None if a size is missing or invalid.

        Prompts are rounded down to whole updates; without train_batch_size (fully_async) a step is one update.
        """
        values = self.values
        sizes = self.sizes("rl.samples", "rl.update_prompts", "rl.prompt_length.max", "rl.response_length.max")
        if sizes is None:
            return None
        samples, batch, prompt, response = sizes
        # Of fully_async, whose samples come one by one, it is 0: a step is an update.
        prompts = int(values.number("rl.prompts") or 0) or batch
        prompts = max(1, prompts // batch) * min(batch, prompts)
        reference = values.switch("rl.reference_in_reward") or values.switch("rl.reference")
        return self.step_section(
            prompt, response, _ALGORITHMS, (prompts, samples, min(batch, prompts) * samples), reference=reference
        )

    def _packed(self, role: str, rl: Rl) -> Packed | None:
        """Return the micro-batches of an update; None with a problem recorded if no option gives their size."""
        packed = self._filled(role, self._degree(role), rl, role)
        if packed is None:
            micro, dynamic = (self.values.name(f"{role}.{word}") for word in ("micro", "dynamic"))
            what = f"neither this nor {dynamic} says what a micro-batch holds"
            self.problems.append(Problem(what, self.reading.file, field=micro))
        return packed

    def _filled(self, phase: str, cp: int, rl: Rl, role: str = "actor") -> Packed | None:
        """Return a phase's micro-batches: by tokens (x `cp`) if it is dynamic, else by sequences, those of a rank or
        its share of those of all ranks (x cp / GPUs, at least 1); None if no option gives their size.

        role: the model that reads them, which may pack.
        """
        values, tokens, sequences = self.values, None, None
        if values.switch(f"{phase}.dynamic"):
            tokens = values.whole(f"{phase}.tokens")
        elif (sequences := values.whole(f"{phase}.micro")) is None:
            whole = values.whole(f"{phase}.micro_of_all")
            sequences = None if whole is None else max(1, whole * cp // self.trained_gpus)
        if tokens is None and sequences is None:
            return None
        packs = values.switch(f"{role}.packs")
        return Packed.of(rl, sequences or 1, tokens=None if tokens is None else tokens * cp, packs=packs)

    def _step(self, rl: Rl, actor: Run, packed: Packed) -> Step:
        """Return the step around the actor's run, whose update has the micro-batches `packed`.

        Phases without a micro-batch of their own read in those. The reference of FSDP workers is streamed.
        """
        values, degrees = self.values, actor.configuration
        phases = ["actor", "rollout", *["reference"] * rl.reference, *["critic"] * rl.has_critic]
        dynamic = all(values.switch(f"{phase}.dynamic") for phase in phases)
        own = packed.within(rl, degrees.dp)
        filled = (self._filled(phase, degrees.cp, rl) or own for phase in ("rollout", "reference"))
        read, reference_read = (each.read(rl, degrees.dp, in_a_row(degrees)) for each in filled)
        parts = {"weights": "actor.away.weights", "optimizer state": "actor.away.states"}
        place: ReferencePlace = "offloaded" if values.switch("reference.offloaded") else "resident"
        return self.step(
            rl,
            actor,
            packed,
            fused_logits=values.switch("actor.fuses_logits"),
            scaled_logits=values.number("rollout.temperature") not in (None, 1.0),
            read=read,
            reference_read=reference_read,
            away=tuple(part for part, key in parts.items() if values.switch(key)),
            # FSDP's is offloaded whatever is said (transformer_impl.py: "We force reference policy to use CPUOffload").
            reference=place if self.workers.options else "streamed",
            **({} if dynamic else {"assumed_lengths": self.assumes_lengths}),
        )

    def _degree(self, role: str) -> int:
        """Return the ranks that share a sequence; 1 if not given."""
        return self.values.whole(f"{role}.configuration.cp") or 1

    def _trained(self, role: str, model: Described, rl: Rl, packed: Packed) -> Run:
        """Return the run of a role's trained model, with micro-batches limited to a replica's share."""
        return (self._of_megatron if self.workers.options else self._of_fsdp)(role, model, rl, packed)

    def _of_megatron(self, role: str, model: Described, rl: Rl, packed: Packed) -> Run:
        """Return the run by Megatron's workers, in micro-batches of one packed row. Raises InputError.

        packed: not yet limited to a replica's share. With interleaved stages each replica has a multiple of pp of them.
        """
        own = self._unfused(f"{SECTIONS[role]}.megatron.override_transformer_config", model.model)
        options = (*self.megatron(role), *own)
        dp = max(1, self.trained_gpus // gpus_per_replica(Namespace(options, flags(self.version()))))
        packed = packed.within(rl, dp)
        run = self.of_megatron(model, packed.spread(rl, dp), packed.room, 1, "adapter.r", options=options)
        count = packed.spread(rl, dp, in_a_row(run.configuration))
        return replace(run, configuration=replace(run.configuration, global_batch=count))

    def _unfused(self, at: str, model: ModelDescriptor) -> tuple[Setting, ...]:
        """Return options that disable fusions that neither section `at` nor the model type has."""
        kernels = {
            "bias_activation_fusion": ("--no-bias-swiglu-fusion", FUSES_ACTIVATION),
            "apply_rope_fusion": ("--no-rope-fusion", FUSES_ROPE),
        }
        words = [
            option
            for name, (option, families) in kernels.items()
            if not (
                self.values.switch(key) if self.values.given(key := f"{at}.{name}") else model.model_type in families
            )
        ]
        return settings(words, self.reading.file)

    def megatron(self, role: str = "actor") -> tuple[Setting, ...]:
        """Return the settings of a role's Megatron workers as Megatron-LM's options; () for other workers.

        What verl and Megatron-Bridge set themselves goes before them.
        """
        if not self.workers.options:
            return ()
        renamed = []
        for setting in self.reading.settings:
            for section in ("megatron", "optim"):
                key = setting.name.removeprefix(f"{SECTIONS[role]}.{section}.")
                head, _, inner = key.partition(".")
                if key == setting.name or key in _ASIDE or (section == "optim" and head not in _PARTS):
                    continue
                renamed.append(replace(setting, name=f"{_PARTS[head]}.{inner}" if head in _PARTS else f"model.{key}"))
        options, _ = translated(by_path(entries_of(renamed, False)))
        own = ["--bf16", "--use-distributed-optimizer", *EXPERTS]
        if not self.values.switch("actor.predicts"):  # utils/megatron_utils.py, check_mtp_config
            own += ["--mtp-num-layers", "0"]
        splits = (self.values.whole(f"{role}.configuration.tp") or 1) > 1
        own += ["--sequence-parallel"] * (splits and self.values.switch(f"{role}.configuration.sequence_parallel"))
        return (*settings(own, self.reading.file), *options)

    def _of_fsdp(self, role: str, model: Described, rl: Rl, packed: Packed) -> Run:
        """Return the run by FSDP's workers, with micro-batches limited to a replica's share.

        Raises InputError if shards or ranks of a sequence do not divide the GPUs, or the latter the key/value heads.
        """
        values, gpus, sp = self.values, self.trained_gpus, self._degree(role)
        size = values.number(f"{role}.shards") or gpus
        if 0 < size < gpus and gpus % size:
            raise InputError(self.problem(f"{role}.shards", "does not divide the GPUs", got=f"{size:g} on {gpus}"))
        if gpus % sp:
            raise InputError(
                self.problem(f"{role}.configuration.cp", "does not divide the GPUs", got=f"{sp} on {gpus}")
            )
        if wrong := list(self.undivided_heads(model, sp, f"{role}.configuration.cp")):
            raise InputError(wrong)
        dp = gpus // sp
        packed = packed.within(rl, dp)
        program, liger = PROGRAMS["verl-fsdp", "fsdp"], LIGER if values.switch(f"{role}.liger") else {}
        stepping = fsdp.adam(values, f"{SECTIONS[role]}.optim.override_optimizer_config")
        return fsdp.run(
            model,
            self.known_cluster,
            replace(program, framework=stepping, implementation={**program.implementation, **liger}),
            recompute=values.switch(f"{role}.recomputes"),
            narrow=values.text(f"{role}.dtype") in ("bf16", "bfloat16"),
            streamed=values.switch(f"{role}.streams"),
            dp=dp,
            cp=sp,
            micro=1,
            global_batch=packed.spread(rl, dp),
            seq_length=packed.room,
            instances=int(gpus // size) if 0 < size < gpus else 1,
        )
