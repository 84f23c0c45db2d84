"""ms-swift's own arguments read config.yaml as a rank that `swift pt`, `swift sft` or `swift rlhf` starts, and the
DeepSpeed JSON as Trainer fills it in.

Stood in for: the published model, whose config.json is written from the plan, and its tokenizer's chat.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from accepting import Values, answer, lora, ranks, started
from deepspeed_words import of_config, of_trainer
from ranks import as_rank_0

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # the checkout that this file lies in

from swift.arguments import PretrainArguments, RLHFArguments, SftArguments
from swift.cli.main import parse_yaml_args
from swift.utils import parse_args

from symconfig.descriptor.write import config_json
from symconfig.plans.file import load_plan

_CLASSES = {"pt": PretrainArguments, "sft": SftArguments, "rlhf": RLHFArguments}


def accept(folder: Path) -> Values:
    with tempfile.TemporaryDirectory() as scratch:
        model, data = Path(scratch, "model"), Path(scratch, "data.jsonl")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config_json(load_plan(folder).model)))
        said = {"role": "assistant", "content": "b"}
        pair = {"messages": [{"role": "user", "content": "a"}, said], "rejected_response": "c"}
        data.write_text(json.dumps(pair) + "\n")
        given = {"DATASET": str(data), "MODEL": str(model), "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}
        words, environment = started(folder, "swift", **given)
        name, *argv = words
        parse_yaml_args(argv)
        nodes, per_node = int(environment["NNODES"]), int(environment["NPROC_PER_NODE"])
        with as_rank_0(nodes, per_node, environment), mock.patch("torch.cuda.is_bf16_supported", return_value=True):
            os.chdir(folder)
            args, rest = parse_args(_CLASSES[name], [*argv, "--output_dir", str(Path(scratch, "out"))])
            assert not rest, rest
            return {**_values(args), **ranks(nodes, per_node), "dp": nodes * per_node}


def _values(args: Any) -> Values:
    training = args.training_args
    holder = training.hf_deepspeed_config
    width = SimpleNamespace(config=SimpleNamespace(hidden_size=4096))  # of buckets alone
    holder.trainer_config_finalize(training, width, training.max_steps)
    values = {**of_config(holder.config), **of_trainer(training), "seq_length": args.max_length, "adapter": None}
    if isinstance(args, RLHFArguments):  # its batches are of pairs, but for KTO
        values |= {name: (1 if args.rlhf_type == "kto" else 2) * values[name] for name in ("micro", "global")}
        typed = args.rlhf_type in ("dpo", "kto") or args.loss_type == "simpo"
        own = args.loss_type if typed else {"rm": "reward"}.get(args.rlhf_type, args.rlhf_type)
        values |= {"preference_loss": own} | ({} if own == "reward" else {"preference_beta": args.beta})
        assert (args.task_type, args.num_labels) == (("seq_cls", 1) if own == "reward" else ("causal_lm", None))
    if args.tuner_type == "lora":
        own = (args.lora_rank, args.lora_alpha, args.lora_dropout, args.target_modules)
        values |= lora(*own, quantised=args.quant_bits == 4)
    return values


if __name__ == "__main__":
    answer(accept)
