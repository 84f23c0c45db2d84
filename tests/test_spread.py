"""A sample of zoo models, clusters and targets, planned and accepted by the real frameworks; the table of real ranks.

`make verify KIND=zoo` does it for all pairs, `KIND=real` for the ranks.
"""

from __future__ import annotations

import importlib.util
import resource
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from symconfig.descriptor.load import zoo_clusters, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.verify import megatron_source
from symconfig.verify.checks import Check
from tests.sampled import sampled
from tools.verify import real as verify_real
from tools.verify.real import jobs
from tools.verify.zoo import BACKENDS, Pair, judge, render, spread

pytestmark = pytest.mark.usefixtures("warm_megatron")

LEAST = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """What came of the pairs: the checks of those that were planned, why the others were not."""

    checked: dict[Pair, list[Check]]
    without: dict[Pair, str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Spread:
    rendered, without = render(sampled(spread(), 8), tmp_path_factory.mktemp("spread"))
    return Spread(judge(rendered), without)


def test_the_spread_holds_every_model_cluster_and_target() -> None:
    pairs = spread()
    assert {pair.model for pair in pairs} == set(zoo_models())
    assert {(pair.cluster, pair.backend) for pair in pairs} == set(product(zoo_clusters(), BACKENDS))


def test_enough_pairs_are_planned(done: Spread) -> None:
    print(f"{len(done.checked)} pairs planned and checked")
    assert len(done.checked) >= LEAST


def test_a_pair_without_a_plan_has_no_memory_or_a_field_that_its_target_cannot_express(done: Spread) -> None:
    """A plan that its own renderer refuses is a search that does not know its target."""
    for pair, reason in done.without.items():
        field = reason.partition(": ")[0].partition(".")[0]
        by_search = reason.startswith(("nothing fits in memory", "no division of"))
        assert by_search or field in ModelDescriptor.model_fields, f"{pair}: {reason}"


def test_no_check_fails(done: Spread) -> None:
    failed = [
        f"{pair}: {check}" for pair, checks in done.checked.items() for check in checks if check.status == "failed"
    ]
    assert not failed, "\n".join(failed)


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None
    or megatron_source.find() is None
    or importlib.util.find_spec("deepspeed") is None,
    reason="the real frameworks are not here",
)
def test_every_pair_was_judged_by_the_real_framework(done: Spread) -> None:
    for pair, checks in done.checked.items():
        names = [check.name for check in checks if check.status == "passed"]
        real = "parse_args and validate_args" if pair.backend == "megatron" else "DeepSpeedConfig"
        assert any(real in name for name in names), f"{pair}: {names}"


def test_every_model_of_the_zoo_has_one_job() -> None:
    found = jobs()
    assert sorted(job["model"] for job in found) == zoo_models()
    assert {job["cluster"] for job in found} <= set(zoo_clusters())


def test_a_job_is_planned_written_and_verified_by_the_commands_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_real, "CHECKS", {"megatron": ("--megatron", str(tmp_path / "absent"))})
    job = {"model": "llama2-7b", "cluster": "a100-80gb", "gpus": 8, "global_batch_size": 64}
    found = verify_real.judge(job, tmp_path / "out")
    assert (found.code, found.ranks, found.compared) == (2, 0, ())
    assert found.failures  # bad input is said, not shown as a row of dashes
    assert found.plan.best.configuration.world_size == 8
    own = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # which a child is a copy of before it runs
    assert 2**24 < found.peak_bytes < 2**31 + own
