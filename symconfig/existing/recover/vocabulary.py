"""How many tokens the vocabulary has: of --vocab-size, of the tokenizer, of a padded size, of a model that is alike.

Megatron-LM takes the tokenizer's own size and pads it (tokenizer.py, _vocab_size_with_padding); --vocab-size is read by
a few tokenizers only, and as the size itself from core_v0.18 on (build_tokenizer.py, argument_utils.py).
"""

from __future__ import annotations

from pathlib import PurePosixPath

from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.recover import zoo
from symconfig.existing.recover.fields import Fields

# Megatron-LM's own types that stand for one vocabulary (megatron/training/tokenizer/tokenizer.py).
BY_TYPE: dict[str, int] = {
    "GPT2BPETokenizer": 50_257,  # vocab.json of openai-community/gpt2
    "Llama2Tokenizer": 32_000,  # tokenizer.model of meta-llama/Llama-2-7b
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


_NULL = ("NullTokenizer", "NullMultimodalTokenizer")
_OF_OPTION = ("", "TikTokenizer", *_NULL)  # types of tokenizer that have the size that --vocab-size says
_STEP = 1024  # 128 x tp 8: a padded size may be that of a checkpoint of more tensor parallelism
_OF_MERGES = "GPT2BPETokenizer"  # pretrain_gpt.py's own where none is named; no other type has a --merge-file

SOURCES = ("vocab_size", "padded_vocab_size", "tokenizer_model", "tokenizer_type")


def vocabulary(out: Fields, model: ModelDescriptor, vocab_size: int | None) -> int | None:
    """Return the vocabulary's size without padding: of the named tokenizer, else --vocab-size, else `vocab_size`.

    Without any that pads to --padded-vocab-size it is assumed in `out`: of the tokenizer's type, of the zoo's model
    with the same shapes, or the padded one. None, with a problem in `out`, if nothing gives it. model: with any
    vocabulary.
    """
    args = out.args
    kind = args.word("tokenizer_type") if args.known("tokenizer_type") else "a fork's"
    stated, padded = args.integer("vocab_size"), args.integer("padded_vocab_size")
    if stated is not None and kind in _NULL:  # until core_v0.17 it adds an end-of-document token
        stated += not args.table.at_least("core_v0.18.2")
    step = (args.integer("make_vocab_size_divisible_by") or 1) * (args.integer("tensor_model_parallel_size") or 1)

    def fits(size: int) -> bool:
        """Return whether a size pads to the padded one, if that is given."""
        return padded is None or 0 <= padded - size < max(step, _STEP)

    size = (None if kind in _OF_OPTION else _of_name(out)) or stated or vocab_size
    if size is not None and fits(size):
        return size
    if size is None:
        if not kind and (not args.known("merge_file") or args.given("merge_file")):
            kind = _OF_MERGES
        if kind in BY_TYPE and fits(BY_TYPE[kind]):
            out.assume("vocab_size", BY_TYPE[kind], f"the vocabulary that {kind} was made for", "tokenizer_type")
            return BY_TYPE[kind]
        if (alike := zoo.alike(model, lambda other: fits(other.vocab_size))) is not None:
            fitting = f"pads to {padded}" if padded else "no option says the size"
            why = f"{alike.name} has the same shapes, and {fitting}"
            out.assume("vocab_size", alike.vocab_size, why, "padded_vocab_size")
            return alike.vocab_size
    if padded:
        out.assume("vocab_size", padded, "the embedding has --padded-vocab-size rows", "padded_vocab_size")
    else:
        out.problems.append(args.problem("the vocabulary's size is not said", "vocab_size", hint="--vocab-size N"))
    return padded


def _of_name(out: Fields) -> int | None:
    """Return the size of the tokenizer that --tokenizer-model names, recorded as an assumption; None if not known.

    A name is that of a known model, else in `BY_NAME`; a .model or .json file counts by its folder's name.
    """
    path = PurePosixPath(out.args.word("tokenizer_model") if out.args.known("tokenizer_model") else "")
    name = path.parent if path.suffix in (".model", ".json") else path
    known = zoo.by_name(str(name), None) if name.name else None
    fitting = [start for start in BY_NAME if name.name.lower().startswith(start)]
    size = known[0].vocab_size if known else BY_NAME[max(fitting, key=len)] if fitting else None
    if size is not None:
        out.assume("vocab_size", size, f"the size of the tokenizer {name.name}", "tokenizer_model")
    return size
