"""Writes docs/trained.md: `python docs/trained.py`. Trains every module of the tests from its file, on CPU ranks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from written import fill, table

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.solve.partition.executed_cases import FOUR, MODULES, MORE, REAL, built, dtype, files, run, write

PAGE = Path(__file__).with_name("trained.md")
MODULE = {
    "t5_plain": "T5", "resnet_of_100k_classes": "ResNet, 100,000 classes", "gpt2_plain": "GPT-2", "llama": "Llama",
    "mixtral": "Mixtral", "bert": "BERT", "gemma2": "Gemma 2", "qwen3_moe": "Qwen 3 MoE", "opt": "OPT", "vit": "ViT",
    "convnext": "ConvNeXt",
}  # fmt: skip


def rows(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for case, (factory, ranks, one) in files(more=True).items():
        name = factory.removeprefix(MODULES)
        if name in (*REAL, *MORE):
            far, split = found[case], case.removeprefix(name + "_").rpartition("_")[0].replace("_", "-")
            gathered = len({each.node for each in one.executed.gathered})
            layouts = [(*ran.inputs, *ran.outputs) for ran in one.executed.ran.values()]
            cut = sum(any("Shard" in word for x in some for word in x.placements) for some in layouts)
            counts = map(str, (ranks, len(one.executed.ran), cut, gathered))
            apart = (f"{far[name]:.1e}" for name in ("loss", "gradients", "state"))
            yield MODULE[name], split, *counts, *apart, dtype(factory)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = run(write(Path(folder), more=True), more=True)
    spatial = built(MODULES + "wide_resnet", "spatial", FOUR).sentences()
    whole = ["Images of 64 x 64 cut by rows in a wide ResNet, on four ranks:", "", *(f"    {line}" for line in spatial)]
    head = ("module", "split", "ranks", "operators", "of those cut", "run whole", "loss", "gradients", "weights", "in")
    fill(PAGE, {"steps": table(head, rows(found)), "whole": "\n".join(whole)})


if __name__ == "__main__":
    main()
