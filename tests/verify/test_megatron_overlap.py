"""What the search leaves out beside the experts' overlap is what Megatron's own configuration refuses."""

from __future__ import annotations

from typing import Any

from symconfig.verify import megatron, megatron_session
from symconfig.verify.megatron import Rendered
from tests.verify.megatron_support import LIMIT_S, rendered, replaced, source

FLAG = "--overlap-moe-expert-parallel-comm"
# core_v0.19: an option of a plan that has the overlap, its values, words of the refusal.
REFUSED = {
    "one chunk a stage": ("--num-virtual-stages-per-pipeline-rank", [], "virtual_pipeline_model_parallel_size"),
    "no expert parallelism": ("--expert-model-parallel-size", ["1"], "only supported with expert model parallelism"),
    "full recompute": (
        FLAG,
        ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        "disable full recomputation",
    ),
    "recomputed experts": (
        FLAG,
        ["--recompute-granularity", "selective", "--recompute-modules", "moe"],
        "disable moe in recompute_modules",
    ),
    "two prediction layers": (FLAG, ["--mtp-num-layers", "2"], "at most one layer"),
    "gathered experts": ("--moe-token-dispatcher-type", ["allgather"], "alltoall/flex token dispatcher"),
}


def _plan(**overrides: Any) -> Rendered:
    degrees = {"tp": 1, "pp": 4, "vpp": 2, **overrides}
    return rendered("qwen3-30b-a3b", cluster="h100", overlap_moe_a2a=True, **degrees)


def test_megatron_refuses_what_the_search_leaves_out_and_takes_the_rest() -> None:
    items = {name: replaced(_plan(), option, *values) for name, (option, values, _) in REFUSED.items()}
    items |= {"as planned": _plan(), "without a pipeline": _plan(pp=1, vpp=1)}
    found = megatron_session.run(source(), megatron.session_jobs(items, source()), LIMIT_S)
    for name, (_, _, words) in REFUSED.items():
        assert words in str(found[name].error), f"{name}: {found[name].error}"
    assert [found[name].error for name in ("as planned", "without a pipeline")] == [None, None]
