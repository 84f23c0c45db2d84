"""Published `config.json`s against the zoo, what a file gets wrong, and a descriptor written as config.json again."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.huggingface import import_config, imported
from symconfig.descriptor.load import load_config, load_model
from symconfig.descriptor.write import config_json, lost_fields
from symconfig.errors import InfeasibleError, InputError, Problem
from tests.descriptor.small_configs import published_keys, tiny_config
from tools.families import default_model

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))
TEXT = ("name", "source", "huggingface_id")
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def _problems(**changes: Any) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        import_config({**LLAMA, **changes}, "config.json", None)
    return caught.value.problems


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_published_config_is_the_zoo_model(path: Path) -> None:
    imported, zoo = load_model(str(path)), load_model(path.stem)
    assert imported.model_dump(exclude=set(TEXT)) == zoo.model_dump(exclude=set(TEXT))


@pytest.mark.parametrize("kind", [None, 7, "no_family", "Llama", "llama99", "__class__"])
def test_an_unknown_architecture_is_named_and_never_guessed(kind: Any) -> None:
    (problem,) = _problems(model_type=kind)
    assert problem.field == "model_type"
    assert str(kind) in str(problem)
    assert "docs/reference/models.md" in str(problem)
    assert len(str(problem)) < 300
    assert "llama." not in str(problem)


def test_a_missing_architecture_says_what_is_known() -> None:
    with pytest.raises(InputError, match="model_type is missing"):
        import_config({"hidden_size": 64}, "config.json", None)


def test_all_problems_come_at_once_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        '{\n "model_type": "llama",\n "hidden_size": "4096",\n "vocab_size": 0,\n "mystery": 3,\n'
        ' "num_hidden_layers": 2.5,\n "tie_word_embeddings": 1,\n "rms_norm_eps": -1.0\n}'
    )
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    found = [(problem.line, problem.field) for problem in caught.value.problems]
    assert found == [
        (3, "hidden_size"),
        (4, "vocab_size"),
        (5, "mystery"),
        (6, "num_hidden_layers"),
        (7, "tie_word_embeddings"),
        (8, "rms_norm_eps"),
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mystery", 3),
        ("qk_norm", True),
        ("num_experts", 8),
        ("sliding_window", 128),
        ("partial_rotary_factor", 0.5),
        ("is_encoder_decoder", True),
        ("hidden_act", "gelu_quick"),
        ("rope_scaling", {"rope_type": "magic", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.2}),
        ("rope_scaling", {"rope_type": "linear"}),
        ("rope_scaling", [1]),
        ("rope_parameters", {"full_attention": {"rope_theta": 1.0}}),
        ("num_attention_heads", 5),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 0),
        ("num_attention_heads", -4),
        ("head_dim", True),
        ("torch_dtype", "int4"),
        ("hidden_size", 10**30),
    ],
)
def test_what_would_change_the_model_is_refused(key: str, value: Any) -> None:
    problems = _problems(**{key: value})
    assert any(key in str(problem) for problem in problems), problems


def test_yarn_with_its_usual_factor_written_out_is_yarn() -> None:
    """Olmo 3's config.json has attention_factor 0.1 ln 8 + 1, which Transformers fills in where none is written."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    written = import_config({**LLAMA, "rope_scaling": {**yarn, "attention_factor": 1.2079441541679836}}, "c.json", None)
    assert written.rope_scaling == import_config({**LLAMA, "rope_scaling": yarn}, "c.json", None).rope_scaling
    assert not written.notes


@pytest.mark.parametrize(("key", "value"), [("mystery", None), ("mystery", False), ("quantization_config", {"a": 1})])
def test_what_is_left_out_is_noted(key: str, value: Any) -> None:
    model = import_config({**LLAMA, key: value}, "config.json", None)
    assert any(key in note for note in model.notes)


def test_two_spellings_that_differ_are_refused() -> None:
    config = {"model_type": "gpt_oss", "experts_per_token": 2, "num_experts_per_tok": 4}
    with pytest.raises(InputError, match="experts_per_token: differs from num_experts_per_tok"):
        import_config(config, "config.json", None)


@pytest.mark.parametrize(
    ("dense", "right"), [([], True), ([0], True), ([1, 0], True), ([1], True), ([99], False), ("x", False)]
)
def test_layers_without_experts_are_those_that_the_file_lists(dense: Any, right: bool) -> None:
    config = {"model_type": "qwen3_moe", "mlp_only_layers": dense}
    if right:
        model = import_config(config, "config.json", None)
        assert model.moe_layers.count(False) == len(dense)
    else:
        with pytest.raises(InputError, match="mlp_only_layers"):
            import_config(config, "config.json", None)


@pytest.mark.parametrize("pattern", [0, -1, "x", 1.5, [2]])
def test_a_wrong_window_pattern_is_an_error_and_no_crash(pattern: Any) -> None:
    with pytest.raises(InputError, match="sliding_window_pattern"):
        import_config({"model_type": "gemma3_text", "sliding_window_pattern": pattern}, "config.json", None)


def test_gemma_3_is_read_from_its_text_section() -> None:
    config = {
        "model_type": "gemma3",
        "dtype": "bfloat16",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560},
    }
    model = import_config(config, "config.json", "gemma")
    assert (model.hidden_size, model.model_type) == (2560, "gemma3_text")
    assert any("vision" in note for note in model.notes)
    config["text_config"] = {"hidden_size": "2560"}
    with pytest.raises(InputError, match=r"text_config\.hidden_size"):
        import_config(config, "config.json", "gemma")


@pytest.mark.parametrize("kind", [kind for kind, table in architectures().items() if table.text_of is None])
@pytest.mark.parametrize("value", [None, True, "x", -1, 0, 1.5, [[]], {"a": {}}, 10**400])
def test_no_value_of_any_key_crashes_the_import(kind: str, value: Any) -> None:
    """Either a descriptor or an InputError."""
    for key in (
        *architectures()[kind].defaults,
        *architectures()[kind].only,
        "rope_parameters",
        "torch_dtype",
        "_name_or_path",
    ):
        with contextlib.suppress(InputError):
            import_config({"model_type": kind, key: value}, "config.json", None)


def test_the_name_comes_from_the_file_and_is_kept_as_it_is(tmp_path: Path) -> None:
    hostile = "$(reboot); rm -rf ~"
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "_name_or_path": f"someone/{hostile}"}))
    assert load_model(str(tmp_path)).name == hostile
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(str(tmp_path)).name == tmp_path.name


def test_a_limit_without_an_end_is_no_number_of_the_model(tmp_path: Path) -> None:
    """As Nemotron-H is published: Python writes Infinity, and keys have an older name each."""
    file = tmp_path / "config.json"
    config = {
        "model_type": "nemotron_h", "hidden_size": 256, "intermediate_size": 512, "hybrid_override_pattern": "M-M*",
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "attention_head_dim": 64,
        "vocab_size": 1024, "mamba_num_heads": 8, "mamba_head_dim": 64, "n_groups": 2, "time_step_rank": 16,
        "norm_eps": 1e-5, "rope_theta": 10000, "time_step_limit": [0.0, float("inf")],
    }  # fmt: skip
    file.write_text(json.dumps(config))
    model, _ = load_config(file)
    assert (model.head_dim, model.norm_eps, model.position) == (64, 1e-5, "none")
    file.write_text(json.dumps(config | {"hidden_size": float("inf"), "norm_eps": float("nan")}))
    with pytest.raises(InputError) as caught:
        load_config(file)
    assert any("norm_eps: not a finite number (got NaN)" in str(problem) for problem in caught.value.problems)
    file.write_text(json.dumps(config | {"vocab_size": float("inf")}))
    with pytest.raises(InputError, match="vocab_size: not a finite number"):
        load_config(file)


def test_a_list_of_no_layers_is_none() -> None:
    """Qwen3.5's files say that no layer has another MLP, and no layer of the tower a result that is passed on."""
    data = tiny_config("qwen3_5_text", 0)
    assert import_config(data | {"mlp_only_layers": []}, "config.json", "tiny") == import_config(
        data, "config.json", "tiny"
    )
    with pytest.raises(InputError, match="mlp_only_layers"):
        import_config(data | {"mlp_only_layers": [1]}, "config.json", "tiny")


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


RULED = published_keys()["ruled"]


@pytest.mark.parametrize(("kind", "keys"), RULED, ids=[f"{kind}-{next(iter(keys))}" for kind, keys in RULED])
def test_what_a_rule_reads_is_written_back(kind: str, keys: dict[str, Any]) -> None:
    model = import_config({"model_type": kind, **keys}, "config.json", "m")
    assert model != default_model(kind).model_copy(update={"name": "m"})
    assert list(lost_fields(model)) == []
    assert import_config(config_json(model), "config.json", "m").mixers == model.mixers


def test_the_class_is_named_as_transformers_names_it() -> None:
    assert config_json(load_model("qwen-7b"))["architectures"] == ["Qwen2ForCausalLM"]
    assert config_json(default_model("gpt2"))["architectures"] == ["GPT2LMHeadModel"]
    assert config_json(default_model("gemma3"))["model_type"] == "gemma3_text"


def test_what_is_lost_is_named_by_its_field() -> None:
    model = default_model("bloom").model_copy(update={"model_type": "llama"})
    lost = {problem.field: str(problem) for problem in lost_fields(model)}
    assert {"position", "embedding_norm", "norm", "gated_mlp"} <= set(lost)
    assert "Transformers' LlamaForCausalLM has no field for it (got alibi, need rope)" in lost["position"]


def test_an_unknown_family_names_the_nearest_and_the_list() -> None:
    model = load_model("llama2-7b").model_copy(update={"model_type": "lama"})
    with pytest.raises(InfeasibleError, match=r"Try: llama, or a family of docs/reference/models.md") as caught:
        config_json(model)
    assert len(str(caught.value)) < 200


def test_text_that_only_a_multimodal_class_has_is_not_said_to_be_unknown() -> None:
    with pytest.raises(InfeasibleError, match="qwen3_vl_text inside a multimodal model only"):
        config_json(default_model("qwen3_vl"))
