"""Entries of a configuration -> Megatron-LM's options, and what has none.

A key of Megatron-LM's YAML, Megatron-Bridge or NeMo 2 is looked up by the longest tail of its path that is in `READ`:
"optim.name" before "name". A key that is nowhere there and is itself a destination of Megatron-LM's parser means that
one. Sources: Megatron-LM megatron/training/yaml_arguments.py and core_transformer_config_from_args in
megatron/training/arguments.py; Megatron-Bridge training/{config,mixed_precision,comm_overlap}.py; NeMo 2
lightning/pytorch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import shorten
from symconfig.existing.launch.dialects.override import Entry, Path, as_text
from symconfig.existing.launch.reading import Hides, Setting, Unread, Word
from symconfig.formats.renamed import BRIDGE
from symconfig.frameworks.megatron.flags import FlagTable, flags, option, versions

Meaning: TypeAlias = tuple[str, Any]  # a destination and its value
Neighbours: TypeAlias = Callable[[str], Any]  # the value of a key in the same section
Reader: TypeAlias = Callable[[Entry, Neighbours], Iterable[Meaning]]  # ValueError says why a meaning is not known
AS_WRITTEN = object()  # the value is what the words of the entry say

# Sections that say nothing of the computation.
_ASIDE = words(
    """
    logger profiling wandb callbacks inprocess_restart ft straggler nvrx_straggler tensor_inspect defaults hydra
    megatron_timer_kwargs env_vars source task_encoder
    """
)
# Keys and sections without an option of Megatron-LM that change what is trained, or where it lies in memory.
_WEIGHTY = ("peft", "lora", "fsdp", "transformer_layer_spec", "drop_layers")
# Said by another key beside it, by World, or always so in Megatron-LM.
_NOTHING = """trainer.devices trainer.num_nodes params_dtype pipeline_dtype autocast_dtype enable_autocast
    autocast_enabled pre_process post_process gated_linear_unit _target_ cpu_offloading"""
_FP8_RECIPES: dict[str, tuple[Meaning, ...]] = {
    "": (),
    "fp8_delayed_scaling": (("fp8", "hybrid"), ("fp8_recipe", "delayed"), ("fp8_amax_history_len", 1024),
                            ("fp8_amax_compute_algo", "max"), ("fp8_param_gather", True)),
    "mxfp8": (("fp8", "e4m3"), ("fp8_recipe", "mxfp8"), ("fp8_param_gather", True),
              ("reuse_grad_buf_for_mxfp8_param_ag", True)),
    "fp8_current_scaling": (("fp8", "hybrid"), ("fp8_recipe", "tensorwise"), ("first_last_layers_bf16", True),
                            ("num_layers_at_start_in_bf16", 1), ("num_layers_at_end_in_bf16", 1),
                            ("fp8_param_gather", True)),
    "fp8_subchannel_scaling": (("fp8", "hybrid"), ("fp8_recipe", "blockwise")),
    "nvfp4": (("fp4", "e2m1"), ("fp4_recipe", "nvfp4")),
}  # fmt: skip
_PRECISION = re.compile(r"(bf16|fp16|16)(?:_with_(\w+?))?(?:_(?:mixed|true))?")
_ACTIVATIONS = {"gelu": "", "openai_gelu": "openai_gelu", "swiglu": "swiglu", "squared_relu": "squared_relu"}
_LAYOUT = {"embedding": "E", "decoder": "t", "transformer": "t", "mtp": "m", "loss": "L"}


def _precision(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    """Yield ("bf16", True) or ("fp16", True), then a named FP8 or FP4 recipe's settings; nothing for fp32.

    Raises ValueError for another name.
    """
    name = str(entry.value).replace("-", "_").lower()
    if name in ("32", "32_true", "fp32", "none"):
        return
    match = _PRECISION.fullmatch(name)
    if match is None or (match[2] or "") not in _FP8_RECIPES:
        raise ValueError("is no precision that is known here")
    yield "bf16" if match[1] == "bf16" else "fp16", True
    yield from _FP8_RECIPES[match[2] or ""]


def _activation(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    """Yield (option, True) for the activation's name; nothing for GELU.

    Raises ValueError for gated GELU, ungated SiLU and activations without an option.
    """
    name, gated = str(entry.value).rpartition(".")[2].replace("-", "_"), neighbours("gated_linear_unit")
    if name in ("silu", "swish") and gated:
        name = "swiglu"
    if name not in _ACTIVATIONS or (name == "gelu" and gated):
        raise ValueError("is no activation that Megatron-LM has an option for")
    if dest := _ACTIVATIONS[name]:
        yield dest, True


def _layout(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
    """Yield (key, layout); lists of layer names per stage become text such as "Et|tt|tmL". Raises ValueError."""
    value = entry.value
    if isinstance(value, list):
        if not all(isinstance(stage, list) and all(layer in _LAYOUT for layer in stage) for stage in value):
            raise ValueError("is no layout that is known here")
        value = "|".join("".join(_LAYOUT[one] for one in stage) for stage in value)
    yield entry.path[-1], AS_WRITTEN if value is entry.value else value


def _chosen(choices: Mapping[str, Meaning]) -> Reader:
    """Return a reader that yields the meaning in `choices` for the entry's value, or raises ValueError."""

    def meanings(entry: Entry, neighbours: Neighbours) -> Iterator[Meaning]:
        text = as_text(entry.value).lower()
        if text not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        yield choices[text]

    return meanings


def _beyond(degree: str) -> Reader:
    """Return a reader for the number of weight shards, which yields nothing if it equals the section's `degree`."""
    return lambda entry, near: ((entry.path[-1], AS_WRITTEN),) if entry.value != near(degree) else ()


def _negated(dest: str) -> Reader:
    return lambda entry, near: ((dest, not entry.value),)


def _gated(near: Neighbours) -> bool:
    return bool(near("gated_linear_unit") or "swiglu" in str(near("activation_func")))


READ: dict[str, str | Reader] = {
    **BRIDGE.keys(),
    **dict.fromkeys(words(_NOTHING), ""),
    "sequence_parallelism": "sequence_parallel",
    "data.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
    "dataset.seq_length": "seq_length",
    "seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "ddp.bucket_size": "ddp_bucket_size",
    "ddp.average_in_collective": "ddp_average_in_collective",
    "lr_scheduler.warmup_steps": "lr_warmup_iters",
    "trainer.max_steps": "train_iters",
    "trainer.gradient_clip_val": "clip_grad",
    "trainer.val_check_interval": "eval_interval",
    "trainer.limit_val_batches": "eval_iters",
    "trainer.log_every_n_steps": "log_interval",
    "data.splits_string": "split",
    "tokenizer.model": "tokenizer_model",
    "share_embeddings_and_output_weights": _negated("untie_embeddings_and_output_weights"),
    "persist_layer_norm": _negated("no_persist_layer_norm"),
    "normalization": _chosen({"rmsnorm": ("normalization", "RMSNorm"), "layernorm": ("normalization", "LayerNorm")}),
    # Megatron-LM reduces in fp32 with bf16, unless it is told otherwise.
    "grad_reduce_in_fp32": _chosen(
        {"true": ("accumulate_allreduce_grads_in_fp32", True), "false": ("grad_reduce_in_bf16", True)}
    ),
    "precision": _precision,
    "mixed_precision": _precision,
    "plugins": _precision,
    "activation_func": _activation,
    "num_query_groups": lambda entry, near: (
        *((("group_query_attention", True),) if near("group_query_attention") is None else ()),
        ("num_query_groups", AS_WRITTEN),
    ),
    "bias_activation_fusion": lambda entry, near: (
        (("bias_swiglu_fusion" if _gated(near) else "bias_gelu_fusion", entry.value),)
        if near("bias_swiglu_fusion") is None
        else ()
    ),
    "cpu_offloading_num_layers": lambda entry, near: ((entry.path[-1], AS_WRITTEN),) if near("cpu_offloading") else (),
    "pipeline_model_parallel_layout": _layout,
    "tensor_parallel_num_weight_shards": _beyond("tensor_model_parallel_size"),
    "expert_tensor_parallel_num_weight_shards": _beyond("expert_tensor_parallel_size"),
}


def by_path(entries: Iterable[Entry]) -> dict[Path, Entry]:
    """Return the entries by path, the last of each; one at a section's path deletes those below it before.

    A `removed` one is left out with what it removes.
    """
    last: dict[Path, Entry] = {}
    sections: set[Path] = set()
    for entry in entries:
        if entry.path in sections:
            for path in [path for path in last if path[: len(entry.path)] == entry.path]:
                del last[path]
            sections.discard(entry.path)
        if entry.removed:
            last.pop(entry.path, None)
        else:
            last[entry.path] = entry
            sections.update(entry.path[:length] for length in range(1, len(entry.path)))
    return last


def translated(entries: Mapping[Path, Entry]) -> tuple[tuple[Setting, ...], tuple[Unread, ...]]:
    """Return (settings, notes): Megatron-LM's options for the entries, each once, and what has none.

    Null or empty entries and those of sections that say nothing of the computation (`_ASIDE`) are skipped. Values that
    are not understood, and keys of sections that change the training (`_WEIGHTY`), give notes that may hide options,
    other keys notes that hide nothing.
    """
    settings: dict[tuple[str, ...], Setting] = {}  # two sections often say the same, by a reference to each other
    unread: list[Unread] = []
    weighty: set[Path | None] = set()  # each section is said once
    for path, entry in entries.items():
        aside = any(part in _ASIDE for part in path[:-1])
        if aside or (entry.value in (None, "", []) and not entry.unknown):
            continue
        try:
            for dest, value in _meanings(entry, entries):
                for setting in _settings(dest, value, entry):
                    settings.setdefault((setting.name, *setting.texts), setting)
        except KeyError:
            section = next((path[: index + 1] for index, part in enumerate(path) if part in _WEIGHTY), None)
            if entry.value is not False and (section is None or section not in weighty):
                weighty.add(section)
                unread.append(_unread(entry, "has no option of Megatron-LM that says it", section is not None))
        except ValueError as error:
            unread.append(_unread(entry, str(error), True))
    return tuple(settings.values()), tuple(unread)


def _unread(entry: Entry, why: str, matters: bool) -> Unread:
    hides = Hides.OPTIONS if matters else Hides.NOTHING
    return Unread(entry.place, shorten(f"{entry.spelled}: {' '.join(word.text for word in entry.words)}"), why, hides)


def _meanings(entry: Entry, entries: Mapping[Path, Entry]) -> Iterable[Meaning]:
    """Return (destination, value) for each destination of argparse that an entry sets.

    READ's rule for "section.key" precedes that for "key"; without one the key itself is the destination. Raises
    ValueError, perhaps only when iterated, for a value that a rule does not understand.
    """

    def neighbour(key: str) -> Any:
        other = entries.get((*entry.path[:-1], key))
        return None if other is None else other.value

    own = entry.path[-1]
    read = READ.get(".".join(entry.path[-2:]), READ.get(own, own))
    if not isinstance(read, str) and entry.unknown:
        if table_with(own) is None:
            raise ValueError(f"its value {entry.unknown}")
        read = own
    if isinstance(read, str):
        return ((read, AS_WRITTEN),) if read else ()
    return read(entry, neighbour)


@cache
def table_with(dest: str) -> FlagTable | None:
    """Return the flag table (cached) of the newest numbered version with this destination, else "main", or None."""
    order = sorted(versions(), key=lambda v: (v != "main", versions().index(v)), reverse=True)
    tables = (flags(version) for version in order)
    return next((table for table in tables if any(flag.dest == dest for flag in table.flags.values())), None)


def _settings(dest: str, value: Any, entry: Entry) -> Iterator[Setting]:
    """Yield the option that sets the destination to `value` (AS_WRITTEN: the entry's), at the entry's place, if any.

    Switches have only unknown words as values. Raises KeyError if no version has the destination.
    """
    table = table_with(dest)
    if table is None:
        raise KeyError(dest)
    written = value is AS_WRITTEN
    value = entry.value if written else value
    name = option(table, dest, value)
    if name is None or (value is None and not entry.unknown):
        return
    flag = table.flags[name]
    # No parser of text reads these, so that 1e6 may stand for a whole number.
    whole = int(value) if flag.type == "int" and isinstance(value, float) and value.is_integer() else value
    given: tuple[Word, ...] = entry.words if written else ()
    if flag.kind != "store":
        given = tuple(word for word in given if word.unknown)
    elif not written or (isinstance(value, list) and not flag.nargs) or whole is not value:
        place = entry.place if written or not entry.words else entry.words[0].place
        given = (Word.of(as_text(whole), place),)
    yield Setting(flag.name, entry.spelled, given, entry.place)
