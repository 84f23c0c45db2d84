"""The search against nested loops over the same space: every choice of degrees, not only the winner."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError
from symconfig.solve import pieces as weighing
from symconfig.solve.choice import TIE
from symconfig.solve.costed import costed, refined_s
from symconfig.solve.pieces import WHOLE
from symconfig.solve.search import resolved, search
from tests.sampled import sampled
from tests.solve import naive
from tests.solve.naive import job, tight, tiny, unpruned

STATES = {"activation_offload": "0", "optimizer_offload": "0"}  # without them the loops take a minute
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 384, "norm_topk_prob": True}
DENSE = tiny()
TIED = tiny("qwen2.5-7b", tie_word_embeddings=True, num_hidden_layers=3)
UNEVEN = tiny(
    num_hidden_layers=7,
    sliding_window=256,
    sliding_window_pattern=[True, True, False, True, True, True, False],
    tie_word_embeddings=True,
    vocab_size=64000,
)
MIXTURE = tiny("qwen3-30b-a3b", experts=EXPERTS, intermediate_size=0, num_hidden_layers=2, vocab_size=8000)
LATENT_SIZES: dict[str, Any] = {
    "experts": {**EXPERTS, "shared_expert_intermediate_size": 256, "first_k_dense_replace": 1},
    "latent": {"q_lora_rank": 128, "kv_lora_rank": 64, "v_head_dim": 64}
    | dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim"), 32),
    "num_key_value_heads": 8,
}
LATENT = tiny("deepseek-v3", **LATENT_SIZES, num_hidden_layers=3)
ADAPTER = tiny("llama2-13b-lora")

# model, GiB of memory (so that some candidates fit and others do not), job
CASES: dict[str, tuple[ModelDescriptor, float, Job]] = {
    "dense": (DENSE, 1.0, job(4, 4, 4096, pins=STATES)),
    "dense, all offloads": (DENSE, 0.8, job(2, 4, 4096, pins={"recompute": "none"})),
    "experts": (MIXTURE, 0.4, job(4, 4, 4096, pins={**STATES, "etp": "1", "tp": "1..2"})),
    "experts cut in two": (MIXTURE, 0.3, job(4, 4, 4096, pins={**STATES, "recompute": "none", "pp": "1"})),
    "experts beside another microbatch": (
        MIXTURE,
        0.62,
        job(4, 8, 4096, pins={**STATES, "etp": "1", "cp": "1", "tp": "1", "moe_overlap": "on"}),
    ),
    "experts and sharded weights": (
        MIXTURE,
        0.6,
        job(4, 8, 4096, pins={**STATES, "zero": "2..3", "recompute": "none", "tp": "1", "pp": "1"}),
    ),
    "tied embedding": (TIED, 0.4, job(8, 8, pins={**STATES, "cp": "1"})),
    "uneven stages": (UNEVEN, 1.5, job(4, 8, 4096, pins={**STATES, "tp": "1..2", "dp": "1"})),
    "latent attention and prediction layer": (
        LATENT,
        0.6,
        job(4, 4, pins={**STATES, "cp": "1", "etp": "1", "recompute": "none"}),
    ),
    "sixteen": (DENSE, 0.35, job(16, 16, pins={**STATES, "recompute": "none", "tp": "2..4", "mbs": "1..2"})),
    "shared key/value heads": (DENSE, 0.5, job(8, 8, pins={**STATES, "recompute": "none", "tp": "4..8"})),
    "an older Megatron": (DENSE, 1.0, job(4, 4, 4096, pins=STATES, megatron_version="core_v0.12.1")),
    "deepspeed": (DENSE, 1.2, job(4, 8, backend="deepspeed")),
    "deepspeed with experts": (MIXTURE, 0.8, job(4, 8, backend="deepspeed")),
    "deepspeed with an adapter": (ADAPTER, 0.8, job(4, 8, backend="deepspeed")),
}


@pytest.fixture(autouse=True, scope="module")
def alike() -> Iterator[None]:
    """GPUs that are all as fast: the oracle's are, and how they spread is one factor on all rates of a job."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("symconfig.cost.machine.SPREAD", 0.0)
        yield


@cache
def nested_loops(name: str) -> naive.Weighed:
    """What the loops find of a case, which takes seconds."""
    model, gib, asked = CASES[name]
    return naive.weigh(model, tight(model, gib), asked)


@pytest.fixture(autouse=True)
def nothing_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out published layouts: the loops know seconds alone."""
    monkeypatch.setattr("symconfig.solve.run.usual_layouts", lambda *_: None)


@pytest.mark.parametrize("name", CASES)
def test_every_choice_of_degrees_has_the_step_time_of_its_fastest_policy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symconfig.solve.choice.family", naive.place)
    monkeypatch.setattr("symconfig.solve.choice.complexity", lambda _: 0)
    model, gib, asked = CASES[name]
    cluster, expected = tight(model, gib), nested_loops(name)
    found = unpruned(model, cluster, resolved(model, cluster, asked), 1000)
    # The slowest first: of the families with other ZeRO stages the fastest one stays.
    steps = {naive.place(each): each.step_s for each in reversed(found.best)}
    assert steps == pytest.approx({place: seconds for place, (seconds, _) in expected.best.items()}, rel=1e-9)
    assert found.feasible == expected.feasible
    # A case where everything fits would not test that memory is minded.
    assert expected.feasible < expected.candidates
    assert found.feasible <= found.candidates <= expected.candidates


@pytest.mark.parametrize("name", ["dense", "experts cut in two", "deepspeed"])
def test_nothing_fits_where_no_candidate_of_the_loops_does(name: str) -> None:
    """In less and less memory, down to where nothing is left."""
    model, gib, asked = CASES[name]
    for less in sampled((0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2), 2):
        cluster = tight(model, less * gib)
        any_fits = naive.weigh(model, cluster, asked).feasible > 0
        if not any_fits:
            with pytest.raises(InfeasibleError, match="nothing fits"):
                search(model, cluster, asked)
            return
        assert search(model, cluster, asked).best.configuration.world_size == asked.gpus
    pytest.fail("everything fits")


def test_most_costs_of_plain_models_are_by_hand() -> None:
    """Those of equal stages; else the loops would judge the search by its own costs alone."""
    for name in ("dense", "experts", "experts cut in two", "sixteen"):
        assert nested_loops(name).by_hand > 50, name


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_no_slower_than_any_candidate_simulated(name: str) -> None:
    """But for what counts as a tie: the formula, and not the simulation, ranks what is not among the best."""
    model, gib, asked = CASES[name]
    simulated = min(refined_s(found, costed(found)) for _, found in nested_loops(name).best.values())
    plan = search(model, tight(model, gib), asked)
    assert plan.fastest.predicted.step_s <= TIE * simulated


def test_stages_of_the_same_layers_in_another_order_recompute_other_first_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stages 1 and 2 hold three windowed layers and a full one each, but not in the same order."""
    pattern = [True] * 16
    pattern[5] = pattern[11] = False
    model = tiny(
        num_hidden_layers=16, sliding_window=256, sliding_window_pattern=pattern, max_position_embeddings=2**14
    )
    model = model.model_copy(update={"vocab_size": 2048})
    asked = job(4, 8, 2**14, pins={**STATES, "tp": "1", "dp": "1", "pp": "4", "vpp": "1"})
    monkeypatch.setattr(weighing, "policies", lambda *_: (frozenset(), WHOLE.modules))
    for gib in (2.05, 2.15):
        cluster = tight(model, gib)
        best = unpruned(model, cluster, resolved(model, cluster, asked), 9).best
        assert any(found.block_layers for found in best)
        for found in best:
            assert float(costed(found).cost.step_s.max()) == pytest.approx(found.step_s, rel=1e-9)


def test_the_same_job_gives_the_same_bytes() -> None:
    for name in ("experts", "deepspeed with an adapter"):
        model, gib, asked = CASES[name]
        first, second = (search(model, tight(model, gib), asked).to_json() for _ in range(2))
        assert first == second


@pytest.mark.parametrize("name", ["dense", "experts", "uneven stages", "deepspeed with an adapter"])
def test_the_plan_is_whole(name: str) -> None:
    model, gib, asked = CASES[name]
    plan = search(model, tight(model, gib), asked, top=1000)
    for candidate in plan.ranked:
        p, batch = candidate.configuration, candidate.configuration
        assert p.tp * p.cp * p.dp * p.pp == asked.gpus
        assert (p.tp * p.cp * p.dp) % (p.ep * p.etp) == 0
        assert batch.micro * p.dp * batch.num_microbatches == batch.global_batch == asked.global_batch_size
        assert len(candidate.stages) == p.pp
        assert all(len(stage.chunks) == p.vpp for stage in candidate.stages)
        order: list[Any] = [""] * (p.pp * p.vpp)
        for index, stage in enumerate(candidate.stages):
            order[index :: p.pp] = stage.chunks
        assert [kind for chunk in order for kind in chunk] == ["embedding", *model.layer_kinds, "head"]
        assert max(stage.peak_bytes for stage in candidate.stages) == pytest.approx(candidate.predicted.peak_bytes)
        limit = plan.cluster.gpu.memory_bytes.value * (1 - asked.limits.memory_margin)
        assert candidate.predicted.device_bytes <= limit
        assert sum(candidate.predicted.time.values()) == pytest.approx(candidate.predicted.step_s)
        assert sum(candidate.predicted.memory.values()) == pytest.approx(candidate.predicted.device_bytes)
