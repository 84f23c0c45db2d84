"""Which block each layer of a model has in attention's place, and which have experts: the way back from
`render.megatron_model`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from symconfig.descriptor.meaning import leading_and_every
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import NO_MIXER
from symconfig.descriptor.strict import MAX_LAYERS
from symconfig.existing.recover.fields import Fields
from symconfig.existing.recover.namespace import Namespace
from symconfig.formats import links
from symconfig.formats.layer_pattern import Pattern, all_but, layer_pattern
from symconfig.formats.megatron import EXPERTS
from symconfig.frameworks.megatron import hybrid, sparse

PATTERN = ("hybrid_layer_pattern", "hybrid_override_pattern")
VARIANT, FREQUENCY = "experimental_attention_variant", "linear_attention_freq"
_BLOCKS = {letter: block for block, letter in hybrid.MIXERS.items() if block in hybrid.SIZES}
_MLPS = "".join(hybrid.MLPS.values())
_EXPANDED = 2  # of the hidden size, what Mamba's heads are together where nobody says how many (MambaMixer, expand)


def letters(text: str, base: ModelDescriptor | None = None) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Return (stages, number of MTP parts) of --hybrid-layer-pattern; a stage is its layers, a layer its letters.

    "|" separates stages, "/" the MTP parts. Layers are those of `base` if its letters are equal; else each mixer with
    the MLP after it, if all are such pairs, else each letter. Raises ValueError for unknown letters or no layers.
    """
    main, *predicted = text.split(hybrid.PREDICTION)
    known = "".join([*filter(None, hybrid.MIXERS.values()), _MLPS, hybrid.STAGE])
    if strange := sorted(set(main + "".join(predicted)) - set(known)):
        raise ValueError(f"letters of {' '.join(known)}, not {' '.join(strange)}")
    if not main.replace(hybrid.STAGE, ""):
        raise ValueError("at least one layer")
    stages = main.split(hybrid.STAGE)
    predictions = len([part for part in predicted if part])
    if base is not None and (alike := _as_base(stages, base)) is not None:
        return alike, predictions
    paired = all(
        len(stage) % 2 == 0 and all((letter in _MLPS) == bool(at % 2) for at, letter in enumerate(stage))
        for stage in stages
    )
    step = 2 if paired else 1
    cut = tuple(tuple(stage[at : at + step] for at in range(0, len(stage), step)) for stage in stages)
    return cut, predictions


def _as_base(stages: list[str], base: ModelDescriptor) -> tuple[tuple[str, ...], ...] | None:
    """Return the stages split into the layers of `base`; None if its letters differ or a stage ends inside a layer."""
    rest = list(hybrid.letters(base)) if hybrid.known(base) else []
    mixers = []
    for stage in stages:
        mine: list[str] = []
        while rest and len("".join(mine)) < len(stage):
            mine.append(rest.pop(0))
        if "".join(mine) != stage:
            return None
        mixers.append(tuple(mine))
    return None if rest else tuple(mixers)


def spelled(names: Namespace) -> str:
    """Return the hybrid pattern that the options give; an empty string if there is none."""
    return next(filter(None, map(names.word, PATTERN)), "")


def mixer_fields(out: Fields) -> None:
    """Record in `out` a hybrid pattern's layers, else an attention variant's; --is-hybrid-model without either is
    refused. To be called before all layer fields.
    """
    args = out.args
    if text := spelled(args):
        _of_pattern(out, text)
    elif args.given(VARIANT) and args.word(VARIANT):
        _variant(out, args.word(VARIANT))
    elif args.switch("is_hybrid_model"):
        out.refuse("the layers are not said", "is_hybrid_model", hint="--hybrid-override-pattern")


def _of_pattern(out: Fields, text: str) -> None:
    """Record in `out` a hybrid pattern's layers, MTP layers, mixers, and which layers have an MLP or experts.

    Also sets `out.parts`, the number of letters of each layer. A malformed pattern, or one with MLA, is refused.
    """
    try:
        stages, predictions = letters(text, out.base)
    except ValueError as error:
        out.refuse("the layers are not said", *PATTERN, got=text, need=str(error))
        return
    layers = tuple(layer for stage in stages for layer in stage)
    if any(hybrid.MIXERS["mla"] in layer for layer in layers):
        out.refuse("latent attention without norms of its low-rank queries and keys is not described", *PATTERN)
    out.parts = tuple(map(len, layers))
    out.put("num_hidden_layers", len(layers), *PATTERN)
    out.put("num_nextn_predict_layers", predictions, *PATTERN)
    has = tuple(layer[-1] in _MLPS for layer in layers)
    out.put("mlp_layers", None if all(has) else has, *PATTERN)
    experts = tuple("E" in layer for layer in layers)
    if any(experts):
        out.put("experts.layers", None if all(experts) else experts, *PATTERN)
    mixers = [_mixer(out, block, tuple(layer[0] == letter for layer in layers)) for letter, block in _BLOCKS.items()]
    alone = tuple(layer[0] in _MLPS for layer in layers)
    mixers.append({"block": NO_MIXER, "layers": alone})
    out.put("mixers", [mixer for mixer in mixers if any(mixer["layers"])], *PATTERN)


def _variant(out: Fields, kind: str) -> None:
    """Record in `out` sparse attention (see `_indexer`), or gated delta nets as mixers of some layers.

    kind: the variant's name; others, and a frequency that is missing or malformed, are refused in `out`. Sets nothing
    if no layer is a gated delta net.
    """
    if kind == sparse.NAME:
        _indexer(out)
        return
    if kind not in hybrid.DELTA_WORDS:
        out.refuse("this kind of attention is not described", VARIANT, got=kind)
        return
    frequency = out.args.value(FREQUENCY)
    try:
        if frequency is None:
            raise ValueError("--linear-attention-freq")
        # experimental_attention_variant_module_specs.py, get_linear_attention_pattern
        turns = all_but(layer_pattern(frequency), out.layers)
    except ValueError as error:
        out.refuse("layers with a gated delta net are not said", FREQUENCY, VARIANT, got=frequency, need=str(error))
        return
    if any(turns):
        out.put("mixers", [_mixer(out, hybrid.DELTA, turns)], VARIANT, FREQUENCY)


def _indexer(out: Fields) -> None:
    """Record in `out` the fields of sparse attention's indexer; without MLA or any of its sizes only refuse it.

    Records as assumptions fused kernels if none are chosen, and the loss over the chosen keys if the options have it
    over all. Its norms and rope's pairing are ignored: they cost the same.
    """
    args = out.args
    missing = [args.spelled(dest) for dest in sparse.SIZES if not args.integer(dest)]
    if not out.latent or missing:
        needs = ", ".join(["--multi-latent-attention", *missing] if not out.latent else missing)
        out.refuse("sparse attention is not described without its sizes and latent attention", VARIANT, need=needs)
        return
    for dest, name in sparse.SIZES.items():
        out.put(f"indexer.{name}", args.integer(dest), dest)
    out.put("indexer.loss_coef", args.number(0.0, sparse.LOSS), sparse.LOSS)
    frequency, offset = args.integer(sparse.FREQUENCY) or 1, args.integer(sparse.OFFSET) or 0
    own = sparse.choosing_layers(frequency, offset, out.layers)
    out.put("indexer.layers", None if all(own) else own, sparse.FREQUENCY, sparse.OFFSET)
    if not args.switch(sparse.OF_CHOSEN) and args.number(0.0, sparse.LOSS) > 0:
        why = "over all keys it takes longer, and keeps more"
        out.assume("the indexer's loss", "over the chosen keys", why, sparse.LOSS)
    if args.word(sparse.KERNELS) in ("", "none"):
        why = "without them every score is in memory, and a step takes far longer"
        out.assume("kernels of sparse attention", "there", why, VARIANT)


def _mixer(out: Fields, block: str, layers: tuple[bool, ...]) -> dict[str, Any]:
    """Return a mixer's fields: "block" (its name), "sizes" by name, "layers" (for each whether it has it), "switches".

    Sizes not given are 0, Mamba's heads as many as make twice the hidden size. Only Mamba-2 has switches.
    """
    args, sizes = out.args, {}
    for dest, name in hybrid.SIZES[block].items():
        width = args.integer("mamba_head_dim") or 1
        usual = _EXPANDED * (args.integer("hidden_size") or width) // width if dest == "mamba_num_heads" else 0
        size = args.integer(dest)
        sizes[name] = usual if size is None else size
    fields: dict[str, Any] = {"block": block, "sizes": sizes, "layers": layers}
    if block == hybrid.MAMBA2:
        sizes |= {"conv_kernel": hybrid.MAMBA_KERNEL, "chunk_size": hybrid.MAMBA_CHUNK}
        fields["switches"] = tuple(sorted(hybrid.MAMBA_SWITCHES))
    return fields


NUMBER = ("num_experts", "num_moe_experts")


def has_experts(out: Fields) -> bool:
    """Return whether the model has experts: by the options' number (0: none) if it counts, else the named model."""
    if out.holds(*NUMBER):
        return bool(out.args.integer(*NUMBER))
    return out.base is not None and out.base.experts is not None


def expert_fields(out: Fields) -> None:
    """Record in `out` the fields of experts: sizes, biases (before core_v0.15 none), layers, router and auxiliary loss.

    Nothing without experts. To be called after the dense fields: if all layers have experts, a dense intermediate_size
    that equals the experts' is set to 0. With a capacity factor, it is an assumption that no token is dropped.
    """
    args = out.args
    if not has_experts(out):
        return
    links.read(EXPERTS, out)
    biased = args.switch("add_bias_linear")
    out.put("experts.latent_bias", bool(args.integer("moe_latent_size")) and biased, "add_bias_linear")
    # Biases of experts and router came with core_v0.15.
    for field in ("experts.expert_bias", "experts.router_bias"):
        out.put(field, biased and args.table.at_least("core_v0.15.0"), "add_bias_linear")
    _layers(out)
    # The first of several losses; other ways of balancing have none.
    losses = args.words("moe_router_load_balancing_type") or ("aux_loss",)
    weight = 0.0
    with suppress(ValueError):
        weight = float((args.words("moe_aux_loss_coeff") or ("0.0",))[0])
    dests = ("moe_aux_loss_coeff", "moe_router_load_balancing_type")
    out.put("experts.router_aux_loss_coef", weight if "aux_loss" in losses[0] else 0.0, *dests)
    if args.value("moe_expert_capacity_factor") is not None:
        why = "an expert's capacity is not modelled: nothing counts as dropped or padded"
        out.assume("tokens of an expert", "all that are sent to it", why, "moe_expert_capacity_factor")
    # Where every layer has experts, `render` repeats their size as that of a dense layer.
    first, every = out.values.get("experts.first_k_dense_replace"), out.values.get("experts.moe_layer_freq")
    if (first, every) == (0, 1) and out.values.get("intermediate_size") == out.get("experts.moe_intermediate_size"):
        out.put("intermediate_size", 0, *out.sources["intermediate_size"])


def _layers(out: Fields) -> None:
    """Record in `out` which layers have experts: as leading dense layers and a frequency if possible, else as flags.

    By --moe-layer-freq, else all; a malformed one is refused. Nothing if the option does not count (`Fields.holds`),
    the number of layers is unknown or a hybrid pattern gives them.
    """
    args = out.args
    if not out.layers or not out.holds("moe_layer_freq") or out.parts:
        return  # of a pattern, its letters say them
    try:
        moe = moe_layers(layer_pattern(args.value("moe_layer_freq") or 1), out.layers)
    except ValueError as error:
        out.refuse(
            "layers with experts are not said", "moe_layer_freq", got=args.word("moe_layer_freq"), need=str(error)
        )
        return
    regular = leading_and_every(moe)
    if regular is None:
        out.put("experts.layers", moe, "moe_layer_freq")
        return
    out.put("experts.first_k_dense_replace", regular[0], "moe_layer_freq")
    out.put("experts.moe_layer_freq", regular[1], "moe_layer_freq")


def moe_layers(pattern: Pattern, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts: every n-th from the first on, or by a list of 0 and 1.

    As gpt_layer_specs.py, get_gpt_decoder_block_spec. Raises ValueError for other patterns, or over MAX_LAYERS layers.
    """
    if layers > MAX_LAYERS:
        raise ValueError(f"at most {MAX_LAYERS:,} layers")
    if isinstance(pattern, int):
        if pattern < 1:
            raise ValueError("at least 1")
        return tuple(layer % pattern == 0 for layer in range(layers))
    experts = all_but(pattern, layers)
    if not set(pattern) <= {0, 1}:
        raise ValueError("a list of 0 and 1")
    return experts
