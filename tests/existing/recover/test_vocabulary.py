"""Where the size of the vocabulary comes from."""

from __future__ import annotations

import pytest

from symconfig.errors import InputError
from symconfig.existing.recover.model import described
from symconfig.existing.recover.vocabulary import BY_NAME, size_by_name
from tests.existing.recover.options import NEWEST, names_of

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


def test_nobody_says_it() -> None:
    with pytest.raises(InputError, match="--vocab-size: the vocabulary's size is not said"):
        described(names_of(SHAPE), seq_length=2048)


def test_the_longest_start_of_a_name_counts() -> None:
    assert size_by_name("mistral-7b-v0.3-instruct") == BY_NAME["mistral-7b-v0.3"]
    assert size_by_name("unheard-of") is None
