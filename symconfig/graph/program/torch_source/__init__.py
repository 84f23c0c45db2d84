"""Programs from PyTorch modules, through `torch.export` on the meta device.

    load_module("my_package.models:wide_resnet") -> Program

`factory` finds and builds what the user names, `export` replaces what depends on the data and traces, `lower` goes
through the traced operators by their rules, and `axes` finds out which dims are one, which `lower` then names. torch is
imported when a module is loaded, never with this package.

To add a rule for an operator, say `aten.frobnicate`, put an entry in a table of `rules/`. Names have no overload:
`aten.add` stands for `aten.add.Tensor` and `aten.add.Scalar`, `symconfig.dispatch` for `symconfig::dispatch`.

- What computes each element by itself: a word in the table `KEPT` of `arithmetic`.
- What the notation of program files says: a line of `arithmetic.STATEMENTS`, over arguments by their names in the
  operator's schema. A dim that ends in `...` stands for as many as there are.

    "bmm": says("result[b,row,out] = self[b,row,in] * mat2[b,in,out]")

- Views, parts and joins (`shapes`), windows (`shapes`), what sums or norms over dims that arguments name
  (`arithmetic`): a function of a `Call`. `call["dim"]` is an argument, a tensor among them is a `Value`, `call.result`
  the shape and type that come out. It calls `call.emit` with a function of `graph/program/build.py` and with a word for
  the loop along each dim of each tensor (equal words are one loop, and what several tensors have along one loop becomes
  one dim of the program). It returns a `Value`, or a list for an operator with several outputs. A form of the operator
  that a rule does not know raises NotImplementedError with a few words: it is reported like an operator without a rule,
  with all others.

    def _frobnicate(call: Call) -> Answer:
        return call.emit("relu", [(call["self"], ["row", "column"])], ["row", "column"])
"""

from symconfig.graph.program.torch_source.factory import load_module, program_of

__all__ = ["load_module", "program_of"]
