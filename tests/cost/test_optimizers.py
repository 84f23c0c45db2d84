"""What optimizers keep and do, held against PyTorch's and Transformers' own on tiny models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.optim._muon import _zeropower_via_newtonschulz
from torch.utils.flop_counter import FlopCounterMode
from transformers import Adafactor, LlamaConfig, LlamaForCausalLM

from symconfig.cost import formulas
from symconfig.cost.lattice import Lattice
from symconfig.cost.machine import machine
from symconfig.cost.weights import iterations_s, matrices, orthogonalised, products
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.training import Optimizer
from symconfig.frameworks.behaviour import (
    BUCKET,
    BUCKET_OF_RANK,
    EIGHT_BIT_MOMENTS,
    FILLED,
    FP32_BYTES,
    moments,
    stepping,
)
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.graph.derive import derive
from symconfig.graph.model import blocks, dim_sizes
from symconfig.graph.scheme import Scheme
from tests.sample_models import sample_model

LAYERS = 3
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": LAYERS, "vocab_size": 128,
}  # fmt: skip


def tiny() -> torch.nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False))


def weights() -> dict[str, tuple[bool, float]]:
    """Parameters of all blocks by symconfig's graph: whether they are made orthogonal, and their elements in all."""
    model = sample_model("llama2-13b").model_copy(update={**SHAPE, "tie_word_embeddings": False})
    numbers = {**dim_sizes(model), "padded_vocab_size": 128.0, "tp": 1.0, "ep": 1.0, "etp": 1.0}
    times = {"embedding": 1, "dense": LAYERS, "head": 1}
    found: dict[str, tuple[bool, float]] = {}
    for kind, block in blocks(model, MEGATRON.implementation, False).items():
        derived = derive(block, Scheme(False, "p2p"))
        for shard in derived.weights:
            found[f"{kind}.{shard.name}"] = (
                orthogonalised(shard, derived.place),
                times[kind] * shard.elements.value(numbers),
            )
    return found


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that an optimizer keeps after a step, counters left out."""
    kept = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.numel() * value.element_size() for value in kept if torch.is_tensor(value) and value.ndim)


def after_a_step(optimizer: torch.optim.Optimizer) -> int:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return state_bytes(optimizer)


def test_muons_states_are_torchs_by_parameter() -> None:
    """Muon for the matrices of layers, AdamW for embedding, head and norms, as Megatron-LM parts them: two dims, and no
    embedding or output parameter (emerging_optimizers.py, _is_nonlinear_or_embedding)."""
    model = tiny()
    named = dict(model.named_parameters())
    matrices = [value for name, value in named.items() if value.ndim == 2 and ".layers." in name]
    others = [value for name, value in named.items() if not any(value is matrix for matrix in matrices)]
    assert len(matrices) == 7 * LAYERS
    mine = weights()
    orthogonal = sum(count for chosen, count in mine.values() if chosen)
    elementwise = sum(count for chosen, count in mine.values() if not chosen)
    stepped = stepping(MEGATRON, Optimizer(name="muon"))
    assert after_a_step(torch.optim.Muon(matrices)) == orthogonal * (stepped.orthogonal.state - FP32_BYTES)
    assert after_a_step(torch.optim.AdamW(others)) == elementwise * (stepped.bytes.optimizer - FP32_BYTES)


@pytest.mark.parametrize("flat", [False, True])
def test_adafactors_states_are_transformers_by_parameter(flat: bool) -> None:
    """DeepSpeed hands it flat parts, of which it keeps a whole second moment; of matrices it would keep rows and
    columns."""
    weight = torch.nn.Parameter(torch.zeros(64 * 96) if flat else torch.zeros(64, 96))
    kept = after_a_step(Adafactor([weight], lr=1e-3, scale_parameter=False, relative_step=False))
    assert kept == (moments(Optimizer(name="adafactor")) * 64 * 96 if flat else FP32_BYTES * (64 + 96))


def test_moments_of_the_others_are_torchs() -> None:
    weight = torch.nn.Parameter(torch.zeros(64, 96))
    count = weight.numel()
    assert after_a_step(torch.optim.AdamW([weight])) == moments(Optimizer()) * count
    momentum = Optimizer(name="sgd").speed
    assert after_a_step(torch.optim.SGD([weight], lr=1e-3, momentum=momentum)) == moments(Optimizer(name="sgd")) * count
    narrow = Optimizer(exp_avg="bf16", exp_avg_sq="bf16")
    half = torch.nn.Parameter(torch.zeros(64, 96, dtype=torch.bfloat16))
    assert after_a_step(torch.optim.AdamW([half])) == moments(narrow) * count
    # Two of 8 bits, each block of 256 with a scale in fp32.
    assert EIGHT_BIT_MOMENTS * 256 == 2 * (256 + 4)


def test_a_step_moves_what_it_keeps() -> None:
    """Of AdamW 34 bytes: state read and written, gradient read twice, weight written."""
    eight = stepping(MEGATRON, Optimizer(name="adam8bit"))
    assert eight.bytes.optimizer == FP32_BYTES + EIGHT_BIT_MOMENTS
    assert eight.adam_bytes == 2 * eight.bytes.optimizer + 10
    bf16 = stepping(MEGATRON, Optimizer(exp_avg="bf16", exp_avg_sq="bf16"), "bf16")
    assert (bf16.bytes.optimizer, bf16.adam_bytes) == (6.0, 22.0)
    mxfp8 = stepping(MEGATRON, Optimizer(exp_avg="bf16", exp_avg_sq="bf16"), "mxfp8")
    assert mxfp8.bytes.optimizer == 8.0  # the master weight whole


@pytest.mark.parametrize(("rows", "columns"), [(48, 80), (80, 48), (64, 64)])
def test_newton_schulz_multiplies_as_torchs_muon_does(rows: int, columns: int) -> None:
    steps = 5
    with FlopCounterMode(display=False) as counter:
        _zeropower_via_newtonschulz(torch.randn(rows, columns), (3.4445, -4.7750, 2.0315), steps, 1e-7)
    short, long = np.array(float(min(rows, columns))), np.array(float(max(rows, columns)))
    assert counter.get_total_flops() == steps * sum(2 * m * n * k for m, n, k in products(short, long))


def of_weight(
    name: str, tp: float, over_tensor: Literal["blockwise", "duplicated", "distributed"]
) -> tuple[float, float, float]:
    """Rows and columns that one rank has of a weight of Llama 3.1 70B, and the seconds of making it orthogonal."""
    model = sample_model("llama3.1-70b")
    numbers: dict[str, Any] = {
        **dim_sizes(model),
        "padded_vocab_size": 1.0,
        **{axis: np.array([1.0]) for axis in ("cp", "dp", "ep", "etp")},
        "tp": np.array([tp]),
    }
    lattice = Lattice(numbers, 1)
    framework = stepping(MEGATRON, Optimizer(name="muon", tp_mode=over_tensor))
    derived = derive(blocks(model, MEGATRON.implementation, False)["dense"], Scheme(True, "p2p"))
    shard = next(shard for shard in derived.weights if shard.name == f"{name}.weight")
    each = matrices(shard, lattice)
    gpu = machine(load_cluster("h100"), "bf16")
    assert framework.orthogonal is not None
    seconds = iterations_s(each, gpu, framework.orthogonal)
    assert (each.whole_rows * each.whole_columns).item() == lattice.value(shard.whole).item()
    return each.rows.item(), each.columns.item(), seconds.item()


def test_ranks_of_tensor_parallelism_iterate_on_their_part_on_all_or_together() -> None:
    """70B's down_proj is cut along the rows (28,672), gate_up_proj along the columns (57,344), of 8,192 the other."""
    assert of_weight("down_proj", 8, "blockwise")[:2] == (3584.0, 8192.0)
    assert of_weight("gate_up_proj", 8, "blockwise")[:2] == (8192.0, 7168.0)
    whole = of_weight("down_proj", 1, "blockwise")[2]
    assert of_weight("down_proj", 1, "duplicated")[2] == of_weight("down_proj", 1, "distributed")[2] == whole
    assert of_weight("down_proj", 8, "blockwise")[2] < whole / 8  # its short side is shorter, too
    assert of_weight("down_proj", 8, "duplicated")[2] > whole  # and gathered before
    # Each multiplies an eighth of X X' and of H X, all of G G, and sums G: more than an eighth, and less than all.
    assert whole / 8 < of_weight("down_proj", 8, "distributed")[2] < whole


@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("stage", ["8b", "8b, tp 8", "70b, pp 4", "405b, pp 4", "128 experts", "16 of 256 experts"])
def test_the_longest_part_is_that_of_dealing_weight_by_weight(stage: str, ranks: int) -> None:
    """A bucket takes one weight more than it needs: a sixth under it where that one is a whole part of four, and half
    as much again where the formula has another bucket for what it took."""
    sizes = {
        "8b": [4096 * 6144, 4096 * 4096, 4096 * 28672, 4096 * 14336] * 32,
        "8b, tp 8": [4096 * 768, 4096 * 512, 4096 * 3584, 4096 * 1792] * 32,
        "70b, pp 4": [8192 * 10240, 8192 * 8192, 8192 * 57344, 8192 * 28672] * 20,
        "405b, pp 4": [16384 * 18432, 16384 * 16384, 16384 * 106496, 16384 * 53248] * 32,
        "128 experts": [2048 * 1536, 2048 * 768] * 128 * 12,
        "16 of 256 experts": [7168 * 4096, 7168 * 2048] * 16 * 4,
    }[stage]
    largest = max(sizes)
    bucket = max(BUCKET, BUCKET_OF_RANK * ranks, FILLED * ranks * largest)
    mine = float(formulas.undivided_elements(float(sum(sizes)), ranks, largest, 1.0, bucket))
    real = longest_part(sizes, ranks)
    assert 0.83 * real <= mine <= 1.6 * real


def test_an_unknown_optimizer_and_a_setting_of_another_are_refused() -> None:
    for said, words in (
        ("muno", "Input should be 'adam', 'adam8bit', 'adafactor', 'muon' or 'sgd'"),
        ({"name": "sgd", "exp_avg": "bf16"}, "exp_avg is no setting of sgd, but of adam"),
        ({"name": "adam", "ns_steps": 3}, "ns_steps is no setting of adam, but of muon"),
    ):
        with pytest.raises(ValueError, match=words):
            Optimizer.model_validate_json(json.dumps(said))
    assert Optimizer.model_validate_json('"muon"') == Optimizer(name="muon")


FULL = 0.9  # of a bucket that its largest weight alone would fill on every rank
LEAST = 40_000_000  # elements of a bucket, or a million for each rank


def longest_part(sizes: Sequence[int], ranks: int) -> int:
    """Elements of every rank's part, all buckets together. sizes: in the order of the model."""
    bucket, total = [], 0
    least = max(LEAST, 1_000_000 * ranks)
    for size in reversed(sizes):
        bucket.append(size)
        if sum(bucket) >= max(least, int(ranks * max(bucket) * FULL)):
            total += _packed(bucket, ranks)
            bucket = []
    return total + (_packed(bucket, ranks) if bucket else 0)


def _packed(bucket: Sequence[int], ranks: int) -> int:
    held = [0] * ranks
    for size in sorted(bucket, reverse=True):
        held[held.index(min(held))] += size
    return max(held)
