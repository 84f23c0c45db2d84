"""NeMo-RL's configurations as a run, with the step or the pairs around it.

Sources: NeMo-RL 0.7.0, nemo_rl/algorithms/{grpo,dpo,sft,rm}.py, nemo_rl/models/policy/{__init__,lm_policy}.py,
nemo_rl/models/megatron/setup.py (setup_model_config), nemo_rl/models/automodel/setup.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.tuning import Preference, Rl
from symconfig.errors import Problem
from symconfig.existing.launch.dialects.nemo_rl import METHODS
from symconfig.existing.launch.reading import Setting, settings
from symconfig.existing.recover.arguments import ABOVE_ZERO, Arguments
from symconfig.existing.recover.rl import fsdp
from symconfig.existing.recover.rl.script import PROMPT, Script, megatron_options
from symconfig.existing.recover.rl.step import Alone, Packed
from symconfig.existing.recover.rl.values import DTENSOR, MEGATRON, Workers
from symconfig.existing.recover.run import Described, Run
from symconfig.formats.keys import Keys
from symconfig.formats.nemo_rl import DTENSOR as DTENSOR_KEYS
from symconfig.formats.nemo_rl import GENERATION as GENERATION_KEYS
from symconfig.formats.nemo_rl import KEYS, NEMO, POLICY
from symconfig.formats.nemo_rl import MEGATRON as MEGATRON_KEYS
from symconfig.frameworks.behaviour import Switches
from symconfig.frameworks.fsdp.behaviour import WIDE_FROZEN

_OPTIMIZER = f"{POLICY}.optimizer"
_PASSED_ON = ("", "optimizer.", "distributed_data_parallel_config.")  # sections of Megatron-Core's part
# Of its part: what is read by itself, or means another thing than Megatron-LM's option of the name.
_ASIDE = words(
    """
    enabled activation_checkpointing recompute_granularity recompute_modules sequence_parallel bf16 fp16 lr
    use_custom_fsdp data_parallel_sharding_strategy params_dtype offload_modules fine_grained_activation_offloading
    moe_router_load_balancing_type bias_activation_fusion empty_unused_memory_level
    """
)


_PREDICTED = ("grpo", "dpo", "sft", "rm")
_PAIRED = {"dpo": "sigmoid", "rm": "reward"}  # and their losses
_ENGINES = ("vllm", "sglang")
_ADVANTAGES = {"reinforce_plus_plus": "reinforce_plus_plus"}
_NARROW = ("fp8", "mxfp8")  # precisions of an engine's weights


class Reader(Script):
    """Reader of one configuration on `gpus` GPUs; collects problems and assumptions."""

    trainer = NEMO

    @property
    def keys(self) -> Keys:
        return KEYS[self.workers.name]

    @property
    def workers(self) -> Workers:
        """Return Megatron-Core's workers if the configuration enables them, else DTensor's."""
        bridge = Arguments(self.reading.options).switch(f"{MEGATRON_KEYS}.enabled")
        return MEGATRON if bridge else DTENSOR

    @property
    def apart(self) -> int:
        """Return the GPUs of the inference engine alone; 0 if it shares the policy's GPUs or there is none."""
        values, at = self.values, f"{POLICY}.generation.colocated"
        if not values.given(f"{POLICY}.generation.backend") or values.switch(f"{at}.enabled"):
            return 0
        nodes, each = values.whole(f"{at}.resources.num_nodes"), values.whole(f"{at}.resources.gpus_per_node")
        return (nodes or 1) * (each or values.whole("cluster.gpus_per_node") or 1)

    def _degree(self, name: str) -> int:
        return self.values.whole(f"actor.configuration.{name}") or 1

    @property
    def ranks(self) -> int:
        return self._degree("tp") * self._degree("cp")

    @property
    def adapts(self) -> bool:
        """Return whether an adapter is trained: if it is switched on."""
        return self.values.switch("adapter.enabled")

    def _trained(self, model: Described, microbatches: int, length: int, micro: int = 1) -> Run:
        """Return the run of a model with `microbatches` micro-batches per update over all replicas. Raises InputError.

        By Megatron-Core, else by DTensor's shards, which keep fp32 weights; Adam is torch's by default. length: tokens
        of a micro-batch's sequence (or packed sequences); micro: sequences per micro-batch.
        """
        if self.workers.options:
            return self.of_megatron(model, microbatches, length, micro, f"{MEGATRON_KEYS}.peft.target_modules")
        values = self.values
        eager = (values.text(f"{_OPTIMIZER}.name") or "torch.").startswith("torch.")
        stepping = fsdp.adam(values, f"{_OPTIMIZER}.kwargs") if eager else {}
        return fsdp.run(
            model,
            self.known_cluster,
            Switches(framework=stepping, bytes=WIDE_FROZEN),  # it loads in fp32
            recompute=values.switch(f"{DTENSOR_KEYS}.activation_checkpointing"),
            streamed=values.switch(f"{DTENSOR_KEYS}.cpu_offload"),
            dp=self.replicas,
            tp=self._degree("tp"),
            ep=self._degree("ep"),
            cp=self._degree("cp"),
            micro=micro,
            global_batch=microbatches * micro,
            seq_length=length,
            instances=values.whole(f"{DTENSOR_KEYS}.dp_replicate_size") or 1,
        )

    def megatron(self) -> tuple[Setting, ...]:
        """Return the settings of Megatron-Core's workers as Megatron-LM's options; () for DTensor.

        They begin with precision, recomputation, grouped GEMM, sequence parallelism. Null keys and `_ASIDE` are left
        out.
        """
        if not self.workers.options:
            return ()
        values, passed = self.values, []
        for setting in (each for each in self.reading.settings if each.values):  # the others are null
            key = setting.name.removeprefix(f"{MEGATRON_KEYS}.")
            for section in _PASSED_ON:
                name = key.removeprefix(section)
                if key.startswith(section) and "." not in name and name not in _ASIDE and key != setting.name:
                    passed.append(replace(setting, name=name))
                    break
        own = ["--fp16" if values.text(f"{POLICY}.precision") == "float16" else "--bf16", *self._recompute()]
        own.append("--moe-grouped-gemm")  # as Megatron-Bridge has it
        split = (values.whole(f"{MEGATRON_KEYS}.tensor_model_parallel_size") or 1) > 1
        own += ["--sequence-parallel"] * (split and values.switch(f"{MEGATRON_KEYS}.sequence_parallel"))
        return (*settings(own, self.reading.file), *megatron_options(passed))

    def _recompute(self) -> list[str]:
        """Return Megatron-LM's words for recomputation: [] if off, whole layers (default), or modules (core_attn)."""
        values = self.values
        if not values.switch(f"{MEGATRON_KEYS}.activation_checkpointing"):
            return []
        if (values.text(f"{MEGATRON_KEYS}.recompute_granularity") or "full") == "full":
            return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
        modules = values.words(f"{MEGATRON_KEYS}.recompute_modules") or ("core_attn",)
        return ["--recompute-granularity", "selective", "--recompute-modules", *modules]

    @property
    def _method(self) -> str:
        """Return the algorithm by the first of the sections of `METHODS` that the configuration has; "grpo" without."""
        heads = {each.name.partition(".")[0] for each in self.reading.settings}
        return next((name for name in METHODS if name in heads), "grpo")

    def made(self) -> Run | None:
        """Return the policy's run with its step (GRPO) or its update (others)."""
        self.problems += self._refused()
        model = self.model(f"{POLICY}.model_name")
        if self.problems or model is None:
            return None
        run = self._step(model) if self._method == "grpo" else self._without_generation(model)
        return None if self.values.problems else run

    def _refused(self) -> Iterator[Problem]:
        """Yield problems: an algorithm, engine or precision that is not predicted, no GPU to train on, and no longest
        sequence.
        """
        if self._method not in _PREDICTED:
            what, need = "this program is not predicted", ", ".join(_PREDICTED)
            yield self.reading.start.problem(what, got=self._method, need=need)
        engine = self.values.text(f"{GENERATION_KEYS}.backend")
        if self._method == "grpo" and engine not in _ENGINES:
            what = "this engine is not predicted"
            yield self.problem(f"{GENERATION_KEYS}.backend", what, got=engine, need="vllm or sglang")
        if self.trained_gpus < 1:
            what = "leaves no GPU to train on"
            yield self.problem(f"{GENERATION_KEYS}.colocated.resources.num_nodes", what, got=f"{self.apart}")
        if self.values.text(f"{POLICY}.precision") == "float32":
            yield self.problem(f"{POLICY}.precision", "training in 32 bits is not predicted", got="float32")
        if self.values.silent(longest := f"{POLICY}.max_total_sequence_length"):
            yield self.problem(longest, "the length of the sequences is not said", need=ABOVE_ZERO)

    @property
    def _longest(self) -> int:
        return self.values.whole(f"{POLICY}.max_total_sequence_length") or 1

    @property
    def _packs(self) -> str | None:
        """Return the section by which micro-batches are filled by tokens; None if they are of sequences."""
        ways = (f"{POLICY}.{way}" for way in ("sequence_packing", "dynamic_batching"))
        return next((way for way in ways if self.values.switch(f"{way}.enabled")), None)

    def _room(self, phase: str, sequences: int) -> int:
        """Return the tokens of a phase's ("train", "logprob") micro-batch: by {phase}_mb_tokens if it is packed.

        Without packing and dynamic batching, or without that key, `sequences` x the longest sequence.
        """
        stated = self.values.whole(f"{self._packs}.{phase}_mb_tokens") if self._packs else None
        return stated or sequences * self._longest

    def _without_generation(self, model: Described) -> Run:
        """Return the run of SFT, DPO or a reward model; all sequences are assumed to have the maximal length.

        A micro-batch has two sequences per pair, or, if it is filled by tokens, as many as fit. SFT has no `alone`.
        """
        values, each = self.values, 2 if self._method in _PAIRED else 1
        batch = values.whole(f"{POLICY}.train_global_batch_size") or 1
        micro = (values.whole(f"{POLICY}.train_micro_batch_size") or 1) * each
        if self._packs:
            micro = max(1, self._room("train", micro) // self._longest)
        count = self.replicas * max(1, ceil(batch * each / (micro * self.replicas)))
        run = self._trained(model, count, self._longest, micro)
        self.full_sequences(self._longest, f"{POLICY}.max_total_sequence_length")
        if self._method == "sft":
            return run
        pairs = Preference.of(_PAIRED[self._method], batch)
        alone = Alone(trainer=self.trainer, workers=self.workers, preference=pairs, reference="swapped")
        return replace(run, alone=alone)

    def _step(self, model: Described) -> Run | None:
        """Return the actor's run with the step around it; None if sizes of the step are missing or invalid.

        Weights and optimizer are offloaded unless the engine has its own GPUs. It is an assumption that no reward model
        runs.
        """
        values, rl = self.values, self._rl()
        if rl is None:
            return None
        micro = values.whole(f"{POLICY}.train_micro_batch_size") or 1
        tokens = self._room("train", micro) if self._packs else None
        packed = Packed.of(rl, micro, tokens=tokens, packs=False)
        own = packed.within(rl, self.replicas)
        run = self._trained(model, own.spread(rl, self.replicas), own.room)
        sequences = values.whole(f"{POLICY}.logprob_batch_size") or micro
        tokens = self._room("logprob", sequences) if self._packs else None
        step = self.step(
            rl,
            run,
            packed,
            read=Packed.of(rl, sequences, tokens=tokens, packs=False).read(rl, run.configuration.dp),
            away=() if rl.placement == "split" else ("weights", "optimizer state"),
            reference="swapped",
            waits=not values.switch("grpo.async_grpo.enabled"),
            weight_bytes=1.0 if values.text(f"{GENERATION_KEYS}.vllm_cfg.precision") in _NARROW else 2.0,
            fused_logits=values.switch(f"{POLICY}.megatron_cfg.use_fused_linear_logprobs") and self.workers.options,
            chunked_logits=(values.number(f"{POLICY}.logprob_chunk_size") or 0) > 0,
        )
        if values.switch(key := "env.reward_model.enabled"):
            self.left_out(key)
        return replace(run, step=step)

    def _rl(self) -> Rl | None:
        """Return the step as a job's section; None if prompts, samples or batch are missing or make no step.

        A longest prompt (half of the sequence, at most 1024) is assumed, and recorded, if no key limits it below the
        whole sequence. The response is at most what the prompt leaves. The engine's tp includes its pipeline stages.
        """
        values, engine = self.values, self.values.text(f"{GENERATION_KEYS}.backend") or _ENGINES[0]
        whole, stated = self._longest, values.whole("data.max_input_seq_length")
        stated = None if stated is None or stated >= whole else stated
        prompt = self.longest_prompt(stated, min(whole // 2, PROMPT), "no key says less than the whole")
        response = min(values.whole(f"{GENERATION_KEYS}.max_new_tokens") or whole, whole - prompt)
        pp = values.whole(f"{GENERATION_KEYS}.vllm_cfg.pipeline_parallel_size") or 1
        tp, share = values.whole("step.rollout_tp") or 1, None
        if engine == "sglang":
            tp = values.whole(f"{GENERATION_KEYS}.sglang_cfg.gpus_per_server") or 1
            share = values.number(f"{GENERATION_KEYS}.sglang_cfg.mem_fraction_static")
        return self.step_section(
            prompt,
            max(1, response),
            _ADVANTAGES,
            reference=bool(values.number("rl.reference")) and not values.switch("rl.no_reference"),
            rollout={"tp": tp * pp, **({"memory_share": share} if share else {})},
        )
