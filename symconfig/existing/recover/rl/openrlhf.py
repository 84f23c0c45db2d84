"""OpenRLHF's options as a run: DeepSpeed around a Transformers model, by the JSON that OpenRLHF makes of them, and the
step around it.

Sources: OpenRLHF 0.11.2, openrlhf/cli/train_{ppo_ray,sft}.py, utils/deepspeed/{deepspeed,deepspeed_utils}.py,
utils/seqlen_balancing.py (tokens of a micro-batch are those of all ranks that share it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from symconfig.descriptor.tuning import Preference, Rl
from symconfig.errors import Problem
from symconfig.existing.launch.dialects.openrlhf import RAY, pools, program
from symconfig.existing.recover.rl.script import PROMPT, Script
from symconfig.existing.recover.rl.step import Alone, Packed, Step
from symconfig.existing.recover.rl.values import DEEPSPEED, Workers
from symconfig.existing.recover.run import Described, Run
from symconfig.formats.openrlhf import ADVANTAGES, OPENRLHF
from symconfig.graph.implementation import LossKernel
from symconfig.plans.rl import PlannedReward

_ALGORITHMS = {name: algorithm for algorithm, name in ADVANTAGES.items() if name != "group_norm"}
# Programs that train alone: how many sequences of a micro-batch belong together.
_ALONE = {"train_sft": 1, "train_dpo": 2, "train_rm": 2}
_APART = {"critic": "critic", "ref": "reference"}  # roles that may have GPUs of their own, by OpenRLHF's names


class Reader(Script):
    """Reader of one script on `gpus` GPUs; collects problems and assumptions."""

    trainer = OPENRLHF

    @property
    def workers(self) -> Workers:
        return DEEPSPEED

    @property
    def _program(self) -> str:
        return program(self.reading) or ""

    def made(self) -> Run | None:
        """Return the model's run: for train_ppo_ray with the step and any critic's run, else with its update."""
        self.problems += self._refused()
        model = self.model("actor.model_name_or_path")
        values, rl = self.values, self._rl() if self._program == RAY else None
        gpus = self.gpus if rl is None else self._pools["actor"]
        if self.problems or values.problems or model is None or (rl is None and self._program == RAY):
            return None
        if rl is None:
            return self._without_generation(model)
        packed = self._room("train", rl).within(rl, max(1, gpus // self.ranks))
        actor = self._trained(model, packed.spread(rl, gpus // self.ranks), packed.room, gpus)
        step, critic = self._step(rl, actor, packed), None
        if not (values.given("reward.remote_url") or values.given("train.agent_func_path")):
            apart = self._pools.get("reward", self._pools.get("critic", 0))  # with a critic that stands apart
            reward = PlannedReward(gpus=apart, tp=0, memory_share=0.0)
            step = self.rewarded(step, "reward.model_name_or_path", reward)
        if rl.has_critic:  # it is as the reward model or the actor where nothing names it
            names = ("critic.model_name_or_path", "reward.model_name_or_path", "actor.model_name_or_path")
            own = self.model(next(filter(values.given, names), names[-1]))
            if own is None:
                return None
            on = self._pools.get("critic", gpus)
            critic = self._trained(own, packed.spread(rl, on // self.ranks), packed.room, on)
        return replace(actor, step=step, critic=critic)

    def _refused(self) -> Iterator[Problem]:
        """Yield problems: a program that is not predicted, a reference on other numbers of GPUs than the actor's."""
        if self._program not in (RAY, *_ALONE):
            what, need = "this program is not predicted", ", ".join((RAY, *_ALONE))
            yield Problem(what, self.reading.file, got=self._program, need=need)
        if self._program == RAY and self._pools.get("ref", self._pools["actor"]) != self._pools["actor"]:
            what = "a reference on more or fewer GPUs than the actor is not predicted"
            yield self.problem("ref.num_gpus_per_node", what)

    @property
    def _pools(self) -> dict[str, int]:
        """Return GPUs by "actor", "ref", "critic", "reward" and "vllm"; roles without GPUs of their own are absent."""
        return pools(self.reading.settings)

    @property
    def _tp(self) -> int:
        return self.values.whole("ds.tensor_parallel_size") or 1

    @property
    def ranks(self) -> int:
        """Return the ranks that share a micro-batch: tensor parallelism x ring attention."""
        return self._tp * (self.values.whole("ds.ring_attn_size") or 1)

    def _rl(self) -> Rl | None:
        """Return the step as a job's section; None if sizes are missing or invalid, or without vLLM.

        Longest prompt and response, if not given, share data.max_len; the prompt is then an assumption.
        """
        values, served = self.values, self._pools.get("vllm", 0)
        if values.whole(engines := "vllm.num_engines") is None:
            if values.silent(engines) or values.text(engines) == "0":
                self.problems.append(self.problem(engines, "generation without vLLM is not predicted"))
            return None
        whole, response = values.whole("data.max_len") or 1, values.whole("rollout.max_new_tokens")
        left, why = min(whole // 2, PROMPT), "no option says it"
        if response is not None:
            left, why = max(1, whole - response), "what data.max_len leaves"
        prompt = self.longest_prompt(values.whole("prompt_max_len"), left, why)
        return self.step_section(
            prompt,
            response or whole - prompt,
            _ALGORITHMS,
            reference=bool(values.number("rl.reference")),
            placement="split" if served else "colocated",
            rollout_gpus=served or None,
        )

    def _room(self, phase: str, rl: Rl) -> Packed:
        """Return a phase's ("train", "rollout") micro-batches, not yet limited to a replica's share of samples.

        By max_tokens_per_gpu with dynamic batching, else of micro_batch_size sequences.
        """
        values, tokens = self.values, None
        if values.switch("train.dynamic_batch_enable"):
            tokens = (values.whole(f"{phase}.max_tokens_per_gpu") or 1) * self.ranks
        sequences = values.whole(f"{phase}.micro_batch_size") or 1
        return Packed.of(rl, sequences, tokens=tokens, packs=values.switch("ds.packing_samples"))

    def _trained(self, model: Described, microbatches: int, room: int, gpus: int, micro: int = 1) -> Run:
        """Return the run by the JSON that OpenRLHF builds for DeepSpeed, with logits copied to fp32 in the loss.

        microbatches: per update, over all replicas. room: tokens of a sequence. micro: sequences of a micro-batch.
        """
        values, tp = self.values, self._tp
        zero: dict[str, object] = {
            "stage": int(values.number("ds.zero_stage") or 0),
            "overlap_comm": values.switch("ds.overlap_comm"),
            "zero_hpz_partition_size": values.whole("ds.zpg") or 1,
        }
        if values.switch("ds.adam_offload"):
            zero |= {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
        precision = values.text("ds.param_dtype")
        config = {
            "train_micro_batch_size_per_gpu": micro,
            "train_batch_size": microbatches * micro * tp,
            "zero_optimization": zero,
            "bf16": {"enabled": precision != "fp16"},
            "fp16": {"enabled": precision == "fp16"},
            "gradient_clipping": 1.0,
            "data_types": {"grad_accum_dtype": values.text("ds.grad_accum_dtype")},
            "tensor_parallel": {"autotp_size": tp},
            "sequence_parallel_size": self.ranks // tp,
        }
        words = ["--attn_implementation", values.text("ds.attn_implementation") or "eager"]
        words += ["--gradient_checkpointing"] * values.switch("actor.gradient_checkpointing_enable")
        words += ["--use_liger_kernel"] * values.switch("ds.use_liger_kernel")
        # Logits are copied into fp32 (models/actor.py); what else a step has of them is in runs/rl/logits.py.
        run = self.of_json(config, words, model, gpus, room).with_loss(LossKernel.WIDE_IN_PLACE)
        # Keys of a few heads are gathered at a time, beside the attention to those before (ring_flash_attn's llama3).
        return replace(run, configuration=replace(run.configuration, cp_comm="p2p"))

    @property
    def _streams(self) -> bool:
        """Return whether ZeRO-3 streams the reference's weights from the host (ref.offload; no effect otherwise)."""
        return self.values.switch("ref.offload") and self.values.number("ds.zero_stage") == 3

    def _step(self, rl: Rl, actor: Run, packed: Packed) -> Step:
        """Return the step around the actor's run. packed: micro-batches of the actor's update.

        With sleep (and no Adam offload) the optimizer state is offloaded. The reference is streamed if it is offloaded
        under ZeRO-3 and the actor has no adapter, else resident. The engine waits unless training is asynchronous.
        """
        values, degrees = self.values, actor.configuration
        sleeps = values.switch("ds.enable_sleep") and not values.switch("ds.adam_offload")
        streams = self._streams and actor.described.model.adapter is None
        return self.step(
            rl,
            actor,
            packed,
            read=self._room("rollout", rl).read(rl, degrees.dp),
            away=("optimizer state",) if sleeps else (),
            reference="streamed" if streams else "resident",
            apart=frozenset(role for name, role in _APART.items() if name in self._pools),
            waits=not values.switch("train.async_enable"),
        )

    def _without_generation(self, model: Described) -> Run:
        """Return the run of SFT, DPO or a reward model; all sequences are assumed to have the maximal length.

        A micro-batch has two sequences per example for DPO and reward models.
        """
        values, each = self.values, _ALONE[self._program]
        longest, micro = values.whole("data.max_len") or 1, values.whole("train.micro_batch_size") or 1
        batch = values.whole("train.batch_size") or 1
        run = self._trained(model, max(1, batch // micro), longest, self.gpus, micro * each)
        losses = {"train_dpo": "ipo" if values.switch("model.ipo_enable") else "sigmoid", "train_rm": "reward"}
        loss = losses.get(self._program)
        alone = Alone(
            trainer=OPENRLHF,
            workers=DEEPSPEED,
            preference=None if loss is None else Preference.of(loss, batch),
            reference="streamed" if self._streams else "resident",
        )
        self.full_sequences(longest, "data.max_len")
        return replace(run, alone=alone)
