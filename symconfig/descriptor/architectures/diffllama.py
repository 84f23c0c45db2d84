"""DiffLlama: Llama whose attention is the difference of two (arXiv 2410.05258)."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture, Reading, Rule

_BLOCK = "differential_attention"


def _diffllama(reader: Reading) -> None:
    """Read DiffLlama: heads are pairs, those of keys and values, too.

    Dropout of attention is refused as the class does.
    """
    fields = reader.fields
    for field in ("num_attention_heads", "num_key_value_heads"):
        heads = fields.get(field, fields["num_attention_heads"])
        if heads % 2:
            reader.problem("differential attention pairs heads", field, got=heads, need="an even number")
    if reader.values["attention_dropout"]:
        got = reader.values["attention_dropout"]
        reader.problem("differential attention has no dropout", "attention_dropout", got=got, need="0.0")
    fields["mixers"] = [{"block": _BLOCK}]


ARCHITECTURES: dict[str, Architecture] = {
    "diffllama": Architecture(ignored=("lambda_std_dev",), rules=(Rule(_diffllama),)),
}
