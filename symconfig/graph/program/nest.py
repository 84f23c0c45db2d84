"""What all constructors of operators share: the loop nest of some uses, and its splits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from symconfig.graph.operator import Gradients, Operator, Split, Tensor, Use, Work, loops_of


def operator(
    name: str,
    work: Work,
    inputs: Sequence[Use],
    output: Use,
    *,
    contracted: Sequence[str] = (),
    saves: Iterable[Use] = (),
    splits: tuple[Split, ...] | None = None,
    linear: bool = False,
    whole: Collection[str] = (),
    traffic: tuple[float, float] = (1.0, 1.0),
    attended: float = 0.0,
    channels: float = 0.0,
    path: str = "",
) -> Operator:
    """Make an operator of a loop nest. splits: by default each loop by itself, but those that must stay `whole`."""
    loops = loops_of((*inputs, output))
    backward = any(use.gradient for use in inputs)
    if splits is None:
        splits = tuple(Split((loop,)) for loop in loops if loop not in whole)
    return Operator(
        name=name,
        work=work,
        loops=loops,
        inputs=tuple(inputs),
        outputs=(output,),
        splits=splits,
        contracted=tuple(contracted),
        saves=tuple({use.name: use for use in saves}.values()) if backward else (),
        linear=linear,
        traffic=traffic,
        attended=attended,
        channels=channels,
        gradients=Gradients.ALL if backward else Gradients.NONE,
        path=path,
    )


def without(loops: Iterable[str], these: Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(loop for loop in loops if loop not in these))


def splits_of(loops: Sequence[str], sums: Mapping[str, int]) -> tuple[Split, ...]:
    """Return each loop by itself; those of `sums` are reduced inside the operator."""
    return tuple(Split((loop,), sums.get(loop, 0)) for loop in dict.fromkeys((*loops, *sums)))


def result(name: str, dims: Sequence[str], inputs: Iterable[Use], element_bytes: float | None = None) -> Tensor:
    """Return the tensor that comes of these inputs: its gradient flows where one of theirs does; as wide as the first
    one.
    """
    given = tuple(inputs)
    width = element_bytes if element_bytes is not None else given[0].tensor.element_bytes
    return Tensor(name, tuple(dims), width, any(use.gradient for use in given))
