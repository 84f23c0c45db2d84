"""TRL, LLaMA-Factory, ms-swift, Transformers: which program is started, and what Transformers and TRL call its options.

Sources: TRL 1.16, trl/scripts and trl/trainer/*_config.py; LLaMA-Factory 0.9.5, hparams/ and v1/config/; ms-swift
4.6.0, swift/arguments, swift/config and swift/megatron/arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Final

from symconfig.existing.launch.reading import Reading, Setting, Word, World

TRL: Final = "trl"
LLAMAFACTORY: Final = "llamafactory"
SWIFT: Final = "ms-swift"
TRANSFORMERS: Final = "transformers"  # programs around its Trainer, and its examples of Accelerate
_SWIFT_COMMANDS = {"swift": False, "megatron": True}  # and whether they train with Megatron-Core
_COMMANDS = ("trl", "llamafactory-cli", *_SWIFT_COMMANDS)  # programs whose first word says what they do
_SCRIPT = re.compile(r"(?:train_)?(\w+?)\.py")
_OF_TRL = re.compile(r"(?:(?:examples|trl)/scripts/(?:\w+/)*|trl\.scripts\.|(?:.*/)?trl_)(\w+?)(?:\.py)?")
_OF_SWIFT = re.compile(r"(?:.*swift[/.]cli[/.])(_megatron[/.])?(pt|sft|rlhf)(?:\.py)?")
_OWN: Mapping[str, frozenset[str]] = {  # options of which nobody else has one
    LLAMAFACTORY: frozenset(("stage", "finetuning_type", "cutoff_len", "dist_config.name", "train_dataset")),
    SWIFT: frozenset(("tuner_type", "train.tuner_type", "train_type", "rlhf_type", "torch_dtype", "attn_impl")),
}
_OF_MEGATRON = frozenset(("tensor_model_parallel_size", "micro_batch_size"))  # options of ms-swift's with Megatron-Core
_OF_HUB = frozenset(("model_name_or_path", "dataset_name"))  # what TRL's scripts are given, and many others
# What is done, by the words for it in the names of TRL's scripts; any other is the word itself.
_METHODS = {
    "gspo": "grpo",
    "reward_modeling": "reward",
    "rm": "reward",
    "mpo": "dpo",
    "dpo_online": "online_dpo",
    "pretrain": "pt",
}
# Lengths of sequences in the training programs around Transformers: its own examples, LLaMA-Factory, Axolotl, our own.
SEQUENCE = (
    "seq_length",
    "seq_len",
    "max_seq_length",
    "max_seq_len",
    "model_max_length",
    "cutoff_len",
    "sequence_len",
    "block_size",
    "max_length",
)
_EXAMPLES = re.compile(r"run_\w+\.py")  # transformers/examples/pytorch
# What each calls an option of Transformers or TRL otherwise than these do.
NAMES: Mapping[str, Mapping[str, str]] = {
    TRL: {},
    LLAMAFACTORY: {
        "model": "model_name_or_path",
        "cutoff_len": "max_length",
        "micro_batch_size": "per_device_train_batch_size",
        "lora_rank": "lora_r",
        "lora_target": "lora_target_modules",
        "pref_beta": "beta",
        "pref_loss": "loss_type",
        "flash_attn": "attn_implementation",
        "enable_liger_kernel": "use_liger_kernel",
        "neat_packing": "packing",
        "peft_config.name": "finetuning_type",
        "peft_config.r": "lora_r",
        "peft_config.lora_alpha": "lora_alpha",
        "peft_config.lora_dropout": "lora_dropout",
        "peft_config.target_modules": "lora_target_modules",
        "kernel_config.include_kernels": "use_liger_kernel",
        "cp_size": "sequence_parallel_size",
    },
    SWIFT: {
        "model": "model_name_or_path",
        "tuner_type": "finetuning_type",
        "train_type": "finetuning_type",
        "sft_type": "finetuning_type",
        "lora_rank": "lora_r",
        "target_modules": "lora_target_modules",
        "torch_dtype": "dtype",
        "attn_impl": "attn_implementation",
        "quant_bits": "quantization_bit",
        "vllm_max_model_len": "vllm_max_model_length",
        "load": "checkpoint",  # in Megatron-Core's format, called after its model where --model does not say it
    },
    TRANSFORMERS: dict.fromkeys(SEQUENCE, "max_length"),
}
_GROUPS = {SWIFT: ("train.", "rollout.")}  # of workers by themselves, under Ray
# Configurations that come with a program and are called by a name: of DeepSpeed by --deepspeed, as stage and what is on
# the host; of Accelerate by --accelerate_config, as its file says them.
DEEPSPEED_PRESETS: Mapping[str, tuple[int, bool]] = {
    **{f"zero{stage}": (stage, False) for stage in range(4)},
    "zero2_offload": (2, True),
    "zero3_offload": (3, True),
}
_ON_EIGHT = "num_machines: 1\nnum_processes: 8\nmixed_precision: bf16\n"
ACCELERATE_PRESETS: Mapping[str, str] = {
    "single_gpu": "distributed_type: 'NO'\nnum_machines: 1\nnum_processes: 1\nmixed_precision: bf16\n",
    "multi_gpu": "distributed_type: MULTI_GPU\n" + _ON_EIGHT,
    **{
        f"zero{stage}": f"distributed_type: DEEPSPEED\ndeepspeed_config: {{zero_stage: {stage}}}\n" + _ON_EIGHT
        for stage in (1, 2, 3)
    },
    **{
        f"fsdp{version}": f"distributed_type: FSDP\nfsdp_config: {{fsdp_version: {version}}}\n" + _ON_EIGHT
        for version in (1, 2)
    },
}


@dataclass(frozen=True, slots=True)
class Program:
    """A program. trainer: whose it is. method: what it does, as TRL calls it: sft, dpo, grpo. megatron: with
    Megatron-Core."""

    trainer: str
    method: str
    megatron: bool = False


def with_command(reading: Reading) -> Reading:
    """Return the reading with what the program is told to do as a part of the program: `swift rlhf`."""
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
    """Return which of their programs is started; None for any other."""
    path = reading.program.text if reading.program is not None else ""
    names = {plain(each) for each in reading.settings}
    command, _, word = path.rpartition("/")[2].partition(" ")
    if (match := _OF_SWIFT.fullmatch(path)) or command in _SWIFT_COMMANDS:
        done, megatron = (match[2], match[1] is not None) if match else (word, _SWIFT_COMMANDS[command])
        return Program(SWIFT, _method(reading, "rlhf_type", done), megatron)
    if (match := _OF_TRL.fullmatch(path)) or command == "trl":
        return Program(TRL, _of_script(match[1] if match else word))
    if command == "llamafactory-cli" or _OWN[LLAMAFACTORY] & names:
        return Program(LLAMAFACTORY, _method(reading, "stage", "sft"), _of_megatron(reading, names))
    if _OWN[SWIFT] & names:
        return Program(SWIFT, _method(reading, "rlhf_type", "sft"), bool(_OF_MEGATRON & names))
    script = _SCRIPT.fullmatch(basename(path))
    return Program(TRL, _of_script(script[1])) if script and names >= _OF_HUB and _known(script[1]) else None


def of_trainer(reading: Reading) -> Program | None:
    """Return a program around Transformers' Trainer, or with its options, that trains without DeepSpeed; None for any
    other."""
    names = {plain(each) for each in reading.settings}
    return Program(TRANSFORMERS, "sft") if "per_device_train_batch_size" in names else None


def is_example(reading: Reading) -> bool:
    """Return whether the program has a name of Transformers' examples."""
    return reading.program is not None and _EXAMPLES.fullmatch(basename(reading.program.text)) is not None


def plain(setting: Setting) -> str:
    """Return an option's name as Python has it."""
    return setting.name.lstrip("-").replace("-", "_")


def called(trainer: str, name: str) -> str:
    """Return what Transformers or TRL call an option."""
    bare = name.lstrip("-").replace("-", "_")
    for group in _GROUPS.get(trainer, ()):
        bare = bare.removeprefix(group)
    return NAMES[trainer].get(bare, bare)


def started(reading: Reading) -> World:
    """Return the GPUs of a program that starts its own processes, by the environment that it reads."""
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


def _of_script(word: str) -> str:
    """Return what a script of TRL's does, by its name: `dpo` of dpo_vlm.py."""
    head = word.removeprefix("train_").partition("_")[0]
    return _METHODS.get(word, _METHODS.get(head, head if head in _DONE else word))


_DONE = ("sft", "dpo", "grpo", "rloo", "kto", "orpo", "cpo", "reward", "gkd", "ppo")


def _known(word: str) -> bool:
    return _of_script(word) in _DONE


def _method(reading: Reading, option: str, otherwise: str) -> str:
    stated = next((each for each in reversed(reading.settings) if plain(each) == option and each.values), None)
    word = otherwise if stated is None else stated.values[0].text
    return _METHODS.get(word, word)


def _of_megatron(reading: Reading, names: set[str]) -> bool:
    """Tell whether LLaMA-Factory trains with Megatron-Core, by either of its ways."""
    switch = reading.environment.get("USE_MCA")
    return "tensor_model_parallel_size" in names or (switch is not None and switch.text in ("1", "true"))
