"""TRL, LLaMA-Factory, ms-swift, Transformers: which program is started, with what, and on how many GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Any

from symconfig.existing.launch.reading import Reading, Word, World
from symconfig.formats.tuners import TRANSFORMERS, TRL, TUNERS, Tuner

_COMMANDS = {command: tuner for tuner in TUNERS for command in tuner.commands}
_SCRIPT = re.compile(r"(?:train_)?(\w+?)\.py")
EXAMPLES = re.compile(r"(?:.*/)?run_\w+\.py")  # transformers/examples/pytorch
_OF_HUB = frozenset(("model_name_or_path", "dataset_name"))  # what TRL's scripts are given, and many others
_DONE = ("sft", "dpo", "grpo", "rloo", "kto", "orpo", "cpo", "reward", "gkd", "ppo")
# What is done, by the words for it; any other is the word itself, or what it begins with.
_METHODS = {
    "gspo": "grpo",
    "reward_modeling": "reward",
    "rm": "reward",
    "mpo": "dpo",
    "dpo_online": "online_dpo",
    "pretrain": "pt",
}
# Configurations that come with a program and are called by a name: of DeepSpeed by --deepspeed, as their JSON; of
# Accelerate by --accelerate_config, as its file says them.
_OF_STAGE = [{"zero_optimization": {"stage": stage}} for stage in range(4)]
_HOST = {"device": "cpu", "pin_memory": True}
_ZERO_2_OFFLOAD = {"zero_optimization": {"stage": 2, "offload_optimizer": _HOST}}
_ZERO_3_OFFLOAD = {"zero_optimization": {"stage": 3, "offload_optimizer": _HOST, "offload_param": _HOST}}
DEEPSPEED_PRESETS: Mapping[str, Mapping[str, Any]] = {
    **{f"zero{stage}": config for stage, config in enumerate(_OF_STAGE)},
    "zero2_offload": _ZERO_2_OFFLOAD,
    "zero3_offload": _ZERO_3_OFFLOAD,
    **{f"deepspeed_configs/zero{stage}.json": _OF_STAGE[stage] for stage in (1, 2, 3)},  # Axolotl's
    "deepspeed_configs/zero3_bf16.json": _OF_STAGE[3],
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": _ZERO_3_OFFLOAD,
}
_KINDS = {
    "single_gpu": "'NO'",
    "multi_gpu": "MULTI_GPU",
    **{f"zero{stage}": f"DEEPSPEED\ndeepspeed_config: {{zero_stage: {stage}}}" for stage in (1, 2, 3)},
    **{f"fsdp{version}": f"FSDP\nfsdp_config: {{fsdp_version: {version}}}" for version in (1, 2)},
}
ACCELERATE_PRESETS = {
    name: f"distributed_type: {kind}\nnum_machines: 1\nnum_processes: {1 if name == 'single_gpu' else 8}\n"
    "mixed_precision: bf16\n"
    for name, kind in _KINDS.items()
}


@dataclass(frozen=True, slots=True)
class Program:
    """The program that is started.

    method: what it does, by TRL's name ("sft", "dpo"). megatron: whether with Megatron-Core.
    """

    tuner: Tuner
    method: str
    megatron: bool = False


def with_command(reading: Reading) -> Reading:
    """Return the reading with the subcommand, the first word without an option, joined to the program: `swift rlhf`.

    Unchanged for a program without subcommands, or if the word is absent or unknown.
    """
    program = reading.program
    loose = next((each for each in reading.settings if not each.name), None)
    if program is None or loose is None or basename(program.text) not in _COMMANDS or loose.values[0].unknown:
        return reading
    first, *rest = loose.values
    whole = Word((*program.pieces, *Word.of(" ", first.place).pieces, *first.pieces), program.place)
    kept = tuple(each for each in reading.settings if each is not loose)
    settings = (replace(loose, values=tuple(rest)), *kept) if rest else kept
    return replace(reading, program=whole, settings=settings)


def program(reading: Reading) -> Program | None:
    """Return which tuner's program is started; None if it is none.

    By its script's path or command; by an option that only one tuner has; as TRL by a script named after a method with
    a model and a dataset. `megatron`: by script, command, options for Megatron-Core, or USE_MCA.
    """
    path = reading.path
    names, switch = {each.key for each in reading.settings}, reading.environment.get("USE_MCA")
    command, _, word = path.rpartition("/")[2].partition(" ")
    cored = switch is not None and switch.text in ("1", "true")  # of LLaMA-Factory
    for tuner in TUNERS:
        match = tuner.scripts.fullmatch(path) if tuner.scripts else None
        if match is not None or command in tuner.commands:
            done, core = (match["done"], match.groupdict().get("core")) if match else (word, tuner.commands[command])
            cored |= bool(tuner.usual and tuner.core & names)  # else its command's word says it
            return Program(tuner, _method(reading, tuner, done), bool(core) or cored)
    for tuner in TUNERS:
        if tuner.own & names:
            return Program(tuner, _method(reading, tuner, "sft"), cored or bool(tuner.core & names))
    script = _SCRIPT.fullmatch(basename(path))
    known = script is not None and names >= _OF_HUB and _done(script[1]) in _DONE
    return Program(TRL, _done(script[1])) if script and known else None


def of_trainer(reading: Reading) -> Program | None:
    """Return Program(TRANSFORMERS, "sft") if per_device_train_batch_size is an option; else None."""
    names = {each.key for each in reading.settings}
    return Program(TRANSFORMERS, "sft") if "per_device_train_batch_size" in names else None


def started(reading: Reading) -> World:
    """Return the GPUs of a program that starts its processes itself: NPROC_PER_NODE, or visible GPUs, x NNODES (1).

    No number of GPUs without the first two; only `dark`, the unknown words, is set if a variable used is unknown.
    """
    environment = reading.environment
    each, nodes, seen = (environment.get(name) for name in ("NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES"))
    words = tuple(word for word in (each or seen, nodes) if word is not None)
    if dark := tuple(word for word in words if word.unknown):
        return World(dark=dark)
    here = None
    if each is not None and each.text.isdecimal():
        here = int(each.text)
    elif seen is not None and each is None:
        here = len([item for item in seen.text.split(",") if item.strip()]) or None
    many = int(nodes.text) if nodes is not None and nodes.text.isdecimal() else 1
    return World(None if here is None else here * many, many, here, words)


def _method(reading: Reading, tuner: Tuner, word: str) -> str:
    """Return the method: the tuner's option (its last value), else the tuner's default, else `word` of the command."""
    options = (each for each in reversed(reading.settings) if each.key == tuner.method and each.values)
    stated = next(options, None)
    return _done(stated.values[0].text if stated is not None else tuner.usual or word)


def _done(word: str) -> str:
    """Return the method for a word: "dpo" for dpo_vlm; the word itself if it is not known."""
    head = word.removeprefix("train_").partition("_")[0]
    return _METHODS.get(word, _METHODS.get(head, head if head in _DONE else word))
