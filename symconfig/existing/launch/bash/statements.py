"""The statements of bash: what runs each kind of node, and the kinds that need no file of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tree_sitter import Node

from symconfig.existing.launch.bash import assignments, branches, lexer, lists, loops, redirects
from symconfig.existing.launch.bash.commands import run_words
from symconfig.existing.launch.bash.conditions import TRUE, Truth, double_tested, ended, tested
from symconfig.existing.launch.bash.interpret import Handler, Interpreter
from symconfig.existing.launch.bash.log import Leave
from symconfig.existing.launch.bash.nodes import lines_of, statements_of, value_end, word_ranges
from symconfig.existing.launch.bash.shell import Function
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.values import Field


def _negated(shell: Interpreter, source: Source, node: Node) -> Truth:
    return shell.execute(source, node.children[-1]).negated()


def _pipeline(shell: Interpreter, source: Source, node: Node) -> Truth:
    stages = [child for child in node.children if child.is_named]
    stdin, status = shell.stdin, TRUE
    for index, stage in enumerate(stages):
        last = index == len(stages) - 1
        inside = replace(shell, state=shell.state.copy(), output=shell.output if last else [], stdin=stdin, pending=[])
        try:
            status = inside.execute(source, stage)
        except Leave as leave:
            status = ended(leave)
        stdin = tuple(inside.output or ())
        shell.state.files = inside.state.files
    return Truth(None, status.why or "depends on a program", status=True)


def _subshell(shell: Interpreter, source: Source, node: Node) -> Truth:
    inside = replace(shell, state=shell.state.copy(), pending=[])
    try:
        status = inside.statements(source, statements_of(node))
    except Leave as leave:
        status = ended(leave)
    shell.state.files = inside.state.files
    return status


def _compound(shell: Interpreter, source: Source, node: Node) -> Truth:
    if node.children and node.children[0].type == "((":
        return shell.arithmetic(source, node.children[0].end_byte, node.children[-1].start_byte)
    return shell.statements(source, statements_of(node))


def _test(shell: Interpreter, source: Source, node: Node) -> Truth:
    first, last = node.children[0], node.children[-1]
    start, end = first.end_byte, last.start_byte
    if first.type == "((":
        return shell.arithmetic(source, start, end)
    expander = shell.expander(source, deciding=True)
    if first.type == "[[":
        return double_tested(expander, start, end)
    return tested(
        expander,
        [
            item.parts
            for first_byte, last_byte in lexer.words(source.data, start, end)
            for item in expander.fields(first_byte, last_byte)
        ],
    )


def _function(shell: Interpreter, source: Source, node: Node) -> Truth:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        shell.state.functions[source.data[name.start_byte : name.end_byte].decode("utf-8", "replace")] = Function(
            source, body
        )
    return TRUE


def _command(shell: Interpreter, source: Source, node: Node, behind: Sequence[Node] = ()) -> Truth:
    """Run a command. behind: words that stand after a redirection."""
    status = TRUE
    for children in lines_of(source.data, node.children):
        assigned = [child for child in children if child.type == "variable_assignment"]
        # The parser may end a value too early, `A=$B-$2`: what it takes for the command is the value's end.
        start = max((value_end(source.data, child) for child in assigned), default=0)
        named = [
            child
            for child in children
            if (child.is_named or child.type in ("==", "=~"))
            and child.type not in ("variable_assignment", "comment")
            and not child.type.endswith("_redirect")
            and child.start_byte >= start
        ]
        strings = [child for child in children if child.type.endswith("_redirect")]

        def run(extra: Sequence[Node], assigned: list[Node] = assigned, named: list[Node] = named) -> Truth:
            return _words(shell, source, node, assigned, [*named, *extra, *behind])

        status = redirects.redirected(shell, source, strings, run) if strings else run(())
    return status


def _words(shell: Interpreter, source: Source, node: Node, assigned: Sequence[Node], named: Sequence[Node]) -> Truth:
    """Run a simple command: its words are expanded first."""
    expander = shell.expander(source)
    fields: list[Field] = []
    for start, end in word_ranges(source.data, named):
        fields += expander.fields(start, end)
        shell.budget.spend(len(fields) // 64)
    if not fields:
        return assignments.run_all(shell, source, assigned)
    before, exported = dict(shell.state.variables), set(shell.state.exported)
    names = [assignments.assign(shell, source, child) for child in assigned]
    shell.state.exported |= set(names)
    status = run_words(shell, fields, source.place(node.start_byte, node.end_byte))
    for name in names:  # they hold for this command only
        if name in before:
            shell.state.variables[name] = before[name]
        else:
            shell.state.variables.pop(name, None)
        if name not in exported:
            shell.state.exported.discard(name)
    return status


def _redirected(shell: Interpreter, source: Source, node: Node) -> Truth:
    body = node.child_by_field_name("body")

    def run(extra: Sequence[Node]) -> Truth:
        if body is None:
            return TRUE
        return _command(shell, source, body, extra) if body.type == "command" else shell.execute(source, body)

    return redirects.redirected(shell, source, node.children_by_field_name("redirect"), run)


HANDLERS: dict[str, Handler] = {
    "list": lists.run_list,
    "negated_command": _negated,
    "pipeline": _pipeline,
    "subshell": _subshell,
    "compound_statement": _compound,
    "test_command": _test,
    "if_statement": branches.run_if,
    "case_statement": branches.run_case,
    "for_statement": loops.run_for,
    "c_style_for_statement": loops.run_c_for,
    "while_statement": loops.run_while,
    "function_definition": _function,
    "variable_assignment": assignments.run_assignment,
    "variable_assignments": assignments.run_assignments,
    "declaration_command": assignments.run_declaration,
    "unset_command": assignments.run_unset,
    "command": _command,
    "redirected_statement": _redirected,
}
