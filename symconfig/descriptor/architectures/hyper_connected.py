"""Families with several residual streams that each sublayer reads and writes (hyper-connections): Hunyuan 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import INDEXED, Architecture, Reading
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, V3
from symconfig.descriptor.architectures.expert_rules import particulars
from symconfig.descriptor.architectures.structure_rules import rules
from symconfig.descriptor.model import ModelDescriptor


def _hunyuan_choices(reader: Reading) -> None:
    """The first layer and every fourth from the second on have an indexer, where the file does not list them."""
    layers, listed = reader.fields["num_hidden_layers"], reader.values["indexer_types"]
    if listed is None:
        listed = ["full" if index == 0 or (index - 1) % 4 == 0 else "shared" for index in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers or not {"full", "shared"}.issuperset(map(str, listed)):
        return reader.problem("wrong value", "indexer_types", got=listed, need=f"{layers} times full or shared")
    if "shared" in listed:
        reader.fields["indexer.layers"] = [one == "full" for one in listed]
    return None


def _hunyuan_keys(model: ModelDescriptor) -> Mapping[str, Any]:
    own = model.indexer.layers if model.indexer else None
    return {"indexer_types": ["full" if one else "shared" for one in own or (True,) * model.num_hidden_layers]}


ARCHITECTURES: dict[str, Architecture] = {
    "hy_v4": Architecture(
        constants={
            **V3,
            "attention_gate": "channel",
            "attention_sinks": True,
            "experts.first_k_dense_replace": 1,
            "streams.mixing": "injected",
        },
        names={"hc_mult": ("streams.count",)},
        defaults={"first_k_dense_replace": 1},
        only={"hc_magnitude": (2.0,), "hc_eps": (1e-6,)},
        ignored=(*LATENT_IGNORED, "learnable_sink_init"),
        known_layers=(INDEXED,),
        reads=("indexer_types", "swiglu_limit"),
        rule=rules(_hunyuan_choices, particulars({"swiglu_limit": None})),
        writes=_hunyuan_keys,
    ),
}
