"""What is measured: sizes of the zoo's models, each once, far from each other."""

from __future__ import annotations

from collections import Counter

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.measured.gpu.kernel_shapes import CPU, GPU, LOW_MULTIPLE, Point, Selection, WantedKernel, wanted_kernels
from symconfig.measured.gpu.kernel_times import Attention, Product, Stream


@pytest.fixture(scope="module")
def models() -> list[ModelDescriptor]:
    return [load_model(name) for name in zoo_models()]


@pytest.fixture(scope="module")
def kernels(models: list[ModelDescriptor]) -> tuple[WantedKernel, ...]:
    return wanted_kernels(models, GPU)


def test_every_model_of_the_zoo_has_products_of_its_own(
    kernels: tuple[WantedKernel, ...], models: list[ModelDescriptor]
) -> None:
    named = Counter(item.model for item in kernels if isinstance(item.what, Product))
    assert {model.name for model in models} <= set(named)
    assert sum(isinstance(item.what, Product) and item.what.batch > 1 for item in kernels) == GPU.precisions["bf16"][1]


def test_every_model_with_experts_has_grouped_products_attention_and_streams_of_its_kind(
    models: list[ModelDescriptor],
) -> None:
    for model in models:
        families = Counter(item.what.family for item in wanted_kernels([model], GPU))
        assert families["attention, forward"] == families["attention, backward"], model.name
        assert (families["attention, forward"] > 0) is (model.indexer is None), (
            model.name
        )  # of chosen keys: not measured
        assert families["norm, forward"] > 0, model.name
        assert families["activation, backward"] > 0, model.name
        assert (families["grouped product, bf16"] > 0) is (model.experts is not None), model.name


def test_the_numbers_are_those_that_the_selection_states(kernels: tuple[WantedKernel, ...]) -> None:
    families = Counter(item.what.family for item in kernels)
    for dtype, (single, grouped) in GPU.precisions.items():
        assert families[f"product, {dtype}"] == single
        assert families[f"grouped product, {dtype}"] == grouped
    for way in ("forward", "backward"):
        assert families[f"attention, {way}"] == GPU.attentions
        assert families[f"norm, {way}"] == families[f"activation, {way}"] == GPU.streams
    assert len(set(kernels)) == len({item.what for item in kernels}) == len(kernels)


def test_all_layouts_and_head_widths_are_there(kernels: tuple[WantedKernel, ...]) -> None:
    layouts = Counter(item.what.layout for item in kernels if isinstance(item.what, Product) and item.what.batch == 1)
    assert set(layouts) == {"forward", "input-gradient", "weight-gradient"}
    heads = {(item.what.channels, item.what.value_channels) for item in kernels if isinstance(item.what, Attention)}
    assert {(64, 64), (128, 128), (192, 128)} <= heads
    assert any(item.what.heads > item.what.kv_heads for item in kernels if isinstance(item.what, Attention))
    assert {"rmsnorm", "layernorm", "glu", "gelu", "copy"} == {
        item.what.what for item in kernels if isinstance(item.what, Stream)
    }


def test_low_precision_products_have_sizes_that_its_units_take(kernels: tuple[WantedKernel, ...]) -> None:
    low = [item.what for item in kernels if isinstance(item.what, Product) and item.what.dtype == "fp8"]
    assert low
    assert not any(size % LOW_MULTIPLE for product in low for size in (product.m, product.n, product.k))
    assert not any(product.layout == "weight-gradient" for product in low)


def test_sizes_are_those_of_a_rank() -> None:
    """Llama-2-7B, TP 2: the MLP's first product of 2 x 4096 tokens, its attention and its activation."""
    selection = Selection((Point(2, 1, 2, 4096),), {"bf16": (1000, 0)}, 10, 10, 1e99, (), ())
    found = {item.what for item in wanted_kernels([load_model("llama2-7b")], selection)}
    assert Product(dtype="bf16", layout="forward", m=8192, n=11008, k=4096) in found
    assert Product(dtype="bf16", layout="input-gradient", m=8192, n=4096, k=11008) in found
    assert Product(dtype="bf16", layout="weight-gradient", m=4096, n=11008, k=8192) in found
    assert (
        Attention(backward=True, batch=2, heads=16, kv_heads=16, length=4096, channels=128, value_channels=128) in found
    )
    assert Stream(what="glu", rows=8192, columns=5504) in found
    assert Stream(what="rmsnorm", backward=True, rows=4096, columns=4096) in found  # sequence parallel


def test_a_stream_moves_what_the_graph_says() -> None:
    forward, backward = (Stream(what="glu", backward=way, rows=10, columns=7) for way in (False, True))
    assert (forward.moved, backward.moved) == (3 * 70, 5 * 70)
    assert Stream(what="rmsnorm", backward=True, rows=10, columns=7).moved == 3 * 70
    assert Stream(what="copy", rows=10, columns=7).moved == 2 * 70


def test_a_cpu_gets_a_small_sample_that_is_the_same_every_time(models: list[ModelDescriptor]) -> None:
    first = wanted_kernels(models, CPU)
    assert first == wanted_kernels(list(reversed(models)), CPU)
    assert len(first) < 30
    assert max(item.what.flops for item in first if isinstance(item.what, Product)) <= CPU.most_flops
