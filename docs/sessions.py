"""Plans made again, each as a session that can be repeated, into docs/replan.md: `python docs/sessions.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from refresh import run

PAGE = Path(__file__).resolve().parent / "replan.md"
INTRO = """# A plan made again

A plan is not made once. `symconfig replan PLAN.json` takes the inputs that a plan has recorded (its model, its cluster
and its job, whole: no other file is needed), puts the options that it is given in their place, and solves again. It
says, in this order:

- what is asked for now and was not before, and whether this symconfig predicts the old plan as that predicted itself;
- with `--keep tp,pp`: what it costs to leave those choices as they were;
- every choice that changes, and what it would cost if it alone had stayed: evaluated under the new inputs, not guessed;
- what the old plan, kept whole, would be now: refused, too large by so many bytes, or slower by so much;
- a plan near the old one, where there is one within 1 % whose checkpoint is loaded with less ado;
- the schedule: iterations, warmup, decay and the intervals of saving and evaluation, so that the run sees the same
  tokens and every token the same learning rate (`--schedule as-is` leaves the iterations). The learning rate itself is
  never touched: what the usual rules would make of it is said;
- whether a checkpoint of the old plan loads, how, and what is lost. `--at-step K`, or `--checkpoint DIR`, says where
  the run is: Megatron-LM counts iterations on from the checkpoint's but its schedule in sequences, DeepSpeed's train.py
  numbers its steps anew by the sequences that the checkpoint has seen. The new plan records what the run did before it
  (`history` in plan.json), so that a plan made again, and again from that, counts sequences, tokens and decay exactly;
  a checkpoint that has seen another number is named, and its number counts. With `--target T` the command that goes on
  is in T's own words, or it is said that they are not known; Trainer and torchtitan count steps on from the
  checkpoint's, and their schedules with them, so that the learning rate turns there, which is said, too;
- which files change. `--out DIR` writes them.

It ends with 1 where nothing fits, or nothing that keeps what was asked, and then names which of that binds.
`symconfig diff A.json B.json` shows two plans side by side (`--exit-code`: 1 where they differ, as `git diff` has it).
In Python: `symconfig.replan("out/plan.json", global_batch_size=32, keep=("tp", "pp"))` and `symconfig.diff(a, b)`.

The sessions below are real output; `make sessions` repeats them.
"""


@dataclass(frozen=True, slots=True)
class Session:
    """quiet: commands whose output is no news."""

    title: str
    text: str
    quiet: tuple[str, ...]
    commands: tuple[str, ...]


SESSIONS = (
    Session(
        "From 8 to 32 sequences",
        """An adapter of Qwen2.5-7B, 100 steps into its run. Four times the batch is a quarter of the steps; the
        adapter's checkpoint loads, and the run goes on at the sequence where it was.""",
        ("plan --model qwen2.5-7b-lora --cluster a100-80gb --gpus 8 --global-batch-size 8 --out qwen",),
        ("replan qwen --global-batch-size 32 --at-step 100 --out qwen32",),
    ),
    Session(
        "A batch that grows twice",
        """After 333 steps 96 sequences instead of 64, and after 500 twice as many: the second time the plan that is
        made again is itself one, and has recorded the 333 steps before it.""",
        ("plan --model llama2-7b --cluster a100-80gb --gpus 8 --global-batch-size 64 --out first",
         "replan first --global-batch-size 96 --at-step 333 --out second"),
        ("replan second --global-batch-size 192 --at-step 500 --out third",),
    ),
    Session(
        "From unfused to flash attention",
        """Llama-2-13B was planned for a kernel that keeps the scores of attention in memory. With flash attention that
        memory is free, and the plan that was needed to save it costs time. Keeping its degrees costs a few percent of
        each step, and saves converting the checkpoint.""",
        ("plan --model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 512 --attention unfused "
         "--out unfused",),
        ("replan unfused --attention flash --at-step 300 --out flash",
         "diff unfused flash",
         "replan unfused --attention flash --at-step 300 --keep tp,pp,vpp"),
    ),
    Session(
        "From dense to experts",
        """The same cluster, batch and schedule with another model: what of the plan survives is little, and of the
        checkpoint nothing.""",
        ("plan --model llama2-13b --cluster h100 --gpus 64 --global-batch-size 512 --out dense",),
        ("replan dense --model mixtral-8x7b --out experts",),
    ),
    Session(
        "From 64 to 56 GPUs",
        """A node is gone. 1,024 sequences over 56 GPUs leave only a pipeline of seven stages, and the checkpoint must
        be converted. A batch of 1,008 sequences leaves the old plan as it is, and loses less of each GPU's speed.""",
        ("plan --model llama2-13b --cluster a100-80gb --gpus 64 --global-batch-size 1024 --out sixtyfour",),
        ("replan sixtyfour --gpus 56 --at-step 400",
         "replan sixtyfour --gpus 56 --at-step 400 --global-batch-size 1008 --out fiftysix"),
    ),
    Session(
        "From core_v0.14 to core_v0.19",
        """The framework is upgraded in mid-run. The plan stays the best; the checkpoint's optimizer has to pass through
        a release that reads the old way of holding it and writes the new one.""",
        ("plan --model llama3.1-8b --cluster h100 --gpus 16 --global-batch-size 128 --seq-length 8192 "
         "--megatron-version core_v0.14 --out v14",),
        ("replan v14 --megatron-version core_v0.19 --at-step 400 --out v19",
         "diff v14 v19"),
    ),
)  # fmt: skip


def markdown() -> str:
    """The page."""
    parts = [INTRO]
    with tempfile.TemporaryDirectory() as name:
        for session in SESSIONS:
            parts += [f"## {session.title}", fill(" ".join(session.text.split()), 120), *_shown(session, Path(name))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _shown(session: Session, folder: Path) -> Iterator[str]:
    for command in session.quiet:
        run(f"symconfig {command}", folder)
    yield "```console\n" + "\n".join(f"$ symconfig {command} > /dev/null" for command in session.quiet) + "\n```"
    for command in session.commands:
        yield f"```console\n$ symconfig {command}\n{run(f'symconfig {command}', folder).rstrip()}\n```"


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    print(f"{PAGE.name}: {len(SESSIONS)} sessions")
