"""slime's options as a run: Megatron-LM's, with what slime sets itself, and the step around it.

Sources: slime/utils/{arguments,dp_schedule}.py, slime/backends/megatron_utils/{arguments,actor}.py, August 2026.
"""

from __future__ import annotations

from dataclasses import replace
from posixpath import basename

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.tuning import Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects.slime import model_hidden
from symconfig.existing.launch.reading import Setting, settings
from symconfig.existing.recover import megatron
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.rl.script import PROMPT, Script, described, gpus_per_replica
from symconfig.existing.recover.rl.step import Packed, in_a_row
from symconfig.existing.recover.rl.values import MEGATRON, Workers
from symconfig.existing.recover.run import Assumed, Run
from symconfig.existing.recover.zoo import weight_bytes
from symconfig.formats.slime import SLIME
from symconfig.frameworks.megatron.flags import first_with, flags

_ALGORITHMS = {name: name for name in ("ppo", "gspo", "reinforce_plus_plus")}
_ASYNC = "train_async"  # the program whose engine generates while the last step is trained on
_SHARE = 0.85  # of a GPU for SGLang, which derives it from the GPU where --sglang-mem-fraction-static is absent
_BATCH = ("--micro-batch-size", "--global-batch-size", "--seq-length")  # slime's own meaning of them
# Of a model that is known by its name: layers in Python, the shape that they are of, and what differs between its
# releases and costs nothing.
_OF_THE_NAME = words(
    """
    --spec --num-layers --hidden-size --num-attention-heads --rotary-base --rotary-percent --rotary-interleaved
    """
)
# What slime sets itself (_set_default_megatron_args).
ALWAYS = ("--bf16", "--use-distributed-optimizer")


class Reader(Script):
    """Reader of one script on `gpus` GPUs; collects problems and assumptions."""

    trainer = SLIME

    @property
    def workers(self) -> Workers:
        return MEGATRON

    def megatron(self) -> tuple[Setting, ...]:
        """Return slime's own options, then the script's of Megatron-LM, except batch and length."""
        own = ALWAYS if not self.values.given("fp16") else ALWAYS[1:]
        known = (item for item in self.reading.options if first_with(item.name) and item.name not in _BATCH)
        return (*settings(own, self.reading.file), *known)

    def made(self) -> Run | None:
        """Return the actor's run with the step around it, and with a critic if the algorithm has one.

        The critic is the actor's run once more. Options of shape are dropped for a model that is known by its name.
        """
        values = self.values
        for name in ("debug_train_only", "loss_type"):
            if values.given(name) and values.text(name) in ("", "sft_loss"):
                raise InputError(self.problem(name, "fine-tuning by slime is not predicted"))
        if self.trained_gpus < 1:
            if all(values.whole(name) for name in ("actor_num_nodes", "actor_num_gpus_per_node")):  # 0 is their problem
                what = "leaves no GPU to train on"
                self.problems.append(Problem(what, self.reading.file, field="--rollout-num-gpus"))
            return None
        rl = self._rl()
        if self.problems or values.problems or rl is None:
            return None
        # A model that is known by its name has no options of its shape.
        named = values.given("spec") or model_hidden(self.reading)
        options = (item for item in self.megatron() if not (named and item.name in _OF_THE_NAME))
        names = Namespace(tuple(options), flags(self.version()))
        dp = max(1, self.trained_gpus // gpus_per_replica(names))
        tokens = values.whole("max_tokens_per_gpu") if values.switch("use_dynamic_batch_size") else None
        room = None if tokens is None else tokens * names.whole("context_parallel_size")
        packed = Packed.of(rl, values.whole("micro_batch_size") or 1, tokens=room)
        own = packed.within(rl, dp)
        run = self._trained(names, own.spread(rl, dp), own.room)
        if (group := in_a_row(run.configuration)) > 1:
            run = replace(run, configuration=replace(run.configuration, global_batch=own.spread(rl, dp, group)))
        # Those of an update: no part of slime has read --log-probs-max-tokens-per-gpu since 0.2.4, nor does 0.3.1.
        away = ("weights", "optimizer state") if values.switch("colocate") or values.switch("offload_train") else ()
        step = self.step(
            rl,
            run,
            packed,
            read=own.as_trained(rl, dp, group),
            away=away,
            waits=not basename(program.text if (program := self.reading.program) else "").startswith(_ASYNC),
            reference="swapped",  # slime/backends/megatron_utils/actor.py, TensorBackuper
            chunked_logits=(values.number("log_probs_chunk_size") or -1) > 0,
            weight_bytes=weight_bytes(values.text("hf_checkpoint") or ""),
        )
        critic = run if rl.has_critic else None  # slime's has the actor's model, degrees and micro-batches
        return replace(run, step=step, critic=critic)

    @property
    def apart(self) -> int:
        """Return the GPUs of the inference engine alone; 0 if colocated or not given."""
        return 0 if self.values.switch("colocate") else self.values.whole("rollout_num_gpus") or 0

    def _rl(self) -> Rl | None:
        """Return the step as a job's section; None with the reason appended to `problems`.

        The longest prompt and SGLang's share of memory are assumed if not given. Samples beyond whole updates are
        dropped. By default there is one update, and the response is what the prompt leaves of rollout_max_context_len.
        """
        values = self.values
        prompts, samples = values.whole("rollout_batch_size"), values.whole("n_samples_per_prompt") or 1
        response = values.whole("rollout_max_response_len")
        prompt = values.whole("rollout_max_prompt_len")
        whole = values.whole("rollout_max_context_len")
        if response is None and whole is not None:
            response = whole - min(whole // 2, prompt or PROMPT)
        if prompts is None or response is None:
            self.sizes("rollout_batch_size" if prompts is None else "rollout_max_response_len")
            return None
        why = "slime has no limit by itself; --rollout-max-prompt-len says one"
        prompt = self.longest_prompt(prompt, PROMPT, why)
        batch = values.whole("global_batch_size") or prompts * samples
        if (steps := values.whole("num_steps_per_rollout")) is not None:
            if steps > prompts * samples:
                what, need = "is too large", f"at most {prompts * samples:,}, the samples of a rollout"
                self.problems.append(self.problem("num_steps_per_rollout", what, got=f"{steps:,}", need=need))
                return None
            batch = prompts * samples // steps
        updates = max(1, prompts * samples // batch)
        prompts = min(prompts, max(1, updates * batch // samples))  # what is left over is dropped
        # Attention is apart on each of these; experts lie over all of an engine's GPUs.
        ranks = (values.whole("ranks.dp") or 1) if values.switch("ranks.apart") else 1
        share = values.number("step.memory_share")
        if share is None:
            why = "SGLang derives it from the GPU; --sglang-mem-fraction-static says it"
            self.assumed.append(Assumed("share of memory for the engine", f"{_SHARE:g}", why))
        return self.step_section(
            prompt,
            response,
            _ALGORITHMS,
            (prompts, samples, batch),
            updates=updates if prompts * samples % updates == 0 else 1,
            reference=values.switch("rl.reference") or bool(values.number("kl_coef")),
            rollout={
                "engine": "sglang",
                "tp": max(1, (values.whole("engine.gpus") or 1) // ranks),
                "dp": ranks,
                "memory_share": share or _SHARE,
            },
        )

    def _trained(self, names: Namespace, batch: int, room: int) -> Run:
        """Return the run of the trained model with `batch` micro-batches of one row of `room` tokens per update.

        The model is the supplied one, the options', or that of --hf-checkpoint. Raises InputError.
        """
        own = ["--micro-batch-size", "1", "--global-batch-size", str(batch), "--seq-length", str(room)]
        whole = Namespace((*names.settings, *settings(own, self.reading.file)), names.table)
        unsaid = model_hidden(self.reading) or not names.given("num_layers") or self.values.given("spec")
        if self.supplied.model is not None or not unsaid:
            return megatron.run(whole, self.trained_gpus, self.known_cluster, self.supplied)
        model = described(self.reading, self.values.find("hf_checkpoint"), self.supplied)
        run = megatron.run(whole, self.trained_gpus, self.known_cluster, replace(self.supplied, model=model.model))
        return replace(run, assumed=(*model.assumed, *run.assumed))
