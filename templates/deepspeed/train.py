#!/usr/bin/env python3
"""Trains a Transformers causal language model with DeepSpeed, with PEFT adapters if asked. Started by launch.sh.

The DeepSpeed JSON decides micro-batch, accumulation, ZeRO, offload, AutoTP, AutoEP and Ulysses; the arguments decide
the rest. Data comes from sequences.py: JSON lines, or random tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import deepspeed
import torch
import transformers
from deepspeed.accelerator import get_accelerator
from saving import save, universal_is_latest
from sequences import IGNORE, Sequences
from states import held, report
from transformers.integrations import HfDeepSpeedConfig


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--deepspeed-config", required=True)
    add("--model", help="name or folder of pretrained weights; absent: random weights from --model-config")
    add("--model-config", help="folder with the config.json of a model with random weights")
    add("--tokenizer", help="name or folder; absent: that of --model")
    add("--trust-remote-code", action="store_true")
    add("--attn-implementation", default="sdpa")
    add("--recompute-layers", type=int, default=0, help="first layers that are recomputed in backward; -1: all")
    add("--data", action="append", help="JSON lines, may be given again; absent: random tokens")
    add("--repeat-batch", action="store_true", help="every step sees the first batch: the loss must fall")
    add("--seq-length", type=int, required=True)
    add("--train-iters", type=int, required=True)
    add("--lr", type=float, required=True)
    add("--min-lr", type=float, default=0.0)
    add("--lr-decay-style", choices=("constant", "linear", "cosine", "inverse-square-root", "WSD"), default="cosine")
    add("--lr-decay-iters", type=int, help="absent: --train-iters")
    add("--lr-wsd-decay-iters", type=int, help="steps of WSD's decay; absent: a tenth of all")
    add("--lr-warmup-iters", type=int, default=0)
    add("--lora-r", type=int, default=0, help="0: train all weights")
    add("--lora-alpha", type=float, default=16.0)
    add("--lora-dropout", type=float, default=0.0)
    add("--lora-target-modules", default="q_proj,v_proj")
    add("--qlora", action="store_true", help="hold the frozen weights in 4 bits (needs bitsandbytes)")
    add("--save", help="folder for checkpoints and the final weights")
    add("--save-interval", type=int, default=500)
    add("--load", help="folder of checkpoints to resume from")
    add(
        "--load-universal",
        action="store_true",
        help="resume from the universal checkpoint in --load, until a later one is saved beside it",
    )
    add("--consumed-sequences", type=int, help="that the loaded run has seen; absent: as its checkpoint says")
    add("--seed", type=int, default=1234)
    add("--log-interval", type=int, default=1)
    add("--profile", choices=("cuda", "torch"), help="on rank 0: a range for nsys, or PyTorch's profiler")
    add("--profile-step-start", type=int, default=10)
    add("--profile-step-end", type=int, default=12)
    add("--profile-dir", default="profiles", help="folder for the traces of PyTorch's profiler")
    add("--report-states", help="file for the bytes that each rank's parameters, gradients and optimizer state take")
    args = parser.parse_args()
    if not args.model and not args.model_config:
        parser.error("--model or --model-config is needed")
    if args.qlora and not args.model:
        parser.error("--qlora needs the pretrained weights of --model")
    return args


def vocab_size(args: argparse.Namespace) -> int:
    """Of the model's configuration. Raises SystemExit with a sentence when there is none."""
    place = args.model or args.model_config
    try:
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=args.trust_remote_code)
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"model {place}: cannot be loaded: {error}\nIt must be a folder with a config.json, or a name "
            "on the Hugging Face hub that can be reached or was downloaded before."
        ) from None
    return config.get_text_config().vocab_size


def build_model(args: argparse.Namespace, config: dict) -> torch.nn.Module:
    """The model, its adapters, and which of its layers recompute. Under ZeRO-3 it is born partitioned."""
    dtype = (
        torch.bfloat16
        if config.get("bf16", {}).get("enabled")
        else (torch.float16 if config.get("fp16", {}).get("enabled") else torch.float32)
    )
    common = {"attn_implementation": args.attn_implementation, "trust_remote_code": args.trust_remote_code}
    if args.qlora:
        common["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            bnb_4bit_quant_storage=dtype,
        )
    if args.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, **common)
    else:
        loaded = transformers.AutoConfig.from_pretrained(args.model_config)
        model = transformers.AutoModelForCausalLM.from_config(loaded, dtype=dtype, **common)
    model.config.use_cache = False
    if args.recompute_layers:
        checkpoint_layers(model, args.recompute_layers)
    if args.lora_r:
        import peft

        if args.recompute_layers:
            model.enable_input_require_grads()  # else reentrant recompute sees no input that needs a gradient
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=args.lora_r,
                lora_alpha=args.lora_alpha,
                lora_dropout=args.lora_dropout,
                task_type="CAUSAL_LM",
                target_modules=args.lora_target_modules.split(","),
            ),
            autocast_adapter_dtype=False,
        )
    return model


def let_autoep_read_registry() -> None:
    """AutoEP of DeepSpeed 0.19 asks Transformers' registry with a default, which the one of release 5 does not take."""
    from transformers.utils import output_capturing

    registry = getattr(output_capturing, "_CAN_RECORD_REGISTRY", None)
    if type(registry) not in (dict, type(None)):
        type(registry).get = lambda self, key, default=None: (
            dict.get(self, key if isinstance(key, str) else str(type(key)), default) or {}
        )


def checkpoint_layers(model: torch.nn.Module, count: int) -> None:
    """Recompute the first `count` transformer layers in backward; -1: all of them."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": True})  # the other kind compares shapes, which ZeRO-3 changes between the two passes
    layers = [
        module
        for module in model.modules()
        if isinstance(module, transformers.modeling_layers.GradientCheckpointingLayer)
    ]
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = count < 0 or index < count


def parameter_groups(model: torch.nn.Module) -> list[dict]:
    """Trained parameters; no weight decay on vectors (norms and biases)."""
    trained = [p for p in model.parameters() if p.requires_grad]
    vectors = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) < 2]
    matrices = [p for p in trained if len(getattr(p, "ds_shape", p.shape)) >= 2]
    groups = [{"name": "matrices", "params": matrices}, {"name": "vectors", "params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def lr_factor(args: argparse.Namespace, step: int) -> float:
    """Learning rate of the step with this number, from 0, over the peak rate: as Megatron-LM and Trainer have it."""
    floor, warmup, total = args.min_lr / args.lr, args.lr_warmup_iters, args.lr_decay_iters or args.train_iters
    if step < warmup:
        return step / warmup
    if args.lr_decay_style == "constant":
        return 1.0
    if step > total:
        return floor
    if args.lr_decay_style == "inverse-square-root":
        return max(floor, math.sqrt(max(warmup, 1) / max(step, 1)))
    done = (step - warmup) / max(1, total - warmup)
    if args.lr_decay_style == "WSD":  # stable, then linear
        decay = args.lr_wsd_decay_iters or max(1, total // 10)
        done = max(0.0, (step - total + decay) / decay)
    shape = 0.5 * (1 + math.cos(math.pi * done)) if args.lr_decay_style == "cosine" else 1 - done
    return floor + (1 - floor) * shape


class Profile:
    """Records steps on rank 0, from the first one on up to and without the last one, as Megatron-LM does."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.kind = args.profile if rank == 0 else None
        self.first, self.last, self.folder = args.profile_step_start, args.profile_step_end, args.profile_dir
        self.recorder = None

    def before(self, step: int) -> None:
        """Start with the first step that is recorded."""
        if self.kind is None or step != self.first:
            return
        if self.kind == "cuda":
            torch.cuda.profiler.start()
        else:
            self.recorder = torch.profiler.profile(
                on_trace_ready=torch.profiler.tensorboard_trace_handler(self.folder), record_shapes=True
            )
            self.recorder.start()

    def after(self, step: int) -> None:
        """Stop before the last step."""
        if self.kind is None or step + 1 != self.last:
            return
        if self.kind == "cuda":
            torch.cuda.profiler.stop()
        elif self.recorder is not None:
            self.recorder.stop()
            self.recorder = None


def loss_of(engine, ids: torch.Tensor, labels: torch.Tensor, cp: int, cp_rank: int) -> torch.Tensor:
    """Mean loss per predicted token. With Ulysses each rank takes its stretch of the sequence."""
    count = (labels != IGNORE).sum().clamp(min=1)
    extra = {}
    if cp > 1:
        positions = torch.arange(ids.shape[1]).expand_as(ids).chunk(cp, dim=1)[cp_rank]
        ids, labels = ids.chunk(cp, dim=1)[cp_rank], labels.chunk(cp, dim=1)[cp_rank]
        count = count / cp  # DeepSpeed averages the gradients over the cp ranks, so each gives cp times its share
        extra["position_ids"] = positions.contiguous().to(engine.device)
    ids, labels = ids.contiguous().to(engine.device), labels.contiguous().to(engine.device)
    return engine(
        input_ids=ids, labels=labels, shift_labels=labels, num_items_in_batch=count.to(engine.device), **extra
    ).loss


def start_engine(args: argparse.Namespace, config: dict):
    """The model within DeepSpeed's engine, and its learning rate's schedule."""
    # Transformers looks this object up to build the model partitioned; AutoTP splits it later, which it need not know.
    keep_alive = (
        HfDeepSpeedConfig({key: value for key, value in config.items() if key != "tensor_parallel"})
        if (config["zero_optimization"]["stage"] == 3)
        else None
    )
    model = build_model(args, config)
    if "expert_parallel" in config:
        let_autoep_read_registry()
    cp, mpu = config.get("sequence_parallel_size", 1), None
    if cp > 1:
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        mpu = UlyssesSPAttentionHF.register_with_transformers(
            model,
            args.attn_implementation,
            cp,
            config["train_micro_batch_size_per_gpu"],
            seq_length=args.seq_length,
            seq_length_is_variable=False,
        )
    engine, _, _, scheduler = deepspeed.initialize(
        model=model,
        model_parameters=parameter_groups(model),
        config=config,
        mpu=mpu,
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(args, step)),
    )
    del keep_alive
    return engine, scheduler


def resumed(engine, scheduler, args: argparse.Namespace, batch: int) -> int:
    """The step to go on with: what the loaded run has seen, in steps of this run's batch."""
    folder, state = engine.load_checkpoint(args.load, load_module_strict=not args.lora_r)
    if not folder:
        if engine.global_rank == 0:
            print(f"--load {args.load}: there is no checkpoint; training starts from the beginning", flush=True)
        return 0
    seen = args.consumed_sequences if args.consumed_sequences is not None else state.get("sequences")
    step = state["step"] if seen is None else seen // batch
    if step != state["step"]:  # steps of another size: the schedule counts this run's
        scheduler.last_epoch = step - 1
        scheduler.step()
        if engine.global_rank == 0:
            print(f"resumed after {seen} sequences, at step {step} of {batch} sequences each", flush=True)
    return step


def main() -> None:
    args = arguments()
    config = json.loads(Path(args.deepspeed_config).read_text(encoding="utf-8"))
    if args.load_universal and args.load and universal_is_latest(Path(args.load)):
        config.setdefault("checkpoint", {})["load_universal"] = True
    deepspeed.init_distributed()
    get_accelerator().set_device(int(os.environ.get("LOCAL_RANK", "0")))
    transformers.set_seed(args.seed)
    rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    tp, cp = config.get("tensor_parallel", {}).get("autotp_size", 1), config.get("sequence_parallel_size", 1)
    micro, accumulate = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    data_rank, data_ranks = rank // (tp * cp), world // (tp * cp)
    # Data first: what is wrong with it is said before a large model is loaded.
    sequences = Sequences(
        args.seq_length,
        args.seed,
        vocab_size(args),
        args.data or [],
        args.tokenizer or args.model,
        args.trust_remote_code,
    )
    engine, scheduler = start_engine(args, config)
    start = resumed(engine, scheduler, args, micro * accumulate * data_ranks) if args.load else 0
    engine.train()
    if rank == 0:
        trained = sum(getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters() if p.requires_grad)
        print(
            f"{world} ranks: tp {tp}, cp {cp}, dp {data_ranks}; micro-batch {micro} x {accumulate} x {data_ranks} "
            f"sequences of {args.seq_length}; {trained:,} trained parameters",
            flush=True,
        )

    profile = Profile(args, rank)
    for step in range(start, args.train_iters):
        profile.before(step)
        get_accelerator().synchronize()
        began, total, rate = time.perf_counter(), 0.0, scheduler.get_last_lr()[0]
        # With a part of the optimizer offloaded, DeepSpeed's second optimizer on the GPU never hears of the schedule.
        for group in getattr(getattr(engine.optimizer, "backup_optimizer", None), "param_groups", ()):
            group["lr"] = rate
        for index in range(accumulate):
            number = (0 if args.repeat_batch else step * accumulate) + index
            ids, labels = sequences.batch((number * data_ranks + data_rank) * micro, micro)
            loss = loss_of(engine, ids, labels, cp, rank % cp)
            engine.backward(loss)
            moments = {"before the optimizer": held(engine)} if args.report_states else {}
            engine.step()
            total += loss.detach().float() / accumulate
        get_accelerator().synchronize()
        seconds = time.perf_counter() - began
        deepspeed.comm.all_reduce(total)
        if rank == 0 and (step + 1) % args.log_interval == 0:
            tokens = micro * accumulate * data_ranks * args.seq_length
            peak = get_accelerator().max_memory_allocated() / 2**30
            print(
                f"step {step + 1} loss {total.item() / world:.6f} lr {rate:.3e} "
                f"time {seconds:.4f} s tokens/s/GPU {tokens / seconds / world:.1f} peak {peak:.3f} GiB",
                flush=True,
            )
            if engine.monitor.enabled:  # it writes the learning rate by itself
                engine.monitor.write_events([("Train/loss", total.item() / world, step + 1)])
        profile.after(step)
        if args.report_states and step + 1 == args.train_iters:
            report(args.report_states, {**moments, "between steps": held(engine)})
        if args.save and ((step + 1) % args.save_interval == 0 or step + 1 == args.train_iters):
            save(
                engine,
                args.save,
                step + 1,
                (step + 1) * micro * accumulate * data_ranks,
                bool(args.lora_r),
                final=step + 1 == args.train_iters,
            )
    torch.distributed.barrier()  # a rank that leaves while another one still saves may be aborted
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # Threads of the libraries may still run while Python takes itself down, which aborts a run that has succeeded.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
