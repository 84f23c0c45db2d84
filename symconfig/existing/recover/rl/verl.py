"""Overrides of verl as a run: its actor and critic, and the step around them.

Sources: verl 0.9.1, verl/workers/config/{actor,rollout}.py and verl/utils/seqlen_balancing.py (a micro-batch's tokens
are those of all ranks of a sequence).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.errors import Problem
from symconfig.existing.recover.rl.script import MANY
from symconfig.existing.recover.rl.sequences import Packed, in_a_row
from symconfig.existing.recover.rl.step import Step
from symconfig.existing.recover.rl.verl_workers import ACTOR, CRITIC, MODEL, Workers
from symconfig.existing.recover.run import Described, Run
from symconfig.plans.rl import PlannedReward, ReferencePlace

ROLLOUT, REFERENCE = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_ENGINES = ("vllm", "sglang")
_REWARDING_TP, _REWARDING_SHARE = 2, 0.5  # of a network of rewards, trainer/config/reward/reward.yaml
# Advantages by their names in a job; the kin of GRPO that a job does not name cost what it does.
_ADVANTAGES = {"gae": "ppo", "rloo": "rloo", "remax": "remax", "reinforce_plus_plus": "reinforce_plus_plus"}


@dataclass(slots=True)
class Reader(Workers):
    """The actor, the critic and the step of one script."""

    def run(self) -> Run:
        """Return the actor's run with the step around it. Raises InputError with all that keeps it from being
        predicted."""
        self.problems += self._refused()
        model = self.model(f"{MODEL}.path", self._adapter)
        rl, packed = self._rl(), None
        if rl is not None:
            packed = self._packed(ACTOR, self._degree(ACTOR), rl)
        if self.problems or self.values.arguments.problems or model is None or rl is None or packed is None:
            raise self.refusal()
        actor, fill = self._trained(ACTOR, model, rl, packed)
        step = self._rewarded(self._step(rl, actor, packed, fill))
        critic = None
        if rl.has_critic:
            critic, filled = self._critic(model, rl)
            step = replace(step, critic_fill=filled)
        if self.values.arguments.problems:
            raise self.refusal()
        return replace(actor, step=step, critic=critic, assumed=(*actor.assumed, *self.assumed))

    def _refused(self) -> Iterator[Problem]:
        """Yield what no prediction is made of."""
        values = self.values
        if not self.workers.predicted:
            yield self.problem(f"{ACTOR}.strategy", "workers of this kind are not predicted", got=self.workers.name)
        engine = values.text(f"{ROLLOUT}.name")
        if engine is not None and engine not in _ENGINES:
            yield self.problem(f"{ROLLOUT}.name", "this engine is not predicted", got=engine, need="vllm or sglang")
        for key in ("lora_adapter_path", "lora.adapter_path"):
            if values.text(f"{MODEL}.{key}"):
                what = "the adapters that are trained on stand in a folder, which is not read"
                yield self.problem(f"{MODEL}.{key}", what)

    def _rewarded(self, step: Step) -> Step:
        """Return the step with its network of rewards, under its name since 0.7 or before."""
        values = self.values
        at = next((name for name in ("reward.reward_model", "reward_model") if values.switch(f"{name}.enable")), None)
        if at is None:
            return step
        own = values.switch(f"{at}.enable_resource_pool")
        nodes, gpus = (values.whole(f"{at}.{name}") or 0 for name in ("nnodes", "n_gpus_per_node"))
        tp = values.whole(f"{at}.rollout.tensor_model_parallel_size") or _REWARDING_TP
        share = values.number(f"{at}.rollout.gpu_memory_utilization") or _REWARDING_SHARE
        path = f"{at}.model_path" if at.startswith("reward.") else f"{at}.model.path"
        return self.rewarded(step, path, PlannedReward(gpus=nodes * gpus * own, tp=tp, memory_share=share))

    def _adapter(self, model: ModelDescriptor) -> Mapping[str, object] | None:
        return None if model.adapter is not None else self.adapter(model)

    def _rl(self) -> Rl | None:
        values, served = self.values, self.apart
        samples, batch = values.whole(f"{ROLLOUT}.n"), values.whole(f"{ACTOR}.ppo_mini_batch_size")
        # Of fully_async, whose samples come one by one, it is 0: a step is an update.
        prompts = int(values.number("data.train_batch_size") or 0) or batch
        prompt, response = (values.whole(f"data.max_{part}_length") for part in ("prompt", "response"))
        if not (prompts and samples and batch and prompt and response):
            return None
        updates = max(1, prompts // batch)
        advantage = values.text("algorithm.adv_estimator") or "gae"
        reference = values.switch("algorithm.use_kl_in_reward") or values.switch(f"{ACTOR}.use_kl_loss")
        tp, dp = (values.whole(f"{ROLLOUT}.{name}_parallel_size") or 1 for name in ("tensor_model", "data"))
        engine = values.text(f"{ROLLOUT}.name")
        return self.section(
            prompt,
            response,
            algorithm=_ADVANTAGES.get(advantage, "grpo"),
            prompts=updates * min(batch, prompts),
            samples=samples,
            updates=updates,
            epochs=values.whole(f"{ACTOR}.ppo_epochs") or 1,
            reference=reference,
            entropy=bool(values.number(f"{ACTOR}.entropy_coeff")),
            placement="split" if served else "colocated",
            rollout_gpus=served or None,
            rollout={
                "engine": engine if engine in _ENGINES else "vllm",
                "tp": tp,
                "dp": dp,
                "memory_share": values.number(f"{ROLLOUT}.gpu_memory_utilization"),
                "max_num_seqs": values.whole(f"{ROLLOUT}.max_num_seqs") or 256,
            },
        )

    def _packed(self, at: str, cp: int, rl: Rl) -> Packed | None:
        """Return the micro-batches of an update."""
        micro = f"{at}.ppo_micro_batch_size"
        model = "critic.model" if at == CRITIC else MODEL
        packed = self._filled(micro, f"{at}.use_dynamic_bsz", f"{at}.ppo_max_token_len_per_gpu", cp, rl, model)
        if packed is None:
            what = f"neither this nor {at}.use_dynamic_bsz says what a micro-batch holds"
            self.problems.append(Problem(what, self.reading.file, field=f"{at}.ppo_micro_batch_size_per_gpu"))
        return packed

    def _filled(self, micro: str, dynamic: str, most: str, cp: int, rl: Rl, model: str = MODEL) -> Packed | None:
        """Return micro-batches by the options that say their tokens or their sequences; None where these say nothing.
        model: the section of the one that reads them."""
        values = self.values
        tokens = values.whole(most) if values.switch(dynamic) else None
        sequences = None if values.switch(dynamic) else self._sequences(micro, cp)
        if tokens is None and sequences is None:
            return None
        packs = values.switch(f"{model}.use_remove_padding")
        return Packed.of(rl, sequences or 1, tokens=None if tokens is None else tokens * cp, packs=packs)

    def _sequences(self, micro: str, cp: int) -> int | None:
        """Return the sequences of a micro-batch that is not made by tokens."""
        if (sequences := self.values.whole(f"{micro}_per_gpu")) is not None:
            return sequences
        whole = self.values.whole(micro)
        return None if whole is None else max(1, whole * cp // self._trained_gpus)

    def _critic(self, model: Described, rl: Rl) -> tuple[Run, float]:
        """Return the critic's run, on the actor's GPUs."""
        own: Described | None = model
        if self.values.given("critic.model.path") and self.supplied.model is None:
            own = self.model("critic.model.path")
        packed = self._packed(CRITIC, self._degree(CRITIC), rl)
        if own is None or packed is None or self.problems:
            raise self.refusal()
        return self._trained(CRITIC, own, rl, packed)

    def _step(self, rl: Rl, actor: Run, packed: Packed, fill: float) -> Step:
        """Return the step around the actor's run."""
        values, degrees, room = self.values, actor.configuration.degrees, actor.configuration.seq_length
        limit, own = packed.room, replace(packed, room=room)
        read = {
            at: (self._read(at, degrees.cp, rl) or own).read(rl, degrees.dp, in_a_row(degrees))
            for at in (ROLLOUT, REFERENCE)
        }
        parts = {"weights": "param_offload", "optimizer state": "optimizer_offload"}
        return Step(
            trainer=self.TRAINER,
            workers=self.workers,
            rl=rl.model_copy(update={"tokens_per_gpu": -(-limit // degrees.cp)}),
            fill=fill,
            fused_logits=values.switch(f"{MODEL}.use_fused_kernels"),
            scaled_logits=values.number(f"{ROLLOUT}.temperature") not in (None, 1.0),
            read=read[ROLLOUT],
            reference_read=read[REFERENCE],
            away=tuple(part for part, key in parts.items() if values.switch(self._engine(ACTOR, key))),
            reference=self._reference_place(),
            assumed_lengths=self._depends(rl, actor),
        )

    def _reference_place(self) -> ReferencePlace:
        """Return where the reference is while it is not read. FSDP's is offloaded whatever is said
        (transformer_impl.py: "We force reference policy to use CPUOffload to save memory")."""
        if not self.workers.options:
            return "streamed"
        return "offloaded" if self.values.switch(f"{REFERENCE}.megatron.param_offload") else "resident"

    def _depends(self, rl: Rl, actor: Run) -> bool:
        """Say whether what a phase holds depends on lengths that nobody says."""
        if not self.assumes_lengths:
            return False
        dynamic = [f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"]
        dynamic += [f"{REFERENCE}.log_prob_use_dynamic_bsz"] * rl.reference + ["critic.use_dynamic_bsz"] * rl.has_critic
        # Few micro-batches would be fewer, and not full, if sequences were shorter.
        few = actor.configuration.global_batch < MANY * actor.configuration.degrees.dp
        return few or not all(map(self.values.switch, dynamic))

    def _read(self, at: str, cp: int, rl: Rl) -> Packed | None:
        """Return the micro-batches whose log-probabilities are computed."""
        own = f"{at}.log_prob"
        dynamic, most = f"{own}_use_dynamic_bsz", f"{own}_max_token_len_per_gpu"
        return self._filled(f"{own}_micro_batch_size", dynamic, most, cp, rl)
