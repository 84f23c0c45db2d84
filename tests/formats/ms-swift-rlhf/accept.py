"""ms-swift's own arguments read config.yaml as a rank that `megatron rlhf` starts would; how: `ms-swift/accept.py`."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

from accepting import Values, answer, started

_BESIDE = Path(__file__).resolve().parents[1] / "ms-swift" / "accept.py"
spec = importlib.util.spec_from_file_location("of_ms_swift", _BESIDE)
assert spec is not None
assert spec.loader is not None
of_ms_swift = importlib.util.module_from_spec(spec)
sys.modules["of_ms_swift"] = of_ms_swift
spec.loader.exec_module(of_ms_swift)

from swift.cli.main import parse_yaml_args  # noqa: E402
from swift.megatron.arguments import MegatronRLHFArguments  # noqa: E402

from symconfig.descriptor.config_writer import config_json  # noqa: E402
from symconfig.plans.file import load_plan  # noqa: E402


def accept(folder: Path) -> Values:
    with tempfile.TemporaryDirectory() as scratch:
        model, data = Path(scratch, "model"), Path(scratch, "data.jsonl")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config_json(load_plan(folder).model)))
        said = {"role": "assistant", "content": "b"}
        pair = {"messages": [{"role": "user", "content": "a"}, said], "rejected_response": "c"}
        data.write_text(json.dumps(pair) + "\n")
        given = {"DATASET": str(data), "MODEL": str(model), "MASTER_ADDR": "10.0.0.1", "SKIP_PREFLIGHT": "1"}
        words, environment = started(folder, "megatron", **given)
        name, *argv = words
        assert name == "rlhf", words
        parse_yaml_args(argv)
        elsewhere = ["--output_dir", str(Path(scratch, "out")), "--add_version", "false"]
        return of_ms_swift.parsed(MegatronRLHFArguments, [*argv, *elsewhere], environment, _step)  # type: ignore[no-any-return]


def _step(args: MegatronRLHFArguments) -> Values:
    """Return what the arguments say of a step, or of pairs, which it counts where a plan counts sequences."""
    if args.rlhf_type != "grpo":
        count = 1 if args.rlhf_type == "kto" else 2
        scores = args.rlhf_type == "rm"
        assert (args.task_type, args.num_labels) == (("seq_cls", 1) if scores else ("causal_lm", None))
        return {
            "micro": count * args.micro_batch_size,
            "global": count * args.global_batch_size,
            "seq_length": args.max_length,
            **({} if scores else {"preference_beta": args.beta}),
            "preference_loss": "reward" if scores else args.loss_type,
        }
    parts = {"weights": args.offload_model, "optimizer state": args.offload_optimizer}
    return {
        "prompts": args.generation_batch_size // args.num_generations,
        "samples": args.num_generations,
        "updates": args.steps_per_generation,
        "longest": args.max_length + args.max_completion_length,
        "rollout_tp": args.vllm_tensor_parallel_size,
        "memory_share": args.vllm_gpu_memory_utilization,
        "sleep_level": args.sleep_level,
        "away": [name for name, on in parts.items() if on],
        "seq_length": args.vllm_max_model_len,
    }


if __name__ == "__main__":
    answer(accept)
