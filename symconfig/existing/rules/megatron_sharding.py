"""What is sharded over the replicas, and how it is gathered, where Megatron-LM refuses it."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron_experts import EIGHT
from symconfig.existing.rules.megatron_grid import PP, divides
from symconfig.existing.rules.megatron_switches import GATHER, TORCH_FSDP, ZERO
from symconfig.existing.rules.refusal import Reason, absent, both, equal, on, other_than, present, refuses
from symconfig.existing.rules.rule import Rules

FSDP, STRATEGY = "use_megatron_fsdp", "data_parallel_sharding_strategy"
INSTANCES, SHARDS = "num_distributed_optimizer_instances", "tensor_parallel_num_weight_shards"
WHOLE_FSDP = (
    "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy optim_grads_params "
    "--no-gradient-accumulation-fusion "
)
TORCH_FSDP_ALONE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --use-torch-fsdp2 --no-gradient-accumulation-fusion "
    "--untie-embeddings-and-output-weights --ckpt-format torch_dist "
)

MEGATRON: Rules[MegatronFacts] = Rules()

MEGATRON.rule(
    "step-gather-overlap-refused",
    "error",
    "Weights cannot be gathered beside the optimizer's step here",
    "validate_args: --overlap-param-gather-with-optimizer-step asks for the distributed optimizer, "
    "--overlap-param-gather, virtual stages and the old checkpoint format.",
    "--overlap-param-gather-with-optimizer-step --ckpt-format torch",
)(
    refuses(
        "overlap_param_gather_with_optimizer_step",
        Reason(ZERO, absent(ZERO)),
        Reason(GATHER, absent(GATHER)),
        Reason("num_virtual_stages_per_pipeline_rank", lambda facts: facts.chunks == 1, "virtual stages"),
        Reason("ckpt_format", other_than("ckpt_format", "torch"), "torch"),
        Reason("reuse_grad_buf_for_mxfp8_param_ag", on("reuse_grad_buf_for_mxfp8_param_ag"), since="core_v0.16.1"),
    )
)


@MEGATRON.rule(
    "optimizer-instances",
    "error",
    "The replicas cannot be divided by the optimizer's instances",
    "parallel_state.py asserts that dp x cp, and for experts their own data-parallel size, are multiples of "
    "--num-distributed-optimizer-instances.",
    "--num-distributed-optimizer-instances 3",
)
def _instances(facts: MegatronFacts) -> Iterator[Problem]:
    parts = facts.maybe(INSTANCES) or 1
    if parts == 1:
        return
    facts.known(facts.world_size)
    yield from divides(facts, "the replicas", INSTANCES, facts.dp * facts.cp, by=parts, named=facts.option(INSTANCES))
    if facts.experts:
        held = facts.gpus // (facts.etp * facts.ep * facts.pp)
        yield from divides(facts, "the experts' replicas", INSTANCES, held, by=parts, named=facts.option(INSTANCES))


MEGATRON.rule(
    "buckets-said-twice",
    "error",
    "The buckets of gradients are said by number and by size",
    "DistributedDataParallelConfig asserts one of --ddp-num-buckets and --ddp-bucket-size.",
    "--ddp-num-buckets 4 --ddp-bucket-size 40000000",
)(refuses("ddp_num_buckets", Reason("ddp_bucket_size", present("ddp_bucket_size"))))

MEGATRON.rule(
    "megatron-fsdp-refused",
    "error",
    "Megatron-FSDP does not go with this",
    "validate_args: it shards SGD and Adam only, compares no hashes of weights that are not whole, has no single "
    "buffer of grouped experts, and no_shard builds nothing on the meta device.",
    WHOLE_FSDP + "--check-weight-hash-across-dp-replicas-interval 10",
    since="core_v0.18.2",
)(
    refuses(
        FSDP,
        Reason("optimizer", other_than("optimizer", "sgd", "adam"), "adam or sgd"),
        Reason(
            "check_weight_hash_across_dp_replicas_interval",
            both(equal(STRATEGY, "optim_grads_params"), present("check_weight_hash_across_dp_replicas_interval")),
        ),
        Reason("moe_single_grouped_weight", on("moe_single_grouped_weight")),
        Reason("moe_single_grouped_bias", on("moe_single_grouped_bias")),
        Reason("init_model_with_meta_device", both(on("init_model_with_meta_device"), equal(STRATEGY, "no_shard"))),
    )
)

MEGATRON.rule(
    "registered-buffers-refused",
    "error",
    "Buffers are registered for Megatron-FSDP over NCCL only",
    "validate_args: --fsdp-manual-registration asks for --use-megatron-fsdp and --nccl-ub.",
    "--fsdp-manual-registration",
    since="core_v0.16.1",
)(refuses("fsdp_manual_registration", Reason(FSDP, absent(FSDP)), Reason("nccl_ub", absent("nccl_ub"))))

MEGATRON.rule(
    "emerging-optimizer-refused",
    "error",
    "This optimizer is not sharded by FSDP",
    "validate_args: optimizers other than Adam and SGD go without FSDP, and are saved as torch or torch_dist.",
    TORCH_FSDP_ALONE + "--optimizer muon",
    since="core_v0.18.2",
)(
    refuses(
        "optimizer",
        Reason(TORCH_FSDP, on(TORCH_FSDP)),
        Reason("ckpt_format", other_than("ckpt_format", "torch", "torch_dist", "fsdp_dtensor"), "torch_dist"),
        where=other_than("optimizer", "sgd", "adam"),
    )
)


def _split(facts: MegatronFacts) -> bool:
    """Tell whether weights are split further than tp."""
    return (facts.maybe(SHARDS) or facts.tp) > facts.tp


def _split_in_blocks(facts: MegatronFacts) -> bool:
    return _split(facts) and facts.value("fp8_recipe") == "mxfp8"


MEGATRON.rule(
    "weight-shards-refused",
    "error",
    "Weights cannot be split into these shards",
    "validate_args: --tensor-parallel-num-weight-shards is a multiple of tp; beyond it gradients are not averaged in "
    "the collective, checkpoints are torch or torch_dist, the optimizer has one instance, and MXFP8 weights are "
    "gathered as such.",
    "--tensor-parallel-num-weight-shards 2 --ddp-average-in-collective",
    since="core_v0.19.0",
)(
    refuses(
        SHARDS,
        Reason(
            SHARDS,
            lambda facts: facts.number(SHARDS) < facts.tp or facts.number(SHARDS) % facts.tp > 0,
            "a multiple of tp",
        ),
        Reason(
            SHARDS,
            lambda facts: facts.gpus % max(1, facts.number(SHARDS) * facts.pp * facts.cp) > 0,
            "a product with pp and cp that divides the GPUs",
        ),
        Reason("ddp_average_in_collective", both(_split, on("ddp_average_in_collective"))),
        Reason("ckpt_format", both(_split, other_than("ckpt_format", "torch", "torch_dist")), "torch_dist"),
        Reason(INSTANCES, lambda facts: _split(facts) and facts.number(INSTANCES) > 1, "1"),
        *(
            Reason(dest, both(_split_in_blocks, absent(dest)))
            for dest in ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag")
        ),
    )
)

MEGATRON.rule(
    "hybrid-context-refused",
    "error",
    "Hybrid context parallelism does not go with this",
    "validate_args: it has one pipeline stage, the loader of single samples, a loss per token, and neither "
    "Megatron-FSDP nor CUDA graphs.",
    "--hybrid-context-parallel",
    since="core_v0.16.1",
)(
    refuses(
        "hybrid_context_parallel",
        Reason(PP, lambda facts: facts.pp > 1, "1"),
        Reason("enable_cuda_graph", on("enable_cuda_graph")),
        Reason(FSDP, on(FSDP)),
        Reason("dataloader_type", other_than("dataloader_type", None, "single"), "single"),
        Reason("calculate_per_token_loss", absent("calculate_per_token_loss")),
    )
)

MEGATRON.rule(
    "stashed-experts-refused",
    "error",
    "Activations of experts cannot be stashed like this",
    "TransformerConfig: --moe-paged-stash asks for --moe-expert-rank-capacity-factor.",
    EIGHT + "--moe-paged-stash",
    since="core_v0.18.2",
)(
    refuses(
        "moe_paged_stash",
        Reason("moe_expert_rank_capacity_factor", absent("moe_expert_rank_capacity_factor"), "a number"),
    )
)

MEGATRON.rule(
    "fake-groups-refused",
    "error",
    "Fake process groups have no flex dispatcher",
    "validate_args refuses --moe-token-dispatcher-type flex beside --fake-process-group.",
    "--disable-bias-linear --moe-grouped-gemm --moe-aux-loss-coeff 0.01 --num-experts 8 "
    "--moe-token-dispatcher-type flex --expert-model-parallel-size 8 --fake-process-group",
    since="core_v0.16.1",
)(
    refuses(
        "fake_process_group",
        Reason("moe_token_dispatcher_type", equal("moe_token_dispatcher_type", "flex"), "alltoall"),
    )
)

_LAYOUTS = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "hybrid_override_pattern",
)


def _piped(facts: MegatronFacts) -> bool:
    """Tell whether the pattern says the stages. Behind the first slash stands multi-token prediction."""
    return "|" in (facts.text("hybrid_layer_pattern") or "").split("/")[0]


MEGATRON.rule(
    "hybrid-pattern-refused",
    "error",
    "The pattern of a hybrid model says the stages itself",
    "validate_args takes no other option of the stages beside --hybrid-layer-pattern.",
    "--hybrid-layer-pattern M*M*M*M* --num-layers 8 --account-for-loss-in-pipeline-split",
    since="core_v0.17.1",
)(
    refuses(
        "hybrid_layer_pattern",
        *(Reason(dest, present(dest)) for dest in _LAYOUTS),
        *(
            Reason(dest, both(_piped, present(dest)))
            for dest in ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
        ),
    )
)
