"""Vision towers as they are read of a multimodal `config.json`, against Transformers' modules of the same file."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from symconfig.descriptor.architectures.keys import tower_defaults
from symconfig.descriptor.architectures.multimodal import ARCHITECTURES as TEXTS
from symconfig.descriptor.architectures.multimodal import MULTIMODAL
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.document import Document
from symconfig.descriptor.huggingface import VisionReader, import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.vision import KINDS, Vision
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from tests.sample_models import sample_model
from tests.towers import SMALL, TEXT, config, plain, tower

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
WHOLE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm46v", "glm4v_moe", "gemma3", "mistral3",
         "internvl", "llava")  # fmt: skip


def parameters_of(kind: str) -> tuple[int, int]:
    """Count those of Transformers' model: of its tower and projector, and all."""
    with torch.device("meta"):
        built = transformers.AutoModelForImageTextToText.from_config(config(kind))
    named = {name: parameter.numel() for name, parameter in built.named_parameters()}
    inner = sum(count for name, count in named.items() if "language_model" not in name and "lm_head" not in name)
    return inner, sum(named.values())


def with_tower(vision: Vision) -> ModelDescriptor:
    sizes: dict[str, Any] = {**TEXT, "tie_word_embeddings": False}
    return sample_model("llama2-13b", **sizes).model_copy(update={"vision": vision})


def refusal(kind: str, **section: Any) -> str:
    data = plain(config(kind))
    for name, value in section.items():
        data["vision_config"][name] = value
    with pytest.raises(InputError) as error:
        import_config(data, "config.json", "m")
    return str(error.value)


def test_every_multimodal_family_has_a_small_model() -> None:
    assert set(SMALL) == set(MULTIMODAL) - {"qwen3_5_moe"}  # its tower is qwen3_5's


@pytest.mark.parametrize("kind", SMALL)
def test_a_tower_has_as_many_parameters_as_transformers_module(kind: str) -> None:
    counted = parameters(with_tower(tower(kind))).by_part
    assert sum(count for part, count in counted.items() if part in KINDS) == parameters_of(kind)[0]


@pytest.mark.parametrize("kind", WHOLE)
def test_a_multimodal_model_has_as_many_parameters_as_transformers_module(kind: str) -> None:
    model = import_config(plain(config(kind)), "config.json", "m")
    assert parameters(model).total == parameters_of(kind)[1]


@pytest.mark.parametrize("kind", MULTIMODAL)
def test_the_defaults_of_towers_are_those_of_the_config_classes(kind: str) -> None:
    made = transformers.AutoConfig.for_model(kind)
    name = MULTIMODAL[kind].towers[0]  # others are what files called the section before its class had a name
    section, defaults = transformers.AutoConfig.for_model(name), tower_defaults(name)
    for key in MULTIMODAL[kind].tower.reads:
        actual = getattr(section, key)
        assert (list(actual) if isinstance(actual, tuple) else actual) == defaults[key], (name, key)
    for key, default in MULTIMODAL[kind].defaults.items():
        assert getattr(made, key) == default, key
    assert made.tie_word_embeddings == MULTIMODAL[kind].tied


@pytest.mark.parametrize("kind", TEXTS)
def test_the_defaults_of_inner_language_models_are_those_of_the_config_classes(kind: str) -> None:
    made = transformers.CONFIG_MAPPING[kind]()
    for key, default in architectures()[kind].defaults.items():
        in_rope = key in ("rope_theta", "partial_rotary_factor")
        actual = made.rope_parameters.get(key, 1.0) if in_rope else getattr(made, key, None)
        if isinstance(default, int | float | str) and key not in ("use_sliding_window", "sliding_window"):
            assert (actual or False) == default, key


def test_a_flat_file_of_glm_4_1v_is_read() -> None:
    """As it was published: biases of queries, keys and values, and rope on half of a head, beside the tower."""
    nested = plain(config("glm4v"))
    flat = {**nested.pop("text_config"), **nested, "model_type": "glm4v", "attention_bias": True}
    flat |= {"rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}, "partial_rotary_factor": 0.5}
    del flat["rope_parameters"]
    model = import_config(flat, "config.json", "m")
    assert (model.qkv_bias, model.partial_rotary_factor, model.rope_scaling) == (True, 0.5, None)
    assert parameters(model).total == parameters_of("glm4v")[1]


def test_mistral_4_has_as_many_parameters_as_transformers_class() -> None:
    """Mistral Small 4: 119B, the text model of a mistral3 file."""
    text = {"model_type": "mistral4", "vocab_size": 160, "num_hidden_layers": 2, "first_k_dense_replace": 1}
    model = import_config({"model_type": "mistral3", "text_config": text, "tie_word_embeddings": False}, "f", "m")
    with torch.device("meta"):
        built = transformers.Mistral4ForCausalLM(transformers.CONFIG_MAPPING["mistral4"](**text, pad_token_id=None))
    assert parameters(model).total == sum(one.numel() for one in built.parameters())
    data = {"model_type": "mistral3", "text_config": {"model_type": "mistral4"}, "tie_word_embeddings": False}
    whole = import_config(data, "f", "m")
    assert round(parameters(whole).total / 1e9) == 119


def test_a_file_whose_language_model_has_no_section_is_the_same_model() -> None:
    """As the files of Qwen2.5-VL were published."""
    nested = plain(config("qwen2_5_vl"))
    flat = {**nested.pop("text_config"), **nested, "model_type": "qwen2_5_vl", "rope_parameters": None}
    flat |= {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "rope_theta": 1e6}
    del flat["rope_parameters"]
    mine = import_config(flat, "config.json", "m").model_dump(exclude={"source"})
    assert mine == import_config(plain(config("qwen2_5_vl")), "config.json", "m").model_dump(exclude={"source"})


def test_an_unknown_key_of_a_tower_is_refused_by_name() -> None:
    assert "vision_config.num_registers: this key is not known and may change the vision tower" in refusal(
        "qwen3_vl", num_registers=4
    )


@pytest.mark.parametrize(
    ("kind", "section", "sentence"),
    [
        ("gemma3", {"vision_use_head": True}, "vision_use_head: not supported for this tower (got True, need False)"),
        ("gemma3", {"image_size": 18}, "image_size 18 is not divisible by patch_size 4"),
        ("gemma3", {"image_size": 12}, "3 x 3 patches cannot be pooled into 4 tokens"),
        ("qwen3_vl", {"depth": 1}, "deepstack_visual_indexes [0, 1] are not different layers of 1"),
        ("qwen3_vl", {"num_heads": 5}, "hidden_size 32 is not divisible by num_attention_heads 5"),
        ("qwen3_vl", {"out_hidden_size": 48}, "ends with 48 channels, and hidden_size is 64"),
        ("qwen2_5_vl", {"window_size": 12}, "window_size 12 is not divisible by the 8 pixels of a token"),
        ("qwen2_5_vl", {"depth": "deep"}, "vision_config.depth: wrong value (got deep, need a whole number)"),
        ("internvl", {"patch_size": [4, 8]}, "vision_config.patch_size: wrong value"),
    ],
)
def test_what_cannot_be_a_tower_is_refused(kind: str, section: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(kind, **section)


def test_a_projector_that_takes_other_channels_than_it_is_given_is_refused() -> None:
    data = plain(config("llama4"))
    data["vision_config"]["vision_output_dim"] = 48
    reader = VisionReader(data, Document(data, "config.json"))
    assert reader.read(64) is None
    assert "the projector takes 48 channels, and is given 24" in str(reader.problems[0])


@pytest.mark.parametrize("section", [None, {"model_type": "timm_wrapper"}])
def test_a_tower_that_is_not_known_is_left_out_with_a_note(section: object) -> None:
    data = {**plain(config("gemma3")), "vision_config": section}
    model = import_config(data, "config.json", "m")
    assert model.vision is None
    assert "the vision tower is left out" in model.notes[0]


def test_windows_at_the_edge_of_an_image_are_smaller() -> None:
    """5 tokens along a side, of 2 x 2 patches, in windows of 2: of 25 tokens 16 see 4, 8 see 2, and one sees itself."""
    vision = tower("qwen2_5_vl").model_copy(update={"image_size": 40})
    assert vision.window_patches == pytest.approx(4 * (16 * 4 + 8 * 2 + 1) / 25)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("value", [None, True, "x", -1, 0, 1.5, [], {}, [[]], [3, 3], {"a": {}}, 2**39, 10**400])
def test_no_value_of_any_key_of_a_tower_crashes_the_import(kind: str, value: Any) -> None:
    """Either a descriptor or an InputError."""
    table = MULTIMODAL[kind].tower
    keys = {*table.reads, *table.only, "model_type"}
    made = plain(config(kind))
    for key in keys:
        with contextlib.suppress(InputError):
            import_config({**made, "vision_config": {**made["vision_config"], key: value}}, "config.json", None)
    for key in (*MULTIMODAL[kind].defaults, *MULTIMODAL[kind].only, "vision_config", "tie_word_embeddings"):
        with contextlib.suppress(InputError):
            import_config({**made, key: value}, "config.json", None)
