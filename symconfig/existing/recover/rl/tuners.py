"""Scripts of TRL, LLaMA-Factory and ms-swift, or around Transformers' Trainer, as a run with the step or the pairs
around it. Sources: as of `formats.tuners`, and the trainers of each (trl/trainer/, train/, swift/rlhf_trainers/)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, log2

from symconfig.descriptor.tuning import LossName, Preference, Rl
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.rl.script import PROMPT
from symconfig.existing.recover.rl.step import Alone, Packed
from symconfig.existing.recover.rl.tuner_workers import TunerWorkers
from symconfig.existing.recover.run import Assumed, Described, Run
from symconfig.formats.tuners import TRANSFORMERS
from symconfig.graph.model import parameters

_STEPS = ("grpo", "rloo")
# Losses that an option names, by what trains on preferences, the usual one first: SimPO's is one of CPO's.
_LOSSES: Mapping[str, tuple[LossName, ...]] = {
    "dpo": ("sigmoid", "hinge", "ipo", "orpo", "simpo"),
    "cpo": ("cpo", "simpo"),
    "orpo": ("orpo",),
    "simpo": ("simpo",),
    "kto": ("kto", "apo_zero_unpaired"),
    "reward": ("reward",),
}
_ALONE = ("pt", "sft", *_LOSSES)  # what trains on what is there
_PPO = "PPO was TRL's experimental trainer, without an engine, which TRL has no more since 1.16"
_ALGORITHMS = {"rloo": "rloo", "reinforce_plus_plus": "reinforce_plus_plus"}
_TASKS = ("causal_lm", "generative_reranker")  # of ms-swift, whose models have a head over the vocabulary
_NEED = "causal_lm or seq_cls"
_AT_ONCE = 256  # sequences that vLLM decodes at once by itself
_SERVERS = ("rollout", "vllm-serve")  # what starts an engine of its own


class Reader(TunerWorkers):
    """Reader of one script on `gpus` GPUs; collects problems and assumptions."""

    def made(self) -> Run | None:
        """Return the trained model's run with its step (GRPO, RLOO) or update.

        A program whose code is not read is assumed to train as Transformers' Trainer does.
        """
        program = self.reading.program
        if self.tuner is TRANSFORMERS and program is not None and not tuners.EXAMPLES.fullmatch(program.text):
            why = "its code is not read; its options are those of Transformers' Trainer"
            self.assumed.append(Assumed(f"that {program.text}", "trains as Transformers' Trainer does", why))
        self.problems += self._untrained()
        if self.program.method not in (*_ALONE, *_STEPS):
            what = _PPO if self.program.method == "ppo" else "this program is not predicted"
            need = ", ".join((*_ALONE, *_STEPS))
            self.problems.append(self.reading.start.problem(what, got=self.program.method, need=need))
        task = self.values.text("task_type")
        if task not in (None, *_TASKS, "seq_cls"):
            self.problems.append(self.problem("task_type", "this task is not predicted", got=task, need=_NEED))
        model = self._model()
        if model is not None and not self.program.megatron:
            self.problems += self.undivided_heads(model, self._sp, "sequence_parallel_size")
        run = self._step(model) if self.program.method in _STEPS else self._without_generation(model)
        return None if self.values.problems else run

    @property
    def _micro(self) -> int:
        """Return the examples per micro-batch of each replica; 1 if not given."""
        name = "micro_batch_size" if self.program.megatron else "per_device_train_batch_size"
        return self.values.whole(name) or self.values.whole("per_device_train_batch_size") or 1

    @property
    def _accumulated(self) -> int:
        """Return a replica's micro-batches per update, at least 1: by global_batch_size (Megatron-Core), or as given.

        If no option gives them: 1 for GRPO and RLOO, else as many as make the program's least batch (`at_once`).
        """
        values, each = self.values, self._micro * self.replicas
        if self.program.megatron and (batch := values.whole("global_batch_size")) is not None:
            return max(1, batch // each)
        steps = values.whole("gradient_accumulation_steps")
        if steps is None and self.program.method not in _STEPS:
            steps = ceil(self.tuner.at_once / each)
        return steps or 1

    def _without_generation(self, model: Described | None) -> Run | None:
        """Return the run of training without generation; None if there is a problem or no model or length.

        `alone` is set for preferences (with the first loss of the method that loss_type has), for classifiers, and
        where plans are for another backend than the run's.
        """
        method, values = self.program.method, self.values
        length = self._length()
        if self.problems or model is None or length is None:
            return None
        count, preference = self._accumulated * self.replicas, None
        if able := _LOSSES.get(method):
            words = values.words("loss_type")
            loss = next((each for each in able if each in words), able[0])
            preference = Preference.of(loss, self._micro * count)
        run = self._trained(model, count, length, self._micro * (preference.means.sequences if preference else 1))
        classifies = preference is None and values.text("task_type") == "seq_cls"
        if preference is None and not classifies and run.target.backend == self.workers.planned:
            return run
        alone = Alone(trainer=self.trainer, workers=self.workers, preference=preference, classifies=classifies)
        return replace(run, alone=alone)

    def _length(self) -> int | None:
        """Return the tokens per sequence: supplied, else (assumed) max_length or the sum of the supplied mean lengths.

        None, with a problem recorded, if nothing gives a length.
        """
        supplied, cut = self.supplied, self.values.whole("max_length")
        if supplied.seq_length is not None:
            return supplied.seq_length
        if cut is None and self.assumes_lengths:
            what = "nothing says how long sequences are"
            self.problems.append(self.problem("max_length", what, hint="--seq-length N"))
            return None
        length = cut or ceil((supplied.prompt_length or 0.0) + (supplied.response_length or 0.0))
        self.full_sequences(length, "max_length", "the mean that is stated" if cut is None else None)
        return length

    def _step(self, model: Described | None) -> Run | None:
        """Return the actor's run with the step around it; None if a problem was recorded or there is no model.

        Reward and teacher models are left out, as an assumption. Responses are padded to the longest of all that a rank
        generates, if the program does so, else of a micro-batch.
        """
        rl = None if model is None else self._rl(model)
        if self.problems or rl is None or model is None:
            return None
        values, micro = self.values, self._micro
        # TRL pads all responses of a rank together, before they are split (trainer/grpo_trainer.py).
        widest = max(micro, rl.sequences // self.replicas) if self.tuner.padded else micro
        packed = Packed.of(rl, micro, packs=values.switch("padding_free"), widest_of=widest)
        packed = packed.within(rl, self.replicas)
        run = self._trained(model, packed.spread(rl, self.replicas), packed.room)
        away = (("offload_model", "weights"), ("offload_optimizer", "optimizer state"))
        step = self.step(
            rl,
            run,
            packed,
            away=tuple(part for name, part in away if values.switch(name)),
            reference="resident",
            sleeps=values.switch("vllm_enable_sleep_mode") or (values.number("sleep_level") or 0) > 0,
            waits=not values.switch("async_generate"),
        )
        for name in ("reward_model", "reward_model_name_or_path", "reward_model_path", "teacher_model"):
            if values.given(name):
                self.left_out(name, name.split("_")[0] + " model")
        return replace(run, step=step)

    def _rl(self, model: Described) -> Rl | None:
        """Return the step as a job's section; None with the reason appended to `problems`.

        Generated at once are generation_batch_size, else steps_per_generation micro-batches (of Megatron-Core:
        updates), else one update; num_generations must divide it. The algorithm is GRPO unless method or advantage are
        another's.
        """
        values, samples, accumulated = self.values, self.values.whole("num_generations") or 1, self._accumulated
        update = self._micro * self.replicas * accumulated
        generated = values.whole("generation_batch_size")
        if generated is None:
            steps = values.whole("steps_per_generation")
            # Of Megatron-Core these count updates, of Transformers' Trainer micro-batches.
            of_step = update if self.program.megatron else self._micro * self.replicas
            generated = of_step * steps if steps is not None else update
        engine = self._engine(model)
        if engine is None:
            return None
        if generated % samples:
            what = "does not divide what is generated at once"
            self.problems.append(self.problem("num_generations", what, got=f"{samples} of {generated} samples"))
            return None
        response, at_once = values.whole("max_completion_length") or 1, _AT_ONCE
        if self.tuner.padded and not engine[1]:  # all that a replica generates (trl/trainer/grpo_trainer.py)
            at_once = max(1, generated // self.replicas) * engine[0]
        return self.step_section(
            self._prompt(response),
            response,
            {},
            (generated // samples, samples, update),
            algorithm=_ALGORITHMS.get(values.text("advantage_estimator") or self.program.method, "grpo"),
            updates=max(1, generated // update),
            epochs=values.whole("num_iterations") or 1,
            reference=bool(values.number("beta")),
            entropy=bool(values.number("entropy_coef")),
            placement="split" if engine[1] else "colocated",
            rollout_gpus=engine[1] or None,
            rollout={
                "tp": engine[0],
                "memory_share": values.number("vllm_gpu_memory_utilization"),
                "max_num_seqs": values.whole("vllm_max_num_seqs") or at_once,
            },
        )

    def _prompt(self, response: int) -> int:
        """Return the tokens of the longest prompt: stated, what vLLM's length leaves, else 1024 (`assumed`)."""
        values, whole = self.values, self.values.whole("vllm_max_model_length")
        stated = next((length for name in self.tuner.prompts if (length := values.whole(name)) is not None), None)
        if stated is None and whole is not None and whole > response:
            stated = whole - response
        return self.longest_prompt(stated, PROMPT, "no option says it")

    def _engine(self, model: Described) -> tuple[int, int] | None:
        """Return (GPUs per engine replica, GPUs of the engine alone), the latter 0 if colocated; None without vLLM.

        A server that the script starts has its own command's numbers; of one started elsewhere replicas are assumed to
        have the fewest GPUs (a power of two) that hold the weights in half of their memory.
        """
        values, tp = self.values, self.values.whole("vllm_tensor_parallel_size") or 1
        usual = self.program.megatron and not values.given("use_vllm")  # whose default is on
        if not (usual or values.switch("use_vllm")):
            self.problems.append(self.problem("use_vllm", "generation without vLLM is not predicted"))
            return None
        named = any(map(values.given, ("vllm_server_host", "vllm_server_base_url")))
        if (values.text("vllm_mode") or ("server" if named else "colocate")) != "server":
            return tp, 0
        if (words := next((words for words in self.reading.others if set(words) & set(_SERVERS)), None)) is not None:
            server = Arguments(settings(words, self.reading.file))
            ranks = (f"{way}_parallel_size" for way in ("tensor", "data"))
            stated, copies = (server.whole(name, f"vllm_{name}") for name in ranks)
            return stated or tp, (stated or 1) * (copies or 1)
        if not values.given("vllm_tensor_parallel_size"):
            need = 2 * 2.0 * parameters(model.model).total / self.known_cluster.gpu.memory_bytes.value
            tp = 1 << max(0, ceil(log2(need)))
        node = self.known_cluster.gpus_per_node
        why = f"its server is started elsewhere; so many hold the weights, and {node} are a node"
        self.assumed.append(Assumed("engine", f"{max(node, tp)} GPUs, {tp} a replica", why))
        return tp, max(node, tp)
