"""The options of the commands that hold plans against frameworks, runs and GPUs. Imported with every command line."""

from __future__ import annotations

import argparse


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig verify`."""
    parser.add_argument("folder", metavar="DIR", help="what `plan --out` wrote")
    parser.add_argument(
        "--build",
        action="store_true",
        help="let the framework build ranks of the plan, and compare what they hold with the plan",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="also run the modules of those ranks without memory, and compare what they keep for the "
        "backward, tensor by tensor (with --build, which it implies)",
    )
    parser.add_argument("--megatron", metavar="PATH", help="a Megatron-LM checkout, instead of the fetched source")
    parser.add_argument("--timeout", metavar="S", help="seconds for each run of a framework (default 120)")


def add_measure(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig measure`."""
    add = parser.add_argument
    add("folder", nargs="?", metavar="DIR", help="what `plan --out` wrote for Megatron-LM")
    add("--out", metavar="FILE.yaml", help="write the measurements there (with --kernels: the cluster profile)")
    add("--force", action="store_true", help="replace FILE.yaml if it exists")
    add("--device", metavar="D", help="cuda or cpu (default: cuda); on cpu nothing is said of memory")
    add(
        "--cluster",
        metavar="C",
        help="zoo name, or path of a descriptor, with this GPU (default: DIR's; with --kernels by the GPU's name)",
    )
    rank = parser.add_argument_group("a rank of DIR's plan: the real module, with a network that only pretends")
    rank.add_argument("--rank", metavar="R", help="default: 0; heaviest: a rank of the stage that needs most memory")
    rank.add_argument("--steps", metavar="N", help="optimizer steps, of which the first is a warm-up (default 3)")
    rank.add_argument(
        "--transformer-impl",
        metavar="T",
        help="transformer_engine or local (default: the former where it is installed)",
    )
    rank.add_argument("--megatron", metavar="PATH", help="a Megatron-LM checkout, instead of the fetched source")
    rank.add_argument("--timeout", metavar="S", help="seconds that a step may take (default 600, on cpu 120)")
    kernels = parser.add_argument_group("the GPU's kernels")
    kernels.add_argument(
        "--kernels",
        action="store_true",
        help="measure the rates of this GPU's kernels as constants of a cluster's profile; no DIR",
    )
    kernels.add_argument("--budget", metavar="S", help="seconds to measure for (default 60)")
    kernels.add_argument("--raw", metavar="FILE.yaml", help="write each kernel's time there (symconfig.kernel_times/1)")
    kernels.add_argument("--times", metavar="FILE.yaml", help="fit to such a file's times instead of measuring")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig validate`."""
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="measured runs (symconfig.measurements/1), or folders of such files")
    add("--plot", metavar="FILE.png", help="draw predicted against measured seconds (png, svg or pdf)")
    add("--explain", metavar="ID", help="one row only: what it states, what was assumed, and where the error may be")


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig calibrate`."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="measured runs (symconfig.measurements/1, .yaml), or folders of them, or logs of Megatron-LM or DeepSpeed",
    )
    add("--cluster", metavar="C", help="zoo name, or path of a descriptor: only runs on its type of GPU")
    add(
        "--from-scratch",
        action="store_true",
        help="forget what the cluster says of its kernels, and start from what is true of any GPU",
    )
    add("--out", metavar="PROFILE.yaml", help="write the cluster with its fitted constants, for `plan --cluster`")
    add("--force", action="store_true", help="replace PROFILE.yaml if it exists")
    log = parser.add_argument_group("what a log does not say (Megatron-LM's says all)")
    log.add_argument("--model", metavar="M", help="zoo name, or path of a descriptor or a config.json")
    log.add_argument("--gpus", metavar="N", help="how many GPUs it ran on")
    log.add_argument("--micro-batch-size", metavar="B", help="sequences of one GPU at a time")
    log.add_argument("--global-batch-size", metavar="G", help="sequences per optimizer step")
    log.add_argument("--seq-length", metavar="S", help="tokens")
    log.add_argument("--recompute", metavar="R", help="none, selective or full")


def add_import(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig import`."""
    parser.add_argument("config", metavar="CONFIG.json")
    parser.add_argument("--out", metavar="FILE", help="write the descriptor there instead of to standard output")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
