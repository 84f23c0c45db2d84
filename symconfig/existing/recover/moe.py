"""Experts, their router and the layers that have them: what is read of several options together."""

from __future__ import annotations

from symconfig.descriptor.meaning import leading_and_every
from symconfig.descriptor.strict import MAX_LAYERS
from symconfig.existing.recover.fields import Fields
from symconfig.formats import links
from symconfig.formats.layer_pattern import Pattern, all_but, layer_pattern
from symconfig.formats.megatron import EXPERTS

NUMBER = ("num_experts", "num_moe_experts")
_BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss")


def has_experts(out: Fields) -> bool:
    """Return whether the model has experts; a number of 0 means none.

    The named model decides if the options leave it open.
    """
    if out.holds(*NUMBER):
        return bool(out.args.integer(*NUMBER))
    return out.base is not None and out.base.experts is not None


def expert_fields(out: Fields) -> None:
    """Record in `out` the fields of experts; without experts only refuse a latent size.

    Dense fields must be read before.
    """
    args = out.args
    if not has_experts(out):
        if args.integer("moe_latent_size"):
            out.refuse("there are no experts on a smaller hidden size", "moe_latent_size", hint="--num-experts")
        return
    links.read(EXPERTS, out)
    biased = args.switch("add_bias_linear")
    out.put("experts.latent_bias", bool(args.integer("moe_latent_size")) and biased, "add_bias_linear")
    # Biases of experts and router came with core_v0.15.
    for field in ("experts.expert_bias", "experts.router_bias"):
        out.put(field, biased and args.table.at_least("core_v0.15.0"), "add_bias_linear")
    _layers(out)
    _router(out)
    _balance(out)
    _dense_where_all_are_experts(out)


def _layers(out: Fields) -> None:
    """Record in `out` which layers have experts: as a regular frequency if possible, else as a list.

    Nothing is recorded if the number of layers is unknown or a hybrid pattern gives them; a malformed one is refused.
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

    As gpt_layer_specs.py, get_gpt_decoder_block_spec. Raises ValueError for a malformed pattern or too many layers.
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


def _router(out: Fields) -> None:
    """Refuse a softmax over a single expert; record assumptions for expert capacity and for the score of expert groups.

    Megatron-LM scores a group by its best topk / topk_group experts, DeepSeek-V3 by two, DeepSeek-V2 by one.
    """
    args = out.args
    top_k, sigmoid = args.integer("moe_router_topk") or 1, args.word("moe_router_score_function") == "sigmoid"
    renormalised = not sigmoid and not args.switch("moe_router_pre_softmax")
    if top_k == 1 and renormalised and out.holds("moe_router_pre_softmax", "moe_router_score_function"):
        out.refuse(
            "a softmax over one chosen expert has no gradient, and Megatron-LM refuses it",
            "moe_router_topk",
            got=1,
            hint="--moe-router-pre-softmax",
        )
    if args.value("moe_expert_capacity_factor") is not None:
        why = "an expert's capacity is not modelled: nothing counts as dropped or padded"
        out.assume("tokens of an expert", "all that are sent to it", why, "moe_expert_capacity_factor")
    chosen, best = out.values.get("experts.topk_group"), 2 if sigmoid else 1
    if isinstance(chosen, int) and top_k // chosen != best:
        why = f"the options have the sum of its best {top_k // chosen}, which costs the same"
        out.assume("score of a group", f"the sum of its best {best}", why, "moe_router_group_topk")


def _balance(out: Fields) -> None:
    """Record in `out` the coefficient of the auxiliary loss, the first of several.

    Refuse other kinds of load balancing. 0 if balancing is "none" or the coefficient is no number.
    """
    args = out.args
    kinds = args.words("moe_router_load_balancing_type") or ("aux_loss",)
    for kind in kinds:
        if kind not in (*_BALANCING, "none"):
            out.refuse(
                "such balancing routes tokens in a way that is not described",
                "moe_router_load_balancing_type",
                got=kind,
                need="aux_loss, seq_aux_loss, global_aux_loss or none",
            )
    coefficients = args.words("moe_aux_loss_coeff") or ("0.0",)
    try:
        first = float(coefficients[0])
    except ValueError:
        first = 0.0
    out.put(
        "experts.router_aux_loss_coef",
        0.0 if kinds == ("none",) else first,
        "moe_aux_loss_coeff",
        "moe_router_load_balancing_type",
    )


def _dense_where_all_are_experts(out: Fields) -> None:
    """Set intermediate_size to 0 if every layer has experts and it equals the experts' size, as `render` then repeats
    that.
    """
    first, every = out.values.get("experts.first_k_dense_replace"), out.values.get("experts.moe_layer_freq")
    if (first, every) == (0, 1) and out.values.get("intermediate_size") == out.get("experts.moe_intermediate_size"):
        out.put("intermediate_size", 0, *out.sources["intermediate_size"])
