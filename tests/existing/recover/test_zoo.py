"""When two descriptors are one model."""

from __future__ import annotations

from symconfig.descriptor.load import load_model
from symconfig.existing.recover.zoo import differing, meaning


def test_the_order_of_an_adapters_targets_makes_no_other_model() -> None:
    model = load_model("qwen2.5-7b-lora")
    assert model.adapter is not None
    turned = model.adapter.model_copy(update={"target_modules": model.adapter.target_modules[::-1]})
    other = model.model_copy(update={"adapter": turned})
    assert turned.target_modules != model.adapter.target_modules
    assert differing(meaning(model), meaning(other)) == ()
    fewer = model.adapter.model_copy(update={"target_modules": model.adapter.target_modules[1:]})
    other = model.model_copy(update={"adapter": fewer})
    assert differing(meaning(model), meaning(other)) == ("adapter.target_modules",)
