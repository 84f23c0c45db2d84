"""What targets refuse, by example: the search says the sentence, and plans as soon as the cause is gone."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.errors import InfeasibleError
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tiny

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 384, "norm_topk_prob": True}
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 8000}
DENSE = tiny(**SMALL)
MIXTURE = tiny("qwen3-30b-a3b", experts=EXPERTS, intermediate_size=0, **SMALL)
LATENT: dict[str, Any] = {
    "latent": {
        "q_lora_rank": 128,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    },
    "num_key_value_heads": 8,
    "experts": {**EXPERTS, "shared_expert_intermediate_size": 256, "first_k_dense_replace": 1},
}
PREDICTING = tiny("deepseek-v3", **SMALL, **LATENT)
MLA = PREDICTING.model_copy(update={"num_nextn_predict_layers": 0})
ALONE = {"tp": "1", "pp": "1", "cp": "1", "ep": "1", "etp": "1", "recompute": "none", "optimizer_offload": "0"}

# model, backend, version, what is pinned beside ALONE, and the sentence
CASES = [
    (PREDICTING, "megatron", "core_v0.13.1", {"cp": "2"}, "multi-token prediction does not go with context"),
    (PREDICTING, "megatron", "core_v0.14.0", {"cp": "2"}, None),
    (MLA, "megatron", "core_v0.13.1", {"cp": "2"}, None),
    (MIXTURE, "deepspeed", None, {"ep": "2", "cp": "2"}, "AutoEP with Ulysses is not validated"),
    (MIXTURE, "deepspeed", None, {"ep": "2"}, None),
    (MIXTURE, "deepspeed", None, {"cp": "2"}, None),
    (MIXTURE, "deepspeed", None, {"tp": "2"}, "AutoTP is known to split dense"),
    (DENSE, "deepspeed", None, {"tp": "2"}, None),
    (PREDICTING, "deepspeed", None, {}, "Transformers trains no multi-token-prediction layers"),
    (MLA, "deepspeed", None, {"cp": "2"}, "Ulysses takes one head size"),
    (MLA, "deepspeed", None, {}, None),
    (MIXTURE, "megatron", None, {"zero": "3", "ep": "2"}, None),
    (MIXTURE, "megatron", None, {"zero": "3", "ep": "2", "moe_overlap": "on"}, "3 go without hiding the experts'"),
    (DENSE, "megatron", None, {"zero": "3", "pp": "2"}, "ZeRO 2 and 3 go without a pipeline"),
    (DENSE, "megatron", None, {"zero": "2", "tp": "2"}, "before Blackwell ZeRO 2 and 3 go without tensor"),
]


@pytest.mark.parametrize(("model", "backend", "version", "pins", "sentence"), CASES)
def test_by_example(model: Any, backend: str, version: str | None, pins: dict[str, str], sentence: str | None) -> None:
    named = {"megatron_version": version} if version else {}
    asked = job(2, 4, pins={**ALONE, **pins}, backend=backend, **named)
    if sentence is None:
        assert search(model, sample_cluster(), asked).best.predicted.step_s > 0
        return
    with pytest.raises(InfeasibleError, match=sentence):
        search(model, sample_cluster(), asked)
