"""Lets Megatron's own parser take a plan in each way that `symconfig.megatron` offers. A script: SOURCE REPOSITORY.

Standard input: a JSON list of {"id", "plan", "way", "words", "world_size", "capability", "memory_bytes",
"compute_units"}. Answers, one JSON line each: {"id", "args": what parse_args and validate_args resolved} or
{"id", "error"}; as `pretrain` of core_v0.12 to core_v0.17 and `parse_and_validate_args` of later releases call them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from argparse import ArgumentParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def main() -> None:
    source, repository = map(Path, sys.argv[1:])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Megatron prints is no answer
    sys.path.insert(0, str(repository))
    verify = repository / "symconfig" / "verify"
    shims, forks = (_load(verify / f"{name}.py") for name in ("megatron_shims", "forks"))
    plain = _load(verify / "megatron_runner.py").plain
    shims.install(source)
    importlib.import_module("megatron.training.arguments")
    importlib.import_module("symconfig.megatron")
    for case in json.load(sys.stdin):

        def task(case: dict[str, Any] = case) -> dict[str, Any]:
            shims.claim_gpu(tuple(case["capability"]), case["memory_bytes"], case["compute_units"])
            shims.claim_transformer_engine("2.13.0")
            os.environ.update(case["env"], WORLD_SIZE=str(case["world_size"]), RANK="0", LOCAL_RANK="0")
            try:
                return {"id": case["id"], "args": {name: plain(value) for name, value in _taken(case).items()}}
            except BaseException as error:
                return {"id": case["id"], "error": "".join(traceback.format_exception_only(error)).strip()}

        print(json.dumps(forks.isolated(case["id"], task, 60)), file=answers)


def _taken(case: dict[str, Any]) -> dict[str, Any]:
    """The arguments that Megatron resolves."""
    import symconfig.megatron as door

    arguments: Any = importlib.import_module("megatron.training.arguments")
    sys.argv = ["train.py", *case["words"]]
    defaults, provider = {"tokenizer_type": "GPT2BPETokenizer"}, None  # as pretrain_gpt.py
    if case["way"] == "argv":
        sys.argv[1:1] = door.argv(case["plan"], on_mismatch="ignore")
    else:
        provider = door.extra_args_provider(case["plan"], then=_own, on_mismatch="ignore")
    args = arguments.parse_args(provider)
    arguments.validate_args(args, defaults)
    return dict(vars(args))


def _own(parser: ArgumentParser) -> ArgumentParser:
    parser.add_argument("--of-my-own", default="kept")
    return parser


def _load(path: Path) -> Any:
    spec = spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
