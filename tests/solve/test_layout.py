"""Pipeline layouts as Megatron-LM's argument spells them."""

from __future__ import annotations

from symconfig.solve.split import laid_out

LAYERS = ("embedding", *("dense",) * 15, "mtp", "head")


def test_a_layout_is_spelled_out() -> None:
    split = laid_out(LAYERS, 2, "Et*3|(tt|)*6mL")
    assert split is not None
    assert split.vpp == 4
    assert [len(chunk) for chunk in split.chunks] == [4, 2, 2, 2, 2, 2, 2, 2]
    assert split.counts(("embedding", "dense", "mtp", "head")) == ((1, 9, 0, 0), (0, 6, 1, 1))


def test_a_layout_of_another_model_is_refused() -> None:
    assert laid_out(LAYERS, 2, "Et*4|(tt|)*6mL") is None
    assert laid_out(LAYERS, 3, "Et*3|(tt|)*6mL") is None
