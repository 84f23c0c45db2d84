"""What the formats of one plan train on: the same weights, the same few sequences, as each of them reads it.

There are as many sequences as a step takes, so every step sees all of them, in whatever order, and the loss must fall.
Programs that make sequences of chats, of pairs of answers or of prompts have these as they read them, named by the job.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from symconfig.descriptor.write import config_json
from symconfig.plans.plan import Plan
from symconfig.render.learning import per_example

END, UNKNOWN = "<end>", "<unknown>"
CHAT = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"


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
    length, vocabulary = plan.best.configuration.seq_length, plan.model.vocab_size
    draw = random.Random(plan.job.training.seed)
    rows = [
        [draw.randrange(2, vocabulary) for _ in range(length - 1)] for _ in range(plan.best.configuration.global_batch)
    ]
    _lines(made.ids, [{"input_ids": [*row, 0]} for row in rows])
    _lines(made.texts / "texts.jsonl", [{"text": " ".join(f"w{token}" for token in row)} for row in rows])
    (made.texts / "dataset_info.json").write_text(
        json.dumps({"texts": {"file_name": "texts.jsonl", "columns": {"prompt": "text"}}})
    )
    weights(plan, made.weights)
    tokenizer(plan.model.vocab_size, made.weights)
    return made


def named(plan: Plan, target: str, made: Material) -> Plan:
    """Return the plan of a job that names the weights, and what the target's program trains on, which is written."""
    draw = random.Random(plan.job.training.seed)

    def words(count: int) -> str:
        return " ".join(f"w{draw.randrange(2, plan.model.vocab_size)}" for _ in range(count))

    rl, answers = plan.job.rl, per_example(plan)
    count = rl.prompts if rl is not None else plan.best.configuration.global_batch // answers
    row, answers = ROWS[target], 0 if rl is not None else answers
    rows = [row(words(PROMPT), [words(ANSWER) for _ in range(answers)]) for _ in range(count)]
    if plan.task == "kto":
        rows = [{**each, "label": place % 2 == 0} for place, each in enumerate(rows)]
    check_words(made.weights)
    folder = made.texts.parent / target
    folder.mkdir(exist_ok=True)
    _lines(folder / "rows.jsonl", rows)
    training = plan.job.training.model_copy(update={"hf_weights": str(made.weights), "data_path": (str(folder),)})
    return replace(plan, job=plan.job.model_copy(update={"training": training}))


def check_words(folder: Path) -> None:
    """Raise if Transformers does not read words with the tokenizer: for some families it takes the family's own class
    whatever the folder says (`models/auto/tokenization_auto.py`), which makes no tokens of them, and nothing learns."""
    import transformers

    read = transformers.AutoTokenizer.from_pretrained(folder)
    if (ids := read("w2 w3").input_ids) != [2, 3]:
        raise ValueError(f"{type(read).__name__} reads w2 w3 as {ids}: train this family on token ids, or take another")


PROMPT, ANSWER = 6, 12  # words
Row = Callable[[str, list[str]], dict[str, Any]]


def _said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _of_trl(prompt: str, answers: list[str]) -> dict[str, Any]:
    names = ("chosen", "rejected") if answers[1:] else ("completion",)
    return {"prompt": prompt, **dict(zip(names, answers, strict=False))}


def _of_llamafactory(prompt: str, answers: list[str]) -> dict[str, Any]:
    """A chat, or its question and the two answers."""
    said = [_said("assistant", text) for text in answers]
    asked = [_said("user", prompt)]
    return {"messages": asked, "chosen": said[0], "rejected": said[1]} if said[1:] else {"messages": [*asked, *said]}


def _of_ms_swift(prompt: str, answers: list[str]) -> dict[str, Any]:
    """A chat, and another answer."""
    chat = {"messages": [_said("user", prompt), _said("assistant", answers[0])]}
    return {**chat, "rejected_response": answers[1]} if answers[1:] else chat


def _of_verl(prompt: str, answers: list[str]) -> dict[str, Any]:
    return {"prompt": [_said("user", prompt)]}


ROWS: dict[str, Row] = {
    "verl-fsdp": _of_verl, "verl": _of_verl, "trl": _of_trl, "llamafactory": _of_llamafactory,
    "ms-swift-deepspeed": _of_ms_swift,
}  # fmt: skip


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
    read = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, unk_token=UNKNOWN, pad_token=UNKNOWN
    )
    read.chat_template = CHAT
    read.save_pretrained(folder)


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
