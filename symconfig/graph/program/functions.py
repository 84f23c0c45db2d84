"""Element-wise functions: which are linear, and what the backward of each reads (derivatives as PyTorch's autograd
takes them, tools/autograd/derivatives.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from symconfig.graph.operator import Use

Kept = tuple[Use, ...]
Rule = Callable[[Sequence[Use], Use], Kept]


@dataclass(frozen=True, slots=True)
class Function:
    """linear: over its inputs together, so that it may run on partial sums. keeps: of (inputs, output)."""

    keeps: Rule
    linear: bool = False


def nothing(inputs: Sequence[Use], output: Use) -> Kept:
    return ()


def operands(inputs: Sequence[Use], output: Use) -> Kept:
    return tuple(inputs)


def outcome(inputs: Sequence[Use], output: Use) -> Kept:
    return (output,)


def others(inputs: Sequence[Use], output: Use) -> Kept:
    """Keep each operand of a product where another one has a gradient."""
    gradients = sum(use.gradient for use in inputs)
    return tuple(use for use in inputs if gradients > use.gradient)


def constants(inputs: Sequence[Use], output: Use) -> Kept:
    """Keep inputs without a gradient: masks, tables of angles."""
    return tuple(use for use in inputs if not use.gradient)


def quotient(inputs: Sequence[Use], output: Use) -> Kept:
    """Keep the divisor always; the dividend for the divisor's gradient only."""
    dividend, divisor = inputs
    return (dividend, divisor) if divisor.gradient else (divisor,)


def data_and_scales(inputs: Sequence[Use], output: Use) -> Kept:
    """Keep all inputs of a normalisation (x, statistics, weight, bias …) but the bias, which no gradient needs."""
    return tuple(inputs[:3])


LINEAR = Function(nothing, linear=True)
OF_INPUTS = Function(operands)
OF_OUTPUT = Function(outcome)
MULTIPLY = Function(others)
MASKED = Function(constants)
NORMALISE = Function(data_and_scales)

FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(("add", "sub", "neg", "scale", "copy", "cast"), LINEAR),
    "bias": LINEAR,  # an addition in the kernel that makes its first operand
    "shift": Function(nothing),  # x + a constant: of parts of a sum, each would add it
    **dict.fromkeys(("gelu", "silu", "elu", "softplus", "erf", "log", "sin", "cos", "abs", "square", "pow"), OF_INPUTS),
    **dict.fromkeys(("swiglu", "geglu", "reglu", "maximum", "minimum"), OF_INPUTS),
    **dict.fromkeys(("relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal"), OF_OUTPUT),
    "mul": MULTIPLY,
    "div": Function(quotient),
    **dict.fromkeys(("mask", "where"), MASKED),
    "rope": MASKED,  # (x, cosines, sines): turns pairs of channels
}
