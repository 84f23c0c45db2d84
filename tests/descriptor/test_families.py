"""Every decoder family that transformers registers: a small model has the real one's parameters, or is refused and why.

The list is transformers.json, which tools/generate/families.py writes from the registry: a new release shows what
is missing.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.architectures.keys import families
from symconfig.descriptor.architectures.registry import architectures, refused
from symconfig.descriptor.huggingface import import_config, imported
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from tests.descriptor.small_configs import published_keys, small_config
from tools.families import COLUMNS, cells, every
from tools.generate import families as classes

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
PUBLISHED_FILES = Path(__file__).parent / "published"
REACHED = 0.68  # the share of families that is read; the rest has a reason
# Towers before a text model that no descriptor has, by a pattern of their parameters' names.
LEFT_OUT = {
    "fuyu": "vision_embed_tokens",
    "got_ocr2": "vision_tower|multi_modal_projector",
    "moss_transcribe_diarize": "audio_tower|multi_modal_projector",
    "phi4_multimodal": "embed_tokens_extend",
}
ROUTING = re.compile(r"Router|Gate$|TopK|Gating|Mo[eE](?!.*(Model|ForCausalLM|Attention|Net|Experts))")
SCORED_BY_KEY = ("cohere2_moe",)  # whose code has both functions


def _real(config: dict[str, Any]) -> int:
    """Count the parameters of transformers' own model, on the meta device."""
    return _counted(config["model_type"], _built(config))


def _built(config: dict[str, Any]) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = transformers.AutoConfig.for_model(**config, **tokens)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made)


def _counted(kind: str, module: Any) -> int:
    left_out = re.compile(LEFT_OUT.get(kind, "\0"))
    return sum(one.numel() for name, one in module.named_parameters() if not left_out.search(name))


def test_the_list_is_that_of_the_registry() -> None:
    pytest.importorskip("transformers")
    assert classes.families() == sorted(families())


@pytest.mark.parametrize("kind", families())
def test_a_small_model_has_as_many_parameters_as_the_real_one(kind: str) -> None:
    section, inner = families()[kind].get("text") or ("", kind)
    if inner in refused():
        pytest.skip(f"refused: {refused()[inner]}")
    if inner not in architectures():
        pytest.skip("not read yet")
    config = small_config(inner)
    model = import_config(config, "config.json", "small")
    if section:
        around = import_config({"model_type": kind, section: config}, "config.json", "small")
        assert around.model_type == inner
        assert around.layer_kinds == model.layer_kinds
        return
    module = _built(config)
    assert parameters(model, with_mtp=False).total == _counted(kind, module)
    held = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    biased = any(re.search("score_correction_bias|expert_bias|balancing_biases|score_bias", name) for name in held)
    assert (model.experts is not None and model.experts.e_score_correction_bias) == biased
    scales = [getattr(part, "scalar_embed_scale", getattr(part, "embed_scale", None)) for part in module.modules()]
    scaled = any(isinstance(scale, float) and abs(scale - model.hidden_size**0.5) < 0.5 for scale in scales)
    assert model.scale_embeddings == scaled
    if model.experts is not None and kind not in SCORED_BY_KEY:
        routing = {type(part) for part in module.modules() if ROUTING.search(type(part).__name__)}
        code = re.sub(".*(shared|beta|swiglu).*", "", "".join(map(inspect.getsource, routing)))
        assert (model.experts.scoring_func == "sigmoid") == ("sigmoid" in code)


@pytest.mark.parametrize("kind", sorted(refused()))
def test_a_family_that_cannot_be_described_is_refused_with_the_reason(kind: str) -> None:
    assert kind not in architectures()
    with pytest.raises(InputError) as caught:
        import_config({"model_type": kind, "text_config": {}}, "config.json", None)
    (problem,) = caught.value.problems
    assert problem.field == "model_type"
    assert refused()[kind] in str(problem)
    assert "Try" not in str(problem)


def test_every_family_is_read_or_has_its_reason() -> None:
    assert not set(families()) - set(architectures()) - set(refused())
    read = set(families()) & set(architectures())
    assert len(read) >= REACHED * len(families()), sorted(refused())


def test_keys_that_change_nothing_of_training_stop_no_import() -> None:
    config = json.loads((PUBLISHED_FILES / "mellum-saved-by-5.24.json").read_text())
    drafted = {**config, "dspark_block_size": 4, "draft_vocab_size": 8}
    for one in (config, drafted):
        assert parameters(import_config(one, "config.json", None)).total == 12_149_923_072


def test_a_loss_and_a_drafter_are_named_as_left_out() -> None:
    keys = {"router_aux_loss_coef": 0.05, "dspark_block_size": 4}
    _, said = imported({**small_config("llama"), **keys}, "config.json", None)
    assert set(keys) <= {key for left_out in said.left_out.values() for key in left_out}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("kind", "part"), [("kimi_k25", "language_model|lm_head"), ("glm46v", "")])
def test_a_head_is_tied_as_the_outer_class_says(kind: str, part: str, tied: bool) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    made = transformers.AutoConfig.for_model(kind, tie_word_embeddings=tied)
    with torch.device("meta"):
        module = transformers.AutoModelForImageTextToText.from_config(made)
    real = sum(one.numel() for name, one in module.named_parameters() if re.search(part, name))
    assert parameters(import_config(made.to_dict(), "config.json", "m"), with_mtp=False).total == real


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 80}  # fmt: skip
OF_EVERY_FILE = {
    "_name_or_path": "someone/model",
    "architectures": ["SomeForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling.Some"},
    "bos_token_id": 1,
    "torch_dtype": "float16",
    "transformers_version": "4.38.0",
    "use_cache": True,
}
PUBLISHED = published_keys()["before_the_class"]


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_file_of_before_the_class_is_read_as_it_was_meant(kind: str) -> None:
    written, wanted = PUBLISHED[kind]["written"], PUBLISHED[kind]["means"]
    model = import_config({"model_type": kind, **OF_EVERY_FILE, **written}, "config.json", None)
    assert model.model_dump(mode="json", include=set(wanted)) == wanted
    assert (model.torch_dtype, model.huggingface_id) == ("float16", "someone/model")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["olmo2", "cohere", "bloom", "phi", "granite"])
def test_a_tied_head_is_counted_once(kind: str, tied: bool) -> None:
    config = small_config(kind) | {"tie_word_embeddings": tied}
    assert parameters(import_config(config, "config.json", None)).total == _real(config)


def test_code_of_its_own_is_never_run_and_the_file_may_be_read_as_one_of_a_family() -> None:
    config = {"model_type": "own7", **OF_EVERY_FILE, **SIZES}
    with pytest.raises(InputError, match=r"auto_map\) is never run.*--like FAMILY"):
        import_config(config, "config.json", None)
    model, _ = imported(config, "config.json", None, like="llama")
    assert (model.model_type, model.num_key_value_heads) == ("llama", 2)
    assert any("llama and not of own7" in note for note in model.notes)
    with pytest.raises(InputError, match="Try: llama"):
        imported(config, "config.json", None, like="lama")


def test_every_family_is_read_or_refused_with_a_reason() -> None:
    found = {one.name: one for one in every()}
    assert set(families()) <= set(found)
    for one in found.values():
        assert (one.model is None) == bool(one.refused)
        assert len(cells(one)) == len(COLUMNS)


def test_targets_are_those_that_can_be_told() -> None:
    found = {one.name: one for one in every()}
    llama, bloom = found["llama"], found["bloom"]
    assert all(llama.can(target) for target in ("megatron", "bridge", "deepspeed", "llamafactory"))
    assert bloom.can("deepspeed")
    assert not bloom.can("megatron")
    assert {problem.field for problem in bloom.cannot["megatron"]} >= {"position", "embedding_norm"}
