"""The way from a run to the best plan: every change with its own gain, all of them together the whole gain."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest

from symconfig.api.planning import plan as planned
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster
from symconfig.existing.audit.audit import Audit, audit
from symconfig.existing.audit.steps import DECISIONS, WITH_FRAMEWORK
from symconfig.existing.recover.run import Supplied
from symconfig.solve.prospect import Setup
from tests.existing.audit.support import OVERLAPS, SEVENTY, audited, reading


@cache
def of_128(line: str) -> Audit:
    return audited(line, 128)


@pytest.mark.parametrize("line", [SEVENTY, f"{SEVENTY} {OVERLAPS}"])
def test_the_gains_multiply_to_the_whole_gain(line: str) -> None:
    found = of_128(line)
    now, best = found.judged.plan.best.predicted.step_s, found.better.best.predicted.step_s
    assert found.gain == pytest.approx(1 - best / now)
    assert math.prod(1 - step.gain for step in found.way) == pytest.approx(best / now, rel=1e-9)
    assert found.way[-1].step_s == pytest.approx(best, rel=1e-9)
    assert found.way[-1].fits
    assert all(step.changes for step in found.way)


def test_the_best_plan_is_the_planners_own_where_the_run_has_its_kernels() -> None:
    found = of_128(f"{SEVENTY} {OVERLAPS}")
    own = planned("llama3.1-70b", "h100", 128, 256, 8192, top=1)
    assert found.better.best == own.best


def test_a_run_that_is_the_best_plan_has_no_way_to_go() -> None:
    own = planned("llama2-13b", "a100-80gb", 16, 64, 4096, top=1)
    found = audited(" ".join(own.megatron_args()), 16, "llama2-13b", "a100-80gb")
    assert found.way == ()
    assert found.gain == pytest.approx(0.0, abs=1e-12)


def test_a_run_that_does_not_fit_is_first_led_to_where_it_does() -> None:
    line = SEVENTY.replace(" --recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "")
    found = audited(line.replace("--micro-batch-size 1", "--micro-batch-size 8"), 128)
    assert not found.judged.fits
    assert not found.runs
    assert "out-of-memory" in {finding.rule for finding in found.findings if finding.severity == "error"}
    assert found.gain is None
    fits = [step.fits for step in found.way]
    assert fits[-1]


def test_every_field_of_a_configuration_is_a_decision_or_given() -> None:
    given = {"dp", "natural_routing", "global_batch", "seq_length", "packing", "backend", "version"}
    decided = {field for fields in DECISIONS.values() for field in fields} | {*WITH_FRAMEWORK}
    named = {*Setup.__dataclass_fields__}
    assert decided | given == named
    assert not decided & given


SMALL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size {micro} --global-batch-size 64 --bf16 --mock-data --vocab-size 50304 "
    "--tokenizer-type NullTokenizer --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} {more}"
)


@pytest.mark.parametrize(
    ("tp", "pp", "micro", "more"),
    [
        (1, 1, 2, ""),
        (8, 1, 1, "--use-distributed-optimizer"),
        (2, 2, 4, "--sequence-parallel --overlap-grad-reduce"),
        (1, 4, 1, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
        (4, 2, 1, "--recompute-granularity full --recompute-method block --recompute-num-layers 40"),
    ],
)
def test_every_step_on_the_way_changes_time_or_memory(tp: int, pp: int, micro: int, more: str) -> None:
    found = audit(
        reading(SMALL.format(tp=tp, pp=pp, micro=micro, more=more)), Supplied(gpus=8), load_cluster("h100"), Limits()
    )
    before = found.judged.plan.best.predicted
    points = [(before.step_s, before.device_bytes), *((step.step_s, step.device_bytes) for step in found.way)]
    assert all(one != other for one, other in pairwise(points))
    assert found.way[-1].step_s == pytest.approx(found.better.best.predicted.step_s)
