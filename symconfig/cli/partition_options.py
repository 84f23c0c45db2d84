"""The options of `symconfig partition`."""

from __future__ import annotations

import argparse


def add_options(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("the graph: one of these").add_argument
    what("--model", metavar="M", help="zoo name, or path of a descriptor or a config.json")
    what("--program", metavar="FILE.yaml", help="operators over named dims, or a program of the zoo (docs/programs.md)")
    what("--module", metavar="PKG:FACTORY", help="a PyTorch module that the factory makes; needs symconfig[module]")
    where = parser.add_argument_group("where and how it runs").add_argument
    where("--cluster", metavar="C", help="zoo name, or path of a descriptor")
    where("--gpus", metavar="N", help="how many of its GPUs")
    where("--mesh", metavar="FILE.yaml", help="levels instead of the cluster's")
    where("--global-batch-size", metavar="G", help="sequences, or examples, per optimizer step")
    where("--seq-length", metavar="S", help="tokens (default: the smaller of the model's and 4096)")
    where("--num-microbatches", metavar="K", help="that a step is cut into (default: what divides the batch is tried)")
    where("--recompute", metavar="R", help="none, full (of repeated parts), or auto (default) for the faster")
    where("--memory-limit", metavar="SIZE", help="of tensors on a GPU, as 60GiB or 80%% (default: what a plan may use)")
    where("--no-flat", action="store_true", help="weights are kept as they are used, never in smaller parts (ZeRO)")
    how = parser.add_argument_group("the search").add_argument
    how("--solver", metavar="S", help="auto (default: adaptive, then exact), adaptive, exact, brute or mcmc")
    how("--objective", metavar="O", help="time (default) or symtensor")
    how("--timeout", metavar="S", help="seconds for the exact solver (default 10)")
    out = parser.add_argument_group("the answer").add_argument
    out("--baselines", action="store_true", help="also what strategies with names cost on the same graph")
    out("--explain", metavar="OPERATOR", help="one operator in full: layouts, collectives, what else it could do")
    out("--top", metavar="K", default="1", help="how many other ways of each operator (default 1; --explain, --json)")
    out("--placements", metavar="FILE.py", help="write placements for PyTorch's DTensor there")
    out("--out", metavar="DIR", help="write partition.json, placements.py, and a plan where a framework can be told")
    out("--force", action="store_true", help="replace what exists")
