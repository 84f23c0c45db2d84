"""Target mindspeed: MindSpeed-LLM's pretrain_gpt.py on Ascend, with Megatron-LM's options and MindSpeed's own."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.megatron.environment import Variable
from symconfig.frameworks.megatron.mindspeed import CP_ALGORITHMS, MEGATRON
from symconfig.plans.plan import Plan
from symconfig.render import megatron
from symconfig.render.files import File, sh
from symconfig.render.megatron_args import Group
from symconfig.render.target import Saving, Target, launched

_EXAMPLES = "MindSpeed-LLM, examples/mcore"
ENVIRONMENT = (
    Variable("HCCL_CONNECT_TIMEOUT", "3600", "Ranks that start late are waited for an hour", _EXAMPLES),
    Variable("HCCL_EXEC_TIMEOUT", "3600", "Collectives wait an hour for ranks that save or compile", _EXAMPLES),
    Variable("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "Segments that grow leave fewer holes", _EXAMPLES),
)


def groups(plan: Plan) -> tuple[Group, ...]:
    """Return the arguments by the arrays of launch.sh, MindSpeed's own last. Raises as `megatron.groups`."""
    kinds = {"--cp-comm-type": ("--context-parallel-algo", CP_ALGORITHMS)}
    done = [
        Group(
            group.name,
            tuple(
                (kinds[option[0]][0], kinds[option[0]][1][option[1]]) if option[0] in kinds else option
                for option in group.options
            ),
        )
        for group in megatron.groups(plan)
    ]
    model = plan.model
    fused = {
        "--use-fused-rmsnorm": model.norm == "rmsnorm",
        "--use-fused-swiglu": model.gated_mlp and model.hidden_act == "silu",
        "--use-fused-rotary-pos-emb": model.position == "rope",
    }
    own = tuple((name,) for name, used in fused.items() if used)
    return (*done, Group("MINDSPEED_ARGS", own)) if own else tuple(done)


def arguments(plan: Plan) -> list[str]:
    """Return all arguments of pretrain_gpt.py as words. Raises as `megatron.groups`."""
    return [word for group in groups(plan) for option in group.options for word in option]


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables: those of the target megatron, with MindSpeed's arguments and environment."""
    of_megatron = megatron.variables(plan)
    return {
        **of_megatron,
        "framework": f"MindSpeed-LLM on Megatron-LM {MEGATRON}",
        "groups": groups(plan),
        "variables": (*of_megatron["variables"], *ENVIRONMENT),  # type: ignore[misc]
        "wants": (),
        "notes": tuple(note for note in megatron.notes(plan) if not note.startswith("On Ascend")),
    }


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what MindSpeed-LLM does not run: other GPUs than Ascend's, and other releases of Megatron-LM."""
    gpu, version = plan.cluster.gpu, megatron.version(plan)
    if gpu.vendor != "huawei":
        what, need = "MindSpeed-LLM runs on Ascend alone", "a cluster of Ascend, such as ascend-910b"
        yield Problem(what, field="cluster", got=gpu.product, need=need, hint="--target megatron")
    if version != MEGATRON:
        what = "MindSpeed changes the code of one release of Megatron-LM"
        yield Problem(what, field="megatron_version", got=version, need=MEGATRON)


TARGETS = (
    Target(
        name="mindspeed",
        does="arguments of MindSpeed-LLM's pretrain_gpt.py for Ascend, launch.sh with torchrun",
        variables=variables,
        problems=_problems,
        words=arguments,
        texts=lambda plan: (File("megatron_args.txt", " ".join(map(sh, arguments(plan))) + "\n"),),
        assumes={"backend": "megatron", "megatron_version": MEGATRON},
        counts=counting.MEGATRON,
        resume_command=launched,
        saving=Saving("--save", "bash launch.sh --save DIR --save-interval 500"),
        program="MindSpeed-LLM",
    ),
)
