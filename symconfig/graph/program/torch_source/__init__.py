"""Programs from PyTorch modules, through `torch.export` on the meta device.

    load_module("my_package.models:wide_resnet") -> Program

`factory` finds and builds what the user names, `static` replaces what depends on the data, `export` traces, `walk` goes
through the traced operators by their rules, `axes` finds out which dims are one, `lower` names them, and `tidy` joins
chains of element-wise operators. torch is imported when a module is loaded, never with this package.

To add a rule for an operator, say `aten.frobnicate`, put an entry in the table `RULES` of the file in `rules/` that has
its like: `elementwise` (each element by itself: often a word in the table `KEPT` is enough), `shapes` (views, parts,
joins), `products`, `reductions` (sums, softmax, norms, losses), `windows` (convolutions, pools), `attention`, `lookup`.
Names have no overload: `aten.add` stands for `aten.add.Tensor` and `aten.add.Scalar`, `symconfig.dispatch` for
`symconfig::dispatch`. A rule is a function of a `Call`: `call["dim"]` is an argument by its name in the operator's
schema, a tensor among them is a `Value`, `call.result` the shape and type that come out. It calls `call.emit` with a
word for the loop along each dim of each tensor (equal words are one loop, and what several tensors have along one loop
becomes one dim of the program) and with a function that makes the operator by one of the constructors of
`graph/program/build.py` once all loops have names. It returns a `Value`, or a list for an operator with several
outputs. A form of the operator that a rule does not know raises NotImplementedError with a few words: it is reported
like an operator without a rule, with all others.

    def _frobnicate(call: Call) -> Answer:
        return call.emit(each(FUNCTIONS["relu"]), [(call["self"], ["row", "column"])], ["row", "column"])

    RULES = {"aten.frobnicate": _frobnicate}
"""

from symconfig.graph.program.torch_source.factory import load_module, program_of

__all__ = ["load_module", "program_of"]
