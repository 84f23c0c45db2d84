"""Acceptance is not sameness: Megatron's parser resolves each model, option and optimizer to the plan, or it shows."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts, LatentAttention, RopeScaling
from symconfig.descriptor.training import Optimizer
from symconfig.errors import InputError
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.megatron import run
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Supplied
from symconfig.frameworks.behaviour import stepping, usual
from symconfig.frameworks.megatron.flags import flags
from symconfig.frameworks.megatron.releases import NEVER
from symconfig.plans.configuration import FIELDS
from symconfig.plans.plan import Plan
from symconfig.render import megatron as render
from symconfig.verify import megatron_agreement, megatron_rank, megatron_sameness
from symconfig.verify.checks import Check
from symconfig.verify.megatron import Rendered
from symconfig.verify.megatron_resolved import Resolved
from symconfig.verify.megatron_session import Result
from tests.sample_plans import _DEGREES, sample_model, sample_plan, with_optimizer
from tests.verify.megatron_support import checked, rendered, replaced

pytestmark = pytest.mark.usefixtures("warm_megatron")

Real = tuple[dict[str, list[Check]], dict[str, Result]]
MODELS = [name for name in _DEGREES if not name.endswith("-lora")]
# Kernels, buffers and schedules, which Megatron has no single resolved value for, or derives from others; how the
# stages are told is compared by the layers that come of it.
NOT_COMPARED = {
    "cp_comm", "param_offload", "account_for_embedding", "account_for_loss", "microbatch_group_size",
    "overlap_param_gather", "overlap_pp_p2p",
    "moe_dispatcher", "grad_bytes", "pipeline_layout", "first_stage_layers", "last_stage_layers", "fp8_attention",
}  # fmt: skip


def test_every_field_of_the_descriptor_is_compared_or_named_as_not_architectural() -> None:
    compared, refused = {row.field for row in megatron_sameness.ROWS}, {*NEVER, "vision", "adapter"}
    inner = {"experts": Experts, "latent": LatentAttention, "rope_scaling": RopeScaling}
    fields = {f"{section}.{name}" for section, kind in inner.items() for name in kind.model_fields}
    every = (ModelDescriptor.model_fields.keys() - inner.keys()) | fields
    assert compared | megatron_sameness.NOT_ARCHITECTURAL | refused == every
    assert not compared & (megatron_sameness.NOT_ARCHITECTURAL | refused)


def test_every_number_of_the_plan_is_compared_or_named() -> None:
    compared = {row.field.split(".")[2] for row in megatron_agreement.ROWS} | {"num_microbatches"}
    assert {*FIELDS} - compared - NOT_COMPARED == set()


# Structure that no sample has, each as a change of one.
STRUCTURES = {
    "gate": ("llama2-13b", {"attention_gate": "channel"}),
    "unit norms": ("llama2-13b", {"qk_norm": True, "qk_norm_of": "unit"}),
    "layers without rope": ("llama2-13b", {"rope_layers": [True, True, True, False] * 10}),
    "factors": ("llama2-13b", {"scale_embeddings": True, "logits_multiplier": 0.5, "query_pre_attn_scalar": 168.0}),
    "squared ReLU": ("llama2-13b", {"hidden_act": "relu2", "gated_mlp": False}),
    "quick GELU": ("llama2-13b", {"hidden_act": "gelu_sigmoid"}),
    "latent experts": ("qwen3-30b-a3b", {"experts": {"latent_size": 512}}),
    "experts of some layers": (
        "qwen3-30b-a3b",
        {"intermediate_size": 6144, "experts": {"layers": [False, True, True] * 16}},
    ),
    "experts of squared ReLU": ("qwen3-30b-a3b", {"hidden_act": "relu2", "gated_mlp": False}),
}


def structured(name: str) -> ModelDescriptor:
    base, changed = STRUCTURES[name]
    model = sample_model(base)
    if "experts" in changed and model.experts is not None:
        changed = {**changed, "experts": {**model.experts.model_dump(), **changed["experts"]}}
    return sample_model(base, **changed)


DEEPEP: dict[str, Any] = {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}
GATHER: dict[str, Any] = {"fp8_param_gather": True}
OPTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deepep": ("mixtral-8x7b", "h100", DEEPEP),
    "hybridep": ("mixtral-8x7b", "b200", {**DEEPEP, "moe_flex_backend": "hybridep"}),
    "router": ("mixtral-8x7b", "h100", {"cuda_graphs": "router"}),
    "outside experts": ("mixtral-8x7b", "h100", {"cuda_graphs": "outside experts", **DEEPEP}),
    "all": ("llama2-13b", "h100", {"cuda_graphs": "all"}),
    "fp8": ("llama2-13b", "h100", {"precision": "fp8", **GATHER}),
    "mxfp8": ("llama2-13b", "b200", {"precision": "mxfp8", **GATHER}),
    "fsdp": ("llama2-13b", "b200", {"precision": "mxfp8", "zero_stage": 3, "pp": 1, **GATHER}),
    "bf16 gradients": ("llama2-13b", "h100", {"grad_bytes": 2}),
    "bf16 gradients of fsdp": ("llama2-13b", "h100", {"grad_bytes": 2, "zero_stage": 2, "pp": 1}),
    "user buffers": ("llama2-13b", "a100-80gb", {"overlap_tp_comm": True}),
    "overlapped": ("qwen3-30b-a3b", "h100", {"overlap_moe_a2a": True, "tp": 1, "pp": 4, "vpp": 2}),
}
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "muon": (Optimizer(name="muon", tp_mode="distributed", ns_steps=6, nesterov=False, momentum=0.9), {}),
    "whole muon": (Optimizer(name="muon", momentum=0.95), {"zero_stage": 0, "overlap_param_gather": False}),
    "narrow": (Optimizer(exp_avg="bf16", exp_avg_sq="fp8", main_params="fp16"), {}),
    "sgd": (Optimizer(name="sgd", momentum=0.8), {}),
}
# What Megatron-LM resolves of each.
RESOLVED: dict[str, dict[str, Any]] = {
    "muon": {"optimizer": "muon", "muon_num_ns_steps": 6, "muon_tp_mode": "distributed", "muon_nesterov": False,
             "muon_momentum": 0.9, "use_layer_wise_distributed_optimizer": True, "use_distributed_optimizer": False},
    "whole muon": {"optimizer": "muon", "muon_nesterov": True, "use_layer_wise_distributed_optimizer": False},
    "narrow": {"use_precision_aware_optimizer": True, "exp_avg_dtype": "torch.bfloat16",
               "exp_avg_sq_dtype": "torch.uint8", "main_params_dtype": "torch.float16"},
    "sgd": {"optimizer": "sgd", "sgd_momentum": 0.8},
}  # fmt: skip


def optimizing(name: str) -> Plan:
    optimizer, overrides = OPTIMIZERS[name]
    return with_optimizer(sample_plan("llama2-13b", "h100", **overrides), optimizer)


FLAG = "--overlap-moe-expert-parallel-comm"
# core_v0.19: an option of a plan that has the overlap, its values, words of the refusal.
REFUSED = {
    "one chunk a stage": ("--num-virtual-stages-per-pipeline-rank", [], "virtual_pipeline_model_parallel_size"),
    "no expert parallelism": ("--expert-model-parallel-size", ["1"], "only supported with expert model parallelism"),
    "full recompute": (
        FLAG,
        ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"],
        "disable full recomputation",
    ),
    "recomputed experts": (
        FLAG,
        ["--recompute-granularity", "selective", "--recompute-modules", "moe"],
        "disable moe in recompute_modules",
    ),
    "two prediction layers": (FLAG, ["--mtp-num-layers", "2"], "at most one layer"),
    "gathered experts": ("--moe-token-dispatcher-type", ["allgather"], "alltoall/flex token dispatcher"),
}


def overlapping(**overrides: Any) -> Rendered:
    return rendered("qwen3-30b-a3b", cluster="h100", overlap_moe_a2a=True, **{"tp": 1, "pp": 4, "vpp": 2, **overrides})


def of(name: str) -> Rendered:
    """Return what is rendered for a sample model, or for one of STRUCTURES, OPTIONS or OPTIMIZERS."""
    if name in OPTIONS:
        model, cluster, overrides = OPTIONS[name]
        return rendered(sample_plan(model, load_cluster(cluster), **overrides))
    if name in OPTIMIZERS:
        return rendered(optimizing(name))
    return rendered(sample_plan(structured(name), "h100") if name in STRUCTURES else name, cluster="h100")


# An accepted list that is another model or another plan: the model, the option, its values, the field that says so.
WRONG = {
    "no SwiGLU": ("llama2-13b", "--swiglu", [], "hidden_act"),
    "rope base": ("qwen2.5-7b", "--rotary-base", ["10000"], "rope_theta"),
    "rope scaling": ("llama3.1-70b", "--use-rope-scaling", [], "rope_scaling.rope_type"),
    "epsilon": ("qwen2.5-7b", "--norm-epsilon", ["1e-5"], "norm_eps"),
    "biases of q, k, v": ("qwen2.5-7b", "--add-qkv-bias", [], "qkv_bias"),
    "all biases": ("llama2-13b", "--disable-bias-linear", [], "attention_out_bias"),
    "tied": ("llama2-13b", "--untie-embeddings-and-output-weights", [], "tie_word_embeddings"),
    "norm": ("llama2-13b", "--normalization", ["LayerNorm"], "norm"),
    "normed q and k": ("qwen3-30b-a3b", "--qk-layernorm", [], "qk_norm"),
    "softmax order": ("mixtral-8x7b", "--moe-router-topk", ["2", "--moe-router-pre-softmax"], "experts.norm_topk_prob"),
    "expert width": ("qwen3-30b-a3b", "--moe-ffn-hidden-size", ["1536"], "experts.moe_intermediate_size"),
    "dense layers": ("deepseek-v3", "--moe-layer-freq", [], "experts.first_k_dense_replace"),
    "score function": ("deepseek-v3", "--moe-router-topk-scaling-factor", ["1.5"], "experts.routed_scaling_factor"),
    "latent rank": ("deepseek-v3", "--kv-lora-rank", ["256"], "latent.kv_lora_rank"),
    "YaRN factor": ("deepseek-v3", "--rotary-scaling-factor", ["10"], "rope_scaling.factor"),
    "no sinks": ("gpt-oss-120b", "--softmax-type", [], "attention_sinks"),
    "window": ("gpt-oss-120b", "--window-size", ["128,0"], "sliding_window"),
    "windows everywhere": ("gpt-oss-120b", "--window-attn-skip-freq", [], "sliding_window_pattern"),
    "rounded YaRN range": ("gpt-oss-120b", "--no-yarn-correction-range-round-to-int", [], "rope_scaling.truncate"),
    "learned positions": ("gpt3-175b", "--max-position-embeddings", ["4096"], "max_position_embeddings"),
    "dropout": ("gpt3-175b", "--hidden-dropout", ["0.0"], "hidden_dropout"),
    "initialisation": ("llama2-13b", "--init-method-std", ["0.01"], "initializer_range"),
    "another degree": ("llama2-13b", "--tensor-model-parallel-size", ["2"], "parallel.tp"),
    "another batch": ("llama2-13b", "--micro-batch-size", ["2"], "batch.micro"),
    "no distributed optimizer": ("llama2-13b", "--overlap-param-gather", [], None),
    "no expert overlap": ("overlapped", FLAG, [], "options.overlap.moe_a2a"),
    "other modules": (
        "router",
        "--cuda-graph-modules",
        ["attn", "moe_router", "moe_preprocess"],
        "options.cuda_graphs",
    ),
    "half a layer": ("all", "--cuda-graph-modules", ["mlp"], "options.cuda_graphs"),
    "no graphs": ("all", "--cuda-graph-impl", ["none"], "options.cuda_graphs"),
    "another backend": ("deepep", "--moe-flex-dispatcher-backend", ["hybridep"], "options.moe_flex_backend"),
    "no user buffers": ("user buffers", "--tp-comm-overlap", [], "options.overlap.tp_comm"),
    "wide gradients": ("bf16 gradients", "--grad-reduce-in-bf16", [], "options.grad_bytes"),
    "wide gradients of fsdp": (
        "bf16 gradients of fsdp",
        "--grad-reduce-in-bf16",
        ["--megatron-fsdp-main-grads-dtype", "fp32"],
        "options.grad_bytes",
    ),
    "whole weights": ("fp8", "--fp8-param-gather", [], "options.fp8_param_gather"),
    "no gate": ("gate", "--attention-output-gate", [], "attention_gate"),
    "normed with weights": ("unit norms", "--qk-l2-norm", [], "qk_norm_of"),
    "rope everywhere": ("layers without rope", "--no-rope-freq", [], "rope_layers"),
    "factor of embeddings": ("factors", "--mup-embedding-mult", ["2.0"], "scale_embeddings"),
    "factor of logits": ("factors", "--mup-output-mult", [], "logits_multiplier"),
    "scale of scores": ("factors", "--mup-attn-scale-power", [], "query_pre_attn_scalar"),
    "experts as wide as the stream": ("latent experts", "--moe-latent-size", [], "experts.latent_size"),
    "experts everywhere": ("experts of some layers", "--moe-layer-freq", [], "experts.layers"),
    "stages": ("llama2-13b", "--num-layers", ["40", "--decoder-first-pipeline-num-layers", "18"], "stages.0"),
}


SAME = (*MODELS, *STRUCTURES, *OPTIONS, *OPTIMIZERS)
BUILT = ("outside experts", "fp8")  # with their ranks


@pytest.fixture(scope="module")
def real() -> tuple[dict[str, list[Check]], dict[str, Result]]:
    """Every list, in one process with one import of Megatron: the checks of each, and what Megatron resolved."""
    parsed = {name: of(name) for name in SAME if name not in BUILT}
    parsed |= {name: replaced(of(base), option, *values) for name, (base, option, values, _) in WRONG.items()}
    parsed |= {name: replaced(overlapping(), option, *values) for name, (option, values, _) in REFUSED.items()}
    parsed |= {"without a pipeline": overlapping(pp=1, vpp=1)}
    router = parsed["router"]
    env = {name: value for name, value in router.env.items() if name != "NCCL_GRAPH_REGISTER"}
    parsed["no NCCL_GRAPH_REGISTER"] = Rendered(router.plan, router.args, env)
    return checked({name: of(name) for name in BUILT}, parsed)


@pytest.mark.parametrize("name", SAME)
def test_megatron_takes_what_is_rendered_and_builds_the_same_model_and_plan(name: str, real: Real) -> None:
    assert [str(check) for check in real[0][name] if check.status != "passed"] == []
    if name in MODELS or name in STRUCTURES:
        assert len(real[0][name]) == 8
    if name in OPTIMIZERS:
        assert {dest: real[1][name].args.get(dest) for dest in RESOLVED[name]} == RESOLVED[name]


@pytest.mark.parametrize("name", WRONG)
def test_an_accepted_list_of_another_model_or_plan_is_found(name: str, real: Real) -> None:
    field = WRONG[name][3]
    failed = [check.detail for check in real[0][name] if check.status == "failed"]
    if field is None:  # leaving an overlap out changes neither the model nor a compared number
        assert failed == []
        return
    assert any(f"{field}: " in detail for detail in failed), [str(check) for check in real[0][name]]


def test_a_model_with_what_nothing_was_said_of_is_not_the_same() -> None:
    model = sample_model("llama2-13b", scale_embeddings=True)
    (row,) = (row for row in megatron_sameness.ROWS if row.field == "scale_embeddings")
    need, got = row.values(model, Resolved(Result("none")))
    assert need != got


def test_graphs_beside_expanding_segments_stop_without_the_exported_variable(real: Real) -> None:
    assert of("router").env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "NCCL_GRAPH_REGISTER=0" in str(real[1]["no NCCL_GRAPH_REGISTER"].error)


def test_ranks_are_built_without_the_kernels_and_that_is_said(real: Real) -> None:
    words = ("DeepEP's kernels for the experts' tokens, CUDA graphs", "8 bits")
    for name, said in zip(BUILT, words, strict=True):
        built = [check for check in real[0][name] if ": rank " in check.name]
        assert built
        assert all(check.status == "passed" and said in check.detail for check in built), built


def test_megatron_refuses_what_the_search_leaves_out_and_takes_the_rest(real: Real) -> None:
    found = real[1]
    for name, (_, _, words) in REFUSED.items():
        assert words in str(found[name].error), f"{name}: {found[name].error}"
    assert [found[name].error for name in ("overlapped", "without a pipeline")] == [None, None]


def test_ranks_of_another_optimizer_are_not_built_and_that_is_said() -> None:
    assert "muon as the job has it: that wants emerging_optimizers" in str(megatron_rank.unbuilt(optimizing("muon")))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_recovery_reads_each_optimizer_as_it_was_rendered(name: str) -> None:
    plan = optimizing(name)
    words = settings(render.arguments(plan), "launch.sh")
    names = Namespace(words, flags(plan.best.target.version))
    supplied = Supplied(
        model=plan.model, seq_length=plan.best.configuration.seq_length, vocab_size=plan.model.vocab_size
    )
    found = run(names, plan.best.configuration.world_size, load_cluster("h100"), supplied)
    assert found.optimizer == plan.job.optimizer
    assert found.configuration.zero_stage == plan.best.configuration.zero_stage
    mine = stepping(usual("megatron", "hopper"), plan.job.optimizer, "bf16")
    theirs = found.configuration.framework
    assert (theirs.bytes.optimizer, theirs.adam_bytes) == (mine.bytes.optimizer, mine.adam_bytes)
    assert theirs.orthogonal == mine.orthogonal


def test_the_old_name_of_a_shared_muon_is_read_and_older_releases_are_not_predicted() -> None:
    plan = optimizing("muon")
    words = ["dist_muon" if word == "muon" else word for word in render.arguments(plan)]
    words = [word for word in words if word not in ("--use-distributed-optimizer", "--overlap-param-gather")]
    supplied = Supplied(
        model=plan.model, seq_length=plan.best.configuration.seq_length, vocab_size=plan.model.vocab_size
    )
    found = run(Namespace(settings(words, "l"), flags("core_v0.19.0")), 64, load_cluster("h100"), supplied)
    assert found.configuration.zero_stage == 1
    for version, kind, said in (
        ("core_v0.17.1", "dist_muon", "Muon is predicted from core_v0.18"),
        ("core_v0.19.0", "soap", "only the states of Adam, SGD and Muon"),
    ):
        other = [kind if word == "dist_muon" else word for word in words]
        with pytest.raises(InputError, match=said):
            run(Namespace(settings(other, "l"), flags(version)), 64, load_cluster("h100"), supplied)
