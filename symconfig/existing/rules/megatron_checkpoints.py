"""Checkpoints, and what is written at intervals."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron_experts import EIGHT
from symconfig.existing.rules.megatron_grid import PP, TP
from symconfig.existing.rules.megatron_switches import GATHER, TORCH_FSDP, ZERO
from symconfig.existing.rules.refusal import Reason, absent, both, equal, on, other_than, refuses, together
from symconfig.existing.rules.rule import Rules

FORMAT, GLOO, LOCAL = "ckpt_format", "use_gloo_process_groups", "non_persistent_ckpt_type"

MEGATRON: Rules[MegatronFacts] = Rules()


@MEGATRON.rule(
    "save-without-interval",
    "error",
    "--save without --save-interval",
    "validate_args asserts it; of some sources only the last iteration would be saved.",
    "--save checkpoints",
)
def _save(facts: MegatronFacts) -> Iterator[Problem]:
    if facts.given("save") and facts.value("save_interval") is None:
        yield facts.problem("is missing beside --save", "save_interval", "save", need="a number of iterations")


@MEGATRON.rule(
    "save-intervals-refused",
    "error",
    "Intervals of saving that do not go together",
    "validate_args asserts that checkpoints are kept at multiples of --save-interval, and no --save-params-interval "
    "beside --overlap-param-gather, under which the weights are not whole when they would be written.",
    "--save checkpoints --save-interval 100 --save-retain-interval 150",
    since="core_v0.14.0",
)
def _intervals(facts: MegatronFacts) -> Iterator[Problem]:
    if not facts.value("save"):
        return
    every, kept = facts.maybe("save_interval"), facts.maybe("save_retain_interval")
    if every is not None and every < 1:
        yield facts.problem("must be positive", "save_interval", got=every, need="1 or more")
    elif every and kept is not None and (kept < 1 or kept % every):
        yield facts.problem(
            "is no multiple of --save-interval", "save_retain_interval", got=kept, need=f"a multiple of {every}"
        )
    if facts.value("save_params_interval") is not None and facts.on(GATHER):
        yield facts.problem("does not go with --overlap-param-gather", "save_params_interval", need="it absent")


@MEGATRON.rule(
    "memory-log-interval",
    "error",
    "Memory is to be logged in iterations that are not logged",
    "validate_args asserts that --log-memory-interval is a multiple of --log-interval, which is 100 by default.",
    "--log-memory-interval 7",
    since="core_v0.16.1",
)
def _memory(facts: MegatronFacts) -> Iterator[Problem]:
    interval, every = facts.maybe("log_memory_interval"), facts.maybe("log_interval")
    if interval is not None and every and interval % every:
        yield facts.problem(
            "is no multiple of --log-interval",
            "log_memory_interval",
            "log_interval",
            got=interval,
            need=f"a multiple of {every}",
        )


MEGATRON.rule(
    "checkpoint-format-without-fsdp",
    "error",
    "The checkpoint format is one of PyTorch's FSDP",
    "validate_args: --ckpt-format torch_dcp asks for --use-torch-fsdp2, without tensor or pipeline parallelism.",
    "--ckpt-format torch_dcp",
    since="core_v0.12.1",
)(
    refuses(
        FORMAT,
        Reason(TORCH_FSDP, absent(TORCH_FSDP), "it, or --ckpt-format torch_dist"),
        Reason(TP, lambda facts: facts.tp > 1, "1"),
        Reason(PP, lambda facts: facts.pp > 1 and not facts.on(TORCH_FSDP), "1"),
        where=equal(FORMAT, "torch_dcp"),
    )
)

MEGATRON.rule(
    "legacy-checkpoint-without-gloo",
    "error",
    "The old checkpoint format gathers over Gloo",
    "validate_args: with the distributed optimizer --disable-gloo-process-groups asks for a distributed format, and "
    "for no resharding that saves memory.",
    "--disable-gloo-process-groups --ckpt-format torch",
    since="core_v0.12.1",
)(
    refuses(
        GLOO,
        Reason(FORMAT, equal(FORMAT, "torch"), "torch_dist"),
        Reason(
            "distrib_optim_fully_reshardable_mem_efficient",
            both(on("dist_ckpt_optim_fully_reshardable"), on("distrib_optim_fully_reshardable_mem_efficient")),
        ),
        where=lambda facts: not facts.on(GLOO) and facts.on(ZERO),
    )
)

MEGATRON.rule(
    "local-checkpoints-refused",
    "error",
    "Checkpoints on the nodes lack what they need",
    "validate_args: --replication asks for --replication-jump and local checkpoints, and these for their folder.",
    "--replication",
)(
    together(
        refuses(
            "replication",
            Reason("replication_jump", absent("replication_jump"), "a number of ranks"),
            Reason(LOCAL, other_than(LOCAL, "local"), "local"),
        ),
        refuses(
            LOCAL,
            Reason("non_persistent_local_ckpt_dir", absent("non_persistent_local_ckpt_dir"), "a folder"),
            where=equal(LOCAL, "local"),
        ),
    )
)

MEGATRON.rule(
    "loading-refused",
    "error",
    "Ways to load a checkpoint that do not go together",
    "validate_args: --load-main-params-from-ckpt asks for --no-load-optim, --override-ckpt-iteration for no "
    "--finetune, and a conversion for where it reads and writes.",
    "--load-main-params-from-ckpt",
    since="core_v0.14.0",
)(
    together(
        refuses("load_main_params_from_ckpt", Reason("no_load_optim", absent("no_load_optim"))),
        refuses("override_ckpt_iteration", Reason("finetune", on("finetune"))),
        refuses(
            "ckpt_convert_format",
            Reason("ckpt_convert_save", absent("ckpt_convert_save"), "a folder"),
            Reason("load", absent("load"), "a folder"),
        ),
    )
)

MEGATRON.rule(
    "upcycling-without-save",
    "error",
    "Upcycling has nowhere to save",
    "validate_args asks for --save beside --moe-use-upcycling.",
    EIGHT + "--moe-use-upcycling",
)(refuses("moe_use_upcycling", Reason("save", absent("save"), "a folder")))

MEGATRON.rule(
    "saved-logits-refused",
    "error",
    "Logits cannot be saved like this",
    "validate_args: --logits-save-dir asks for --logits-save-top-k, and for --async-save with its lasting worker, "
    "which writes them.",
    "--logits-save-dir logits",
    since="core_v0.19.0",
)(
    refuses(
        "logits_save_dir",
        Reason("logits_save_top_k", absent("logits_save_top_k"), "a number"),
        Reason("async_save", absent("async_save")),
        Reason("use_persistent_ckpt_worker", absent("use_persistent_ckpt_worker")),
    )
)
