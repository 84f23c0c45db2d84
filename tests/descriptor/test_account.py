"""What `symconfig import` says of a file's keys: which the class filled in, and which say nothing of the model."""

from __future__ import annotations

from symconfig.descriptor.huggingface import imported


def test_keys_of_the_class_and_idle_ones_are_told_apart() -> None:
    data = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "bos_token_id": 1, "temperature": 0.5,
            "auto_map": {"AutoModel": "code.py"}}  # fmt: skip
    model, account = imported(data, "config.json", "m")
    assert account.filled["head_dim"] == model.head_dim == 8
    assert account.filled["rms_norm_eps"] == model.norm_eps
    assert not {"hidden_size", "rope_scaling"} & set(account.filled)
    assert account.left_out == {
        "code beside the weights, which is never run": ("auto_map",),
        "the tokenizer's tokens": ("bos_token_id",),
        "generation": ("temperature",),
    }
    told = list(account.sentences())
    assert told[0].startswith("not in the file, and filled in as LlamaForCausalLM does: attention_bias false")
    assert "left out (generation): temperature" in told


def test_rope_of_a_section_is_in_the_file() -> None:
    data = {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert "rope_theta" not in imported(data, "config.json", "m")[1].filled


def test_what_stands_around_a_text_model_is_named() -> None:
    data = {"model_type": "llava_next", "image_grid_pinpoints": [[1, 2]], "text_config": {"model_type": "mistral"}}
    model, account = imported(data, "config.json", "m")
    assert model.model_type == "mistral"
    assert account.left_out["not of the text model"] == ("image_grid_pinpoints",)
