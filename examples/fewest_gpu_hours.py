"""Plans a job for two numbers of GPUs and writes the files of the one that takes fewer GPU-hours into cheapest/."""

from pathlib import Path

import symconfig

STEPS = 20_000
results = [
    symconfig.plan("llama3.1-8b", "h100", gpus, global_batch_size=128, seq_length=8192, training={"train_iters": STEPS})
    for gpus in (8, 16)
]


def gpu_hours(result: symconfig.PlanResult) -> float:
    """Return the GPU-hours of all steps."""
    return STEPS * result.best.predicted.step_s * result.best.configuration.world_size / 3600


for result in results:
    low, high = result.best.predicted.interval["step_s"]
    hours = f"{gpu_hours(result):,.0f} GPU-hours, a step {low:.1f} to {high:.1f} s"
    print(f"{result.best.configuration.world_size} GPUs: {hours}")
min(results, key=gpu_hours).write("cheapest")
print(*sorted(path.name for path in Path("cheapest").iterdir()))
