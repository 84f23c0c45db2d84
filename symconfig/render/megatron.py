"""Targets megatron and mindspeed: Megatron-LM's pretrain_gpt.py, and MindSpeed-LLM's on Ascend, started by torchrun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from symconfig.descriptor import learning_rate
from symconfig.descriptor.sections import Experts
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.formats import links
from symconfig.formats.megatron import EXPERTS
from symconfig.formats.megatron_run import RUN
from symconfig.frameworks.megatron import environment, flags, mindspeed, sparse
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.hybrid import DELTA, GPT_SCRIPT, SCRIPT, hybrid
from symconfig.frameworks.megatron.releases import (
    KEPT_INPUTS,
    KEPT_INPUTS_SINCE,
    LAYOUT_MTP_ALONE_SINCE,
    LAYOUT_MTP_SINCE,
    NO_ENGINE,
    RECOMPUTE_SINCE,
)
from symconfig.plans.plan import Plan
from symconfig.render import shared
from symconfig.render.files import File, sh
from symconfig.render.megatron_args import Arguments, Group, unpassable
from symconfig.render.megatron_model import model_args
from symconfig.render.shared import MEGATRON_COUNTING, refused
from symconfig.render.target import Saving, Target, launched

NAME = "megatron"
OLDEST = "core_v0.12.1"


def version(plan: Plan) -> str:
    """Return the Megatron-LM release to write for: the plan's, or the job's if the plan is for another framework."""
    target = plan.best.target
    return flags.resolve(target.version if target.backend == NAME else plan.job.megatron_version)


def arguments(plan: Plan) -> list[str]:
    """Return all arguments of pretrain_gpt.py as words. Raises InfeasibleError with all that cannot be expressed."""
    return _words(groups(plan))


def _words(of: Sequence[Group]) -> list[str]:
    return [word for group in of for option in group.options for word in option]


def groups(plan: Plan) -> tuple[Group, ...]:
    """Return the arguments of pretrain_gpt.py, a Group for each bash array of launch.sh, for the plan's release. Raises
    InfeasibleError for adapters, and as `groups_at`.
    """
    if plan.model.adapter is not None:
        what, hint = "Megatron-LM has no LoRA or other adapters", "--target bridge or ms-swift, or --backend deepspeed"
        raise InfeasibleError(what, field="adapter", got=plan.model.adapter.method, hint=hint)
    return groups_at(plan, version(plan))


def groups_at(plan: Plan, target: str) -> tuple[Group, ...]:
    """Return the arguments of pretrain_gpt.py, a Group for each bash array of launch.sh, as the release `target` takes
    them; adapters are ignored.

    A field in the job's `edited` is not refused where a known change of Megatron-LM's code mends it. Raises
    InfeasibleError with all that cannot be expressed; InputError for a release before core_v0.12.1, a wrong schedule,
    data without a tokenizer, or a value that the parser refuses.
    """
    if flags.versions().index(target) < flags.versions().index(OLDEST):
        raise InputError(
            "is older than what symconfig writes for", field="megatron_version", got=target, need=f"{OLDEST} or later"
        )
    best = plan.best
    out = Arguments(flags.flags(target), frozenset(plan.job.edited))
    engine = plan.cluster.gpu.architecture not in NO_ENGINE
    model_args(out, plan.model, best.configuration.seq_length, best.configuration.tp, engine)
    moe_args(out, plan)
    if plan.job.attention == "unfused":  # flash is what auto finds: Transformer Engine's fastest on this GPU
        out.put("--attention-backend", "unfused")
    learning_rate.check(plan.training)
    for out.group, run in RUN.items():
        if out.group != "MOE_ARGS":
            links.write(run, out, plan)
    _refuse_run(out, plan)
    out.refuse_all(refused(plan, NAME, target))
    if out.problems:
        raise InfeasibleError(out.problems)
    done = out.groups()
    if wrong := out.table.check(_words(done)):  # a defect of ours, or a value of the job that no parser takes
        raise InputError(wrong)
    return done


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables of the target megatron: `_variables`, with its release, environment and notes.
    Raises as `groups` and `_variables`.
    """
    target, ascend = version(plan), plan.cluster.gpu.vendor == "huawei"
    return {
        **_variables(plan, groups(plan)),
        "framework": f"Megatron-LM {target}",
        "variables": environment.variables(plan, target),
        "wants": shared.modules_wanted(plan),
        "notes": (*notes(plan), *([_ASCEND] if ascend else []), *_start_notes(plan)),
    }


def _variables(plan: Plan, done: Sequence[Group]) -> dict[str, object]:
    """Return the variables that both targets' templates share: release, argument groups (`done`, as they are), script,
    tokenizer (the job's, else the model's name on Hugging Face, else None) and its type (by default
    HuggingFaceTokenizer), padded vocabulary. Raises InfeasibleError for Hugging Face weights, InputError for text that
    is no argument of a program.
    """
    if (weights := plan.job.training.hf_weights) is not None:
        what, hint = "Megatron-LM does not start from Hugging Face weights", "--target bridge, or --backend deepspeed"
        raise InfeasibleError(what, field="training.hf_weights", got=weights, hint=hint)
    training = plan.training
    tokenizer = training.tokenizer_model or plan.model.huggingface_id
    given = {"tokenizer_model": tokenizer, "split": training.split, "tokenizer_type": training.tokenizer_type}
    for name, value in given.items():
        if value is not None and (bad := unpassable(value)):
            raise InputError(f"cannot be passed to a program: {bad}", field=f"training.{name}", got=repr(value))
    return {
        "version": version(plan),
        "groups": done,
        "script": SCRIPT if hybrid(plan.model) else GPT_SCRIPT,
        "tokenizer": tokenizer,
        "tokenizer_type": training.tokenizer_type or "HuggingFaceTokenizer",
        "padded": MEGATRON.padded_vocab(plan.model.vocab_size, plan.best.configuration.tp),
    }


def notes(plan: Plan) -> Iterator[str]:
    """Yield sentences on Megatron-LM to read before the first start, whatever program starts it: changes of its code
    that the job's `edited` fields need, then on Volta or AMD GPUs, Muon, sparse attention and packing. The arguments
    are made again without `edited` to find the changes.
    """
    if edited := plan.job.edited:
        try:
            groups_at(replace(plan, job=plan.job.model_copy(update={"edited": ()})), version(plan))
        except InfeasibleError as error:
            changes = (problem.edit for problem in error.problems if problem.edit and problem.field in edited)
            yield from (f"Only with Megatron-LM changed: {change}" for change in changes)
    if plan.cluster.gpu.architecture == "volta":
        yield (
            "Transformer Engine is built for this GPU (sm_70) with CUDA 12 only, not with CUDA 13, and has no "
            "flash attention for it (its documentation of NVTE_CUDA_ARCHS)"
        )
    if plan.cluster.gpu.vendor == "amd":
        yield "On ROCm, use the Transformer Engine that AMD builds; the options here were not checked on one"
    if plan.job.optimizer.name == "muon":
        yield (
            "Muon is of the package emerging-optimizers, 0.2 or later, which must be installed where it runs "
            "(Megatron-LM, core/optimizer/emerging_optimizers.py)"
        )
    if plan.model.indexer is not None:
        yield (
            f"Kernels of sparse attention are of {sparse.PACKAGES}, which must be installed where it runs; the loss of "
            f"the indexer has the weight {plan.model.indexer.loss_coef:g} (indexer.loss_coef), over the chosen keys"
        )
    if plan.job.packing:
        yield shared.PACKING


_ASCEND = (
    "On Ascend, Megatron-LM runs with MindSpeed, whose adaptor pretrain_gpt.py must import first; "
    "--target mindspeed writes for MindSpeed-LLM"
)


def _start_notes(plan: Plan) -> Iterator[str]:
    """Yield the sentence on how pretrain_gpt.py fine-tunes, if the task is sft."""
    if plan.job.task == "sft":
        yield (
            "The job is fine-tuning (sft), but pretrain_gpt.py is started as for pretraining: the loss is "
            "over every token; --load, in the job or after the script's name, gives it weights to start from"
        )


# Activations that grouped experts have, each with whether a gate goes with it (moe/experts.py); not GELU in the tanh
# form, which is that of the kernel fused with a bias.
ACTIVATIONS = frozenset(
    (("silu", True), ("clamped_swiglu", True), ("gelu_sigmoid", True), ("relu2", False), ("gelu", False))
)


def moe_args(out: Arguments, plan: Plan) -> None:
    """Add the options of experts, router and dispatcher to MOE_ARGS, which becomes the current group; nothing for dense
    models.

    Refused are routing (`_refuse_router`), activations that the grouped experts lack, and values without an option in
    the release (by `formats.megatron`, which maps single fields to options).
    """
    model = plan.model
    if model.experts is None:
        return
    out.group = "MOE_ARGS"
    _refuse_router(out, model.experts)
    links.write(EXPERTS, out, model)
    links.write(RUN[out.group], out, plan)
    if (model.hidden_act, model.gated_mlp) not in ACTIVATIONS:
        out.refuse("hidden_act", "its grouped experts have no such activation", model.hidden_act)


def _refuse_router(out: Arguments, experts: Experts) -> None:
    """Refuse renormalised scores and group scores that Megatron-LM computes otherwise. Its sigmoid scores are
    renormalised if and only if top_k > 1; a softmax over one expert is refused if it is renormalised or after top-k; a
    group's score must come from the best 2 (sigmoid) or 1 experts, which it takes as top_k / topk_group.
    """
    sigmoid, top_k = experts.scoring_func == "sigmoid", experts.num_experts_per_tok
    if sigmoid and experts.norm_topk_prob != (top_k > 1):
        why = "it renormalises sigmoid scores of several chosen experts, and never that of one"
        out.refuse("experts.norm_topk_prob", why, experts.norm_topk_prob)
    if not sigmoid and top_k == 1 and (experts.norm_topk_prob or experts.softmax_after_topk):
        why = "a softmax over one chosen expert has no gradient, and it refuses that"
        out.refuse("experts.norm_topk_prob", why, True)
    if experts.topk_group is not None and (experts.n_group or 1) > 1:
        best, scored = 2 if sigmoid else 1, top_k // experts.topk_group
        if scored != best:
            why = f"it would score a group by its best {scored} experts, the model by its best {best}"
            out.refuse("experts.topk_group", why, experts.topk_group)


def _refuse_run(out: Arguments, plan: Plan) -> None:
    """Refuse recompute modules that release or model lack, or fp8 forbids, and layouts with MTP that the release lacks.
    Layouts count only with pp > 1 and without hybrid models, modules only for selective recompute. Raises InputError
    for data without a tokenizer, unless it is the NullTokenizer.
    """
    options, training = plan.best.configuration, plan.training
    chosen, layout = options.recompute_modules, options.pipeline_layout or ""
    kept, selective = KEPT_INPUTS & {*chosen}, options.recompute == "selective"
    since_kept = out.table.at_least(KEPT_INPUTS_SINCE)
    if options.fp8_recipe == "delayed" and kept and since_kept:
        what = "an offloaded optimizer writes 8-bit weights with delayed scaling only, which has no such recompute"
        out.refuse("recompute.modules", what, ", ".join(sorted(kept)))
    if plan.best.configuration.pp == 1 or hybrid(plan.model):
        layout = ""
    if "m" in layout and not out.table.at_least(LAYOUT_MTP_SINCE):
        out.refuse("pipeline_layout", "layouts have no multi-token prediction", layout, since=LAYOUT_MTP_SINCE)
    elif "m" in layout.replace(",", "").rpartition("|")[0] and not out.table.at_least(LAYOUT_MTP_ALONE_SINCE):
        out.refuse("pipeline_layout", "multi-token prediction goes with the loss", layout, since=LAYOUT_MTP_ALONE_SINCE)
    # Names that TransformerConfig refuses for a model or kernel without them; the others it ignores.
    lacking = {
        "moe_act": ("--moe-grouped-gemm",) not in out.filled["MOE_ARGS"],
        "gdn_norm_out": hybrid(plan.model) or all(mixer.block != DELTA for mixer in plan.model.mixers),
        "mla_up_proj": plan.model.latent is None,
    }
    for module in chosen if selective else ():
        since = RECOMPUTE_SINCE.get(module)
        if since is None or not out.table.at_least(since):
            out.refuse("recompute.modules", "there is no such module", module, since=since)
        elif lacking.get(module):
            out.refuse("recompute.modules", "the model has no such module, and it refuses the name", module)
        elif module in kept and "fp8" in options.precision and out.table.at_least("core_v0.13.0") and not since_kept:
            what = "this module is not recomputed with fp8"
            out.refuse("recompute.modules", what, module, since=KEPT_INPUTS_SINCE)
    if (
        training.data_path
        and training.tokenizer_type != "NullTokenizer"
        and not (training.tokenizer_model or plan.model.huggingface_id)
    ):
        what, hint = "is needed with real data", "the tokenizer's folder or Hugging Face name"
        raise InputError(what, field="training.tokenizer_model", hint=hint)


_EXAMPLES = "MindSpeed-LLM, examples/mcore"
_ENVIRONMENT = (
    environment.Variable("HCCL_CONNECT_TIMEOUT", "3600", "Ranks that start late are waited for an hour", _EXAMPLES),
    environment.Variable(
        "HCCL_EXEC_TIMEOUT", "3600", "Collectives wait an hour for ranks that save or compile", _EXAMPLES
    ),
    environment.Variable(
        "PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "Segments that grow leave fewer holes", _EXAMPLES
    ),
)


def _mindspeed_groups(plan: Plan) -> tuple[Group, ...]:
    """Return Megatron-LM's `groups` as MindSpeed-LLM takes them: --cp-comm-type becomes --context-parallel-algo, and a
    group MINDSPEED_ARGS has the switches of its fused norm, SwiGLU and rope that the model can use, if any. Raises as
    `groups`.
    """

    def renamed(option: tuple[str, ...]) -> tuple[str, ...]:
        if option[0] != "--cp-comm-type":
            return option
        return "--context-parallel-algo", mindspeed.CP_ALGORITHMS[option[1]]

    model = plan.model
    fused = {
        "--use-fused-rmsnorm": model.norm == "rmsnorm",
        "--use-fused-swiglu": model.gated_mlp and model.hidden_act == "silu",
        "--use-fused-rotary-pos-emb": model.position == "rope",
    }
    done = tuple(Group(group.name, tuple(map(renamed, group.options))) for group in groups(plan))
    own = tuple((name,) for name, used in fused.items() if used)
    return (*done, Group("MINDSPEED_ARGS", own)) if own else done


def _mindspeed_problems(plan: Plan) -> Iterator[Problem]:
    """Yield what MindSpeed-LLM does not run: other GPUs than Ascend's, and other releases of Megatron-LM."""
    gpu, release = plan.cluster.gpu, version(plan)
    if gpu.vendor != "huawei":
        what, need = "MindSpeed-LLM runs on Ascend alone", "a cluster of Ascend, such as ascend-910b"
        yield Problem(what, field="cluster", got=gpu.product, need=need, hint="--target megatron")
    if release != mindspeed.MEGATRON:
        what = "MindSpeed changes the code of one release of Megatron-LM"
        yield Problem(what, field="megatron_version", got=release, need=mindspeed.MEGATRON)


def _on_one_line(words: Sequence[str]) -> Iterator[File]:
    """Yield megatron_args.txt: all arguments on one line."""
    yield File("megatron_args.txt", " ".join(map(sh, words)) + "\n")


_MEGATRON = Target(
    name=NAME,
    does="arguments of Megatron-LM's pretrain_gpt.py, launch.sh with torchrun",
    variables=variables,
    words=arguments,
    texts=lambda plan: _on_one_line(arguments(plan)),
    assumes={"backend": "megatron"},
    counts=MEGATRON_COUNTING,
    resume_command=launched,
    saving=Saving("--save", "bash launch.sh --save DIR --save-interval 500"),
)
TARGETS = (
    _MEGATRON,
    replace(
        _MEGATRON,
        name="mindspeed",
        program="MindSpeed-LLM",
        does="arguments of MindSpeed-LLM's pretrain_gpt.py for Ascend, launch.sh with torchrun",
        variables=lambda plan: {
            **_variables(plan, _mindspeed_groups(plan)),
            "framework": f"MindSpeed-LLM on Megatron-LM {mindspeed.MEGATRON}",
            "variables": (*environment.variables(plan, version(plan)), *_ENVIRONMENT),
            "notes": (*notes(plan), *_start_notes(plan)),
        },
        problems=_mindspeed_problems,
        words=lambda plan: _words(_mindspeed_groups(plan)),
        texts=lambda plan: _on_one_line(_words(_mindspeed_groups(plan))),
        assumes={"backend": "megatron", "megatron_version": mindspeed.MEGATRON},
    ),
)
