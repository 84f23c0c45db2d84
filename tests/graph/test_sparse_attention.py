"""An indexer and the attention over what it chooses, against Transformers' modules (DeepSeek-V3.2)."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.cost.work import block_flops
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derived import AttentionWork, DerivedBlock, Matmul, Phase, recompute_policy
from symconfig.graph.implementation import Implementation
from symconfig.graph.model import attended, derived, structure
from symconfig.graph.scheme import Scheme
from tests.graph.support import PLAIN, SEQUENCE, held_bytes, numbers
from tests.graph.test_saved_tensors import saved_bytes
from tests.sample_models import sample_model

INDEXER = {"index_n_heads": 4, "index_head_dim": 32, "index_topk": 16}
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rope_scaling": None,
    "num_nextn_predict_layers": 0,
    "model_type": "deepseek_v32",
    "experts": None,
    "indexer": INDEXER,
    "latent": {
        "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40,
    },
}  # fmt: skip
S = 64


def sparse(**changed: Any) -> ModelDescriptor:
    """A small DeepSeek-V3.2 whose layers are dense."""
    return sample_model("deepseek-v3", **{**SMALL, **changed})


def layer(how: Implementation, scheme: Scheme = PLAIN, kind: str = "dense_indexed", **changed: Any) -> DerivedBlock:
    return derived(sparse(**changed), how, scheme)[kind]


def test_scores_take_what_torch_counts() -> None:
    """Forward only: Transformers runs its indexer without gradients."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

    model = sparse()
    rank, turned = model.latent.q_lora_rank, model.latent.qk_rope_head_dim
    config = transformers.DeepseekV32Config(hidden_size=256, q_lora_rank=rank, qk_rope_head_dim=turned, **INDEXER)
    module = DeepseekV32Indexer(config, 0)
    x, low = torch.randn(1, S, 256), torch.randn(1, S, rank)
    angles = (torch.randn(1, S, turned), torch.randn(1, S, turned))
    with FlopCounterMode(display=False) as counter:
        module(x, low, angles, torch.ones(1, S, S, dtype=torch.bool), torch.arange(S)[None])
    values = numbers(model, seq_length=S)
    ours = [work for work in layer(DEEPSPEED.implementation).work if work.op.startswith("index_")]
    products = [work for work in ours if isinstance(work, Matmul)]
    flops = sum(2 * (work.batch * work.m * work.n * work.k).value(values) for work in products)
    assert counter.get_total_flops() == flops
    assert {work.phase for work in ours} == {Phase.FORWARD}


def test_a_kernel_of_its_own_runs_the_keys_before_a_query() -> None:
    """arXiv 2512.02556, section 2.1: H C multiply-adds for each query and key before it, and H for the weights."""
    model = sparse()
    with_it, without = (
        block_flops({"layer": block}, {**numbers(model, seq_length=S), "keys_full": S / 2, "keys_chosen": S / 2})[
            "layer"
        ]
        for block in (layer(Implementation()), layer(Implementation(), kind="dense", indexer=None))
    )
    projections = 2 * S * (48 * 4 * 32 + 256 * 32 + 256 * 4)
    scores = 2 * S * (S / 2) * (4 * 32 + 4)
    assert with_it - without == pytest.approx(projections + scores)


def test_attention_reads_what_is_chosen_or_masks_the_rest() -> None:
    for how, keys in ((Implementation(), "keys_chosen"), (DEEPSPEED.implementation, "keys_full")):
        (work, _) = (work for work in layer(how).work if isinstance(work, AttentionWork))
        assert work.keys == keys
    assert attended(S, 16) == 16 / 2 * 16 / S + 16 * (S - 16) / S


def test_a_layer_keeps_no_more_than_the_choice() -> None:
    for how, kept in ((Implementation(), {"index_choice"}), (DEEPSPEED.implementation, {"index_mask"})):
        held = layer(how).held
        assert {one.tensor for one in held if one.needed_by and one.tensor.startswith("index_")} == kept


def test_keys_are_gathered_and_nothing_comes_back() -> None:
    """Every rank scores its own queries against all keys; the indexer's heads are on every rank."""
    found = [c for c in layer(Implementation(), SEQUENCE).collectives if c.tensor.startswith("index_")]
    assert {(c.tensor, str(c.kind), c.phase) for c in found} == {
        ("index_k_rotated", "all-gather", Phase.FORWARD),
        ("index_choice", "all-gather", Phase.FORWARD),
    }
    values = numbers(sparse(), seq_length=S, cp=2, tp=2)
    assert [c.elements.value(values) for c in found if c.tensor == "index_k_rotated"] == [S * 32]


def test_layers_without_an_indexer_read_what_the_last_one_chose() -> None:
    model = sparse(indexer={**INDEXER, "layers": (True, False)})
    assert model.layer_kinds == ("dense_indexed", "dense_as_before")
    assert structure(model) != structure(sparse())
    blocks = derived(model, Implementation(), PLAIN)
    assert not [work for work in blocks["dense_as_before"].work if work.op.startswith("index_")]
    assert "keys_chosen" in {work.keys for work in blocks["dense_as_before"].work if isinstance(work, AttentionWork)}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"indexer": {**INDEXER, "layers": (False, True)}}, "takes a choice"),
        ({"latent": {**SMALL["latent"], "q_lora_rank": None}}, "q_lora_rank"),  # type: ignore[dict-item]
        ({"indexer": {**INDEXER, "layers": (True,)}}, "1 entries for 2 layers"),
    ],
)
def test_an_indexer_that_cannot_be_is_refused(changed: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        sparse(**changed)


def test_an_indexer_adds_what_autograd_saves_of_it() -> None:
    """Of Transformers' layers on a CPU: the mask, in bf16, as PyTorch's attention keeps it, and nothing else."""
    found, expected = [], []
    more: dict[str, Any]
    for more in ({}, {"indexer": None, "model_type": "deepseek_v3"}):
        one, two = sparse(num_hidden_layers=1, **more), sparse(**more)
        found.append(saved_bytes(two) - saved_bytes(one))
        block = derived(two, DEEPSPEED.implementation, PLAIN)[two.layer_kinds[-1]]
        expected.append(held_bytes(block, recompute_policy(block, frozenset()), numbers(two, seq_length=256)))
    assert found[0] - found[1] == expected[0] - expected[1] == 2 * 256 * 256
    assert found == expected


def _absorbed(scheme: Scheme = PLAIN, **changed: Any) -> DerivedBlock:
    model = sparse(**changed)
    return derived(model, MEGATRON.implementation, scheme)[model.layer_kinds[-1]]


def test_attention_over_latent_keys_has_the_models_sinks_and_gate() -> None:
    weights = {weight.name for weight in _absorbed(attention_sinks=True, attention_gate="head").weights}
    assert weights - {weight.name for weight in _absorbed().weights} == {"sinks", "attention_gate_proj.weight"}


def test_attention_over_latent_keys_does_the_up_projection_by_head() -> None:
    """Megatron-LM's absorbed_mla.py: the products with both parts of the weight are those of the one projection, and a
    query meets 40 + 16 channels of a key and 40 of a value, and not 40 of each head's own."""
    values, low = numbers(sparse(), seq_length=S), sparse().latent
    assert low is not None
    work = _absorbed().work
    products = [one for one in work if isinstance(one, Matmul) and one.op.startswith("kv_up_")]
    forward = [one for one in products if one.phase is Phase.FORWARD]
    per_head = low.qk_nope_head_dim + low.v_head_dim
    heads = sparse().num_attention_heads
    flops = sum((one.batch * one.m * one.n * one.k).value(values) for one in forward)
    assert flops == S * low.kv_lora_rank * heads * per_head
    (core, _) = (one for one in work if isinstance(one, AttentionWork))
    channels = [values[name] for name in core.channels]
    assert channels == [low.kv_lora_rank + low.qk_rope_head_dim, low.kv_lora_rank]
    assert core.keys == "keys_chosen"


def test_a_trained_indexer_keeps_what_its_loss_reads() -> None:
    """dsa.py and ops/sparse_mla.py: the kernel keeps queries, keys and positions; the loss what scores are made of."""
    kept = {one.tensor for one in _absorbed().held if one.needed_by}
    assert {"q", "k", "index_choice", "index_q_rotated", "index_k_rotated", "index_weights", "index_target"} <= kept
    assert not {"index_scores", "index_q", "kv_low_norm"} & kept
    alone = {one.tensor for one in _absorbed(indexer={**INDEXER, "loss_coef": 0.0}).held if one.needed_by}
    assert {name for name in alone if name.startswith("index_")} == {"index_choice"}


def test_every_tensor_parallel_rank_scores_whole_sequences() -> None:
    """DSAIndexer gathers its inputs, and its projections are duplicated; heads' scores are summed for the loss."""
    block, values = _absorbed(SEQUENCE), numbers(sparse(), seq_length=S, tp=2)
    products = [one for one in block.work if isinstance(one, Matmul) and one.op == "index_q_proj"]
    assert {one.phase for one in products} == {Phase.FORWARD, Phase.WEIGHT}
    assert [one.m.value(values) for one in products if one.phase is Phase.FORWARD] == [S]
    between = [one for one in block.collectives if one.axes == ("tp",)]
    moved = {(one.tensor, str(one.kind), one.phase) for one in between if one.tensor.startswith("index_")}
    assert moved == {("index_target", "all-reduce", Phase.FORWARD), ("index_loss", "all-reduce", Phase.INPUT)}
    into = [one for one in between if one.tensor == "input_norm"]
    assert {(str(one.kind), one.phase) for one in into} == {("all-gather", Phase.FORWARD)}


def test_the_loss_compares_the_chosen_keys_of_all_heads() -> None:
    """Queries and keys once more, forward only; the indexer's own scores of the chosen, and both their gradients."""
    sized = {**numbers(sparse(), seq_length=S), "keys_full": S / 2, "keys_chosen": 10.0}
    with_it, without = (
        block_flops({"layer": _absorbed(indexer={**INDEXER, "loss_coef": weight})}, sized)["layer"]
        for weight in (0.1, 0.0)
    )
    low, heads = sparse().latent, sparse().num_attention_heads
    target = 2 * S * 10 * heads * (low.kv_lora_rank + low.qk_rope_head_dim)
    scores = 2 * S * 10 * (4 * 32 + 4)
    projections = 2 * S * (48 * 4 * 32 + 256 * 32 + 256 * 4)
    assert with_it - without == pytest.approx(target + 3 * scores + projections)
