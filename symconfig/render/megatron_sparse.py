"""An indexer -> Megatron-LM's options of sparse attention (DSA)."""

from __future__ import annotations

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.around_transformers import WITHOUT_PREDICTION
from symconfig.frameworks.megatron import hybrid, sparse
from symconfig.render.megatron_args import Arguments


def sparse_args(out: Arguments, model: ModelDescriptor) -> None:
    """Add the indexer's sizes and its loss; refuse what sparse attention cannot be told."""
    if model.indexer is None:
        return
    if not out.needs("indexer", _option(sparse.KERNELS), "attention is never sparse"):
        return
    _refuse(out, model)
    out.put(sparse.VARIANT, sparse.NAME)
    for dest, name in sparse.SIZES.items():
        out.put(_option(dest), getattr(model.indexer, name))
    if model.indexer.layers is not None and not all(model.indexer.layers):
        if (pair := sparse.as_numbers(model.indexer.layers)) is None:
            why = "layers with an indexer are every n-th after the first ones"
            out.refuse("indexer.layers", why, f"{sum(model.indexer.layers)} of {len(model.indexer.layers)} layers")
        else:
            out.put(_option(sparse.FREQUENCY), pair[0])
            out.put(_option(sparse.OFFSET), pair[1])
    out.put(_option(sparse.LOSS), model.indexer.loss_coef)
    out.put(_option(sparse.OF_CHOSEN))
    out.put("--dsa-indexer-k-norm-epsilon", sparse.KEY_NORM_EPS)
    # A Hadamard transform of queries and keys, which changes no product of the two (DeepseekV32Indexer has none).
    out.put("--disable-dsa-indexer-rotate-activation")
    out.put(_option(sparse.KERNELS), sparse.BACKEND)
    out.put("--no-rope-fusion")  # TransformerConfig refuses the fusion with sparse attention


def _option(dest: str) -> str:
    return "--" + dest.replace("_", "-")


def _refuse(out: Arguments, model: ModelDescriptor) -> None:
    assert model.indexer is not None
    if hybrid.hybrid(model) or model.mixers:
        out.refuse("indexer", "sparse attention is written for models whose layers all have it")
    if any(model.sliding_layers):
        out.refuse("sliding_window", "every layer of a model with sparse attention has it", model.sliding_window)
    if model.attention_dropout:
        out.refuse("attention_dropout", "sparse attention has no dropout", model.attention_dropout)
    if model.qkv_bias or model.attention_out_bias:
        out.refuse("qkv_bias", "sparse attention has no biases", True)
    if model.num_nextn_predict_layers:
        why = "layers of multi-token prediction have no sparse attention"
        out.refuse("num_nextn_predict_layers", why, model.num_nextn_predict_layers, hint=WITHOUT_PREDICTION)
    if model.indexer.loss_coef == 0:
        why = "without a loss an indexer has no gradients, for which their reduction beside the backward waits"
        out.refuse("indexer.loss_coef", why, model.indexer.loss_coef)
