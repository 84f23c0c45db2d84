"""An implementation is its options by name, and each option changes what it is called after."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.frameworks.behaviour import changed, options
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import MEGATRON, MEGATRON_LOCAL
from symconfig.graph.implementation import Implementation

KNOWN = [*(one.implementation for one in FRAMEWORKS.values()), MEGATRON_LOCAL.implementation]
# What a word is the name of, and what else has to be so that it makes a difference.
WORDS = {
    "adapters": "plain",
    "attention": "torch",
    "loss": "torch",
    "dispatcher": "deepep",
    "routing": "chain",
    "kept_outputs": 3,
}
WITH = {
    "wide_norm": {"fused_norm": False},
    "kept_outputs": {"held_logits": True},
    "fused_yarn": {"fused_rope": True},
    "sequential_experts": {"fused_experts": False},
}


@pytest.mark.parametrize("how", KNOWN)
def test_what_is_taken_apart_is_put_together_again(how: Implementation) -> None:
    assert changed(how, **options(how)) == changed(how) == how


@pytest.mark.parametrize("how", KNOWN)
@pytest.mark.parametrize("name", options(MEGATRON.implementation))
def test_every_option_changes_that_and_nothing_else(how: Implementation, name: str) -> None:
    known = changed(how, **WITH.get(name, {}))
    before = options(known)
    value: Any = WORDS[name] if name in WORDS else not before[name]
    after = options(changed(known, **{name: value}))
    assert after[name] == value
    others = {"fused_rope": {"fused_yarn"}, "fused_norm": {"wide_norm"}, "fused_experts": {"sequential_experts"},
              "held_logits": {"kept_outputs"}}.get(name, set())  # fmt: skip
    assert {key for key in before if before[key] != after[key]} - others <= {name}


def test_logits_that_are_held_are_those_of_one_microbatch_or_more() -> None:
    plain = changed(MEGATRON.implementation, held_logits=False)
    assert plain.loss.kept_outputs == 0
    assert changed(plain, held_logits=True).loss.kept_outputs == 1
    assert changed(plain, held_logits=True, kept_outputs=4).loss.kept_outputs == 4
    assert changed(plain, held_logits=False, kept_outputs=4).loss.kept_outputs == 0
