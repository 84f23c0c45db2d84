"""The cases for DeepSpeed, as those of `cases`: done with rendered train.py on CPU ranks."""

from __future__ import annotations

from typing import Any

from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.table import Verdict
from tests.render.deepspeed_support import tiny
from tests.runs.checkpoint.cases import AS_IS, CONVERTED, NO, WEIGHTS, Case
from tests.sample_plans import sample_plan

RANKS = "The checkpoint being loaded used a DP world size of"
ZERO: list[dict[str, Any]] = [{"zero_stage": stage, "grad_bytes": 4 if stage else 2} for stage in range(4)]
LORA, EXPERTS = tiny("qwen lora"), tiny("mixtral")


class DeepSpeedCase(Case):
    """Of plans for DeepSpeed."""

    def plans(self) -> tuple[Plan, Plan]:
        return plan(self.model, **self.old), plan(self.other or self.model, **self.new)


def plan(model: Any = None, **fields: Any) -> Plan:
    return sample_plan(
        model or tiny("llama"),
        "h100",
        backend="deepspeed",
        version="0.19.8",
        **{
            "dp": 1,
            "micro": 1,
            "global_batch": 8,
            "seq_length": 32,
            "sequence_parallel": False,
            **fields,
            "training": {
                "lr": 5e-3, "min_lr": 0.0, "lr_warmup_iters": 0, "train_iters": 5, "lr_decay_style": "constant",
            },
        },
    )  # fmt: skip


def case(old: dict[str, Any], new: dict[str, Any], verdict: Verdict, refused: str = "", model: Any = None) -> Case:
    return DeepSpeedCase(old, new, verdict, refused=refused, model=model)


CASES: dict[str, Case] = {
    "ZeRO 1, nothing changes": case({"dp": 2, **ZERO[1]}, {"dp": 2, **ZERO[1]}, AS_IS),
    "ZeRO 1, dp 2 to 1": case({"dp": 2, **ZERO[1]}, {"dp": 1, **ZERO[1]}, CONVERTED, RANKS),
    "ZeRO 1, dp 2 to 4": case({"dp": 2, **ZERO[1]}, {"dp": 4, **ZERO[1]}, CONVERTED, RANKS),
    "ZeRO 2, dp 2 to 4": case({"dp": 2, **ZERO[2]}, {"dp": 4, **ZERO[2]}, CONVERTED, RANKS),
    "ZeRO 3, dp 2 to 4": case({"dp": 2, **ZERO[3]}, {"dp": 4, **ZERO[3]}, CONVERTED, RANKS),
    "ZeRO 3, dp 2 to 1": case({"dp": 2, **ZERO[3]}, {"dp": 1, **ZERO[3]}, CONVERTED, RANKS),
    "ZeRO 0, dp 2 to 4": case({"dp": 2, **ZERO[0]}, {"dp": 4, **ZERO[0]}, AS_IS),
    "ZeRO 1 to 2": case({"dp": 2, **ZERO[1]}, {"dp": 2, **ZERO[2]}, AS_IS),
    "ZeRO 2 to 1": case({"dp": 2, **ZERO[2]}, {"dp": 2, **ZERO[1]}, AS_IS),
    "ZeRO 2 to 3": case({"dp": 2, **ZERO[2]}, {"dp": 2, **ZERO[3]}, WEIGHTS, "len(self.ckpt_list) > 0"),
    "ZeRO 3 to 2": case({"dp": 2, **ZERO[3]}, {"dp": 2, **ZERO[2]}, WEIGHTS, "len(self.ckpt_list) > 0"),
    "ZeRO 0 to 1": case({"dp": 2, **ZERO[0]}, {"dp": 2, **ZERO[1]}, WEIGHTS, "No such file or directory"),
    "ZeRO 1 to 0": case({"dp": 2, **ZERO[1]}, {"dp": 2, **ZERO[0]}, WEIGHTS, "TypeError"),
    "AutoTP 2 to 1": case({"tp": 2, **ZERO[1]}, {**ZERO[1]}, CONVERTED, "is not found in the checkpoint"),
    "AutoTP 1 to 2": case({**ZERO[1]}, {"tp": 2, **ZERO[1]}, CONVERTED, "Error(s) in loading state_dict"),
    "AutoTP 2, dp 1 to 2": case({"tp": 2, **ZERO[1]}, {"tp": 2, "dp": 2, **ZERO[1]}, CONVERTED, RANKS),
    "AutoTP 2 to dp 2, ZeRO 0": case({"tp": 2, **ZERO[0]}, {"dp": 2, **ZERO[0]}, NO, "is not found in the checkpoint"),
    "adapter, ZeRO 2, nothing changes": case({"dp": 2, **ZERO[2]}, {"dp": 2, **ZERO[2]}, AS_IS, model=LORA),
    "adapter, ZeRO 2, dp 2 to 4": case({"dp": 2, **ZERO[2]}, {"dp": 4, **ZERO[2]}, CONVERTED, RANKS, LORA),
    "adapter, ZeRO 3, dp 2 to 4": case({"dp": 2, **ZERO[3]}, {"dp": 4, **ZERO[3]}, CONVERTED, RANKS, LORA),
    "ZeRO 1, bf16 to fp16": case(
        {"dp": 2, **ZERO[1]}, {"dp": 2, **ZERO[1], "precision": "fp16"}, CONVERTED, "No such file or directory"
    ),
    "AutoEP 2, nothing changes": case(
        {"dp": 2, "ep": 2, **ZERO[1]}, {"dp": 2, "ep": 2, **ZERO[1]}, AS_IS, model=EXPERTS
    ),
    "AutoEP 2, dp 2 to 4": case(
        {"dp": 2, "ep": 2, **ZERO[2]}, {"dp": 4, "ep": 2, **ZERO[2]}, CONVERTED, RANKS, EXPERTS
    ),
    "AutoEP 2 to 1": case(
        {"dp": 2, "ep": 2, **ZERO[1]}, {"dp": 2, **ZERO[1]}, NO, "Error(s) in loading state_dict", EXPERTS
    ),
    "AutoEP 2 to 4": case({"dp": 4, "ep": 2, **ZERO[1]}, {"dp": 4, "ep": 4, **ZERO[1]}, NO, "Error", EXPERTS),
}
