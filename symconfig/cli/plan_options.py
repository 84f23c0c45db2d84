"""The options of the commands that make, write and read plans. Imported with every command line."""

from __future__ import annotations

import argparse

from symconfig.cli.files_options import add_files


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig plan`."""
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB.yaml", help="the job as a file; options below override what it says")
    add_job(parser)
    add_answer(parser)


def add_job(parser: argparse.ArgumentParser) -> None:
    """Options that are fields of a job."""
    what = parser.add_argument_group("the job")
    what.add_argument("--model", metavar="M", help="zoo name, or path of a descriptor or a config.json")
    what.add_argument("--cluster", metavar="C", help="zoo name, or path of a descriptor")
    what.add_argument("--gpus", metavar="N", help="how many GPUs, all of them used; auto: the fewest that fit")
    what.add_argument("--global-batch-size", metavar="G", help="sequences per optimizer step")
    what.add_argument("--seq-length", metavar="S", help="tokens (default: the smaller of the model's and 4096)")
    what.add_argument("--backend", metavar="B", help="megatron (default) or deepspeed (default for adapters)")
    what.add_argument("--megatron-version", metavar="V", help="core_v0.12 to core_v0.19 (default), or dev")
    what.add_argument("--task", metavar="T", help="pretrain, sft or lora (default: lora for an adapter, else pretrain)")
    what.add_argument("--precision", metavar="P", help="bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest")
    what.add_argument("--attention", metavar="A", help="flash (default, where the GPU has it) or unfused")
    what.add_argument("--objective", metavar="O", help="time (default) or symtensor")
    what.add_argument(
        "--pin",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="fix or bound a choice: tp=8, pp=2..8, vpp=..4, recompute=full, zero=1; may be repeated",
    )
    what.add_argument("--memory-margin", metavar="SHARE", help="share of the GPU's memory left free (default 0.04)")
    what.add_argument("--expert-imbalance", metavar="X", help="busiest expert rank over the mean (default 1.0)")


def add_answer(parser: argparse.ArgumentParser) -> None:
    """How much of the answer is shown, and where its files go."""
    out = parser.add_argument_group("the answer")
    out.add_argument("--top", metavar="K", default="5", help="how many candidates to rank (default 5)")
    out.add_argument("--out", metavar="DIR", help="write plan.json, the launcher and the report there")
    out.add_argument("--force", action="store_true", help="write into a folder that exists")
    add_files(out)


def add_fallback(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig fallback`."""
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--lose-nodes", metavar="N", default="1..4", help="how many nodes fewer: 2, or 1..4 (default)")
    add("--out", metavar="DIR", help="write nodes-N/ for every plan there, and the launch.sh above them")
    add("--force", action="store_true", help="write into a folder that exists")
    add_files(parser)


def add_render(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig render`."""
    parser.add_argument("plan", metavar="PLAN.json", help="what `symconfig plan --out` or `--json` gave, or its folder")
    add_files(parser)
    parser.add_argument("--out", metavar="DIR", required=True)
    parser.add_argument("--force", action="store_true", help="write into a folder that exists")


def add_args(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig args`."""
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--target", metavar="T", help="whose program (default: the framework that the plan was made for)")
    add("--null", action="store_true", help="end every word with a NUL, for mapfile -d '' and xargs -0")
    held = parser.add_argument_group("held against this machine first; exit 1 where it is another one")
    held.add_argument("--check", action="store_true", help="WORLD_SIZE and the installed release against the plan")
    held.add_argument("--world-size", metavar="N", help="how many GPUs this start has (default: WORLD_SIZE)")
    held.add_argument("--replan", action="store_true", help="solve again for what is here, instead of failing")


def add_check(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig check`."""
    add = parser.add_argument
    add("place", metavar="DIR", help="what `plan --out` or `render` wrote, or a PLAN.json alone")
    add("--templates", metavar="DIR", help="your own templates, where they were written with some")
    add("--solve", action="store_true", help="also solve again, and say if another plan is best now")


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig formats`."""
    parser.add_argument("plan", nargs="?", metavar="PLAN.json", help="say which formats can carry this plan")
    parser.add_argument("--templates", metavar="DIR", help="with the templates of your own")


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig checkpoint`."""
    add = parser.add_argument
    add("folder", metavar="DIR", help="of Megatron-LM, DeepSpeed, Hugging Face or PEFT; nothing in it is unpickled")
    add("--plan", metavar="NEW.json", help="the plan of the run that shall load it, or its folder")
    add("--old", metavar="OLD.json", help="the plan of the run that saved it (default: as NEW, but for what DIR says)")


def add_explain(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig explain`."""
    parser.add_argument("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")


def add_timeline(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig timeline`."""
    add = parser.add_argument
    add("plan", metavar="PLAN.json", help="a plan, or the folder that holds it")
    add("--candidate", metavar="N", help="which one of the plan's ranking (default 1, the best)")
    add("--schedule", metavar="NAME", help="as another schedule would run it, also one that no framework has")
    add("--compare", action="store_true", help="also a table of all schedules: step, idle share, memory, where it runs")
    add("--svg", metavar="FILE.svg", help="draw it as a picture")
    add("--png", metavar="FILE.png", help="the same as PNG; needs matplotlib")
    add("--force", action="store_true", help="replace pictures that exist")
    add("--width", metavar="N", help="letters in a line (default: the terminal's, or 120)")
