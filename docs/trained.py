"""Writes docs/trained.md: `python docs/trained.py`. Trains every module of the tests from its file, on CPU ranks."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.solve.partition.executed_cases import FOUR, MODULES, MORE, REAL, built, dtype, files, run, write

PAGE = Path(__file__).with_name("trained.md")
MODULE = {
    "t5_plain": "T5", "resnet_of_100k_classes": "ResNet, 100,000 classes", "gpt2_plain": "GPT-2", "llama": "Llama",
    "mixtral": "Mixtral", "bert": "BERT", "gemma2": "Gemma 2", "qwen3_moe": "Qwen 3 MoE", "opt": "OPT", "vit": "ViT",
    "convnext": "ConvNeXt",
}  # fmt: skip
_HEAD = """# Modules that train as they were partitioned

Written by `make trained`. `symconfig partition --module PACKAGE:FACTORY … --train partitioned.py` writes two files:
`partitioned.py`, which needs torch alone, and `partitioned.json`, the placements of every parameter and of every tensor
that an operator reads or makes. Under torchrun:

    from partitioned import apply

    apply(module)                      # parameters become DTensors, forward the traced graph
    loss, *_ = module(**batch)         # every rank is given the whole batch, in the shapes of the example inputs
    loss.backward()
    optimizer.step()                   # any optimizer that takes DTensors

PyTorch's own sharding rules are not used, since they stop where an operator has none (T5: `aten.add_`). The trace is
functional, so nothing is added in place; each operator runs on a rank's own part, as the solver split it; and DTensor
moves tensors between the layouts that two operators want, forward, and their gradients backward. What sums over a dim
that is cut (softmax, norms, batch norm's statistics, cross-entropy over the vocabulary, look-ups in a cut table) adds
up over the ranks. Cuts within a stored dim (heads in GPT-2's one projection of three) are cuts of the dim seen as a
product. Dropout draws the same wherever ranks compute the same. Experts get as many slots as the busiest needs, so that
no token is dropped, and Mixtral's loss is that of its own routing.

## Tried

One step of AdamW on CPU ranks (gloo) against the module itself on one rank: small sizes of Transformers, two layers,
random weights, some labels left out. Differences of gradients and weights are relative to the largest element of each
tensor, the worst of all tensors. In float32 they are those of sums in another order; the ResNet runs in float64, since
a ReLU near zero may turn in float32. *solved* is what the adaptive solver finds on levels that are fast for so small
tensors; *random* draws each operator's split; the others are strategies with names. *Operators* are PyTorch's, as
traced. Only the first five are in `make test`.

"""
_TAIL = """
## What does not run as it is solved

An operator that PyTorch's kernel cannot run on a part runs whole along that mesh dim: its inputs are gathered, and
every rank computes the same. The file's first lines and the command say which, why, and how many bytes each rank gets
for it. {whole}
The reasons there are: windows that reach into the next part (convolutions and pools over a cut height or width, no halo
is exchanged), causal attention without a mask whose queries are cut, convolutions in groups whose channels are cut,
experts whose tokens are cut within a sequence, maxima and products over a cut dim, class weights or targets that are
probabilities in a cut cross-entropy, and sizes that do not divide.

Not done: ZeRO 1 and 2 (the optimizer state lies as the weight does, which the file says), recompute, several
microbatches, offload; a batch or a length other than the traced one (an error names both); buffers are whole on every
rank; a parameter that is cut within a stored dim is kept whole. A tensor that the module makes from numbers while it
runs has to be a buffer.

AutoParallel (meta-pytorch/autoparallel, 0.0.1) is not written: its placements file (`save_placements`, version 1) names
the nodes of its own joint graph of forward and backward, and its reader takes an entry only if it is one of the
strategies that it listed for that node, so such a file can only come from its own trace of the module.
"""


def rows(found: dict[str, Any]) -> Iterator[str]:
    yield "| module | split | ranks | operators | of those cut | run whole | loss | gradients | weights | in |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for case, (factory, ranks, one) in files(more=True).items():
        name = factory.removeprefix(MODULES)
        if name in (*REAL, *MORE):
            far, split = found[case], case.removeprefix(name + "_").rpartition("_")[0].replace("_", "-")
            gathered = len({each.node for each in one.executed.gathered})
            layouts = [(*ran.inputs, *ran.outputs) for ran in one.executed.ran.values()]
            cut = sum(any("Shard" in word for x in some for word in x.placements) for some in layouts)
            counts = f"{ranks} | {len(one.executed.ran)} | {cut} | {gathered}"
            apart = f"{far['loss']:.1e} | {far['gradients']:.1e} | {far['state']:.1e}"
            yield f"| {MODULE[name]} | {split} | {counts} | {apart} | {dtype(factory)} |"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = run(write(Path(folder), more=True), more=True)
    spatial = built(MODULES + "wide_resnet", "spatial", FOUR).sentences()
    whole = "\n".join(
        ["Images of 64 x 64 cut by rows in a wide ResNet, on four ranks:", "", *(f"    {x}" for x in spatial), ""]
    )
    PAGE.write_text(_HEAD + "\n".join(rows(found)) + "\n" + _TAIL.format(whole=whole), encoding="utf-8")


if __name__ == "__main__":
    main()
