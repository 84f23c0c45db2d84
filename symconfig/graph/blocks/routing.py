"""What routers that are chains of operators keep, tensor by tensor."""

from __future__ import annotations

from symconfig.descriptor.sections import Experts
from symconfig.graph import dims as d
from symconfig.graph.operator import Element, Tensor

ROUTES = "router_width"  # one logit an expert; a dim of its own, since no axis splits the router
CHOICES = "num_experts_per_tok"


def choice(moe: Experts, rows: tuple[str, ...]) -> list[Tensor]:
    """Return what is kept beside the chosen experts' indices: `topk_routing_with_score_function` and the balancing
    loss's own scores.

    What only leads to indices goes with its graph, which no loss reaches: the best of each group, who the bias puts
    first, the balancing loss's own choice. A choice by groups without a bias reaches the scores past those left out.
    """
    first = moe.scoring_func == "softmax" and not moe.norm_topk_prob and not moe.softmax_after_topk
    result = []
    if moe.scoring_func == "sigmoid" or first:
        result.append(Tensor("router_scores", (*rows, ROUTES), Element.FP32))
    if moe.n_group is not None and moe.n_group > 1 and not moe.e_score_correction_bias:
        result.append(Tensor("left_out", (*rows, ROUTES), Element.MASK))
    if not first:
        result.append(Tensor("chosen_scores", (*rows, CHOICES), Element.FP32))
    if moe.scoring_func == "sigmoid":
        result.append(Tensor("chosen_sum", rows, Element.FP32))
    return result + (_balance(moe, rows) if moe.router_aux_loss_coef else [])


def _balance(moe: Experts, rows: tuple[str, ...]) -> list[Tensor]:
    """Return the scores once more: `compute_routing_scores_for_aux_loss`."""
    result = [Tensor("balance_scores", (*rows, ROUTES), Element.FP32)]
    if moe.scoring_func == "sigmoid":
        result.append(Tensor("balance_sum", rows, Element.FP32))
    return result


def sorting(rows: tuple[str, ...]) -> list[Tensor]:
    """Return what `permute` keeps: the order of all pairs of token and expert, and the token of each slot that is
    taken.
    """
    return [
        Tensor("sorted_pairs", (*rows, ROUTES), Element.INDEX),
        Tensor("slot_tokens", (*rows, CHOICES), Element.INDEX),
    ]


def indexed_choice(moe: Experts, rows: tuple[str, ...], scores: Element) -> list[Tensor]:
    """Return what Transformers' routers keep, with the chosen experts' indices (models/*/modeling_*.py: *TopKRouter).
    What leads to indices only goes with its graph here, too.
    """
    result = [Tensor("router_indices", (*rows, CHOICES), Element.INDEX)]
    if moe.softmax_after_topk:
        return [*result, Tensor("chosen_scores", (*rows, CHOICES), scores)]
    result.append(Tensor("router_scores", (*rows, ROUTES), scores))
    if moe.n_group is not None and not moe.e_score_correction_bias:
        result.append(Tensor("left_out", (*rows, ROUTES), Element.MASK))
    if moe.norm_topk_prob:
        result.append(Tensor("chosen_scores", (*rows, CHOICES), scores))
        result.append(Tensor("chosen_sum", rows, scores))
    return result


def tokens_of_slots(moe: Experts, rows: tuple[str, ...]) -> list[Tensor]:
    """Return what Transformers keeps on the way to the experts (integrations/moe.py, grouped_mm_experts_forward): each
    slot's token, its expert where that has a bias, and where each expert's slots end, in 32 bits.
    """
    names = ["slot_tokens", *(["slot_experts"] if moe.expert_bias else [])]
    return [*(_index(name, rows) for name in names), Tensor("expert_ends", (d.EXPERTS,), Element.FP32)]


def pairs_of_slots(rows: tuple[str, ...], wide: bool) -> list[Tensor]:
    """Return what the way back keeps: each slot's pair of token and expert, its weight, and each pair's slot."""
    weights = Tensor("slot_weights", (*rows, CHOICES), Element.FP32 if wide else Element.ACTIVATION)
    return [_index("slot_pairs", rows), _index("pair_slots", rows), weights]


def _index(name: str, rows: tuple[str, ...]) -> Tensor:
    return Tensor(name, (*rows, CHOICES), Element.INDEX)
