"""Overrides of verl's trainer of fine-tuning as a run, where its workers are of FSDP.

Sources: verl 0.9.1, verl/trainer/sft_trainer.py, trainer/config/sft_trainer_engine.yaml and utils/seqlen_balancing.py:
a micro-batch's tokens are those of all ranks of a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.existing.recover.deepspeed_model import named_targets
from symconfig.existing.recover.rl import fsdp
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.trainers import FSDP, VERL_TUNING, Trainer, Workers
from symconfig.existing.recover.run import Assumed, Run
from symconfig.frameworks.programs import PROGRAMS


@dataclass(slots=True)
class Reader(Script):
    """One script on so many GPUs; what is wrong is gathered."""

    TRAINER: ClassVar[Trainer] = VERL_TUNING

    @property
    def workers(self) -> Workers:
        name = self.values.text("engine") or self.values.text("engine.strategy") or FSDP.name
        return replace(FSDP, target=None) if name.startswith(FSDP.name) else Workers(name, predicted=False)

    def run(self) -> Run:
        """Return the run of the model. Raises InputError with all that keeps it from being predicted."""
        values = self.values
        self.problems += self._refused()
        model = self.model("model.path", self._adapter)
        sp = values.whole(f"engine.{FSDP.split}") or 1
        length = self.supplied.seq_length or values.whole("data.max_length")
        batch, size = values.whole("data.train_batch_size"), values.number("engine.fsdp_size")
        if self.problems or values.arguments.problems or model is None or batch is None or length is None:
            raise self.refusal()
        dp = max(1, self.gpus // sp)
        micro = min(self._micro(length, sp), max(1, batch // dp))
        layers = fsdp.Workers(
            dp=dp,
            sp=sp,
            room=length,
            micro=micro,
            microbatches=max(1, round(batch / (micro * dp))) * dp,
            copies=int(self.gpus // size) if size is not None and 0 < size < self.gpus else 1,
            recompute=values.switch("model.enable_gradient_checkpointing"),
            narrow=values.text("engine.model_dtype") in ("bf16", "bfloat16"),
            liger=values.switch("model.use_liger"),
            streamed=values.switch("engine.offload_policy"),
            program=replace(
                PROGRAMS["verl-fsdp", "fsdp"], framework=fsdp.adam(values, "optim.override_optimizer_config")
            ),
        )
        why = "as data.max_length cuts them; shorter ones take less"
        stated = Assumed("sequences", f"{length:,} tokens each", why, values.place("data.max_length"))
        assumed = () if self.supplied.seq_length else (stated,)
        run = fsdp.run(layers, model, self.known_cluster)
        return replace(run, assumed=(*run.assumed, *self.assumed, *assumed))

    def _refused(self) -> Iterator[Problem]:
        """Yield what no prediction is made of."""
        program = self.reading.program
        if program is not None and "fsdp_sft_trainer" in program.text:
            what = "verl's first trainer of fine-tuning, with keys of its own (before 0.8), is not predicted"
            yield program.place.problem(what, field=program.text, hint="verl.trainer.sft_trainer")
        elif not self.workers.predicted:
            what = "fine-tuning with workers of this kind is not predicted"
            yield self.problem("engine", what, got=self.workers.name, need=FSDP.name)

    def _micro(self, length: int, sp: int) -> int:
        """Return the sequences of a micro-batch, all as long as they may be."""
        values = self.values
        if not values.switch("data.use_dynamic_bsz"):
            return values.whole("data.micro_batch_size_per_gpu") or 1
        return max(1, (values.whole("data.max_token_len_per_gpu") or length) * sp // length)

    def _adapter(self, model: ModelDescriptor) -> Mapping[str, object] | None:
        values, rank = self.values, self.values.number("model.lora_rank")
        if not rank:
            return None
        given = values.arguments.words("model.target_modules")
        return {
            "method": "lora",
            "r": int(rank),
            "target_modules": named_targets(given or ("all-linear",), model),
            "lora_alpha": values.number("model.lora_alpha"),
        }
