"""Packed sequences of token ids for train.py, from JSON lines or at random.

A line holds `text`; or `messages` (the tokenizer's chat template); or `prompt` and `response` (the prompt gives no
loss); or `input_ids`, with `labels` if they differ. Documents follow each other without padding, in the files' order,
which is shuffled from the second epoch on.
"""

from __future__ import annotations

import json
import random

import torch

IGNORE = -100  # label of a token that gives no loss
KINDS = (("text",), ("messages",), ("prompt", "response"), ("input_ids",))
Row = tuple[list[int], list[int]]


def encode(document: dict, tokenizer) -> Row:
    """Token ids of one document, and their labels. Raises ValueError for a document that gives none."""
    if "input_ids" in document:
        ids, labels = document["input_ids"], document.get("labels", document["input_ids"])
        if not all(isinstance(value, list) and all(type(one) is int for one in value) for value in (ids, labels)):
            raise ValueError("input_ids and labels must be lists of whole numbers")
        if len(ids) != len(labels):
            raise ValueError(f"{len(ids)} input_ids have {len(labels)} labels")
        return ids, labels
    if "messages" in document:
        text = tokenizer.apply_chat_template(document["messages"], tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids, ids
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    if "prompt" in document and "response" in document:
        prompt = tokenizer(document["prompt"])["input_ids"]
        response = tokenizer(document["response"], add_special_tokens=False)["input_ids"] + end
        return prompt + response, [IGNORE] * len(prompt) + response
    ids = tokenizer(document["text"])["input_ids"] + end
    return ids, ids


def load_tokenizer(name: str, trust_remote_code: bool):
    """Raises SystemExit with a sentence when it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise SystemExit(f"--tokenizer {name}: cannot be loaded: {error}") from None


def read(
    paths: list[str], length: int, tokenizer_name: str | None, trust_remote_code: bool, vocab_size: int | None = None
) -> list[Row]:
    """Rows of `length` ids, with labels already shifted by one. The tokenizer is loaded if a line holds text."""
    tokenizer, ids, labels = None, [], []
    for path in paths:
        try:
            file = open(path, encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise SystemExit(f"--data {path}: {error.strerror}") from None
        with file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    document = json.loads(line)
                    if not isinstance(document, dict) or not any(set(kind) <= set(document) for kind in KINDS):
                        raise ValueError(f"needs one of {', or '.join(' with '.join(kind) for kind in KINDS)}")
                    if tokenizer is None and "input_ids" not in document:
                        if tokenizer_name is None:
                            raise SystemExit(f"{path}:{number}: holds text, which needs --tokenizer (TOKENIZER=NAME)")
                        tokenizer = load_tokenizer(tokenizer_name, trust_remote_code)
                    more_ids, more_labels = encode(document, tokenizer)
                    if vocab_size is not None and more_ids and not 0 <= min(more_ids) <= max(more_ids) < vocab_size:
                        raise ValueError(
                            f"tokens {min(more_ids)} to {max(more_ids)} are not within the model's "
                            f"vocabulary of {vocab_size}"
                        )
                except (ValueError, KeyError, TypeError) as error:
                    raise SystemExit(f"{path}:{number}: {type(error).__name__}: {error}") from error
                ids += more_ids
                labels += [IGNORE, *more_labels[1:]]  # the document before says nothing of this one's first token
    labels.append(IGNORE)  # nothing is known of what follows the last token
    starts = range(0, len(ids) - length + 1, length)
    if not starts:
        raise SystemExit(f"{', '.join(paths)}: {len(ids)} tokens are too few for a sequence of {length}")
    return [(ids[i : i + length], labels[i + 1 : i + length + 1]) for i in starts]


class Sequences:
    """An endless, numbered supply: the same number is the same sequence on every rank and after a restart."""

    def __init__(
        self,
        length: int,
        seed: int,
        vocab_size: int,
        paths: list[str],
        tokenizer_name: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.length, self.seed, self.vocab_size = length, seed, vocab_size
        self.rows = read(paths, length, tokenizer_name, trust_remote_code, vocab_size) if paths else None

    def row(self, index: int) -> Row:
        if self.rows is None:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
            ids = torch.randint(self.vocab_size, (self.length + 1,), generator=generator).tolist()
            return ids[:-1], ids[1:]
        epoch, place = divmod(index, len(self.rows))
        order = list(range(len(self.rows)))
        if epoch:
            random.Random(f"{self.seed}-{epoch}").shuffle(order)
        return self.rows[order[place]]

    def batch(self, first: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences first .. first + size - 1 as ids[B, S] and labels[B, S]."""
        rows = [self.row(index) for index in range(first, first + size)]
        return torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
