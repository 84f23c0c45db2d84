"""Models with sparse attention over the keys that an indexer chooses: DeepSeek-V3.2, GLM-5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import INDEXED, Architecture, Reading
from symconfig.descriptor.architectures.deepseek import LATENT_IGNORED, V3
from symconfig.descriptor.architectures.latent_kin import ROUTED_AS_V3
from symconfig.descriptor.model import ModelDescriptor

_IDLE = (*LATENT_IGNORED, "indexer_rope_interleave")  # which channels are pairs: the class fixes it
_LETTERS = {"F": "full", "S": "shared"}


def _shared_choices(reader: Reading) -> None:
    """indexer_types names each layer full or shared; older files have a pattern, or a step with an offset."""
    values, layers = reader.values, reader.fields["num_hidden_layers"]
    listed: Any = values["indexer_types"] or values["index_topk_pattern"]
    if listed is None:
        step, offset = max(values["index_topk_freq"] or 1, 1), values["index_skip_topk_offset"] or 0
        listed = ["full" if max(index - offset + 1, 0) % step == 0 else "shared" for index in range(layers)]
    kinds = [_LETTERS.get(str(one), str(one)) for one in listed] if isinstance(listed, list | str) else []
    if len(kinds) != layers or not {"full", "shared"}.issuperset(kinds):
        return reader.problem("wrong value", "indexer_types", got=listed, need=f"{layers} times full or shared")
    if "shared" in kinds:
        reader.fields["indexer.layers"] = [one == "full" for one in kinds]
        reader.key_of["indexer.layers"] = "indexer_types"


def _types(model: ModelDescriptor) -> Mapping[str, Any]:
    own = model.indexer.layers if model.indexer else None
    return {"indexer_types": ["full" if one else "shared" for one in own or (True,) * model.num_hidden_layers]}


ARCHITECTURES: dict[str, Architecture] = {
    "deepseek_v32": Architecture(
        constants=V3,
        names={"mlp_bias": ()},
        defaults={"num_nextn_predict_layers": 0, "aux_loss_alpha": 0.0},
        only=ROUTED_AS_V3,
        ignored=_IDLE,
        same_as={"num_experts": "n_routed_experts"},
        known_layers=(INDEXED,),
    ),
    "glm_moe_dsa": Architecture(
        constants=V3,
        names={"mlp_bias": ()},
        defaults={
            "num_nextn_predict_layers": 0,
            "index_topk_freq": 1,
            "index_skip_topk_offset": 2,
            "index_topk_pattern": None,
        },
        only=ROUTED_AS_V3,
        ignored=_IDLE,
        same_as={"num_experts": "n_routed_experts"},
        known_layers=(INDEXED,),
        reads=("indexer_types", "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern"),
        rule=_shared_choices,
        writes=_types,
    ),
}

ARCHITECTURES["axk2"] = Architecture(
    constants={**V3, "attention_gate": "channel", "latent.queries_of_both": True},
    names={"gated_norm_rank": ("norm_gate_rank",)},
    defaults={"num_nextn_predict_layers": 0, "first_k_dense_replace": 1},
    only=ROUTED_AS_V3,
    ignored=_IDLE,
    known_layers=(INDEXED,),
)

REFUSED: Mapping[str, str] = {
    "minimax_m3_vl_text": "its indexer chooses blocks of keys for plain attention, with queries of its own",
}
