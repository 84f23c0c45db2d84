"""Every option of Megatron-LM is counted, refused, said to be left out, or of no matter to memory and time."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import symconfig.existing.recover
import symconfig.frameworks.megatron
from symconfig.existing.recover import uncounted
from symconfig.formats.megatron import LINKED
from symconfig.formats.megatron_run import DECIDED
from symconfig.frameworks.megatron.flags import flags, versions
from tests.existing.recover.options import names_of

READERS = (symconfig.existing.recover, symconfig.frameworks.megatron)
SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for package in READERS for path in Path(package.__path__[0]).glob("*.py")
)


def kinds() -> dict[str, frozenset[str]]:
    found = uncounted.destinations()
    indifferent = {why: frozenset(names) for why, names in found["indifferent"].items()}
    others = {kind: frozenset(found[kind]) for kind in ("refused", "without")}
    read = frozenset(found["read"]) | LINKED | DECIDED.difference(*indifferent.values(), others["without"])
    return {"read": read, **others, **indifferent}


@pytest.mark.parametrize("version", versions())
def test_every_destination_of_every_version_is_sorted(version: str) -> None:
    known = frozenset[str]().union(*kinds().values())
    assert {flag.dest for flag in flags(version).flags.values()} <= known


def test_each_is_of_one_kind_and_some_version_has_it() -> None:
    every = {flag.dest for version in versions() for flag in flags(version).flags.values()}
    for one, other in combinations(kinds(), 2):
        assert not kinds()[one] & kinds()[other], (one, other)
    for kind, found in kinds().items():
        assert found <= every, kind


def test_what_counts_is_named_where_it_is_read() -> None:
    named = set(re.findall(r'"(\w+)"', SOURCES)) | LINKED
    assert kinds()["read"] <= named | DECIDED
    assert not (kinds()["refused"] | kinds()["without"]) & named


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--fp32-residual-connection", ["--fp32-residual-connection"]),
        ("--no-masked-softmax-fusion", ["--no-masked-softmax-fusion"]),
        ("--no-fp8-wgrad --num-workers 8", ["--no-fp8-wgrad"]),
        (
            "--mla-down-proj-fusion --moe-shared-expert-overlap",
            ["--mla-down-proj-fusion", "--moe-shared-expert-overlap"],
        ),
        ("--freeze-LM --lora-rank 8 --lora-rank 4", ["--freeze-LM, --lora-rank"]),
        # as by default, which changes nothing
        ("--mlp-chunks-for-training 1 --empty-unused-memory-level 0 --train-iters 10 --save /x", []),
    ],
)
def test_the_prediction_says_what_it_is_made_without(line: str, said: list[str]) -> None:
    found = list(uncounted.left_out(names_of(line)))
    assert [item.value for item in found] == said
    assert all(item.what == "predicted without" and item.why and item.place for item in found)


def test_an_option_of_another_version_is_judged_by_that_one() -> None:
    old = names_of("--no-fp8-wgrad --freeze-all-layers", "core_v0.14.0")
    assert [item.value for item in uncounted.left_out(old)] == ["--no-fp8-wgrad"]
    assert [dest for dest, _ in uncounted.refused(old)] == ["freeze_all_layers"]


@pytest.mark.parametrize(
    ("line", "dests"),
    [
        ("--freeze-all-layers", ["freeze_all_layers"]),
        ("--expert-tensor-parallel-num-weight-shards 2", ["expert_tensor_parallel_num_weight_shards"]),
        ("--use-checkpoint-args --hybrid-context-parallel", ["hybrid_context_parallel", "use_checkpoint_args"]),
        ("--cpu-offloading-num-layers 0 --recompute-activations", []),
    ],
)
def test_what_is_refused_is_so_by_name(line: str, dests: list[str]) -> None:
    assert sorted(dest for dest, _ in uncounted.refused(names_of(line))) == dests
