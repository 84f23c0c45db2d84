"""LoRA: the fields of an adapter, each under every program's name."""

from __future__ import annotations

from symconfig.formats.keys import Key, Value


def lora(
    rank: str, alpha: str, dropout: str, targets: str, *, unset: tuple[Value, Value, Value] = (None, None, None)
) -> dict[str, Key]:
    """Return the keys of an adapter by their names, "" where a program has none. unset: the program's rank, alpha and
    dropout. Layers have each program's names: `adapter.targets` of the run."""
    fields = {rank: "adapter.r", alpha: "adapter.lora_alpha", dropout: "adapter.lora_dropout"}
    known = {name: Key(field, usual) for (name, field), usual in zip(fields.items(), unset, strict=False) if name}
    return {**known, **({targets: Key("adapter.targets")} if targets else {})}
