"""Training logs in the formats of the frameworks, made up line by line."""

from __future__ import annotations

import gzip
from pathlib import Path

from symconfig.frameworks.megatron.flags import flags
from symconfig.plans.plan import Plan
from symconfig.render import megatron

LOGS = Path(__file__).parent / "logs"  # what the frameworks print before the first step
HEAD = (LOGS / "megatron_head.txt").read_text(encoding="utf-8")
DEEPSPEED_HEAD = (LOGS / "deepspeed_head.txt").read_text(encoding="utf-8")


def iteration(number: int, ms: float, batch: int = 64, skipped: int = 0, tflops: float | None = 412.3) -> str:
    rate = f" throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |" if tflops else ""
    return (
        f" [2024-05-01 12:00:00] iteration {number:8d}/     500 | consumed samples: {number * batch:12d} | "
        f"elapsed time per iteration (ms): {ms:.1f} |{rate} learning rate: 1.000000E-05 | "
        f"global batch size: {batch:5d} | lm loss: 1.056789E+01 | loss scale: 1.0 | grad norm: 3.456 | "
        f"number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\n"
    )


def memory(rank: int, peak_mib: float, after: int = 2) -> str:
    return (
        f"[Rank {rank}] (after {after} iterations) memory (MB) | allocated: {peak_mib / 2} | max allocated: {peak_mib} "
        f"| reserved: {peak_mib + 100} | max reserved: {peak_mib + 200}\n"
    )


def megatron_log(steps: int = 10) -> str:
    """Two slow steps, then 1,000 ms with a millisecond more each step; the memory report after the second."""
    lines = [HEAD]
    for number in range(1, steps + 1):
        lines.append(iteration(number, 6000.0 if number <= 2 else 1000.0 + number))
        if number == 2:
            lines += [memory(rank, 40_000.0 + rank) for rank in (0, 1)]
    return "".join(lines)


def throughput(step: int, samples_per_s: float) -> str:
    return (
        f"[2024-05-01 12:00:02,000] [INFO] [timer.py:264:stop] epoch=0/micro_step={4 * step}/global_step={step}, "
        f"RunningAvgSamplesPerSec={samples_per_s * 0.9}, CurrSamplesPerSec={samples_per_s}, MemAllocated=12.5GB, "
        f"MaxMemAllocated=30.25GB\n"
    )


def see_memory(peak_gb: float) -> str:
    return (
        f"[2024-05-01 12:00:02,000] [INFO] [utils.py:781:see_memory_usage] MA 10.1 GB         Max_MA {peak_gb} GB"
        "         CA 20.5 GB         Max_CA 44 GB \n"
    )


def deepspeed_log(steps: int = 60, every: int = 10) -> str:
    lines = [throughput(step, 32.0) for step in range(every, steps + 1, every)]
    return "".join((DEEPSPEED_HEAD, *lines, see_memory(41.5)))


def namespace(plan: Plan) -> dict[str, str]:
    """What Megatron's parser makes of a plan's arguments, and `validate_args` adds, as it is printed."""
    table, parallel = flags(plan.best.target.version).flags, plan.best.configuration
    names = {flag.dest: flag.default for flag in table.values()}
    given: list[tuple[str, list[str]]] = []
    for word in megatron.arguments(plan):
        if word.startswith("--"):
            option, joined, text = word.partition("=")
            given.append((option, [text] if joined else []))
        else:
            given[-1][1].append(word)
    for option, words in given:
        flag = table[option]
        if flag.nargs in ("+", "*"):
            names[flag.dest] = str(words)
        else:
            names[flag.dest] = words[0] if words else str(flag.kind != "false")
    if "(" in names.get("moe_layer_freq", ""):
        names["moe_layer_freq"] = str([int(moe) for moe in plan.model.moe_layers])
    return names | {
        "data_parallel_size": str(parallel.dp),
        "world_size": str(parallel.world_size),
        "virtual_pipeline_model_parallel_size": str(parallel.vpp) if parallel.vpp > 1 else "None",
    }


def plan_log(plan: Plan, ms: float = 1000.0) -> str:
    """The log of a run of the plan's rendered arguments."""
    names = namespace(plan)
    lines = ["------------------------ arguments ------------------------\n"]
    lines += [f"  {name} {'.' * (48 - len(name))} {names[name]}\n" for name in sorted(names)]
    lines.append("-------------------- end of arguments ---------------------\n")
    lines.append(f" > padded vocab (size: {plan.model.vocab_size}) with 1 dummy tokens (new size: 999999)\n")
    lines += [iteration(number, ms, plan.best.configuration.global_batch) for number in range(1, 8)]
    return "".join(lines)


def write(folder: Path, content: str | bytes, name: str = "train.log") -> Path:
    path = folder / name
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path
