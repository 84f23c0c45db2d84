"""Bytes that PyTorch saves for the backward of Transformers' modules, against what is derived, to the byte.

Two lengths are subtracted, so that what does not grow with the sequence (copies of weights, the rows that a convolution
pads) falls out.
"""

from __future__ import annotations

import pytest

from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.derive import derive
from symconfig.graph.model import blocks
from symconfig.graph.operator import ELEMENT_BYTES
from tests.graph.blocks.modules import CASES, HIDDEN, Case
from tests.graph.saved import keeping, stand_in
from tests.graph.support import PLAIN, numbers

torch = pytest.importorskip("torch")
SHORT, LONG = 128, 256


MODULES = ("mamba2", "bamba", "qwen3 next", "kimi", "lfm2")


def saved_bytes(case: Case, length: int) -> int:
    """Bytes of all storages, other than parameters, that autograd holds after the module's forward."""
    module = case.build("cpu")
    x = torch.zeros(1, length, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    with keeping(module) as kept:
        module(x)
    return kept.bytes()


def derived_bytes(case: Case, length: int) -> dict[str, float]:
    """Bytes by tensor that the block's operators need."""
    kinds = blocks(case.descriptor, DEEPSPEED.implementation)
    (block,) = (block for kind, block in kinds.items() if case.block in kind)
    values = numbers(case.descriptor, seq_length=length)
    mine = {op.name for op in block.operators if op.path == "self_attn"}
    return {
        held.tensor: held.elements.value(values) * ELEMENT_BYTES[held.element]
        for held in derive(block, PLAIN).held
        if mine.intersection(held.needed_by)
    }


@pytest.mark.parametrize("name", MODULES)
def test_a_module_saves_what_is_derived(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    stand_in(case.family, monkeypatch)
    found = saved_bytes(case, LONG) - saved_bytes(case, SHORT)
    expected, shorter = derived_bytes(case, LONG), derived_bytes(case, SHORT)
    assert found == sum(expected.values()) - sum(shorter.values()), expected
