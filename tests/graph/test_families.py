"""Layers of every family that is read: what autograd keeps of Transformers' own class, to the byte."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.architectures.keys import SAME_NETWORK, families
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph import dims as d
from symconfig.graph.derived import Phase, recompute_policy
from symconfig.graph.model import derived
from symconfig.graph.scheme import Scheme
from tests.descriptor.small_configs import FURTHER, small_config
from tests.graph.saved import Kept, keeping, stand_in
from tests.graph.support import held_bytes, numbers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
S = 64
# A grouped product on a CPU wants rows of a multiple of 16 bytes.
_ALIGNED = {12: 16, 28: 32, 36: 48}
_LONG = ("sliding_window", "attention_window_size", "window_size", "attention_chunk_size")  # than a sequence
_NEVER = ("dropout", "pdrop")
NOT_BUILT = {
    "phi4_multimodal",  # phi3's layers, behind towers that have no small sizes
    "mimo_v2_flash",  # heads of a small model that a CPU's rows are wide enough for turn an odd number of channels
}
FAMILIES = [
    kind for kind, row in families().items() if kind in architectures() and "text" not in row and kind not in NOT_BUILT
]
# Bytes that a class keeps beyond what is derived, by layer where layers differ, and what they are.
EXPLAINED: dict[str, tuple[int | dict[str, int], str]] = {
    "apertus1p5_text": (4, "xIELU's two slopes, after their softplus"),
    "apertus": (4, "xIELU's two slopes, after their softplus"),
    "ernie4_5_moe": ({"moe": 4 * S}, "the sum of the chosen scores, before it is clamped"),
    "falcon": (16, "the places of the last two heads in the joined product"),
    "falcon_h1": (128 * S, "the mixer's input times a multiplier of muP"),
    "granitemoehybrid": (-20 * S, "its softmax is of the chosen logits only: the same, said otherwise"),
    # Of experts that run in turn: each choice's weighed result is kept, and no table says where a choice went.
    "kimi_linear": ({"dense_kimi_delta_attention": 4 * 128, "moe_kimi_delta_attention": 4 * 128},
                    "a copy in fp32 of the weight of the norm behind the scan"),
    "kolibri1": (24 * S, "the router's logits before their scale, and the chosen scores"),
    "lara_mini": (
        {"moe_window": 1024, "moe_nope": 1024, "moe_gated_delta_net": 1024 + 512 + 8192 * S},
        "a copy in fp32 of the router's weight; the gated norm behind the delta rule is in fp32 to its end"),
    "llama4_text": ({"moe_nope": 4 * S}, "the scale of queries by position, where nothing turns them"),
    "ministral3": (2 * S, "the scale of queries by position"),
    "phimoe": (12 * S, "its router draws each of its two choices from scores of their own (sparsemixer)"),
}  # fmt: skip
# What is computed in another way altogether: the share that a class keeps beyond what is derived, at most.
OTHERWISE = {"longcat_flash": (0.1, "experts that compute nothing are slots like all others")}
# Whose class's own kernels are not in `frameworks/transformers.py` yet, or whose loops stand for a GPU's kernels: the
# share that a class keeps beyond what is derived, at least and at most.
NOT_YET = {
    "deepseek_v4": (0.12, 0.15)  # its scores are products and a softmax, and its divisions keep more
}


def config(kind: str) -> dict[str, Any]:
    """Return a small `config.json` of a family, without dropout, whose windows hold all keys."""
    small = {key: _ALIGNED.get(value, value) if type(value) is int else value
             for key, value in small_config(kind).items()}  # fmt: skip
    given = families()[kind]["defaults"]
    small |= {key: 4096 for key in small if key in _LONG}
    small |= {key: 0.0 for key in given if any(part in key for part in _NEVER)}
    if "qk_nope_head_dim" in small:  # else a CPU has no fused attention
        small["v_head_dim"] = small["qk_nope_head_dim"] + small["qk_rope_head_dim"]
        small["num_key_value_heads"] = small["num_attention_heads"]
    return small


def kept(given: dict[str, Any], model: ModelDescriptor, patch: pytest.MonkeyPatch) -> Kept:
    """Return what is kept of a forward of the decoder, by the layer's number in the order in which layers run. A module
    may be two of the model's (LongCat)."""
    layers, turns = model.num_hidden_layers, count(1)
    config = transformers.AutoConfig.for_model(**given, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    cls = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config._attn_implementation = "sdpa" if cls._supports_sdpa else "eager"
    built = cls._from_config(config, dtype=torch.bfloat16).train()
    stand_in(cls.__module__.split(".")[-2], patch)
    decoder = built.get_decoder()
    lists = (one for one in decoder.modules() if isinstance(one, torch.nn.ModuleList) and 2 * len(one) >= layers)
    with keeping(built) as found:
        for one in decoder.children():  # what makes tables of angles, once for all layers
            if "Rotary" in type(one).__name__:
                one.register_forward_hook(lambda _, __, made: found.leave_out(*made))
        modules = next(lists)
        for layer in modules:
            layer.register_forward_pre_hook(
                lambda *_: setattr(found, "where", str(next(turns) * layers // len(modules) - 1))
            )
            layer.register_forward_hook(lambda *_: setattr(found, "where", ""))
        stream = decoder(torch.zeros((1, S), dtype=torch.long), use_cache=False)
    found.forget_freed()
    del stream
    return found


def compared(kind: str, patch: pytest.MonkeyPatch, **changed: Any) -> dict[str, tuple[float, int]]:
    """Return for each kind of layer the bytes that are derived, and those that the last one of this kind keeps."""
    given = config(kind) | changed
    model = import_config(given, "config.json", "small")
    blocks, sizes = derived(model, DEEPSPEED.implementation, Scheme(False)), numbers(model, seq_length=S)
    each = {name: held_bytes(block, recompute_policy(block, frozenset()), sizes) for name, block in blocks.items()}
    found = kept(given, model, patch)
    result, ours = {}, 0.0
    for place, name in enumerate(model.layer_kinds):
        ours += each[name]
        if real := found.bytes(str(place)):
            result[name] = ours, real
            ours = 0.0
    return result


@pytest.mark.parametrize("kind", ["llama4_text"])
def test_layers_with_attention_or_experts_of_their_own_take_what_torch_counts(kind: str) -> None:
    """Forward and backward, with plain attention, whose products torch counts all."""
    from torch.utils.flop_counter import FlopCounterMode

    given = config(kind)
    made = transformers.AutoConfig.for_model(**given, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made._attn_implementation = made._experts_implementation = "eager"  # torch counts no grouped product
    decoder = transformers.AutoModelForCausalLM.from_config(made).model
    with FlopCounterMode(display=False) as counter:
        stream = decoder(torch.zeros((1, S), dtype=torch.long), use_cache=False)
        forward = counter.get_total_flops()
        stream.last_hidden_state.sum().backward()
    model = import_config(given, "config.json", "small")
    blocks = derived(model, DEEPSPEED.implementation, Scheme(False))
    values = numbers(model, seq_length=S) | {d.KEYS_FULL: S, d.KEYS_WINDOW: S}
    for phases, counted in (((Phase.FORWARD,), forward), (tuple(Phase), counter.get_total_flops())):
        flops = block_flops(blocks, values, phases)
        assert sum(flops[layer] for layer in model.layer_kinds) == counted, phases


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in OTHERWISE and kind not in NOT_YET])
def test_a_layer_saves_what_is_derived(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = EXPLAINED.get(kind, (0, ""))[0]
    for name, (ours, real) in compared(kind, monkeypatch).items():
        assert ours + (beyond if isinstance(beyond, int) else beyond.get(name, 0)) == real, name


@pytest.mark.parametrize("kind", FURTHER)
def test_a_layer_that_is_not_its_class_s_default_saves_what_is_derived(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (ours, real) in compared(kind, monkeypatch, **FURTHER[kind]).items():
        assert ours == real, name


@pytest.mark.parametrize("kind", ["bailing_moe", "kimi_k2", "mimo", "minicpm"])
def test_a_family_without_a_class_keeps_what_the_class_of_its_network_does(kind: str) -> None:
    model = import_config(config(SAME_NETWORK[kind]), "config.json", "small")
    each = []
    for one in (model, model.model_copy(update={"model_type": kind})):
        blocks, sizes = derived(one, DEEPSPEED.implementation, Scheme(False)), numbers(one, seq_length=S)
        each.append(
            {name: held_bytes(block, recompute_policy(block, frozenset()), sizes) for name, block in blocks.items()}
        )
    assert each[0] == each[1]


@pytest.mark.parametrize("kind", OTHERWISE)
def test_a_layer_that_is_computed_otherwise_saves_no_less_than_is_derived(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, (ours, real) in compared(kind, monkeypatch).items():
        assert ours <= real <= (1 + OTHERWISE[kind][0]) * ours, name


@pytest.mark.parametrize("kind", NOT_YET)
def test_a_layer_whose_kernels_are_not_told_yet_is_as_far_off_as_is_known(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    least, most = NOT_YET[kind]
    for name, (ours, real) in compared(kind, monkeypatch).items():
        assert (1 + least) * ours <= real <= (1 + most) * ours, name
