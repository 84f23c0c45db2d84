"""Options of verl, slime, OpenRLHF and NeMo-RL that a plan of a step decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from symconfig.errors import InputError
from symconfig.existing.adapt.learned import Learned, Wanted
from symconfig.existing.adapt.options import LISTED, of
from symconfig.existing.launch.dialects.entry import spoken
from symconfig.existing.launch.dialects.openrlhf import spelled
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.rl import nemo_rl as of_nemo
from symconfig.existing.recover.rl import openrlhf as of_openrlhf
from symconfig.existing.recover.rl import slime as of_slime
from symconfig.existing.recover.rl import verl as of_verl
from symconfig.existing.recover.rl.nemo_workers import POLICY
from symconfig.existing.recover.rl.script import Script
from symconfig.existing.recover.rl.trainers import FSDP, MEGATRON
from symconfig.existing.recover.rl.verl import REFERENCE, ROLLOUT
from symconfig.existing.recover.rl.verl_workers import ACTOR, MODEL
from symconfig.plans.plan import Plan
from symconfig.render import learning, nemo_rl, openrlhf, slime, verl, verl_fsdp

_MEGATRON = f"{ACTOR}.megatron"
_OFF, _NO = ("null",), ("False",)  # of an override
# Keys that a plan decides, beside all of the actor's workers; what it leaves out of these is off.
_KEYS = (
    "data.train_batch_size",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ROLLOUT}.n",
    f"{MODEL}.enable_gradient_checkpointing",
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{REFERENCE}.megatron.param_offload",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.gpu_memory_utilization",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{REFERENCE}.log_prob_max_token_len_per_gpu",
)
_KEYS_OFF = (
    f"{_MEGATRON}.virtual_pipeline_model_parallel_size",
    *(f"{_MEGATRON}.override_transformer_config.recompute_{name}" for name in ("granularity", "method", "num_layers")),
)
# The same, where the script says them.
_ENDS_OFF = {
    f"{_MEGATRON}.override_transformer_config.{word}": _NO if name.startswith("account") else _OFF
    for name, word in verl.ENDS.items()
}
# slime's options that a plan decides; of those that it leaves out the script is to have none.
_BATCH, _UPDATES = "--global-batch-size", "--num-steps-per-rollout"  # of which a script says one
_OPTIONS = (
    "--rollout-batch-size",
    "--n-samples-per-prompt",
    _UPDATES,
    "--tensor-model-parallel-size",
    "--sequence-parallel",
    "--pipeline-model-parallel-size",
    "--num-virtual-stages-per-pipeline-rank",
    "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--context-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
    "--use-dynamic-batch-size",
    "--max-tokens-per-gpu",
    "--rollout-num-gpus",
    "--rollout-num-gpus-per-engine",
    "--sglang-mem-fraction-static",
    "--colocate",
)


@dataclass(frozen=True, slots=True)
class _Workers:
    """How verl's workers are told a plan. section: of their keys; off: those that are off where a plan has none; ends:
    those that are so where the script says them, and their values then."""

    words: Callable[[Plan], list[str]]
    section: str
    off: tuple[str, ...] = ()
    ends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_WORKERS = {
    MEGATRON.planned: _Workers(verl.words, _MEGATRON, _KEYS_OFF, _ENDS_OFF),
    FSDP.planned: _Workers(verl_fsdp.words, f"{ACTOR}.{FSDP.section}"),
}


def _keys_wanted(plan: Plan, script: Script) -> Wanted:
    kind = _WORKERS[plan.best.target.backend]
    every = dict(word.lstrip("+").split("=", 1) for word in kind.words(plan))
    mine = {
        key: tuple(value.strip("[]").split(","))
        for key, value in every.items()
        if key in _KEYS or key.startswith(f"{kind.section}.")
    }
    there = {key: value for key, value in kind.ends.items() if of(script.reading, key) is not None}
    return {**dict.fromkeys(kind.off, _OFF), **there, **mine}


def _key_added(reading: Reading, key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    listed = len(values) > 1 or key.endswith(LISTED)
    if ".override_" in key and of(reading, key) is None:
        key = f"++{key}"  # verl's own file may have it, and may not
    return (f"{key}=[{','.join(values)}]" if listed else f"{key}={values[0]}",)


def _beside_key(reading: Reading, key: str) -> Iterator[Setting]:
    """Yield overrides of a key's section, then of one above it."""
    section = key
    while "." in section:
        section = section.rpartition(".")[0]
        yield from [each for each in reversed(reading.settings) if each.name.startswith(f"{section}.")][:2]


# OpenRLHF's.
_SECTIONS = (
    "--rollout.batch_size",
    "--rollout.n_samples_per_prompt",
    "--train.batch_size",
    "--train.colocate_all",
    "--train.dynamic_batch_enable",
    "--train.max_tokens_per_gpu",
    "--rollout.max_tokens_per_gpu",
    "--actor.gradient_checkpointing_enable",
    "--ds.packing_samples",
    "--ds.zero_stage",
    "--ds.tensor_parallel_size",
    "--ds.adam_offload",
    "--ds.enable_sleep",
    "--vllm.num_engines",
    "--vllm.tensor_parallel_size",
    "--vllm.gpu_memory_utilization",
    "--vllm.enable_sleep",
)


def _options_wanted(plan: Plan, script: Script) -> Wanted:
    wanted = _wanted_by(slime.words(plan), _OPTIONS)
    if of(script.reading, _BATCH) is None:
        return wanted
    return {**wanted, _UPDATES: None, _BATCH: (str(learning.section(plan).batch),)}


def _wanted_by(words_: Sequence[str], names: Sequence[str]) -> Wanted:
    """Return what words say of these options; None of those that they leave out."""
    lines: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words_:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            lines[name] = (value,) if equals else ()
        else:
            lines[name] = (*lines[name], word)
    return {name: lines.get(name) for name in names}


def _beside_option(names: Sequence[str], reading: Reading, name: str) -> Iterator[Setting]:
    """Yield options that a plan decides, those that stand next to it in their order first."""
    at = names.index(name) if name in names else 0
    order = sorted(range(len(names)), key=lambda index: abs(index - at))
    present = (of(reading, names[index]) for index in order)
    yield from (each for each in present if each is not None)


VERL = Learned(
    of_verl.Reader,
    _keys_wanted,
    ("trainer.nnodes", "trainer.n_gpus_per_node"),
    _key_added,
    _beside_key,
    {
        MEGATRON.planned: f"{ACTOR}.strategy=megatron and --config-name ppo_megatron_trainer, or model_engine=megatron",
        FSDP.planned: f"{ACTOR}.strategy=fsdp2",
    },
)
SLIME = Learned(
    of_slime.Reader,
    _options_wanted,
    ("--actor-num-nodes", "--actor-num-gpus-per-node"),
    lambda _reading, name, values: (name, *values),
    partial(_beside_option, _OPTIONS),
)
OPENRLHF = Learned(
    of_openrlhf.Reader,
    lambda plan, _script: _wanted_by(openrlhf.words(plan), _SECTIONS),
    ("--actor.num_nodes", "--actor.num_gpus_per_node"),
    lambda reading, name, values: (spelled(reading.settings, name), *values),
    partial(_beside_option, _SECTIONS),
    also=(("--ref.num_nodes", "--ref.num_gpus_per_node"),),
)


# NeMo-RL's keys, as others by their sections; those that are off where a plan does not say them.
_NEMO_MEGATRON, _NEMO_DTENSOR = f"{POLICY}.megatron_cfg", f"{POLICY}.dtensor_cfg"
_OF_STEP = (
    "grpo.num_prompts_per_step",
    "grpo.num_generations_per_prompt",
    f"{POLICY}.logprob_batch_size",
    f"{POLICY}.sequence_packing.enabled",
    f"{POLICY}.sequence_packing.logprob_mb_tokens",
    f"{POLICY}.dynamic_batching.enabled",
    f"{POLICY}.generation.vllm_cfg.tensor_parallel_size",
    f"{POLICY}.generation.vllm_cfg.expert_parallel_size",
    f"{POLICY}.generation.vllm_cfg.gpu_memory_utilization",
    f"{POLICY}.generation.colocated.enabled",
)
_OF_NEMO = (
    f"{POLICY}.train_global_batch_size",
    f"{POLICY}.train_micro_batch_size",
    f"{POLICY}.sequence_packing.train_mb_tokens",
    f"{POLICY}.make_sequence_length_divisible_by",
    *(f"{_NEMO_MEGATRON}.{name}" for name in (*nemo_rl.DEGREES.values(), "sequence_parallel")),
    f"{_NEMO_MEGATRON}.activation_checkpointing",
    f"{_NEMO_MEGATRON}.moe_token_dispatcher_type",
    f"{_NEMO_MEGATRON}.optimizer.optimizer_cpu_offload",
    f"{_NEMO_MEGATRON}.optimizer.optimizer_offload_fraction",
    *(
        f"{_NEMO_MEGATRON}.distributed_data_parallel_config.{name}"
        for name in ("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather")
    ),
)
_NEMO_RECOMPUTE = tuple(f"{_NEMO_MEGATRON}.recompute_{name}" for name in ("granularity", "modules"))
_NEMO_OFF = tuple(f"{_NEMO_MEGATRON}.num_layers_in_{name}_pipeline_stage" for name in ("first", "last"))


def _nemo_wanted(plan: Plan, script: Script) -> Wanted:
    if not script.workers.options:
        what, hint = "a plan is not put into NeMo-RL's options for DTensor workers", f"{_NEMO_MEGATRON}.enabled=true"
        raise InputError(what, file=script.reading.file, hint=hint)
    workers = nemo_rl.megatron(plan)
    if script.does == "rl":
        learning.refuse(plan, nemo_rl.LEARNS, nemo_rl.NAME, nemo_rl.problems(plan))
        sections, names = nemo_rl.sections(plan, workers), (*_OF_NEMO, *_OF_STEP)
    else:
        sections, names = {"policy": _nemo_batch(plan, script) | workers}, _OF_NEMO
    values = dict(_flat(sections))
    wanted = {name: _spoken(values[name]) for name in (*names, *_NEMO_RECOMPUTE, *_NEMO_OFF) if name in values}
    off = (name for name in _NEMO_OFF if name not in wanted and of(script.reading, name) is not None)
    return {**wanted, **dict.fromkeys(off, _OFF)}


def _nemo_batch(plan: Plan, script: Script) -> dict[str, Any]:
    """Return the batch of what trains on what is there."""
    batch, each, values = plan.best.batch, learning.per_example(plan), script.values
    wanted: dict[str, Any] = {"train_global_batch_size": batch.global_ // each}
    wanted["train_micro_batch_size"] = batch.micro // each
    room = batch.micro * batch.seq_length
    for way in ("sequence_packing", "dynamic_batching"):
        if values.switch(f"{POLICY}.{way}.enabled"):
            wanted[way] = {"train_mb_tokens": room}
    return wanted


def _flat(sections: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in sections.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _spoken(value: Any) -> tuple[str, ...]:
    return tuple(map(spoken, value)) if isinstance(value, list) else (spoken(value),)


def _override_added(reading: Reading, key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return an override as NeMo-RL's command line has it: one of a key that may be in no file has a mark."""
    (word,) = _key_added(reading, key, values)
    return (word if of(reading, key) is not None else f"++{word}",)


def _beside_override(reading: Reading, key: str) -> Iterator[Setting]:
    """Yield overrides of a key's section or of one above it, any others, and the program itself."""
    yield from _beside_key(reading, key)
    yield from [each for each in reading.settings if each.place.file == reading.file][-1:]
    if (program := reading.program) is not None:
        yield Setting("", program.text, (), program.place)


NEMO = Learned(
    of_nemo.Reader,
    _nemo_wanted,
    ("cluster.num_nodes", "cluster.gpus_per_node"),
    _override_added,
    _beside_override,
    {
        MEGATRON.planned: f"{_NEMO_MEGATRON}.enabled=true and {_NEMO_DTENSOR}.enabled=false",
    },
    sections=True,
)
