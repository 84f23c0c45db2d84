"""How many tokens the vocabulary has: of --vocab-size, of the tokenizer, of a padded size, of a model that is alike.

Megatron-LM takes the tokenizer's own size and pads it (tokenizer.py, _vocab_size_with_padding); --vocab-size is read by
a few tokenizers only, and as the size itself from core_v0.18 on (build_tokenizer.py, argument_utils.py).
"""

from __future__ import annotations

from pathlib import PurePosixPath

from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.recover import zoo
from symconfig.existing.recover.args import Args, Fields
from symconfig.existing.recover.tokenizers import BY_TYPE, size_by_name

_NULL = ("NullTokenizer", "NullMultimodalTokenizer")
_OF_OPTION = ("TikTokenizer", *_NULL)  # tokenizers that have the size that --vocab-size says
_STEP = 1024  # 128 x tp 8: a padded size may be that of a checkpoint of more tensor parallelism
_OF_MERGES = "GPT2BPETokenizer"  # pretrain_gpt.py's own where none is named; no other type has a --merge-file

SOURCES = ("vocab_size", "padded_vocab_size", "tokenizer_model", "tokenizer_type")


def vocabulary(out: Fields, model: ModelDescriptor, vocab_size: int | None) -> int | None:
    """Recover the true size, into `out`, too. model: of any vocabulary. vocab_size: what the user says where the files
    do not.

    None: nobody says it, which is a problem of `out`.
    """
    true = _true(out)
    padded = out.args.whole("padded_vocab_size")
    size = true or vocab_size
    if padded:
        size = _of_padded(out, model, padded, size)
    if size is None:
        size = _guess(out, model)
    if size is None:
        out.problems.append(out.args.problem("the vocabulary's size is not said", "vocab_size", hint="--vocab-size N"))
    return size


def _true(out: Fields) -> int | None:
    """Return the true size as options or the tokenizer's name say it."""
    args = out.args
    size, kind = args.whole("vocab_size"), _kind(args)
    if kind in _OF_OPTION or not kind:
        # Until core_v0.17 the null tokenizer adds an end-of-document token (_NullTokenizer.vocab_size).
        one = kind in _NULL and not args.table.at_least("core_v0.18.2")
        return None if size is None else size + one
    named = _of_name(out, args)
    return size if named is None else named


def _kind(args: Args) -> str:
    """Return the kind of the tokenizer; one that Megatron-LM does not have says nothing about its size."""
    return args.word("tokenizer_type") if args.known("tokenizer_type") else "a fork's"


def _of_name(out: Fields, args: Args) -> int | None:
    """Return the size of the tokenizer that is named; one in a folder that is not known has no name."""
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
    """Return the true size of --padded-vocab-size, which is what the embedding has; the true size only where it pads to
    that.
    """
    step = (out.args.whole("make_vocab_size_divisible_by") or 1) * (out.args.whole("tensor_model_parallel_size") or 1)
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
