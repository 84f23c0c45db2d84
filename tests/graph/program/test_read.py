"""Programs from YAML: what they become, and what is wrong with them."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from textwrap import dedent

import pytest

from symconfig.descriptor.load import load_model
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from symconfig.graph.operator import Operator, Split, Work
from symconfig.graph.program.build import FUNCTIONS
from symconfig.graph.program.program import Program
from symconfig.graph.program.read import load_program
from symconfig.resources import data_dir
from tests.graph.program.check import problems

HEAD = """\
schema: symconfig.program/1
name: sample
dims: {b: 8, s: 16, t: s, h: 12, a: 4, g: 2, c: 3, f: 4 * h, v: 32, e: 4, k: 2, u: b * s * k / e}
batch: [b]
inputs: {ids: "int64[b, s]"}
"""
EMBED = "  - x[b,s,h] = gather(table, ids)\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "p.yaml"


def read(file: Path, parameters: str, operators: str, outputs: str = "[loss]", head: str = HEAD) -> Program:
    """The lines of a program file around what a test is about; `table` is always there, and read into x."""
    lines = "".join(f"  - {line}\n" for line in operators.strip().splitlines())
    text = f"{head}parameters: {{table: [v, h]{parameters}}}\noperators:\n{EMBED}{lines}outputs: {outputs}\n"
    file.write_text(text)
    return load_program(file)


def one(file: Path, statement: str, parameters: str = "") -> Operator:
    """The operator of a statement that makes `loss`."""
    return read(file, parameters, statement).operators[-1]


def said(file: Path, text: str) -> list[str]:
    file.write_text(dedent(text))
    with pytest.raises(InputError) as caught:
        load_program(file)
    assert caught.value.exit_code == 2
    return [str(problem).replace(str(file), "p") for problem in caught.value.problems]


def loops(op: Operator) -> set[tuple[str, ...]]:
    return {split.loops for split in op.splits}


def flops(program: Program) -> float:
    """Forward, of products and attention."""
    products = sum(2 * prod(program.sizes[loop] for loop in op.loops)
                   for op in program.operators if op.work is Work.MATMUL)  # fmt: skip
    attention = sum(2 * op.attended * op.channels * prod(program.sizes[loop] for loop in op.outputs[0].loops[:-1])
                    for op in program.operators if op.work is Work.ATTENTION)  # fmt: skip
    return products + attention


def weights(program: Program) -> int:
    return sum(program.elements(parameter.tensor.name) for parameter in program.parameters)


@pytest.mark.parametrize("name", sorted(path.stem for path in (data_dir("model_zoo") / "programs").glob("*.yaml")))
def test_programs_of_the_zoo_have_no_problems(name: str) -> None:
    program = load_program(name)
    assert program.name == name
    assert problems(program) == []


def test_gpt_has_the_weights_and_products_that_its_paper_counts() -> None:
    program = load_program("gpt3-1.3b")
    layers, hidden, vocabulary, length = 24, 2048, 50304, 2048
    assert weights(program) == layers * (12 * hidden**2 + 13 * hidden) + (vocabulary + length + 2) * hidden
    # Narayanan et al. 2021 (arXiv 2104.04473), equation 2, a quarter of forward and backward with recompute; they count
    # all keys, this program those of a causal mask.
    tokens, keys = program.sizes["b"] * length, (length + 1) / 2
    formula = 24 * tokens * layers * hidden**2 * (1 + keys / (6 * hidden) + vocabulary / (12 * layers * hidden))
    assert flops(program) == pytest.approx(formula)


def test_mixtral_has_the_weights_of_its_descriptor() -> None:
    program, model = load_program("mixtral-8x7b"), load_model("mixtral-8x7b")
    assert weights(program) == parameters(model).total


def test_wide_resnet_has_the_weights_and_products_that_torchvision_counts() -> None:
    program = load_program("wide-resnet-50-2")
    assert weights(program) == 68_883_240  # torchvision.models, Wide_ResNet50_2_Weights
    assert flops(program) / 2 / program.sizes["n"] == pytest.approx(11.398e9, rel=1e-3)  # its GFLOPS are multiply-adds


def test_what_is_frozen_has_no_gradient_and_keeps_nothing(file: Path) -> None:
    program = read(file, ", w: {dims: [h, f], frozen: true}, u: [h, f]", "y[b,s,f] = x * w\nloss[b,s,f] = gelu(y)\n"
                   "z[b,s,f] = x * u", "[loss, z]")  # fmt: skip
    assert [op.saved for op in program.operators] == [("ids",), ("w",), ("y",), ("x", "u")]
    assert [parameter.trainable for parameter in program.parameters] == [True, False, True]
    file.write_text(file.read_text().replace("table: [v, h]", "table: {dims: [v, h], frozen: true}"))
    frozen = load_program(file)
    assert [op.backward for op in frozen.operators] == [False, False, False, True]
    assert [op.saved for op in frozen.operators] == [(), (), (), ("x",)]
    assert not frozen.tensors["loss"].gradient


def test_query_heads_split_with_the_heads_of_the_keys_that_they_share(file: Path) -> None:
    text = "q[b,s,a,c] = x * wq\nk[b,s,g,c] = x * wk\nloss[b,s,a,c] = attention(q, k[b,t,g,c], k[b,t,g,c], over=t{})"
    inner = ", wq: [h, a, c], wk: [h, g, c]"
    for words, attended in (("", 16), (", causal", 8.5), (", window=4", (1 + 2 + 3 + 13 * 4) / 16)):
        op = one(file, text.format(words), inner)
        assert op.attended == attended
        assert op.channels == 6
        assert loops(op) == {("b",), ("s",), ("a", "g")}


def test_a_norm_over_a_batch_has_a_pass_for_its_statistics(file: Path) -> None:
    program = read(file, ", w: [h], bias: [h]", "y[b,s,h] = norm(x, w, over=h)\n"
                   "loss[b,s,h] = batchnorm(y, w, bias, over=[b, s])")  # fmt: skip
    rms, statistics, second = program.operators[1:]
    assert rms.splits == (Split(("b",)), Split(("s",)), Split(("h",), sums=1))
    assert statistics.outputs[0].loops == ("h",)
    assert statistics.contracted == ("b", "s")
    assert [operand.name for operand in second.inputs] == ["y", "loss.statistics", "w", "bias"]
    assert not any(split.sums for split in (*statistics.splits, *second.splits))
    assert program.tensors["loss.statistics"].gradient


def test_a_convolution_walks_its_spatial_dims_in_strides(file: Path) -> None:
    head = HEAD.replace("u: b * s * k / e", "i: 32, j: 32, i2: 16, j2: 16, o: 8").replace(
        '{ids: "int64[b, s]"}', '{ids: "int64[b, s]", image: [b, 3, i, j]}')  # fmt: skip
    program = read(file, ", w: [o, 3, 7, 5], d: [o, 3, 1, 1]", """\
        y[b,o,i2,j2] = conv(image, w)
        z[b,o,i2,j2] = conv(image, d)
        p[b,o,i2,j2] = pool(y, over=[i2, j2], window=3, max)
        loss[b,o,i2,j2] = add(p, z)""".replace("        ", ""), "[loss, x]", head)  # fmt: skip
    conv, down, pool = program.operators[1:4]
    assert conv.inputs[0].loops == ("b", "3", "i2", "j2")
    assert conv.contracted == ("3", "7", "5")
    assert {split.loops[0]: split.halo for split in conv.splits} == {"b": 0, "3": 0, "i2": 3, "j2": 2, "o": 0}
    assert {split.halo for split in down.splits} == {0}
    assert {split.loops[0]: split.halo for split in pool.splits} == {"b": 0, "o": 0, "i2": 1, "j2": 1}


def test_experts_get_slots_and_give_them_back(file: Path) -> None:
    program = read(file, ", r: [h, e], w: [e, h, f], d: [e, f, h]", """\
        logits[b,s,e] = x * r
        p[b,s,k], routes[b,s,k] = route(logits, over=e)
        into[e,u,h] = dispatch(x, routes, slots=u)
        mid[e,u,f] = into * w
        done[e,u,h] = mid * d
        loss[b,s,h] = combine(done, p, routes, slots=u)""".replace("        ", ""))  # fmt: skip
    route, dispatch, combine = program.operators[2], program.operators[3], program.operators[-1]
    assert program.sizes["u"] == 64
    assert loops(route) == {("b",), ("s",)}
    assert loops(dispatch) == loops(combine) == {("b", "u"), ("s", "u"), ("e",), ("h",)}
    assert (program.tensors["p"].gradient, program.tensors["routes"].gradient) == (True, False)


REPEAT = """\
y[b,s,h] = relu(x)
repeat:
      name: layers
      times: 3
      carry: {y: z}
      parameters: {w: [h, h2]}
      body:
        - {do: "u[b,s,h2] = y * w", path: mlp}
        - z[b,s,h] = add(x, u[b,s,h])
loss[b,s,h] = gelu(z)"""
WRITTEN = """\
y[b,s,h] = relu(x)
u0[b,s,h2] = y * w0
z0[b,s,h] = add(x, u0[b,s,h])
u1[b,s,h2] = z0 * w1
z1[b,s,h] = add(x, u1[b,s,h])
u2[b,s,h2] = z1 * w2
z2[b,s,h] = add(x, u2[b,s,h])
loss[b,s,h] = gelu(z2)"""


def lines(text: str) -> str:
    """A repeat is one entry of the list, in several lines."""
    return text.replace("\n      ", "\0")


def test_a_repeat_is_what_its_turns_written_out_would_be(file: Path) -> None:
    head = HEAD.replace("u: b", "h2: h, u: b")
    body = lines(REPEAT).replace("\n", "\n  - ").replace("\0", "\n      ")
    file.write_text(f"{head}parameters: {{table: [v, h]}}\noperators:\n{EMBED}  - {body}\noutputs: [loss]\n")
    short = load_program(file)
    long = read(file, ", w0: [h, h2], w1: [h, h2], w2: [h, h2]", WRITTEN, head=head)
    names = {f"layers.{turn}.{name}": f"{name}{turn}" for turn in range(3) for name in "wuz"}
    assert [parameter.path for parameter in short.parameters] == ["table", "layers.0.w", "layers.1.w", "layers.2.w"]
    for ours, theirs in zip(short.operators, long.operators, strict=True):
        assert names.get(ours.name, ours.name) == theirs.name
        assert [names.get(use.name, use.name) for use in ours.inputs] == [use.name for use in theirs.inputs]
        assert (ours.splits, ours.work, ours.linear) == (theirs.splits, theirs.work, theirs.linear)
        assert tuple(names.get(name, name) for name in ours.saved) == theirs.saved
    assert [op.path for op in short.operators] == ["", "", *["layers.0.mlp", "layers.0"], "layers.1.mlp", "layers.1",
                                                   "layers.2.mlp", "layers.2", ""]  # fmt: skip


def test_dims_may_be_given_from_outside_and_what_follows_from_them_follows() -> None:
    program = load_program("mixtral-8x7b", {"b": 8, "s": 1024})
    assert program.sizes["u"] == 8 * 1024 * 2 // 8
    assert program.sizes["t"] == 1024
    with pytest.raises(InputError, match=r"the program has no such dim \(got q\)"):
        load_program("mixtral-8x7b", {"q": 8})


def test_a_program_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text('{"schema": "symconfig.program/1", "name": "j", "dims": {"b": 2}, "inputs": {"x": ["b"]},\n'
                    '"parameters": {"w": ["b"]}, "operators": ["y[b] = mul(x, w)"], "outputs": ["y"]}')  # fmt: skip
    assert load_program(file).operators[0].saved == ("x",)
    file.write_text(file.read_text().replace("mul(x, w)", "mul(x, q)"))
    with pytest.raises(InputError, match=r"p\.json:2:58: operators\[0\]: there is no such tensor \(got q\)"):
        load_program(file)


def test_the_documented_program_is_one_and_every_function_is_documented(file: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "programs.md").read_text()
    file.write_text(page.split("```yaml\n")[1].split("```")[0])
    documented = load_program(file)
    assert len(documented.operators) == 1 + 2 * 5 + 4
    words = set(re.findall(r"[a-z_]+", page))
    assert [name for name in FUNCTIONS if name not in words | {"*"}] == []


def test_a_name_that_is_neither_file_nor_in_the_zoo_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown program \(got gpt3-1\.3.*Try: gpt3-1\.3b"):
        load_program("gpt3-1.3")


def test_all_that_is_wrong_is_said_at_once_with_its_place(file: Path) -> None:
    problems = said(file, """\
        schema: symconfig.program/1
        name: bad
        dims: {b: 32, s: 128, t: 64, h: 64, f: 4 * q, z: 0, third: h / 3}
        batch: [n]
        inputs:
          ids: int64[b, s]
          odd: int7[b, s]
        parameters:
          w: [h, nope]
          square: [h, h]
          table: [h, t]
        operators:
          - x[b,s,h] = gathr(table, ids)
          - y[b,s,h] = add(u, x)
          - u[b,s,h] = copy(y)
          - "q[b,s] = x2[b,s,h] * table[b,h]"
          - q[b,s,t] = u * table
          - r[b,s,h] = u[b,t,h] * table
          - r2[b,s,h] = u[b,h] * table
          - r3[b,s,h = u * table
          - r4[b,s,h] = norm(u, table)
          - r5[b,s,h] = norm(u, over=h, size=3)
          - r6[b,s,h] = norm(u, over=k)
          - repeat:
              name: l
              times: 3
              carry: {m: y2, u: y9}
              body:
                - y2[b,s,h] = add(m, xx)
                - y3[b,s,s] = gelu(u)
          - {do: "a[b] = sum(u)", repeat: {name: n, times: 2, body: ["b[b] = sum(y)"]}}
          - {path: nothing}
        outputs: [loss]
        """)  # fmt: skip
    assert problems == [
        "p:3:44: dims.f: the dim is undefined (got q, need a dim that is defined above).",
        "p:3:50: dims.z: a dim has no elements (got 0, need >= 1).",
        "p:3:64: dims.third: the size is not a whole number (got 64 / 3).",
        "p:4:8: batch: the batch is counted by an undefined dim (got n).",
        "p:7:8: inputs.odd: there is no such element (got int7, need one of fp64, fp32, bf16, fp16, fp8, fp4, int64, "
        "int32, int8, uint8, bool). Try: int8.",
        "p:9:6: parameters.w: the dim is undefined (got nope).",
        "p:10:11: parameters.square: a dim is used twice in a tensor (got h). Try: a second dim of the same size.",
        problems[7],
        "p:14:20: operators[1]: there is no such tensor (got u).",
        "p:16:15: operators[3]: there is no such tensor (got x2). Try: x.",
        "p:17:5: operators[4]: the name is taken (got q, need a name for each tensor).",
        "p:18:16: operators[5]: a dim is used with two sizes (got t = 64, s = 128).",
        "p:19:17: operators[6]: the rank does not match (got [b, h], need [b, s, h]).",
        "p:20:14: operators[7]: the statement cannot be read (got =, need ']').",
        "p:21:17: operators[8]: norm needs an option (need over=…).",
        "p:22:33: operators[9]: norm has no such option (got size, need one of over).",
        "p:23:25: operators[10]: over names no dim of the first operand (got k, need one of b, s, h).",
        "p:27:18: operators[11].repeat.carry.m: nothing of this name is there before the first turn (got m).",
        "p:27:25: operators[11].repeat.carry.u: the body makes nothing of this name (got y9).",
        "p:29:30: operators[11].repeat.body[0]: there is no such tensor (got xx). Try: x.",
        "p:30:11: operators[11].repeat.body[1]: a dim is used twice in a tensor (got s). Try: a second dim of the "
        "same size.",
        "p:31:5: operators[12]: a step does one thing (need either `do` or `repeat`).",
        "p:32:5: operators[13]: a step does one thing (need either `do` or `repeat`).",
        "p:33:11: outputs[0]: the output is never made (got loss).",
    ]  # fmt: skip
    assert problems[7].startswith("p:13:16: operators[0]: there is no such function (got gathr, need one of abs, add,")
    assert problems[7].endswith("Try: gather.")


def test_unknown_fields_are_told_with_those_that_are_known(file: Path) -> None:
    problems = said(file, """\
        schema: symconfig.program/1
        name: bad
        dims: {b: 2}
        inputs: {x: {dims: [b], colour: red}}
        operators: ["y[b] = gelu(x)", {repeat: {name: r, times: 0, body: []}}]
        outputs: [y]
        result: y
        """)  # fmt: skip
    assert problems == [
        "p:4:25: inputs.x.colour: unknown field (need one of dims, frozen).",
        "p:5:57: operators[1].repeat.times: out of range (got 0, need > 0).",
        "p:5:66: operators[1].repeat.body: wrong length (got [], need at least one entry).",
        "p:7:1: result: unknown field (need one of batch, dims, element, inputs, name, notes, operators, outputs, "
        "parameters, schema, source).",
    ]


STATEMENTS = [
    ("loss[b,s,h] = add(x, w)", "the result lacks a dim of an operand (got f)"),
    ("loss[b,s,h,f] = gelu(x)", "no operand has this dim of the result (got f)"),
    ("loss[b,s,g] = x * w", "no operand has this dim of the result (got g)"),
    ("loss[b,s,h] = softmax(x[b,t,h], over=h)",
     "operand and result differ in their dims (got [b, t, h], need [b, s, h])"),
    ("loss[b,s,h] = softmax(x, over=[s, h])", "over is one dim here (got s, h)"),
    ("loss[b,s,h] = softmax(x, over=[])", "over is empty"),
    ("loss[b,s,h] = softmax(x, over=h, over=s)", "the option is given twice (got over)"),
    ("loss[b,s,h] = softmax(x, x, over=h)", "softmax has the wrong number of operands (got 2, need 1)"),
    ("loss[b,s,h] = add(x)", "add has the wrong number of operands (got 1, need 2 or more)"),
    ("loss[b,s,h] = norm(over=h)", "norm has the wrong number of operands (got 0, need 1 to 3)"),
    ("loss[b,s,h], y[b] = gelu(x)", "gelu makes another number of tensors (got 2, need 1)"),
    ("loss[b,s,f] = gather(w, x[b,s,h])", "ids have no gradient (got x, need an input, or indices that a route makes)"),
    ("loss[b,s,h] = max(x)", "nothing is summed: the result has all dims"),
    ("loss[b] = cross_entropy(x, ids, over=h)", "there is one loss of each row (got b, need b, s)"),
    ("loss[b,s,h] = attention(x, x, x, over=s)",
     "over is the dim of keys, of the second and third operand only (got s)"),
    ("loss[b,s,h] = attention(x, x[b,t,h], x, over=t)",
     "over is the dim of keys, of the second and third operand only (got t)"),
    ("loss[b,s,h] = attention(x, x[b,t,h], x[b,t,h], over=t, window=0)", "window is a number (got 0, need >= 1)"),
    ("loss[b,s,h] = attention(x, x[b,t,h], x[b,t,h], over=t, casual)", "there is no such tensor (got casual)"),
    ("loss[b,h,s] = attention(x, x[b,t,h], x[b,t,h], over=t)",
     "the result ends in the values' channels (got s, need h)"),
    ("loss[b,s,c] = reshape(x)", "a reshape keeps the number of elements (got b, s, c)"),
    ("loss[b,s] = pool(x, over=h, window=2)", "a pool keeps the number of dims (got b, s)"),
    ("loss[b,s,f] = pool(x, over=h, window=2)", "a window makes no dim longer (got 48 of 12)"),
    ("loss[b,s,h], r[b,s,e] = route(x, over=h)", "a route makes the choices of each token (got b, s, h"),
    ("loss[b,s,k], r[b,s,g] = route(x, over=h)", "a route makes the choices of each token"),
    ("loss[b,s,0] = gelu(x)", "a dim has no elements (got 0)"),
    ("loss[e,u,h] = dispatch(x, ids, slots=k)", "slots have two dims of their own (got e, u"),
    ("fp33 loss[b,s,h] = gelu(x)", "there is no such element (got fp33"),
    ("loss = gelu(x)", "the dims of what is made are missing (got loss, need loss[…])"),
    ("loss[b,s,h] = x + x", "this character has no meaning here (got +)"),
    ("loss[b,s,h] = gelu(x) x", "the statement cannot be read (got x, need nothing more)"),
    ("loss[b,s,h] = gelu(x[b,s,z])", "the dim is undefined (got z)"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "sentence"), STATEMENTS, ids=[statement for statement, _ in STATEMENTS])
def test_what_a_statement_cannot_mean_is_told(file: Path, statement: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read(file, ", w: [h, f]", f"{statement}\nother[b,s,f] = x * w", "[loss, other]")
    assert len(caught.value.problems) == 1, str(caught.value)
    assert sentence in str(caught.value)
    assert caught.value.problems[0].line == 9


def test_what_nobody_reads_was_written_by_mistake(file: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(file, ", w: [h]", "y[b,s,h] = gelu(x)\nloss[b,s,h] = gelu(x)")
    assert [problem.what for problem in caught.value.problems] == [
        "nothing reads it", "what is made is neither read nor an output",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("layers.0.z[b,s,h] = relu(x)", "operators[3].repeat.body[0]", "layers.0.z"),
        ("loss.mask[b,s,h] = relu(x)", "operators[4]", "loss.mask"),
    ],
)
def test_names_of_turns_and_of_what_is_kept_are_taken(file: Path, text: str, place: str, name: str) -> None:
    repeat = "{repeat: {name: layers, times: 2, carry: {x2: z}, body: ['z[b,s,h] = relu(x2)']}}"
    with pytest.raises(InputError) as caught:
        read(file, "", f"x2[b,s,h] = relu(x)\n{text}\n{repeat}\nloss[b,s,h] = dropout(z)", "[loss]")
    assert f"{place}: the name is taken (got {name}, need a name for each tensor)" in str(caught.value)


def test_a_window_in_strides_that_meets_no_neighbour_divides_what_it_walks(file: Path) -> None:
    head = HEAD.replace("u: b * s * k / e", "i: 32, j: 5, o: 8").replace(
        '{ids: "int64[b, s]"}', '{ids: "int64[b, s]", image: [b, 3, i]}')  # fmt: skip
    with pytest.raises(InputError, match=r"a dim is used with two sizes \(got i = 32, j = 5\)"):
        read(file, ", w: [o, 3, 1]", "loss[b,o,j] = conv(image, w)", "[loss, x]", head)


def test_a_program_has_an_end(file: Path) -> None:
    nested = "body: [{do: 'z[b,s,h] = relu(y)'}]"
    for level in range(3):
        nested = f"body: [{{repeat: {{name: r{level}, times: 2000, carry: {{y: z}}, {nested}}}}}]"
    with pytest.raises(InputError, match="too many operators"):
        read(file, "", f"y[b,s,h] = relu(x)\n{{repeat: {{name: all, times: 2000, carry: {{y: z}}, {nested}}}}}\n"
             "loss[b,s,h] = relu(z)")  # fmt: skip


def test_what_hangs_on_a_mistake_is_not_told_again(file: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(file, "", "y[b,s,h] = relu(x\n{repeat: {name: r, times: 2, carry: {y: z}, body: ['z[b,s,h] = relu(y']}}\n"
             "loss[b,s,h] = add(y, z)")  # fmt: skip
    assert [problem.what for problem in caught.value.problems] == ["the statement cannot be read"] * 2
