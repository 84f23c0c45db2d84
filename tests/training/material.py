"""What the formats of one plan train on: the same weights, the same few sequences, as each of them reads it.

There are as many sequences as a step takes, so every step sees all of them, in whatever order, and the loss must fall.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symconfig.descriptor.config_writer import config_json
from symconfig.plans.plan import Plan

END, UNKNOWN = "<end>", "<unknown>"


@dataclass(frozen=True, slots=True)
class Material:
    """weights: a folder with the model's tokenizer; ids: token ids as JSON lines, of which each ends with the
    tokenizer's end; texts: a folder with the same as words, and LLaMA-Factory's dataset_info.json."""

    weights: Path
    ids: Path
    texts: Path


def prepare(plan: Plan, folder: Path) -> Material:
    made = Material(folder / "weights", folder / "ids.jsonl", folder / "texts")
    made.texts.mkdir(parents=True)
    length, vocabulary = plan.best.batch.seq_length, plan.model.vocab_size
    draw = random.Random(plan.job.training.seed)
    rows = [[draw.randrange(2, vocabulary) for _ in range(length - 1)] for _ in range(plan.best.batch.global_)]
    _lines(made.ids, [{"input_ids": [*row, 0]} for row in rows])
    _lines(made.texts / "texts.jsonl", [{"text": " ".join(f"w{token}" for token in row)} for row in rows])
    (made.texts / "dataset_info.json").write_text(
        json.dumps({"texts": {"file_name": "texts.jsonl", "columns": {"prompt": "text"}}})
    )
    weights(plan, made.weights)
    tokenizer(plan.model.vocab_size, made.weights)
    return made


def weights(plan: Plan, folder: Path) -> None:
    """Random ones by the plan's seed, in the model's own class."""
    import torch
    import transformers

    torch.manual_seed(plan.job.training.seed)
    config: dict[str, Any] = config_json(plan.model)
    kind = transformers.AutoConfig.for_model(**config)
    transformers.AutoModelForCausalLM.from_config(kind, dtype=torch.bfloat16).save_pretrained(folder)


def tokenizer(vocabulary: int, folder: Path) -> None:
    """One of the words w2, w3 and so on."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {END: 0, UNKNOWN: 1, **{f"w{token}": token for token in range(2, vocabulary)}}
    made = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    made.add_special_tokens([END, UNKNOWN])
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, unk_token=UNKNOWN, pad_token=UNKNOWN
    ).save_pretrained(folder)


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
