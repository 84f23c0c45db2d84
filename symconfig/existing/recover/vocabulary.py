"""How many tokens the vocabulary has: of --vocab-size, of the tokenizer, of a padded size, of a model that is alike.

Megatron-LM takes the tokenizer's own size and pads it (tokenizer.py, _vocab_size_with_padding); --vocab-size is read by
a few tokenizers only, and as the size itself from core_v0.18 on (build_tokenizer.py, argument_utils.py).
"""

from __future__ import annotations

from pathlib import PurePosixPath

from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.recover import zoo
from symconfig.existing.recover.fields import Fields
from symconfig.existing.recover.namespace import Namespace

# Megatron-LM's own types that stand for one vocabulary (megatron/training/tokenizer/tokenizer.py).
BY_TYPE: dict[str, int] = {
    "GPT2BPETokenizer": 50_257,  # vocab.json of openai-community/gpt2
    "Llama2Tokenizer": 32_000,  # tokenizer.model of meta-llama/Llama-2-7b
    "BertWordPieceLowerCase": 30_522,  # vocab.txt of google-bert/bert-base-uncased
    "BertWordPieceCase": 28_996,  # vocab.txt of google-bert/bert-base-cased
}

# Start of a name, lower case, without the owner -> size; the longest start that fits counts. tokenizer.json or
# config.json of the repository that is named beside it.
BY_NAME: dict[str, int] = {
    "gpt2": 50_257,  # openai-community/gpt2
    "gpt-neox-20b": 50_277,  # EleutherAI/gpt-neox-20b, tokenizer.json; its embedding is padded to 50,432
    "llama-2-": 32_000,  # meta-llama/Llama-2-7b-hf
    "llama2": 32_000,
    "meta-llama-3": 128_256,  # meta-llama/Meta-Llama-3-8B
    "llama-3": 128_256,  # meta-llama/Llama-3.1-8B
    "mistral-7b-v0.1": 32_000,  # mistralai/Mistral-7B-v0.1
    "mistral-7b-v0.3": 32_768,  # mistralai/Mistral-7B-v0.3
    "mixtral-8x7b": 32_000,  # mistralai/Mixtral-8x7B-v0.1
    "qwen2.5-": 151_665,  # Qwen/Qwen2.5-7B with its added tokens; config.json says 152,064 or 151,936
    "qwen3-": 151_669,  # Qwen/Qwen3-8B with its added tokens; config.json says 151,936
    "gemma-2": 256_000,  # google/gemma-2-9b
    "bloom": 250_680,  # bigscience/bloom, tokenizer.json; its embedding is padded to 250,880
}


def size_by_name(name: str) -> int | None:
    """Return the vocabulary's size by a tokenizer's name, in lower case without owner; None if not in `BY_NAME`."""
    fitting = [start for start in BY_NAME if name.startswith(start)]
    return BY_NAME[max(fitting, key=len)] if fitting else None


_NULL = ("NullTokenizer", "NullMultimodalTokenizer")
_OF_OPTION = ("TikTokenizer", *_NULL)  # tokenizers that have the size that --vocab-size says
_STEP = 1024  # 128 x tp 8: a padded size may be that of a checkpoint of more tensor parallelism
_OF_MERGES = "GPT2BPETokenizer"  # pretrain_gpt.py's own where none is named; no other type has a --merge-file

SOURCES = ("vocab_size", "padded_vocab_size", "tokenizer_model", "tokenizer_type")


def vocabulary(out: Fields, model: ModelDescriptor, vocab_size: int | None) -> int | None:
    """Return the vocabulary's size without padding; None, with a problem recorded in `out`, if nothing gives it.

    model: with any vocabulary, to find models of the same shapes. vocab_size: the user's, if options give none.
    """
    true = _true(out)
    padded = out.args.integer("padded_vocab_size")
    size = true or vocab_size
    if padded:
        size = _of_padded(out, model, padded, size)
    if size is None:
        size = _guess(out, model)
    if size is None:
        out.problems.append(out.args.problem("the vocabulary's size is not said", "vocab_size", hint="--vocab-size N"))
    return size


def _true(out: Fields) -> int | None:
    """Return the size of the named tokenizer, else --vocab-size; None if neither is known.

    Only --vocab-size counts for TikTokenizer, null tokenizers (plus 1 before core_v0.18.2), and without a type.
    """
    args = out.args
    size, kind = args.integer("vocab_size"), _kind(args)
    if kind in _OF_OPTION or not kind:
        # Until core_v0.17 the null tokenizer adds an end-of-document token (_NullTokenizer.vocab_size).
        one = kind in _NULL and not args.table.at_least("core_v0.18.2")
        return None if size is None else size + one
    named = _of_name(out, args)
    return size if named is None else named


def _kind(args: Namespace) -> str:
    """Return the tokenizer's type, or "a fork's" if Megatron-LM does not have it; an empty string if not given."""
    return args.word("tokenizer_type") if args.known("tokenizer_type") else "a fork's"


def _of_name(out: Fields, args: Namespace) -> int | None:
    """Return the size of the tokenizer that --tokenizer-model names, recorded as an assumption; None if not known.

    By the zoo's model of this Hugging Face id, else `BY_NAME`; a .model or .json file counts by its folder's name.
    """
    model = args.word("tokenizer_model").lower() if args.known("tokenizer_model") else ""
    path = PurePosixPath(model)
    last = path.parent.name if path.suffix in (".model", ".json") else path.name
    for name in filter(None, (model, last)):
        known = zoo.by_tokenizer(name)
        if known is not None:
            out.assume("vocab_size", known.vocab_size, f"the tokenizer is that of {known.name}", "tokenizer_model")
            return known.vocab_size
    size = size_by_name(last) if last else None
    if size is not None:
        out.assume("vocab_size", size, f"the size of the tokenizer {last}", "tokenizer_model")
    return size


def _of_padded(out: Fields, model: ModelDescriptor, padded: int, true: int | None) -> int:
    """Return the size that pads to --padded-vocab-size: `true`, a similar model's, else the padded one.

    A size pads to it if it is less than 1024 (or the options' own step) below. All but `true` are assumptions.
    """
    args = out.args
    step = (args.integer("make_vocab_size_divisible_by") or 1) * (args.integer("tensor_model_parallel_size") or 1)
    if true is not None and 0 <= padded - true < max(step, _STEP):
        return true
    if true is None:
        alike = zoo.alike(model, lambda other: 0 <= padded - other.vocab_size < max(step, _STEP))
        if alike is not None:
            out.assume(
                "vocab_size",
                alike.vocab_size,
                f"{alike.name} has the same shapes, and pads to {padded}",
                "padded_vocab_size",
            )
            return alike.vocab_size
    out.assume("vocab_size", padded, "the embedding has --padded-vocab-size rows", "padded_vocab_size")
    return padded


def _guess(out: Fields, model: ModelDescriptor) -> int | None:
    """Return the size of the tokenizer's type, else of the zoo's model with the same shapes; None if there is neither.

    It is an assumption in `out`. Without a type, but with a --merge-file (or an unknown one), the type is GPT-2's.
    """
    kind = _kind(out.args)
    if not kind and (not out.args.known("merge_file") or out.args.given("merge_file")):
        kind = _OF_MERGES
    if kind in BY_TYPE:
        out.assume("vocab_size", BY_TYPE[kind], f"the vocabulary that {kind} was made for", "tokenizer_type")
        return BY_TYPE[kind]
    alike = zoo.alike(model, lambda other: True)
    if alike is None:
        return None
    out.assume("vocab_size", alike.vocab_size, f"{alike.name} has the same shapes, and no option says the size")
    return alike.vocab_size
