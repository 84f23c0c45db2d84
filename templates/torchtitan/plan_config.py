"""The plan as a configuration of torchtitan: `--module plan_config --config plan`, with this folder on PYTHONPATH.

Its values are in torchtitan.json beside this file; torchtitan's own options after them win.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import CommConfig, CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.trainer import Trainer


def assets(named: str) -> str:
    """The tokenizer's folder; of a published name, where torchtitan's scripts/download_hf_assets.py puts it."""
    return named if Path(named).is_dir() else f"./assets/hf/{Path(named).name}"


def plan() -> Trainer.Config:
    values = json.loads((Path(__file__).resolve().parent / "torchtitan.json").read_text(encoding="utf-8"))
    module = importlib.import_module(f"torchtitan.models.{values['module']}")
    spec = module.model_registry(**values["model"])
    optimizer = values["optimizer"]
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))),
        hf_assets_path=assets(values["hf_assets_path"]),
        dump_folder=values["dump_folder"],
        dataloader=HuggingFaceTextDataLoader.Config(dataset=values["dataset"]),
        optimizer=default_adamw(**{**optimizer, "betas": tuple(optimizer["betas"])}),
        lr_scheduler=LRSchedulersContainer.Config(**values["lr_scheduler"]),
        training=TrainingConfig(**values["training"]),
        parallelism=ParallelismConfig(**values["parallelism"]),
        activation_checkpoint=FullAC.Config() if values["activation_checkpoint"] == "full" else None,
        compile=CompileConfig(**values["compile"]),
        checkpoint=CheckpointManager.Config(**values["checkpoint"]),
        metrics=MetricsProcessor.Config(**values["metrics"]),
        comm=CommConfig(**values["comm"]),
        debug=DebugConfig(**values["debug"]),
    )
