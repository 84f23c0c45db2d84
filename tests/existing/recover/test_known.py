"""Models that scripts call by name: their parameters, their folders, and where the size of a vocabulary comes from."""

from __future__ import annotations

import pytest

from symconfig.descriptor.load import load_model
from symconfig.errors import InputError
from symconfig.existing.recover.model import described
from symconfig.existing.recover.zoo import by_name, differing, meaning, model_of, models
from symconfig.graph.model import parameters
from tests.existing.recover.options import NEWEST, names_of

# Billions of parameters as the models' cards on Hugging Face have them.
CARDS = {
    "Qwen/Qwen2-7B": 7.62, "Qwen/Qwen2-72B": 72.7, "Qwen/Qwen2.5-0.5B": 0.49, "Qwen/Qwen2.5-1.5B": 1.54,
    "Qwen/Qwen2.5-3B": 3.09, "Qwen/Qwen2.5-14B": 14.7, "Qwen/Qwen2.5-32B": 32.5, "Qwen/Qwen3-0.6B": 0.6,
    "Qwen/Qwen3-1.7B": 1.7, "Qwen/Qwen3-14B": 14.8, "deepseek-ai/deepseek-llm-7b": 6.91,
    "mistralai/Mistral-Nemo-2407": 12.2, "Qwen/Qwen3.5-35B-A3B": 35.0, "Qwen/Qwen3.5-122B-A10B": 122.0,
    "Qwen/Qwen3.5-397B-A17B": 397.0, "Qwen/Qwen3.5-9B": 9.0, "openai/gpt-oss-20b": 20.9, "tencent/Hy3": 295.0,
    "moonshotai/Moonlight-16B-A3B": 16.0, "deepseek-ai/DeepSeek-V4-Flash": 284.0, "zai-org/GLM-4-9B-0414": 9.4,
}  # fmt: skip


@pytest.mark.parametrize("name", models())
def test_a_known_model_has_the_parameters_of_its_card(name: str) -> None:
    model, _ = model_of(name)
    assert model.huggingface_id == name
    if name in CARDS:
        assert parameters(model).total / 1e9 == pytest.approx(CARDS[name], rel=0.025)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("/root/Qwen3-30B-A3B-FP8/", "qwen3-30b-a3b"),
        ("/models/Qwen2.5-3B-Instruct", "Qwen2.5-3B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen3-4B-2507"),
        ("/hdfs/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("somebody/else", None),
    ],
)
def test_a_folder_may_be_called_after_a_model(given: str, name: str | None) -> None:
    found = by_name(given, None)
    assert (None if found is None else found[0].name) == name


def test_the_order_of_an_adapters_targets_makes_no_other_model() -> None:
    model = load_model("qwen2.5-7b-lora")
    turned = model.adapter.model_copy(update={"target_modules": model.adapter.target_modules[::-1]})
    other = model.model_copy(update={"adapter": turned})
    assert turned.target_modules != model.adapter.target_modules
    assert differing(meaning(model), meaning(other)) == ()
    fewer = model.adapter.model_copy(update={"target_modules": model.adapter.target_modules[1:]})
    other = model.model_copy(update={"adapter": fewer})
    assert differing(meaning(model), meaning(other)) == ("adapter.target_modules",)


SHAPE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16"
QWEN = (
    "--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 --num-query-groups 4 "
    "--group-query-attention"
)


@pytest.mark.parametrize(
    ("options", "version", "size", "assumed"),
    [
        ("--vocab-size 32000", NEWEST, 32000, False),
        ("--vocab-size 32000", "core_v0.14.0", 32000, False),
        ("--vocab-size 32000 --tokenizer-type NullTokenizer", NEWEST, 32000, False),
        ("--vocab-size 31999 --tokenizer-type NullTokenizer", "core_v0.17.1", 32000, False),  # and its end of document
        (
            "--vocab-size 1 --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B",
            NEWEST,
            128256,
            True,
        ),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/Llama-2-13b-hf", NEWEST, 32000, True),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model /x/llama-2-7b/tokenizer.model", NEWEST, 32000, True),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model EleutherAI/gpt-neox-20b", NEWEST, 50277, True),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model x/mistral-7b-v0.3-ours", NEWEST, 32768, True),
        (
            "--vocab-size 64000 --tokenizer-type SentencePieceTokenizer --tokenizer-model ours.model",
            NEWEST,
            64000,
            False,
        ),
        ("--tokenizer-type GPT2BPETokenizer --vocab-file v.json --merge-file m.txt", NEWEST, 50257, True),
        ("--vocab-file v.json --merge-file m.txt", NEWEST, 50257, True),
        ("--padded-vocab-size 50304", NEWEST, 50304, True),
        ("--vocab-size 50257 --padded-vocab-size 50304", NEWEST, 50257, False),
        ("--vocab-size 50257 --padded-vocab-size 100352", NEWEST, 100352, True),
    ],
)
def test_the_size_and_whether_it_was_assumed(options: str, version: str, size: int, assumed: bool) -> None:
    found = described(names_of(f"{SHAPE} {options}", version), seq_length=2048, vocab_size=None)
    assert found.model.vocab_size == size
    assert [item.what for item in found.assumed] == ["vocab_size"] * assumed


def test_what_the_user_says_counts_where_files_say_nothing() -> None:
    assert described(names_of(SHAPE), seq_length=2048, vocab_size=777).model.vocab_size == 777
    assert described(names_of(f"{SHAPE} --vocab-size 5"), seq_length=2048, vocab_size=777).model.vocab_size == 5


def test_a_model_of_the_same_shapes_lends_its_own() -> None:
    found = described(names_of(QWEN), seq_length=2048)
    assert found.model.vocab_size == 152064
    assert "qwen2.5-7b has the same shapes" in found.assumed[0].why
    padded = described(names_of(f"{QWEN} --padded-vocab-size 152576 --tensor-model-parallel-size 4"), seq_length=2048)
    assert padded.model.vocab_size == 152064
    assert "pads to 152576" in padded.assumed[0].why


def test_nobody_says_it() -> None:
    with pytest.raises(InputError, match="--vocab-size: the vocabulary's size is not said"):
        described(names_of(SHAPE), seq_length=2048)
