"""NeMo-RL's configurations as a run, with the step or the pairs around it.

Sources: NeMo-RL 0.7.0, nemo_rl/algorithms/{grpo,dpo,sft,rm}.py, nemo_rl/models/policy/lm_policy.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from symconfig.descriptor.rl import Rl
from symconfig.descriptor.tuning import Preference
from symconfig.errors import Problem
from symconfig.existing.launch.dialects.nemo_rl import METHODS
from symconfig.existing.recover.rl.nemo_workers import NemoWorkers
from symconfig.existing.recover.rl.script import MANY
from symconfig.existing.recover.rl.sequences import Packed
from symconfig.existing.recover.rl.step import Alone, Step
from symconfig.existing.recover.run import Assumed, Described, Run
from symconfig.formats.nemo_rl import GENERATION as _GENERATION
from symconfig.formats.nemo_rl import POLICY

_PREDICTED = ("grpo", "dpo", "sft", "rm")
_PAIRED = {"dpo": "sigmoid", "rm": "reward"}  # and their losses
_ENGINES = ("vllm", "sglang")
_ADVANTAGES = {"reinforce_plus_plus": "reinforce_plus_plus"}
_PROMPT = 1024  # tokens of the longest prompt, where no key says it
_NARROW = ("fp8", "mxfp8")  # precisions of an engine's weights


@dataclass(slots=True)
class Reader(NemoWorkers):
    """One configuration on so many GPUs; what is wrong is gathered."""

    @property
    def _method(self) -> str:
        """Return what is done: grpo, dpo, sft."""
        heads = {each.name.partition(".")[0] for each in self.reading.settings}
        return next((name for name in METHODS if name in heads), "grpo")

    def run(self) -> Run:
        """Return the policy's run with what is around it. Raises InputError with all that keeps it from being
        predicted."""
        self.problems += [*self._refused(), *self._untrained()]
        model, run = self.model(f"{POLICY}.model_name"), None
        if not self.problems and model is not None:
            run = self._step(model) if self._method == "grpo" else self._alone(model)
        if self.problems or self.values.arguments.problems or run is None:
            raise self.refusal()
        return replace(run, assumed=(*run.assumed, *self.assumed))

    def _refused(self) -> Iterator[Problem]:
        """Yield what no prediction is made of."""
        if self._method not in _PREDICTED:
            what, need = "this program is not predicted", ", ".join(_PREDICTED)
            yield self.reading.start.problem(what, got=self._method, need=need)
        engine = self.values.text(f"{_GENERATION}.backend")
        if self._method == "grpo" and engine not in _ENGINES:
            what = "this engine is not predicted"
            yield self.problem(f"{_GENERATION}.backend", what, got=engine, need="vllm or sglang")

    @property
    def _longest(self) -> int:
        return self.values.whole(f"{POLICY}.max_total_sequence_length") or 1

    @property
    def _packs(self) -> bool:
        """Tell whether micro-batches have as many sequences as there is room for."""
        return any(self.values.switch(f"{POLICY}.{way}.enabled") for way in ("sequence_packing", "dynamic_batching"))

    def _room(self, phase: str, sequences: int) -> int:
        """Return the tokens that a micro-batch of a phase has room for."""
        ways = ("sequence_packing", "dynamic_batching")
        on = next((way for way in ways if self.values.switch(f"{POLICY}.{way}.enabled")), None)
        stated = None if on is None else self.values.whole(f"{POLICY}.{on}.{phase}_mb_tokens")
        return stated or sequences * self._longest

    def _alone(self, model: Described) -> Run:
        """Return the run of a model that trains on what is there, as if all were as long as it may be."""
        values, each = self.values, 2 if self._method in _PAIRED else 1
        batch = values.whole(f"{POLICY}.train_global_batch_size") or 1
        micro = (values.whole(f"{POLICY}.train_micro_batch_size") or 1) * each
        if self._packs:
            micro = max(1, self._room("train", micro) // self._longest)
        count = self._dp * max(1, ceil(batch * each / (micro * self._dp)))
        run = self._trained(model, count, self._longest, micro)
        why = "as max_total_sequence_length cuts them; shorter ones take less"
        place = values.place(f"{POLICY}.max_total_sequence_length")
        run = replace(run, assumed=(*run.assumed, Assumed("sequences", f"{self._longest:,} tokens each", why, place)))
        if self._method == "sft":
            return run
        pairs = Preference.of(_PAIRED[self._method], batch)
        alone = Alone(trainer=self.TRAINER, workers=self.workers, preference=pairs, reference="swapped")
        return replace(run, alone=alone)

    def _step(self, model: Described) -> Run | None:
        """Return the run of an actor with the step around it."""
        values, rl = self.values, self._rl()
        if rl is None:
            return None
        micro = values.whole(f"{POLICY}.train_micro_batch_size") or 1
        tokens = self._room("train", micro) if self._packs else None
        packed = Packed.of(rl, micro, tokens=tokens, packs=False)
        limit, packed = packed.room, packed.within(rl, self._dp)
        run = self._trained(model, packed.spread(rl, self._dp), packed.room)
        degrees = run.configuration.degrees
        sequences = values.whole(f"{POLICY}.logprob_batch_size") or micro
        tokens = self._room("logprob", sequences) if self._packs else None
        read = Packed.of(rl, sequences, tokens=tokens, packs=False).read(rl, degrees.dp)
        waits = not values.switch("grpo.async_grpo.enabled")
        many = self._packs and run.configuration.global_batch >= MANY * degrees.dp
        step = Step(
            trainer=self.TRAINER,
            workers=self.workers,
            rl=rl.model_copy(update={"tokens_per_gpu": -(-limit // degrees.cp)}),
            fill=packed.fill(rl, run.configuration.global_batch),
            read=read,
            reference_read=read,
            away=() if rl.placement == "split" else ("weights", "optimizer state"),
            reference="swapped",
            waits=waits,
            weight_bytes=1.0 if values.text(f"{_GENERATION}.vllm_cfg.precision") in _NARROW else 2.0,
            fused_logits=values.switch(f"{POLICY}.megatron_cfg.use_fused_linear_logprobs") and self.workers.options,
            chunked_logits=(values.number(f"{POLICY}.logprob_chunk_size") or 0) > 0,
            assumed_lengths=self.assumes_lengths and not many,
        )
        key, left = "env.reward_model.enabled", run.assumed
        if values.switch(key):
            why = "its memory and its time are not predicted"
            left = (*left, Assumed("reward model", "none", why, values.place(key)))
        return replace(run, step=step, assumed=left)

    def _rl(self) -> Rl | None:
        values, engine = self.values, self.values.text(f"{_GENERATION}.backend") or _ENGINES[0]
        prompts, samples = values.whole("rl.prompts"), values.whole("rl.samples")
        batch = values.whole(f"{POLICY}.train_global_batch_size")
        if not (prompts and samples and batch):
            return None
        whole, prompt = self._longest, values.whole("data.max_input_seq_length")
        if prompt is None or prompt >= whole:
            prompt = min(whole // 2, _PROMPT)
            self.assumed.append(Assumed("longest prompt", f"{prompt:,} tokens", "no key says less than the whole"))
        response = min(values.whole(f"{_GENERATION}.max_new_tokens") or whole, whole - prompt)
        pp = values.whole(f"{_GENERATION}.vllm_cfg.pipeline_parallel_size") or 1
        tp, share = values.whole("step.rollout_tp") or 1, None
        if engine == "sglang":
            tp = values.whole(f"{_GENERATION}.sglang_cfg.gpus_per_server") or 1
            share = values.number(f"{_GENERATION}.sglang_cfg.mem_fraction_static")
        return self.step_section(
            prompt,
            max(1, response),
            prompts,
            samples,
            batch,
            _ADVANTAGES,
            reference=bool(values.number("rl.reference")) and not values.switch("rl.no_reference"),
            rollout={"tp": tp * pp, **({"memory_share": share} if share else {})},
        )
