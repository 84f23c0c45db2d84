"""Blocks in attention's place -> Megatron-LM options: gated delta nets in GPTModel, all else in HybridModel."""

from __future__ import annotations

from symconfig.descriptor.layers import Mixer
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Norm, Position
from symconfig.formats.layer_pattern import pattern
from symconfig.frameworks.megatron import hybrid
from symconfig.render.megatron_args import Arguments

VARIANT = "--experimental-attention-variant"


def mixer_args(out: Arguments, model: ModelDescriptor) -> None:
    """Add the sizes of a model's blocks, and the layers that have them where GPTModel is built."""
    if not model.mixers and model.mlp_layers is None:
        return
    if not _spelled(out, model):
        return
    if hybrid.hybrid(model):
        _hybrid(out, model)
    elif out.needs("mixers", VARIANT, "every layer of GPTModel has attention", hybrid.DELTA):
        known = out.table.flags[VARIANT].choices
        out.put(VARIANT, next(word for word in hybrid.DELTA_WORDS if word in known))
        out.put("--linear-attention-freq", pattern(tuple(kind.mixer == hybrid.DELTA for kind in model.kind_of_layer)))
    for mixer in model.mixers:
        for dest, name in hybrid.SIZES.get(mixer.block, {}).items():
            out.put("--" + dest.replace("_", "-"), mixer.sizes[name])
        if mixer.block == hybrid.DELTA:
            if model.hidden_act != "silu":
                out.refuse(
                    "hidden_act", "a gated delta net has the model's activation, which must be silu", model.hidden_act
                )
            if model.norm is not Norm.RMSNORM:
                out.refuse("norm", "a gated delta net's own norm is of the kind of all other norms", model.norm)
        elif mixer.block == hybrid.MAMBA2:
            _mamba(out, model, mixer)


def _spelled(out: Arguments, model: ModelDescriptor) -> bool:
    """Tell whether all blocks are Megatron-LM's; refuse those that are not."""
    if hybrid.known(model):
        return True
    for mixer in model.mixers:
        if mixer.beside_attention:
            out.refuse("mixers", "no layer has two blocks side by side", mixer.block)
        elif mixer.block not in hybrid.MIXERS:
            out.refuse("mixers", "it has no such block in attention's place", mixer.block)
    return False


def _hybrid(out: Arguments, model: ModelDescriptor) -> None:
    """Add what HybridModel is told of, and what of GPTModel it has not."""
    if not out.at_least(hybrid.SINCE):
        name, got = ("mixers", model.mixers[0].block) if model.mixers else ("mlp_layers", None)
        why = "every layer of GPTModel has attention and an MLP"
        out.refuse(name, why, got, since=hybrid.SINCE)
        return
    out.program = hybrid.SCRIPT
    out.put("--spec", *hybrid.SPEC)
    if model.latent is not None:
        out.refuse("attention", "latent attention has no norms of its low-rank queries and keys there", model.attention)
    scaling = model.rope_scaling
    if model.position is Position.ROPE and scaling is not None and scaling.rope_type == "llama3":
        out.refuse("rope_scaling.rope_type", "its rope has no Llama 3 scaling there", scaling.rope_type)


def _mamba(out: Arguments, model: ModelDescriptor, mixer: Mixer) -> None:
    """Refuse what no option changes of MambaMixer. Chunks are its kernel's own: they change no result."""
    if (kernel := mixer.sizes["conv_kernel"]) != hybrid.MAMBA_KERNEL:
        why = f"Mamba's convolution always reads {hybrid.MAMBA_KERNEL} tokens"
        out.refuse("mixers", why, f"conv_kernel {kernel}")
    if wrong := sorted(hybrid.MAMBA_SWITCHES ^ set(mixer.switches)):
        why = "Mamba always has a bias of its convolution and a gated norm, and no other bias"
        out.refuse("mixers", why, ", ".join(f"{'' if name in mixer.switches else 'no '}{name}" for name in wrong))
    if model.norm_eps != hybrid.MAMBA_NORM_EPS:
        out.refuse("norm_eps", f"Mamba's gated norm always has {hybrid.MAMBA_NORM_EPS:g}", model.norm_eps)
