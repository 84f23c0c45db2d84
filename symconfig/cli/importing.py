"""`symconfig import`: a Hugging Face config.json as a descriptor."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.options import adds, flag, option
from symconfig.cli.shared import note, print_json, write_data, write_text
from symconfig.errors import InputError

DOES = "turn a Hugging Face config.json into a descriptor"
EXAMPLES = ("symconfig import config.json --out mine.yaml", "symconfig import config.json --like llama")


add_options = adds(
    lambda: (
        option("config", "CONFIG.json", None),
        option("--out", "FILE", "write the descriptor there instead of to standard output"),
        option("--like", "FAMILY", "read it as a model of this family, instead of its own model_type"),
        flag("--force", "replace FILE if it exists"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the descriptor of a config.json (or a folder with one) as YAML, or JSON with --json; with --out write YAML,
    and print only with --json. Return 0. Notes on what was not read go to standard error. Raises InputError, also for
    another file name.
    """
    from symconfig.descriptor.huggingface import descriptor_yaml
    from symconfig.descriptor.load import load_config

    path = Path(arguments.config)
    if path.suffix != ".json" and not path.is_dir():
        raise InputError("this is no config.json", file=arguments.config, need="a file that ends in .json")
    model, account = load_config(path, arguments.like)
    for sentence in account.sentences() if account is not None else ():
        note(sentence)
    text = descriptor_yaml(model)
    if arguments.out is not None:
        out = Path(arguments.out)
        write_text(out, text, arguments.force)
    if arguments.json:
        print_json(model.model_dump(mode="json", by_alias=True, exclude_unset=True))
    elif arguments.out is None:
        write_data(text)
    return 0
