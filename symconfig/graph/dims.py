"""The named dims, and how large each one is. Sizes are symbols; numbers come only in the cost room.

B batch            S sequence (queries)   T sequence (keys)     D hidden        V vocabulary, padded
A attention heads  KV key/value heads     C head channels       F MLP width     E experts
G expert width     U token slots of one expert                  R adapter rank
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from symconfig.graph.monomial import Monomial, product

BATCH = "batch"
CHUNK = "chunk_size"  # tokens of a sequence that a chunked scan takes at once
CHUNKS = "chunks"
SEQUENCE = "sequence"
RUNS, HEAVY_RUNS = "token_runs", "heavy_token_runs"  # of tokens that share a compressed key
RUN, HEAVY_RUN = "compress_rate", "heavy_compress_rate"  # tokens of each
KEYS = "keys"
HIDDEN = "hidden_size"
VOCAB = "padded_vocab_size"
WHOLE_VOCAB = "whole_vocab_size"  # the vocabulary gathered: no axis splits it
HEADS = "num_attention_heads"
KV_HEADS = "num_key_value_heads"
SHARED_KV_HEADS = "shared_key_value_heads"  # one for each tensor-parallel rank, where there are fewer of them
HEAD_DIM = "head_dim"
VALUE_DIM = "v_head_dim"  # of values, where it is not that of queries and keys
ROTARY = "rotary_dim"
QKV = "qkv_width"
GATHERED_QKV = "gathered_qkv_width"  # queries, keys and values of all heads: no axis splits it
FFN = "intermediate_size"
FFN_FUSED = "fused_intermediate_size"
WIDE_FFN = "wide_intermediate_size"  # of layers whose MLP is wider than elsewhere
WIDE_FFN_FUSED = "fused_wide_intermediate_size"
SHARED_FFN = "shared_expert_intermediate_size"
SHARED_FFN_FUSED = "fused_shared_expert_intermediate_size"
EXPERTS = "num_experts"
EXPERT_FFN = "moe_intermediate_size"
EXPERT_FFN_FUSED = "fused_moe_intermediate_size"
EXPERT_LATENT = "expert_latent_size"  # what tokens are projected to before their experts
SLOTS = "slots"
EVERY = "every_slot"  # of an expert that runs on all tokens, chosen or not
SLOT_DIMS = (SLOTS, EVERY)
RANK = "adapter_rank"
RANK_COLUMNS = "adapter_rank_columns"  # the rank, and the hidden size, as an adapter's own parallel layer gives them
ADAPTER_COLUMNS = "adapter_columns"
POSITIONS = "max_position_embeddings"
MTP_COLUMNS = "mtp_columns"  # the hidden size as a multi-token-prediction layer's projection gives it
LABELS = "num_labels"  # numbers that a head gives in place of logits
GATHERED = "gathered"  # a loop of one turn: the operator's tensors are whole along tp

# Dims that tensor parallelism may split, widest meaning first; expert width is split by etp instead.
TENSOR_DIMS = (
    VOCAB,
    QKV,
    HEADS,
    KV_HEADS,
    SHARED_KV_HEADS,
    FFN_FUSED,
    FFN,
    WIDE_FFN_FUSED,
    WIDE_FFN,
    SHARED_FFN_FUSED,
    SHARED_FFN,
    MTP_COLUMNS,
    RANK_COLUMNS,
    ADAPTER_COLUMNS,
)
EXPERT_TENSOR_DIMS = (EXPERT_FFN_FUSED, EXPERT_FFN)

# Replicas of an expert: what is left of a stage's ranks on the expert grid.
EDP = Monomial.of("tp", "cp", "dp") / Monomial.of("ep", "etp")

COPIES = Monomial.of("expert_copies")  # of each token, one for each of its experts that compute something
RUN_COPIES = Monomial.of("run_expert_copies")  # where all experts run on each token: one for each of them
GROUPS, CHOSEN_GROUPS = Monomial.of("expert_groups"), Monomial.of("chosen_expert_groups")  # 1 where a router has none

_SIZES = {
    GATHERED: Monomial(),
    BATCH: Monomial.of("micro_batch", "dp"),
    SEQUENCE: Monomial.of("seq_length"),
    KEYS: Monomial.of("seq_length"),
    CHUNKS: Monomial.of("seq_length") / Monomial.of("chunk_size"),
    RUNS: Monomial.of("seq_length") / Monomial.of(RUN),
    HEAVY_RUNS: Monomial.of("seq_length") / Monomial.of(HEAVY_RUN),
    WHOLE_VOCAB: Monomial.of(VOCAB),
    SHARED_KV_HEADS: Monomial.of("tp"),
    GATHERED_QKV: Monomial.of(QKV),
    # Every token takes expert_copies slots; the busiest rank has expert_imbalance times the mean.
    EVERY: Monomial.of("micro_batch", "dp", "seq_length") * RUN_COPIES / Monomial.of("num_experts"),
    SLOTS: Monomial.of("micro_batch", "dp", "seq_length", "expert_imbalance") * COPIES / Monomial.of("num_experts"),
}


def size(dim: str) -> Monomial:
    """Return the global size of a dim as a monomial. A dim that is not in `_SIZES` is a symbol of its own, a constant
    of the model.
    """
    return _SIZES.get(dim) or Monomial.of(dim)


def elements(dims: Iterable[str]) -> Monomial:
    return _elements(tuple(dims))


@lru_cache(maxsize=1024)
def _elements(dims: tuple[str, ...]) -> Monomial:
    return product(size(dim) for dim in dims)


def local(amount: Monomial) -> Monomial:
    """Return the amount with edp replaced by tp * cp * dp / (ep * etp), so that dp cancels."""
    return amount.substitute({"edp": EDP})
