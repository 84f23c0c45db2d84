"""What stands around the attention's products."""

from __future__ import annotations

import pytest

from symconfig.descriptor.job import Packing
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.behaviour import KERNELS
from symconfig.graph.derived import Matmul, Phase, Traffic
from symconfig.graph.model import attended
from symconfig.graph.scheme import Scheme
from tests.graph.support import PLAIN, SEQUENCE, block, chosen, numbers
from tests.sample_models import sample_model


def test_turning_queries_costs_more_where_yarn_lengthens_them() -> None:
    """gpt-oss lengthens by 0.1 ln(32) + 1, which Transformer Engine's kernel cannot: 12 and 17 passes for 2 and 2."""
    model = sample_model("gpt-oss-120b")
    plain = model.model_copy(update={"rope_scaling": None})

    def moved(model: ModelDescriptor, fused_yarn: bool = False) -> list[float]:
        work = block(model, "moe", fused_yarn=fused_yarn).work
        mine = [w for w in work if isinstance(w, Traffic) and w.op == "rope_q"]
        return [sum(m.value(numbers(model)) for m, _ in w.moved) for w in mine]

    forward, backward = moved(plain)
    assert moved(model) == [6 * forward, 8.5 * backward]
    assert moved(model, fused_yarn=True) == [forward, backward]


def test_unfused_latent_scores_sum_over_the_channels_of_queries_and_keys() -> None:
    """Two products a head: s x s scores over 192 channels, s x 128 results over s keys."""
    model = sample_model("deepseek-v3")
    derived = block(model, "dense", PLAIN, attention="fused_softmax")
    values = numbers(model, seq_length=512)
    sizes = {
        work.op: tuple(getattr(work, dim).value(values) for dim in ("batch", "m", "n", "k"))
        for work in derived.work
        if isinstance(work, Matmul) and work.phase is Phase.FORWARD and work.op in ("scores", "context")
    }
    assert sizes == {"scores": (128, 512, 512, 192), "context": (128, 512, 128, 512)}


@pytest.mark.parametrize("name", ["llama2-13b", "gpt-oss-120b", "deepseek-v3"])
@pytest.mark.parametrize("scheme", [PLAIN, SEQUENCE])
def test_what_the_ranks_of_tp_exchange_is_the_same_for_every_kernel_of_attention(name: str, scheme: Scheme) -> None:
    """Every rank computes the scores of its own heads, so separate products exchange nothing."""
    model, kind = sample_model(name), "moe" if name == "gpt-oss-120b" else "dense"
    fused, *others = (
        [(c.kind, c.phase, c.tensor, c.elements) for c in chosen(block(model, kind, scheme, attention=kernel), "tp")]
        for kernel in KERNELS
    )
    assert fused
    assert others == [fused] * len(others)


def counted(documents: list[int], window: int | None) -> float:
    """The mean over all queries of these documents."""
    keys = [min(query + 0.5, window or length) for length in documents for query in range(length)]
    return sum(keys) / len(keys)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize(
    ("seq_length", "packing", "documents"),
    [
        (7, None, [7]),
        (8, None, [8]),
        (8, Packing(lengths=(3, 5)), [3, 5]),
        (8, Packing(lengths=(3, 20)), [3, 8]),  # none is longer than the sequence
        (8, Packing(lengths=(2, 5), weights=(3.0, 1.0)), [2, 2, 2, 5]),
    ],
)
def test_keys_of_the_mean_query(
    seq_length: int, packing: Packing | None, documents: list[int], window: int | None
) -> None:
    assert attended(seq_length, window, packing) == pytest.approx(counted(documents, window))
