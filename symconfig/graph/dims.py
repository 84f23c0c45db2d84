"""The named dims, and their sizes as products of symbols, `3/2 * seq_length * hidden_size / tp`. Numbers come only in
the cost room.

B batch            S sequence (queries)   T sequence (keys)     D hidden        V vocabulary, padded
A attention heads  KV key/value heads     C head channels       F MLP width     E experts
G expert width     U token slots of one expert                  R adapter rank
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

Powers = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Monomial:
    """coefficient * product of symbol ** power; `powers` is sorted by name and holds no zero."""

    coefficient: Fraction = Fraction(1)
    powers: Powers = ()

    def __hash__(self) -> int:
        """Return the hash of the powers: few sizes differ in their coefficient alone, and hashing fractions is slow."""
        return hash(self.powers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Monomial) or self.powers != other.powers:
            return False
        return self.coefficient is other.coefficient or self.coefficient == other.coefficient

    @staticmethod
    @cache
    def of(*names: str) -> Monomial:
        """Return the product of the symbols, with coefficient 1; a symbol given twice is squared. Cached."""
        return Monomial(Fraction(1), tuple(sorted(Counter(names).items())))

    def __mul__(self, other: Monomial | int | Fraction) -> Monomial:
        if not isinstance(other, Monomial):
            return Monomial(self.coefficient * other, self.powers)
        return Monomial(_times(self.coefficient, other.coefficient), _merged(self.powers, other.powers, 1))

    def __truediv__(self, other: Monomial | int | Fraction) -> Monomial:
        if not isinstance(other, Monomial):
            return Monomial(self.coefficient / other, self.powers)
        inverse = other.coefficient if other.coefficient == 1 else 1 / other.coefficient
        return Monomial(_times(self.coefficient, inverse), _merged(self.powers, other.powers, -1))

    def value(self, numbers: Mapping[str, float]) -> float:
        """Return the value as a float. Raise KeyError for a symbol without a number."""
        result = float(self.coefficient)
        for name, power in self.powers:
            result *= float(numbers[name]) ** power
        return result

    def whole(self, numbers: Mapping[str, int]) -> int:
        """Return the exact value as an integer. Raise ValueError if it is no integer, KeyError for a symbol that
        `numbers` lacks.
        """
        above, below = self.coefficient.numerator, self.coefficient.denominator
        for name, power in self.powers:
            if power > 0:
                above *= numbers[name] ** power
            else:
                below *= numbers[name] ** -power
        if above % below:
            raise ValueError(f"{self} is not a whole number: {above} / {below}")
        return above // below

    def __str__(self) -> str:
        above = [name if power == 1 else f"{name}^{power}" for name, power in self.powers if power > 0]
        below = [name if power == -1 else f"{name}^{-power}" for name, power in self.powers if power < 0]
        if self.coefficient != 1 or not above:
            above.insert(0, str(self.coefficient))
        return " * ".join(above) + "".join(f" / {name}" for name in below)


ONE = Monomial()


def product(factors: Iterable[Monomial]) -> Monomial:
    result = ONE
    for factor in factors:
        result = result * factor
    return result


def _times(a: Fraction, b: Fraction) -> Fraction:
    """Return a * b, without a multiplication if one is 1: most are, and multiplying fractions is slow."""
    return b if a == 1 else a if b == 1 else a * b


def _merged(ours: Powers, theirs: Powers, sign: int) -> Powers:
    powers = dict(ours)
    for name, power in theirs:
        powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))


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
# Keys of a query, by kind of attention: all before it, those of a window or chunk, those that an indexer chooses; a
# window's with compressed keys before it, all of them or an indexer's choice.
KEYS_FULL, KEYS_WINDOW, KEYS_CHOSEN = "keys_full", "keys_window", "keys_chosen"
KEYS_WITH_RUNS, KEYS_WITH_CHOSEN_RUNS = "keys_with_runs", "keys_with_chosen_runs"
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


@lru_cache(maxsize=1024)
def elements(dims: tuple[str, ...]) -> Monomial:
    """Return the global number of elements of a tensor with these dims; 1 without dims. Cached."""
    return product(size(dim) for dim in dims)


def local(amount: Monomial) -> Monomial:
    """Return the amount with edp replaced by tp * cp * dp / (ep * etp), so that dp cancels."""
    power, factor = dict(amount.powers).get("edp", 0), EDP / Monomial.of("edp")
    for _ in range(abs(power)):
        amount = amount * factor if power > 0 else amount / factor
    return amount
