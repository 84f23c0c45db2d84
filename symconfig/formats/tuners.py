"""Programs around Transformers' Trainer: how each is recognised, and its options by Transformers' or TRL's names.

Sources: Transformers 5.24, training_args.py; TRL 1.16, trl/scripts, trl/trainer/*_config.py; LLaMA-Factory 0.9.5,
hparams/, model/adapter.py; ms-swift 4.6.0, swift/arguments, swift/config, swift/megatron/arguments/megatron_args.py,
swift/rlhf_trainers/args_mixin.py, swift/trainers/arguments.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from symconfig.descriptor.job import Backend
from symconfig.formats.keys import Key, Keys, Trainer, if_set, keys, lora, of_algorithm

# Lengths of sequences in the training programs around Transformers: its own examples, LLaMA-Factory, Axolotl, our own.
SEQUENCE = (
    "seq_length", "seq_len", "max_seq_length", "max_seq_len", "model_max_length", "cutoff_len", "sequence_len",
    "block_size", "max_length",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuner(Trainer):
    """A fine-tuning program and its particulars.

    commands: its command names, whose next word is the method, with whether they run on Megatron-Core. scripts: a
    pattern of its scripts' paths, which contain the method. own: options that no other program has; core: those that it
    has with Megatron-Core. method: the option that states the method; usual: the method without it. names:
    Transformers' or TRL's names by the program's; prefixes: of groups of its options. prompts: options of the longest
    prompt, by priority. target: symconfig's target that writes its files (with Megatron-Core, the target of its own
    name). planned: the backend that a better plan is for, if the program shards with FSDP. switched: a switch turns
    adapters on; else an option names what is tuned, or `kinds` does (without and with Megatron-Core). modules: its
    words for the adapted modules.

    halves: by default it computes in bf16 and holds weights in it; published: it loads weights in their published type.
    casts: trained weights become fp32, in shards of FSDP 2 all weights (Accelerate 1.11 or older, utils/fsdp_utils.py,
    fsdp2_prepare_model; later ones leave frozen weights). spreads: one process with several GPUs
    distributes the layers over them. at_once: the least number of sequences of an update if no accumulation is given.
    padded: the responses of a rank are padded together. megatron: Megatron-LM's words for its own defaults, by the
    option that replaces them.
    """

    commands: Mapping[str, bool] = field(default_factory=dict)
    scripts: re.Pattern[str] | None = None
    own: frozenset[str] = frozenset()
    core: frozenset[str] = frozenset()
    method: str = ""
    usual: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    target: str | None = None
    planned: Backend = "deepspeed"
    kinds: tuple[str, str] = ("lora", "lora")
    switched: bool = False
    halves: bool = False
    published: bool = False
    casts: bool = False
    spreads: bool = False
    at_once: int = 1
    padded: bool = False
    prompts: tuple[str, ...] = ("max_prompt_length",)
    megatron: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def renamed(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the values under the program's own names; names that it does not rename stay."""
        own = {name: mine for mine, name in reversed(list(self.names.items()))}
        return {own.get(name, name): value for name, value in values.items()}

    def called(self, option: str) -> str:
        """Return Transformers' or TRL's name of an option, without dashes and prefixes; its own by default."""
        bare = option.lstrip("-").replace("-", "_")
        for prefix in self.prefixes:
            bare = bare.removeprefix(prefix)
        return self.names.get(bare, bare)


LORA = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")


def _unset(**values: str | float | bool) -> dict[str, Key]:
    return keys("", **{name: (name, value) for name, value in values.items()})


TRL = Tuner(
    name="trl",
    release="1.16.0",
    commands={"trl": False},
    scripts=re.compile(r"(?:(?:examples|trl)/scripts/(?:\w+/)*|trl\.scripts\.|(?:.*/)?trl_)(?P<done>\w+?)(?:\.py)?"),
    planned="fsdp",
    switched=True,
    padded=True,
    keys=_unset(
        per_device_train_batch_size=8, gradient_accumulation_steps=1, gradient_checkpointing=True, bf16=True,
        max_length=1024, dtype="float32", num_generations=8,
        max_completion_length=512, num_iterations=1, beta=0.0, use_vllm=False, vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3, vllm_tensor_parallel_size=1, vllm_enable_sleep_mode=False, entropy_coef=0.0,
    ) | lora(*LORA, unset=(16, 32, 0.05)),
)  # fmt: skip
LLAMAFACTORY = Tuner(
    name="llamafactory",
    release="0.9.5",
    commands={"llamafactory-cli": False},
    own=frozenset(("finetuning_type", "cutoff_len")),  # MindSpeed-LLM has --stage, too
    core=frozenset(("tensor_model_parallel_size",)),
    method="stage",
    usual="sft",
    dashes=("", "_"),
    casts=True,
    names={
        "cutoff_len": "max_length", "lora_rank": "lora_r", "lora_target": "lora_target_modules", "pref_beta": "beta",
        "pref_loss": "loss_type", "flash_attn": "attn_implementation", "enable_liger_kernel": "use_liger_kernel",
        "neat_packing": "packing",
    },
    keys=_unset(
        per_device_train_batch_size=8, gradient_accumulation_steps=1, gradient_checkpointing=True, bf16=False,
        max_length=2048,
    ) | lora(*LORA, unset=(8, None, 0.0)),
)  # fmt: skip
SWIFT = Tuner(
    name="ms-swift",
    release="4.6.0",
    commands={"swift": False, "megatron": True},
    scripts=re.compile(r"(?:.*swift[/.]cli[/.])(?P<core>_megatron[/.])?(?P<done>pt|sft|rlhf)(?:\.py)?"),
    own=frozenset(("tuner_type", "train.tuner_type", "train_type", "rlhf_type", "torch_dtype", "attn_impl")),
    core=frozenset(("tensor_model_parallel_size", "micro_batch_size")),
    method="rlhf_type",
    target="ms-swift-deepspeed",
    kinds=("lora", "full"),
    halves=True,
    spreads=True,
    at_once=16,
    prompts=("max_prompt_length", "max_length"),
    prefixes=("train.", "rollout."),  # of workers by themselves, under Ray
    names={
        "model": "model_name_or_path", "tuner_type": "finetuning_type", "train_type": "finetuning_type",
        "sft_type": "finetuning_type", "lora_rank": "lora_r", "target_modules": "lora_target_modules",
        "torch_dtype": "dtype", "attn_impl": "attn_implementation", "quant_bits": "quantization_bit",
        "vllm_max_model_len": "vllm_max_model_length",
        "load": "checkpoint",  # in Megatron-Core's format, called after its model where --model does not say it
    },
    keys=_unset(
        per_device_train_batch_size=1, micro_batch_size=1, gradient_checkpointing=True, num_generations=8,
        max_completion_length=512, num_iterations=1, beta=0.04, vllm_gpu_memory_utilization=0.9,
        vllm_tensor_parallel_size=1, sleep_level=0,
    ) | lora(*LORA, unset=(8, 32, 0.05)),
    megatron={
        "use_distributed_optimizer": ("--use-distributed-optimizer",),
        "recompute_granularity": ("--recompute-granularity", "selective"),
        "cross_entropy_loss_fusion": ("--cross-entropy-loss-fusion",),
        "expert_tensor_parallel_size": ("--expert-tensor-parallel-size", "1"),
        "moe_grouped_gemm": ("--moe-grouped-gemm",),
        "mtp_num_layers": ("--mtp-num-layers", "0"),
    },
)  # fmt: skip
AXOLOTL = Tuner(
    name="axolotl",
    release="0.18.0",
    commands={"axolotl": False},
    scripts=re.compile(r"(?:.*axolotl[/.]cli[/.])(?P<done>train)(?:\.py)?"),
    own=frozenset(("base_model", "sequence_len", "sample_packing")),
    method="rl",
    usual="sft",
    planned="fsdp",
    kinds=("full", "full"),
    halves=True,
    names={
        "base_model": "model_name_or_path", "micro_batch_size": "per_device_train_batch_size", "optimizer": "optim",
        "eval_batch_size": "per_device_eval_batch_size", "lr_scheduler": "lr_scheduler_type", "wandb_name": "run_name",
        "sequence_len": "max_length", "sample_packing": "packing", "adapter": "finetuning_type",
    },
    keys=_unset(per_device_train_batch_size=1, gradient_accumulation_steps=1, bf16=True, max_length=512)
    | lora(*LORA, unset=(8, None, None)),
)  # fmt: skip
TRANSFORMERS = Tuner(  # programs around its Trainer, and its examples of Accelerate
    name="transformers",
    release="5.24.0",
    planned="fsdp",
    switched=True,
    published=True,
    names=dict.fromkeys(SEQUENCE, "max_length"),
    keys=_unset(per_device_train_batch_size=8, gradient_accumulation_steps=1, gradient_checkpointing=False, bf16=False)
    | lora(*LORA, unset=(8, None, None)),
)
TUNERS = (TRL, LLAMAFACTORY, SWIFT, AXOLOTL)  # those that are known by how they are started


def _where(field: str, **constants: object) -> Keys:
    """Return keys that are written with a constant where the run's field is true, and else left out."""
    return keys("", **{name: if_set(field, value) for name, value in constants.items()})


# What rendering writes, by sections of the YAML; fields as of `render.tuning`.
TRL_MODEL = {
    **keys(model_name_or_path="named", dtype="dtype", attn_implementation="attention"),
    **_where("adapter", use_peft=True),
    **lora(*LORA),
    **_where("adapter.scores", lora_task_type="SEQ_CLS", lora_modules_to_save=["score"]),
    **_where("quantised", load_in_4bit=True, bnb_4bit_quant_type="nf4", use_bnb_nested_quant=True),
    **keys(bnb_4bit_quant_storage="quantised.dtype"),  # what ZeRO-3 shards
}
TRL_STEP = {
    "algorithm": keys(
        loss_type=lambda run: "dapo" if run.rl.algorithm == "dapo" else "grpo",
        mask_truncated_completions=of_algorithm("dapo", True),
        importance_sampling_level=of_algorithm("gspo", "sequence"),
        epsilon="clip.low",
        epsilon_high="clip.high",
        beta=if_set("rl.reference", 0.001, 0.0),
        num_iterations="rl.epochs",
        entropy_coef=if_set("rl.entropy", 0.001),
    ),
    "generation": keys(
        generation_batch_size="rl.sequences",
        num_generations="rl.samples",
        max_completion_length="rl.response_length.max",
        use_vllm=True,
        vllm_mode=lambda run: "colocate",
        vllm_enable_sleep_mode=True,
        vllm_max_model_length="rl.longest",
        vllm_tensor_parallel_size="step.rollout_tp",
        vllm_gpu_memory_utilization="step.memory_share",
    ),
}
AXOLOTL_WRITTEN = {
    "model": {
        **keys(base_model="named", reinit_weights=if_set("tuned", None, True)),
        **keys(attn_implementation="attention"),
        **keys(adapter=lambda run: run.adapter and ("qlora" if run.quantised else "lora")),
        **_where("quantised", load_in_4bit=True),
        **lora(*LORA),
        # Its own kernels for adapters, which it switches on by itself, are not counted with.
        **_where("adapter", lora_mlp_kernel=False, lora_qkv_kernel=False),
        **_where("adapter", lora_o_kernel=False, lora_embedding_kernel=False),
    },
    "data": keys(
        datasets="data.sets",
        sequence_len="data.length",
        sample_packing="data.packs",
        val_set_size="data.held_out",
    ),
    "shards": keys(
        fsdp_version="shards.version",
        fsdp_config="shards.config",
        dp_replicate_size="shards.copies",
        dp_shard_size="shards.ranks",
    ),
}
SWIFT_WRITTEN = {
    "MODEL": {
        **keys(model="named", use_hf=True, model_type="model.model_type", template="template", torch_dtype="dtype"),
        **keys(attn_impl=lambda run: "flash_attn" if run.unpadded else run.attention),
        **keys(tuner_type=if_set("adapter", "lora", "full")),
        **lora("lora_rank", "lora_alpha", "lora_dropout", "target_modules"),
        **_where("quantised", quant_method="bnb", quant_bits=4, bnb_4bit_quant_type="nf4"),
        **_where("quantised", bnb_4bit_use_double_quant=True),
    },
    "DATA": keys(
        max_length="plan.best.configuration.seq_length",
        packing="packs",
        padding_free="unpadded",
        split_dataset_ratio=lambda run: run.training.held_out if run.training.eval_iters else 0.0,
        dataset=lambda run: list(run.training.data_path) or None,
    ),
}
LLAMAFACTORY_WRITTEN = {
    "model": {
        **keys(
            model_name_or_path="named",
            train_from_scratch=if_set("tuned", None, True),
            flash_attn=lambda run: "disabled" if run.attention == "eager" else run.attention,
            disable_gradient_checkpointing=lambda run: not run.recomputes,
        ),
        **_where("quantised", quantization_bit=4, quantization_method="bnb", quantization_type="nf4"),
        **_where("quantised", double_quantization=True),
        **keys(image_max_pixels="pixels"),
    },
    "method": {
        **keys(stage="stage", do_train=True, pref_loss="preference.pref_loss", pref_beta="preference.beta"),
        **keys(finetuning_type=if_set("adapter", "lora", "full")),
        **lora("lora_rank", "lora_alpha", "lora_dropout", ""),
        **keys(lora_target=lambda run: run.adapter and ",".join(run.adapter.targets)),
        **keys(freeze_vision_tower="model.vision.frozen", freeze_multi_modal_projector="model.vision.projector_frozen"),
    },
    "dataset": keys(
        dataset="data.names",
        dataset_dir="data.folder",
        cutoff_len="data.length",
        val_size="data.held_out",
        packing="data.packs",  # neat_packing: attention is within the sequences
        neat_packing="data.packs",
        template="data.template",
    ),
}
