"""Overrides of verl as a run: its Megatron or FSDP workers, and the step around them.

Sources: verl 0.9.1, verl/workers/config/{actor,engine,rollout}.py, verl/workers/engine/{fsdp,megatron}/
transformer_impl.py and verl/utils/seqlen_balancing.py (a micro-batch's tokens are those of all ranks of a sequence).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects import verl as dialect
from symconfig.existing.launch.dialects.override import entries_of
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover import megatron
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl import fsdp
from symconfig.existing.recover.rl.model import described
from symconfig.existing.recover.rl.sequences import lengths, section, together
from symconfig.existing.recover.rl.step import Packed, Step
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.run import Assumed, Described, Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.existing.recover.words import settings
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.plans.rl import ReferencePlace

ACTOR, ROLLOUT, REFERENCE, CRITIC = (
    "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref", "critic",
)  # fmt: skip
_MANY = 4  # micro-batches of an update on each replica, at least, that are full whatever lengths are
_ENGINES = ("vllm", "sglang")
# Advantages by their names in a job; the kin of GRPO that a job does not name cost what it does.
_ADVANTAGES = {"gae": "ppo", "rloo": "rloo", "remax": "remax", "reinforce_plus_plus": "reinforce_plus_plus"}
# Of megatron: what says nothing of the computation, or is read by itself.
_ASIDE = ("param_offload", "grad_offload", "optimizer_offload", "seed", "dtype", "forward_only", "load_weight")
_SECTIONS = {
    "override_transformer_config": "model",
    "override_ddp_config": "ddp",
    "override_optimizer_config": "optimizer",
}


@dataclass(slots=True)
class Reader:
    """One script on so many GPUs; what is wrong is gathered."""

    reading: Reading
    supplied: Supplied
    gpus: int = 0
    cluster: ClusterDescriptor | None = None
    values: Values = field(init=False)
    problems: list[Problem] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = Values("verl", self.reading.options)

    @property
    def _known_cluster(self) -> ClusterDescriptor:
        assert self.cluster is not None, "is there where a run is asked for"
        return self.cluster

    @property
    def workers(self) -> str:
        return dialect.workers(self.reading.settings)

    @property
    def served(self) -> int:
        """GPUs of an engine of its own; 0 where it has the actor's."""
        world = dialect.world(self.reading.settings)
        trained = (self.values.whole("trainer.nnodes") or 1) * (self.values.whole("trainer.n_gpus_per_node") or 8)
        return max(0, (world.gpus or 0) - trained)

    def run(self) -> Run:
        """Return the actor's run with the step around it. Raises InputError with all that keeps it from being
        predicted."""
        self.problems += self._refused()
        model = self._model("actor_rollout_ref.model.path", self.supplied)
        rl, packed = self._rl(), None
        if rl is not None:
            packed = self._packed(ACTOR, self._degree(ACTOR), rl)
        self.problems += self.values.arguments.problems
        if self.problems or model is None or rl is None or packed is None:
            raise InputError(list(dict.fromkeys(self.problems)))
        actor, fill = self._trained(ACTOR, model, rl, packed)
        step = self._step(rl, actor, packed, fill)
        critic = None
        if rl.has_critic:
            critic, filled = self._critic(model, rl)
            step = replace(step, critic_fill=filled)
        if values_wrong := self.values.arguments.problems:
            raise InputError(list(dict.fromkeys(values_wrong)))
        return replace(actor, step=step, critic=critic, assumed=(*actor.assumed, *self.assumed, *self._left_out()))

    def _refused(self) -> Iterator[Problem]:
        """Yield what no prediction is made of."""
        values = self.values
        if self.workers not in ("megatron", "fsdp"):
            yield self._problem(f"{ACTOR}.strategy", "workers of this kind are not predicted", got=self.workers)
        engine = values.text(f"{ROLLOUT}.name")
        if engine is not None and engine not in _ENGINES:
            yield self._problem(f"{ROLLOUT}.name", "this engine is not predicted", got=engine, need="vllm or sglang")
        for key in ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"):
            if values.number(key):
                yield self._problem(key, "adapters under reinforcement learning are not predicted")

    def _left_out(self) -> Iterator[Assumed]:
        """Yield what runs in a step, too, and is not predicted."""
        key = "reward_model.enable"
        if self.values.switch(key) and not self.values.switch("reward_model.enable_resource_pool"):
            yield Assumed("reward model", "none", "its memory and its time are not predicted", self.values.place(key))

    def _problem(self, key: str, what: str, got: str | None = None, need: str | None = None) -> Problem:
        return Arguments.problem(self.values.arguments.find(key), what, got=got, need=need)

    def _model(self, key: str, supplied: Supplied) -> Described | None:
        try:
            return described(self.reading, self.values.arguments.find(key), supplied)
        except InputError as error:
            self.problems += error.problems
            return None

    def _rl(self) -> Rl | None:
        values, served = self.values, self.served
        samples, batch = values.whole(f"{ROLLOUT}.n"), values.whole(f"{ACTOR}.ppo_mini_batch_size")
        # Of fully_async, whose samples come one by one, it is 0: a step is an update.
        prompts = int(values.number("data.train_batch_size") or 0) or batch
        longest = [values.whole(f"data.max_{part}_length") for part in ("prompt", "response")]
        if not (prompts and samples and batch and longest[0] and longest[1]):
            return None
        updates = max(1, prompts // batch)
        advantage = values.text("algorithm.adv_estimator") or "gae"
        parts = [
            lengths(most, mean, part, self.assumed)
            for part, most, mean in zip(
                ("prompt", "response"),
                longest,
                (self.supplied.prompt_length, self.supplied.response_length),
                strict=True,
            )
            if most is not None
        ]
        reference = values.switch("algorithm.use_kl_in_reward") or values.switch(f"{ACTOR}.use_kl_loss")
        tp = (values.whole(f"{ROLLOUT}.tensor_model_parallel_size") or 1) * (
            values.whole(f"{ROLLOUT}.data_parallel_size") or 1
        )
        engine = values.text(f"{ROLLOUT}.name")
        return self._section(
            algorithm=_ADVANTAGES.get(advantage, "grpo"),
            prompts=updates * min(batch, prompts),
            samples=samples,
            updates=updates,
            epochs=values.whole(f"{ACTOR}.ppo_epochs") or 1,
            prompt_length=parts[0],
            response_length=parts[1],
            reference=reference,
            entropy=bool(values.number(f"{ACTOR}.entropy_coeff")),
            placement="split" if served else "colocated",
            rollout_gpus=served or None,
            rollout={
                "engine": engine if engine in _ENGINES else "vllm",
                "tp": tp,
                "memory_share": values.number(f"{ROLLOUT}.gpu_memory_utilization"),
                "max_num_seqs": values.whole(f"{ROLLOUT}.max_num_seqs") or 256,
            },
        )

    def _section(self, **fields: object) -> Rl | None:
        try:
            return section(self.reading.file, **fields)
        except InputError as error:
            self.problems += error.problems
            return None

    def _degree(self, at: str) -> int:
        """Return how many ranks share a sequence."""
        return (
            self.values.whole(
                self._engine(
                    at,
                    *(
                        ("context_parallel_size",)
                        if self.workers == "megatron"
                        else ("ulysses_sequence_parallel_size",)
                    ),
                )
            )
            or 1
        )

    def _engine(self, at: str, key: str) -> str:
        """Return the name of a key of the workers of a trained model."""
        if self.workers == "megatron":
            return f"{at}.megatron.{key}"
        if at == ACTOR:
            return f"{at}.fsdp_config.{key}"
        old = f"{at}.model.fsdp_config.{key}"
        return old if self.values.given(old) else f"{at}.fsdp.{key}"

    def _packed(self, at: str, cp: int, rl: Rl) -> Packed | None:
        """Return the micro-batches of an update."""
        room = self._room(
            f"{at}.ppo_micro_batch_size", f"{at}.use_dynamic_bsz", f"{at}.ppo_max_token_len_per_gpu", cp, rl
        )
        if room is None:
            what = f"neither this nor {at}.use_dynamic_bsz says what a micro-batch holds"
            self.problems.append(Problem(what, self.reading.file, field=f"{at}.ppo_micro_batch_size_per_gpu"))
            return None
        model = "critic.model" if at == CRITIC else "actor_rollout_ref.model"
        packs = self.values.switch(f"{model}.use_remove_padding")
        return Packed(room=room, length=rl.mean_tokens if packs else float(rl.longest))

    def _room(self, micro: str, dynamic: str, most: str, cp: int, rl: Rl) -> int | None:
        """Return the tokens that a micro-batch has room for on all ranks of a sequence."""
        values = self.values
        if values.switch(dynamic):
            tokens = values.whole(most)
            return None if tokens is None else max(tokens * cp, rl.longest)
        sequences = values.whole(f"{micro}_per_gpu")
        if sequences is None and (whole := values.whole(micro)) is not None:
            sequences = max(1, whole * cp // self._trained_gpus)
        if sequences is None:
            return None
        packs = values.switch("actor_rollout_ref.model.use_remove_padding")
        return together(rl, sequences) if packs else sequences * rl.longest

    @property
    def _trained_gpus(self) -> int:
        return self.gpus - self.served

    def _trained(self, at: str, model: Described, rl: Rl, packed: Packed) -> tuple[Run, float]:
        """Return the run of a model that is trained, and the fill of its micro-batches."""
        make = self._of_megatron if self.workers == "megatron" else self._of_fsdp
        run = make(at, model, rl, packed)
        c = run.configuration
        return run, replace(packed, room=c.seq_length).fill(rl, c.global_batch)

    def _of_megatron(self, at: str, model: Described, rl: Rl, packed: Packed) -> Run:
        names = Namespace(self.megatron(at, packed.room), flags(self.version(at)))
        split = 1
        for dest in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
            split *= names.whole(dest)
        dp = max(1, self._trained_gpus // split)
        packed = packed.within(rl, dp)
        names = Namespace(self.megatron(at, packed.room), names.table)
        batch = packed.spread(rl, dp)
        whole = Namespace(
            (*names.settings, *settings(["--global-batch-size", str(batch)], self.reading.file)), names.table
        )
        assumption = replace(self.supplied, model=model.model)
        run = megatron.run(whole, self._trained_gpus, self._known_cluster, assumption)
        return replace(run, described=replace(run.described, assumed=(*model.assumed, *run.described.assumed)))

    def version(self, at: str = ACTOR) -> str:
        """Return the Megatron-LM release that its workers are read as."""
        own = [item.name for item in self.megatron(at)]
        return resolve(self.supplied.megatron_version or version_of(own))

    def megatron(self, at: str = ACTOR, room: int | None = None) -> tuple[Setting, ...]:
        """Return what its Megatron workers are told, as Megatron-LM's options; nothing of others. room: tokens of a
        micro-batch; None: not asked."""
        if self.workers != "megatron":
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
        own = ["--bf16", "--use-distributed-optimizer"]
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
            raise InputError(self._problem(key("fsdp_size"), "does not divide the GPUs", got=f"{size:g} on {gpus}"))
        if values.switch(key("offload_policy")):
            raise InputError(self._problem(key("offload_policy"), "FSDP2's own offload is not predicted"))
        if gpus % sp:
            what = "does not divide the GPUs"
            raise InputError(self._problem(key("ulysses_sequence_parallel_size"), what, got=f"{sp} on {gpus}"))
        if model.model.num_key_value_heads % sp:
            what = "copies of key/value heads for the ranks of a sequence are not predicted"
            got = f"{model.model.num_key_value_heads} heads for {sp} ranks"
            raise InputError(self._problem(key("ulysses_sequence_parallel_size"), what, got=got))
        dp, models = gpus // sp, "critic.model" if at == CRITIC else "actor_rollout_ref.model"
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
        )
        return fsdp.run(layers, model, self._known_cluster)

    def _critic(self, model: Described, rl: Rl) -> tuple[Run, float]:
        """Return the critic's run, on the actor's GPUs."""
        own: Described | None = model
        if self.values.given("critic.model.path"):
            own = (
                self._model("critic.model.path", replace(self.supplied, model=None))
                if self.supplied.model is None
                else model
            )
        packed = self._packed(CRITIC, self._degree(CRITIC), rl)
        if own is None or packed is None or self.problems:
            raise InputError(list(dict.fromkeys(self.problems)))
        return self._trained(CRITIC, own, rl, packed)

    def _step(self, rl: Rl, actor: Run, packed: Packed, fill: float) -> Step:
        """Return the step around the actor's run."""
        values, degrees, room = self.values, actor.configuration.degrees, actor.configuration.seq_length
        most = max(rl.longest, ceil(rl.sequences / degrees.dp * packed.length))  # of all that a replica reads
        read = {at: min(most, self._read(at, degrees.cp, rl) or room) / room for at in (ROLLOUT, REFERENCE)}
        parts = {"weights": "param_offload", "optimizer state": "optimizer_offload"}
        return Step(
            trainer="verl",
            workers="megatron" if self.workers == "megatron" else "fsdp",
            rl=rl.model_copy(update={"tokens_per_gpu": -(-room // degrees.cp)}),
            fill=fill,
            fused_logits=values.switch("actor_rollout_ref.model.use_fused_kernels"),
            read=read[ROLLOUT],
            reference_read=read[REFERENCE],
            away=tuple(part for part, key in parts.items() if values.switch(self._engine(ACTOR, key))),
            reference=self._reference_place(),
            assumed_lengths=self._depends(rl, actor),
        )

    def _reference_place(self) -> ReferencePlace:
        """Return where the reference is while it is not read. FSDP's is offloaded whatever is said
        (transformer_impl.py: "We force reference policy to use CPUOffload to save memory")."""
        if self.workers == "fsdp":
            return "streamed"
        return "offloaded" if self.values.switch(f"{REFERENCE}.megatron.param_offload") else "resident"

    def _depends(self, rl: Rl, actor: Run) -> bool:
        """Say whether what a phase holds depends on lengths that nobody says."""
        if None not in (self.supplied.prompt_length, self.supplied.response_length):
            return False
        dynamic = [f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"]
        dynamic += [f"{REFERENCE}.log_prob_use_dynamic_bsz"] * rl.reference + ["critic.use_dynamic_bsz"] * rl.has_critic
        # Few micro-batches would be fewer, and not full, if sequences were shorter.
        few = actor.configuration.global_batch < _MANY * actor.configuration.degrees.dp
        return few or not all(map(self.values.switch, dynamic))

    def _read(self, at: str, cp: int, rl: Rl) -> int | None:
        """Return the tokens of a micro-batch whose log-probabilities are computed."""
        own = f"{at}.log_prob"
        return self._room(f"{own}_micro_batch_size", f"{own}_use_dynamic_bsz", f"{own}_max_token_len_per_gpu", cp, rl)
