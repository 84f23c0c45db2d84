"""LLaMA-Factory's get_train_args on train.yaml, as a rank that `llamafactory-cli train` starts would call it, or
Accelerate's launcher, with its plugin for FSDP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

from accepting import Values, answer, lora, ranks, started
from deepspeed_words import of_config, of_trainer
from ranks import as_rank_0
from shards import launched, of_plugin
from transformers.utils import is_torchaudio_available

is_torchaudio_available()  # it is not, and Transformers remembers that it asked
sys.modules["torchaudio"] = ModuleType("torchaudio")  # LLaMA-Factory reads sound with it, which no plan has

from llamafactory.data.parser import get_dataset_list  # noqa: E402
from llamafactory.data.template import TEMPLATES  # noqa: E402
from llamafactory.extras.constants import AttentionFunction  # noqa: E402
from llamafactory.hparams import get_train_args, read_args  # noqa: E402

_SEQUENCES = {"dpo": 2, "rm": 2, "kto": 1}  # of an example, by stage
CLI = {"FORCE_TORCHRUN": "1", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}


def accept(folder: Path) -> Values:
    if (folder / "accelerate_config.yaml").exists():
        address = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}
        words, environment, nodes, per_node = launched(folder, **address)
        assert words[:3] == ["-m", "llamafactory.launcher", "train.yaml"], words
        del words[0]
    else:
        words, environment = started(folder, "llamafactory-cli", **{**CLI, "FORCE_TORCHRUN": "0"})
        assert words[:2] == ["train", "train.yaml"], words
        assert {name: environment.get(name) for name in CLI} == CLI
        nodes, per_node = int(environment["NNODES"]), int(environment["NPROC_PER_NODE"])
    with as_rank_0(nodes, per_node, environment), mock.patch.object(sys, "argv", ["launcher", *words[1:]]):
        os.chdir(folder)
        model, data, training, finetuning, _ = get_train_args(read_args())
        assert Path(training.output_dir).is_absolute(), training.output_dir  # not beside the files
        sharded = environment.get("ACCELERATE_USE_FSDP") == "true"
        assert sharded == (getattr(training, "hf_deepspeed_config", None) is None)
        return {
            **_values(model, data, training, finetuning, _of_shards(training) if sharded else _of_deepspeed(training)),
            **ranks(nodes, per_node),
            "dp": training.world_size,
        }


def _of_shards(training) -> Values:
    micro = training.per_device_train_batch_size
    of_step = micro * training.gradient_accumulation_steps * training.world_size
    return {**of_plugin(dict(os.environ)), "micro": micro, "global": of_step}


def _of_deepspeed(training) -> Values:
    holder = training.hf_deepspeed_config
    # The model's own configuration would be fetched by name; buckets take its width alone.
    width = SimpleNamespace(config=SimpleNamespace(hidden_size=4096))
    holder.trainer_config_finalize(training, width, training.max_steps)
    return of_config(holder.config)


def _values(model, data, training, finetuning, kept: Values) -> Values:
    if not str(data.dataset_dir).startswith("REMOTE:"):
        assert all(Path(item.dataset_name).is_absolute() for item in get_dataset_list(data.dataset, data.dataset_dir))
    assert data.packing if finetuning.stage == "pt" else data.template in TEMPLATES, data
    assert model.flash_attn in (AttentionFunction.SDPA, AttentionFunction.DISABLED)
    values = {
        **kept,
        **of_trainer(training),
        "seq_length": data.cutoff_len,
        "adapter": None,
        "recompute": "none" if model.disable_gradient_checkpointing else "full",
    }
    if count := _SEQUENCES.get(finetuning.stage):
        values |= {name: count * values[name] for name in ("micro", "global")}
        values |= {"preference_loss": {"dpo": finetuning.pref_loss, "rm": "reward"}.get(finetuning.stage, "kto")}
        values |= {} if finetuning.stage == "rm" else {"preference_beta": finetuning.pref_beta}
        assert finetuning.use_ref_model == (
            finetuning.stage == "dpo" and finetuning.pref_loss not in ("orpo", "simpo")
        )  # KTO makes its copy by itself (train/kto/workflow.py)
    if finetuning.finetuning_type == "lora":
        own = (finetuning.lora_rank, finetuning.lora_alpha, finetuning.lora_dropout, finetuning.lora_target)
        values |= lora(*own, quantised=model.quantization_bit == 4)
    return values


answer(accept)
