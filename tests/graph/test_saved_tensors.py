"""Bytes that PyTorch saves for the backward of a real Transformers layer, against what is derived, to the byte."""

from __future__ import annotations

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph.derived import recompute_policy
from symconfig.graph.model import derived
from symconfig.graph.scheme import Scheme
from tests.graph.saved import keeping
from tests.graph.support import held_bytes, numbers
from tests.sample_models import sample_model

SMALL = {
    "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "vocab_size": 1024, "max_position_embeddings": 4096,
}  # fmt: skip
S = 256


def saved_bytes(model: ModelDescriptor, with_loss: bool = False) -> int:
    """Bytes of all storages, other than parameters, that autograd holds after the forward of the decoder.

    with_loss: of the whole model, with its head and its loss.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tests.descriptor.small_configs import to_transformers_config

    config = to_transformers_config(model)
    config._attn_implementation = "sdpa"  # on a CPU, too, a flash kernel
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    body = module.model
    if model.adapter is not None:
        peft = pytest.importorskip("peft")
        wanted = peft.LoraConfig(r=model.adapter.r, target_modules=list(model.adapter.target_modules))
        peft.get_peft_model(module, wanted).to(torch.bfloat16).enable_input_require_grads()
    with keeping(module) as kept:
        tokens = torch.zeros((1, S), dtype=torch.long)
        module(input_ids=tokens, labels=tokens) if with_loss else body(tokens)
    return kept.bytes()


@pytest.mark.parametrize("name", ["llama2-13b", "qwen2.5-7b", "llama2-13b-lora"])
def test_a_model_with_its_loss_saves_what_is_derived(name: str) -> None:
    """Autograd does not save the logits in 16 bits, whose block the allocator keeps."""
    model = sample_model(name, **SMALL, num_hidden_layers=2)
    blocks = derived(model, DEEPSPEED.implementation, Scheme(False))
    sizes = numbers(model, seq_length=S)
    kept = {kind: held_bytes(block, recompute_policy(block, frozenset()), sizes) for kind, block in blocks.items()}
    logits = S * SMALL["vocab_size"]
    rope = 2 * 2 * S * SMALL["head_dim"]  # sine and cosine, once for all layers
    labels = 8 * (S + 1) + 4  # with one to the right of the last, and how many of them count
    derived_bytes = kept["embedding"] + 2 * kept["dense"] + kept["head"] - 2 * logits
    assert derived_bytes + rope + labels == saved_bytes(model, with_loss=True)
