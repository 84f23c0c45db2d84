"""Blocks in attention's place as files spell them: sizes and switches by the descriptor's names, with their keys.

One table is read in both directions: a file's values give a mixer of the descriptor, and the mixer gives the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from symconfig.descriptor.layers import NO_MIXER, Mixer
from symconfig.descriptor.model import ModelDescriptor

Values = Mapping[str, Any]  # config.json's values by key, with the class's defaults


@dataclass(frozen=True, slots=True)
class Size:
    """A size that is computed from keys, not copied from one.

    keys: the keys that it reads. of: returns the size, from a file's values. write: returns the keys, from the model
    and the size; None: the size is written to the first key.
    """

    keys: tuple[str, ...]
    of: Callable[[Values], Any]
    write: Callable[[ModelDescriptor, int], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A block in place of attention, or beside it, with the keys of its sizes and switches.

    sizes: a key or `Size` for each name. switches: a key for each name; "" means that the switch is always on.
    """

    name: str
    sizes: Mapping[str, str | Size] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    beside_attention: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Return all config.json keys that its sizes and switches are read from; a key may occur twice."""
        sizes = (size.keys if isinstance(size, Size) else (size,) for size in self.sizes.values())
        return (*(key for keys in sizes for key in keys), *filter(None, self.switches.values()))

    def mixer(self, values: Values) -> dict[str, Any]:
        """Return the descriptor's mixer as a dict: block, sizes, active switches, beside_attention.

        `sizes` and `switches` are left out where the block has none, beside_attention where it is false. A switch
        without a key is always on.
        """
        made: dict[str, Any] = {"block": self.name}
        if self.sizes:
            made["sizes"] = {
                name: size.of(values) if isinstance(size, Size) else values[size] for name, size in self.sizes.items()
            }
        if self.switches:
            made["switches"] = [name for name, key in self.switches.items() if not key or values.get(key)]
        return made | ({"beside_attention": True} if self.beside_attention else {})

    def write(self, model: ModelDescriptor) -> dict[str, Any]:
        """Return the config.json keys of the model's first mixer of this kind; empty if it has none."""
        mixer = next((mixer for mixer in model.mixers if mixer.block == self.name), None)
        return {} if mixer is None else dict(self._pairs(model, mixer))

    def _pairs(self, model: ModelDescriptor, mixer: Mixer) -> Iterator[tuple[str, Any]]:
        """Yield (key, value) of each size of the mixer and of each switch that has a key."""
        for name, size in self.sizes.items():
            if not isinstance(size, Size):
                yield size, mixer.sizes[name]
            elif size.write is None:
                yield size.keys[0], mixer.sizes[name]
            else:
                yield from size.write(model, mixer.sizes[name]).items()
        yield from ((key, name in mixer.switches) for name, key in self.switches.items() if key)


def named(sizes: str, keys: str = "") -> dict[str, str | Size]:
    """Return a dict from the names of sizes to their keys, both as words in one order; keys default to the names.

    Raises ValueError for different numbers of words.
    """
    return dict(zip(sizes.split(), (keys or sizes).split(), strict=True))


def either(key: str, other: str, write: str | None = None) -> Size:
    """Return a Size whose value is that of `key`, or of `other` where it is null or 0.

    It is written to the key `write`, by default `key`.
    """
    return Size(
        (key, *([write] if write else [])),
        lambda values: values[key] or values[other],
        lambda model, size: {write or key: size},
    )


def times_hidden(key: str) -> Size:
    """Return a Size whose key is a factor of hidden_size; written back as the quotient, rounded down."""
    return Size(
        (key,),
        lambda values: int(values[key] * values["hidden_size"]),
        lambda model, width: {key: width // model.hidden_size},
    )


def rank(key: str) -> Size:
    """Return a Size of the time step projection's rank; "auto" is hidden_size / 16, rounded up."""
    return Size((key,), lambda values: ceil(values["hidden_size"] / 16) if values[key] == "auto" else int(values[key]))


# Mamba-2's sizes, in the order in which the tables below name their keys.
_SCAN_SWITCHES = ("conv_bias", "proj_bias", "out_proj_bias", "gated_norm")
_SCAN = "mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel chunk_size"


def _selective(keys: str, biases: tuple[str, str]) -> Block:
    """Return Mamba's block.

    Args:
        keys: Four words, the keys of: expansion factor, state size, time step rank, convolution width.
        biases: The keys of the biases of the convolution and of the projections.
    """
    expand, state, steps, conv = keys.split()
    sizes: dict[str, str | Size] = {"ssm_intermediate_size": times_hidden(expand), "ssm_state_size": state}
    sizes |= {"time_step_rank": rank(steps), "conv_kernel": conv}
    return Block("mamba", sizes, dict(zip(("conv_bias", "proj_bias"), biases, strict=True)))


def _scan(sizes: Mapping[str, str | Size], biases: tuple[str, str, str], norm: str = "") -> Block:
    """Return Mamba-2's block with keys for its three biases; `norm` is the key of its gated norm, empty: always on."""
    return Block("mamba2", sizes, dict(zip(_SCAN_SWITCHES, (*biases, norm), strict=True)))


mamba = _selective("expand state_size time_step_rank conv_kernel", ("use_conv_bias", "use_bias"))
_OWN = ("mamba_conv_bias", "mamba_proj_bias")
# Zamba's heads cut the weights of its state space, and change no count.
zamba = _selective("mamba_expand mamba_d_state mamba_dt_rank mamba_d_conv", _OWN)
jamba = replace(zamba, switches={**zamba.switches, "dt_b_c_norms": ""})
_USE = ("use_conv_bias", "use_bias", "use_bias")
mamba2 = _scan(named(_SCAN, "num_heads head_dim n_groups state_size conv_kernel chunk_size"), _USE)
nemotron_h = _scan(named(_SCAN), _USE)


def _bamba_width(values: Values) -> int:
    inner = values.get("mamba_d_ssm") or int(values["mamba_expand"] * values["hidden_size"])
    heads, width = values["mamba_n_heads"], values["mamba_d_head"]
    return int(inner // heads if width == "auto" else width)


# Of Bamba, Granite 4 and, with keys of its own, Falcon-H1.
_BAMBA = named(_SCAN, "mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state mamba_d_conv mamba_chunk_size") | {
    "mamba_head_dim": Size(("mamba_d_head", "mamba_expand"), _bamba_width)
}
bamba = _scan(_BAMBA, (*_OWN, "mamba_proj_bias"))
falcon_h1 = replace(_scan(_BAMBA, (*_OWN, "projectors_bias"), "mamba_rms_norm"), beside_attention=True)


zamba2 = _scan(
    named(_SCAN, "n_mamba_heads mamba_expand mamba_ngroups mamba_d_state mamba_d_conv chunk_size")
    | {
        "mamba_head_dim": Size(
            ("mamba_expand", "n_mamba_heads"),
            lambda values: int(values["mamba_expand"] * values["hidden_size"]) // values["n_mamba_heads"],
            lambda model, width: {
                "mamba_expand": ceil(model.mixer("mamba2").sizes["mamba_num_heads"] * width / model.hidden_size)
            },
        )
    },
    ("", "add_bias_linear", "add_bias_linear"),
)

_DELTA = "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim"
delta = Block("gated_delta_net", named(_DELTA))


def _olmo_width(values: Values) -> int:
    keys = values["linear_num_key_heads"] or values["num_attention_heads"]
    return int(values["linear_key_head_dim"] or int(0.75 * values["hidden_size"] / keys))


# Sizes that OLMo Hybrid's file does not say follow from attention's (OlmoHybridConfig).
olmo_hybrid = Block(
    delta.name,
    named(_DELTA)
    | {
        "linear_num_key_heads": either("linear_num_key_heads", "num_attention_heads"),
        "linear_num_value_heads": either("linear_num_value_heads", "num_attention_heads"),
        "linear_key_head_dim": Size(("linear_key_head_dim",), _olmo_width),
        "linear_value_head_dim": Size(
            ("linear_value_head_dim",), lambda values: values["linear_value_head_dim"] or 2 * _olmo_width(values)
        ),
    },
)


_KDA = "linear_num_heads linear_head_dim linear_conv_kernel_dim"
kimi = Block("kimi_delta_attention", named(_KDA))
# Of Ling 3: as many heads as attention has, each as wide as head_dim says. Saved files name all three sizes.
bailing = Block(
    kimi.name,
    {
        "linear_num_heads": either("linear_num_heads", "num_attention_heads"),
        "linear_head_dim": either("linear_head_dim", "head_dim", write="head_dim"),
        "linear_conv_kernel_dim": either(
            "linear_conv_kernel_dim", "short_conv_kernel_size", write="short_conv_kernel_size"
        ),
    },
    {"whole_decay_proj": "", "whole_gate_proj": ""},
)
short_conv = Block("short_conv", named("conv_L_cache"), {"conv_bias": "conv_bias"})
alone = Block(NO_MIXER)
rg_lru = Block("rg_lru", {"lru_width": either("lru_width", "hidden_size"), "conv1d_width": "conv1d_width"})
lightning = Block("lightning_attention", named("block_size"))


def _or_none(key: str) -> Size:
    return Size((key,), lambda values: values[key] or 0)


# Attention over what an indexer chooses by pooled keys; a file that does not say its sizes gets none.
POOLED_ATTENTION = "pooled_sparse_attention"
pooled = Block(
    POOLED_ATTENTION,
    {name: _or_none(name) for name in ("indexer_n_heads", "indexer_head_dim", "indexer_budget")}
    | {"compress_rate": _or_none("indexer_compress_ratio")},
)
