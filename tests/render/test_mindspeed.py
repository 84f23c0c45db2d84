"""MindSpeed-LLM's launch script: what it says, what is refused, and what an audit reads of it."""

from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api import existing
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InfeasibleError
from symconfig.frameworks.megatron import mindspeed
from symconfig.frameworks.megatron.flags import flags
from symconfig.render import named, render
from symconfig.render.files import write
from tests.render.bash import dry_run
from tests.sample_plans import sample_plan

ASCEND = load_cluster("ascend-910b")


def _refused(**options: Any) -> str:
    plan = sample_plan("mixtral-8x7b", ASCEND, version=mindspeed.MEGATRON, **options)
    return " ".join(str(problem) for problem in named("mindspeed").refusals(plan))


@pytest.mark.parametrize(
    ("model", "gpus", "pins"),
    [("llama2-7b", 8, {}), ("qwen2.5-7b", 16, {"cp": "2", "cp_comm": "a2a"}), ("mixtral-8x7b", 32, {"ep": "8"})],
)
def test_a_plan_comes_back(model: str, gpus: int, pins: dict[str, str], tmp_path: Path) -> None:
    plan = symconfig.plan(model, "ascend-910b", gpus, 64, 4096, target="mindspeed", top=1, pins=pins).plan
    write(render(plan, "mindspeed"), tmp_path / "files")
    found = existing.audit(str(tmp_path / "files" / "launch.sh"), "ascend-910b", gpus=gpus, plan=False)
    assert found.judged is not None, found.unpredicted
    assert {finding.severity for finding in found.findings} <= {"note"}
    again = found.judged.plan.best
    assert again.configuration == plan.best.configuration
    assert again.predicted.step_s == pytest.approx(plan.best.predicted.step_s, rel=1e-3)


def test_its_options_are_in_the_table_and_its_script_asks_for_its_checkout(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", ASCEND, version=mindspeed.MEGATRON, tp=1, cp=2, dp=8, cp_comm="a2a")
    files = render(plan, "mindspeed")
    words = dry_run(files, tmp_path, "launch.sh")
    assert words[words.index("--context-parallel-algo") + 1] == "ulysses_cp_algo"
    assert {"--use-fused-rmsnorm", "--use-fused-swiglu", "--use-fused-rotary-pos-emb"} <= {*words}
    assert "--cp-comm-type" not in words
    program = next(place for place, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    assert mindspeed.table(mindspeed.MEGATRON).check(words[program + 1 :]) == []
    assert "export HCCL_CONNECT_TIMEOUT" in files["launch.sh"]
    assert "mindspeed_llm" in files["launch.sh"]


def test_what_it_has_not_is_refused() -> None:
    assert "DeepEP and HybridEP" in _refused(ep=2, moe_dispatcher="flex", moe_flex_backend="deepep")
    assert "CUDA graphs" in _refused(cuda_graphs="all")
    assert "8-bit" in _refused(precision="fp8")
    assert "Megatron-FSDP" in _refused(zero_stage=3)
    plan = sample_plan("llama2-13b", ASCEND, version="core_v0.19.0")
    assert "one release of Megatron-LM" in str(named("mindspeed").refusals(plan))
    with pytest.raises(InfeasibleError, match="runs on Ascend alone"):
        symconfig.plan("llama2-7b", "h100", 8, 64, 4096, target="mindspeed")


def test_options_are_its_own_or_of_another_release() -> None:
    own, of_release = mindspeed.own(), flags(mindspeed.MEGATRON).flags
    assert not own.keys() & of_release.keys()
    dests = {flag.dest for flag in own.values()}
    assert mindspeed.refused().keys() <= dests
    assert mindspeed.uses(["--use-fused-rmsnorm", "--swap-optimizer"])
    assert not mindspeed.uses(["--use-fused-rmsnorm", "--swiglu"])


def test_unpriced_options_are_told_and_what_changes_the_model_is_not_predicted(tmp_path: Path) -> None:
    plan = sample_plan("llama2-13b", ASCEND, version=mindspeed.MEGATRON)
    words = " ".join(named("mindspeed").words(plan))  # type: ignore[misc]
    script = tmp_path / "run.sh"
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} --swap-optimizer\n")
    found = existing.audit(str(script), "ascend-910b", plan=False)
    assert found.judged is not None
    assert "--swap-optimizer" in str(found.judged)
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {words} --noop-layers 3\n")
    found = existing.audit(str(script), "ascend-910b", plan=False)
    assert found.judged is None
    assert "layers that do nothing" in str(found.unpredicted)
