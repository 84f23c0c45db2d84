"""Simple commands: their words, assignments, declarations and redirections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tree_sitter import Node

from symconfig.existing.launch.bash import source as code
from symconfig.existing.launch.bash.commands import run_words
from symconfig.existing.launch.bash.conditions import TRUE, Truth
from symconfig.existing.launch.bash.shell import Shell
from symconfig.existing.launch.bash.source import Source, place_at, text_at, word_ranges
from symconfig.existing.launch.bash.state import Array, Value
from symconfig.existing.launch.reading import Hides, Piece, Pieces, Word, text_of

# A line of a here-document after its tabs, and all of one.
_UNTABBED, _WHOLE = re.compile(rb"\t*([^\n]*\n?)"), re.compile(rb"(.+)", re.DOTALL)


class Simple(Shell):
    """Interpreter of simple commands, assignments and redirections."""

    def _variable_assignment(self, source: Source, node: Node) -> Truth:
        return self._assigned(source, [node])

    def _assigned(self, source: Source, nodes: Sequence[Node]) -> Truth:
        """Run assignments without a command; return the status of the last command substitution in them, else TRUE."""
        self.substituted = TRUE
        for node in nodes:
            self.assign(source, node)
        return self.substituted

    def _command(self, source: Source, node: Node, behind: Sequence[Node] = ()) -> Truth:
        """Run a command with its redirections; return its status.

        Further lines that the parser joined to it run as commands, too, and the last one gives the status. behind:
        words that follow a redirection.
        """
        status = TRUE
        for children in code.lines_of(source.data, node.children):
            assigned = [child for child in children if child.type == "variable_assignment"]
            # The parser may end a value too early, `A=$B-$2`: what it takes for the command is the value's end.
            start = max((code.value_end(source.data, child) for child in assigned), default=0)
            named = [
                child
                for child in children
                if (child.is_named or child.type in ("==", "=~"))
                and child.type not in ("variable_assignment", "comment")
                and not child.type.endswith("_redirect")
                and child.start_byte >= start
            ]
            strings = [child for child in children if child.type.endswith("_redirect")]
            with self._redirections(source, strings) as extra:
                status = self._words(source, node, assigned, [*named, *behind, *extra])
        return status

    def _words(self, source: Source, node: Node, assigned: Sequence[Node], named: Sequence[Node]) -> Truth:
        """Expand the words of a simple command and run it; return its status.

        Assignments in front are exported and undone afterwards; if there are no words they stay, and give the status.
        """
        expander, words = self.expander(source), list[Word]()
        for start, end in word_ranges(source.data, named):
            words += expander.fields(start, end)
            self.budget.spend(len(words) // 64)
        if not words:
            return self._assigned(source, assigned)
        before, exported = dict(self.state.variables), set(self.state.exported)
        names = [self.assign(source, child) for child in assigned]
        self.state.exported |= set(names)
        status = run_words(self, words, place_at(source, node))
        self.state.restore({name: (name in before, before.get(name)) for name in names})
        self.state.exported -= set(names) - exported
        return status

    def assign(self, source: Source, node: Node, keyed: bool = False) -> str:
        """Run an assignment such as `X=1`, `X+=1`, `A=(1 2)` or `A[0]=1`; return the variable's name, or "" if absent.

        A scalar assigned to an array sets element 0. In `X="$X --more"` the `$X` is dropped if nothing sets X. keyed:
        whether it is an associative array (`declare -A`). Raises Exhausted.
        """
        left = node.child_by_field_name("name")
        if left is None:
            return ""
        name, _, subscript = text_at(source, left).partition("[")
        at = source.data.find(b"=", left.end_byte, node.end_byte + 1) + 1
        added = source.data[at - 2 : at - 1] == b"+"
        place = source.place(node.start_byte, max(node.end_byte, at))
        expander = self.expander(source)
        state = self.state
        if source.data[at : at + 1] == b"(":
            elements = expander.items(at + 1, code.closing(source.data, at, len(source.data)))
            old = state.variables.get(name)  # the elements may have set it, `A+=(${A:=1})`
            array = Array(state.items(name, place) if added else {}, keyed or (isinstance(old, Array) and old.keyed))
            value: Value = expander.extended(array, elements, place)
        else:
            parts = expander.value(at, code.value_end(source.data, node)) or (Piece("", written=place),)
            own = parts[0].unknown and parts[0].variables == (name,) and name not in state.variables
            if own and len(parts) > 1 and parts[1].text[:1].isspace():
                parts = parts[1:]  # `X="$X --more"`, where nothing sets it
            old = state.variables.get(name)  # the value may have set it, `A+=${A:=1}`
            if subscript or isinstance(old, Array):
                inner = expander.value(left.start_byte + len(name) + 1, left.end_byte - 1) if subscript else ()
                key = text_of(inner) or "0"
                before = expander.find(name, place, key) if added else None
                expander.assign(f"{name}[{key}]", (*(before or ()), *parts))
                return name
            value = (*(old or ()), *parts) if added else parts
        state.variables[name] = self.budget.kept(value)
        return name

    def _declaration_command(self, source: Source, node: Node) -> Truth:
        """Run `declare`, `local`, `export`, `readonly` or `typeset`: assign, declare and export the names; return TRUE.

        Names without a value become unset (`local`) or are declared unless set; `-a` and `-A` make empty arrays. Values
        that a function makes local are saved. Words with unknown names are logged, as they may set any variable.
        """
        keyword, flags, expander = node.children[0].type, "", self.expander(source)
        for child in node.children[1:]:
            if child.type == "variable_assignment":
                left = child.child_by_field_name("name")
                self._declare(keyword, flags, text_at(source, left).partition("[")[0] if left is not None else "")
                name = self.assign(source, child, keyed="A" in flags)
                self._exports(keyword, flags, name)
                continue
            if not child.is_named or child.type == "comment":
                continue
            for item in expander.fields(*word_ranges(source.data, [child])[0]):
                name, equals, _ = item.text.partition("=")
                if item.text.startswith("-") and not item.unknown:
                    flags += item.text[1:]
                elif item.several or (item.unknown and not name.isidentifier()):
                    why = f"sets variables that are not known: it {item.unknown}"
                    self.log.add(item.place, keyword, why, Hides.VARIABLES)
                elif not item.unknown or equals:
                    self._declare(keyword, flags, name)
                    if equals:
                        self.state.variables[name] = item.cut(len(name) + 1).pieces
                    elif keyword == "local":
                        self.state.variables[name] = None
                    if set(flags) & {"A", "a"} and not isinstance(self.state.variables.get(name), Array):
                        self.state.variables[name] = Array({}, "A" in flags)
                    elif keyword != "export" and not flags:
                        self.state.variables.setdefault(name, None)
                    self._exports(keyword, flags, name)
        return TRUE

    def _declare(self, keyword: str, flags: str, name: str) -> None:
        """Save a variable's value to be restored at the end of the function, if the keyword makes it local."""
        frame = self.locals[-1] if self.locals and "g" not in flags else None
        if keyword in ("local", "declare", "typeset") and frame is not None and name not in frame:
            frame[name] = name in self.state.variables, self.state.variables.get(name)

    def _exports(self, keyword: str, flags: str, name: str) -> None:
        """Mark a variable as exported by `export` (but not `export -n`) or the flag `-x`; others keep their mark."""
        if (keyword == "export" and "n" not in flags) or "x" in flags:
            self.state.exported.add(name)

    def _unset_command(self, source: Source, node: Node) -> Truth:
        """Run `unset`: remove elements `A[i]` of arrays, none if the index is unknown; set other variables to None, not
        exported. With -f remove functions instead; other options are skipped. Return TRUE.
        """
        of_functions = False
        for start, end in word_ranges(source.data, node.named_children):
            for item in self.expander(source).fields(start, end):
                name, _, subscript = item.text.partition("[")
                value = self.state.variables.get(name)
                of_functions = of_functions or name == "-f"
                if of_functions:
                    self.state.functions.pop(name, None)
                elif subscript and isinstance(value, Array):
                    kept = {key: item for key, item in value.items.items() if str(key) != subscript.rstrip("]")}
                    self.state.variables[name] = Array(kept, value.keyed)
                elif not name.startswith("-"):
                    self.state.variables[name] = None
                    self.state.exported.discard(name)
        return TRUE

    # ---- redirections: what a command reads from the script, and files that the script writes, kept in memory

    def _redirected_statement(self, source: Source, node: Node) -> Truth:
        """Run a statement with redirections and return its status, TRUE without a body."""
        body = node.child_by_field_name("body")
        with self._redirections(source, node.children_by_field_name("redirect")) as extra:
            if body is None:
                return TRUE
            return self._command(source, body, extra) if body.type == "command" else self.execute(source, body)

    @contextmanager
    def _redirections(self, source: Source, nodes: Sequence[Node]) -> Iterator[Sequence[Node]]:
        """Redirect input and output inside the block, which gets the words that stand behind a redirection.

        Here-documents and here-strings become standard input; `< FILE` is ignored. What is printed to a file is kept in
        `state.files`, unless the block raises.
        """
        stdin, target, append, expander = self.stdin, None, False, self.expander(source)
        extra: list[Node] = []
        # A here-document holds those that stand behind it.
        for node in (each for one in nodes for each in (one, *one.children_by_field_name("redirect"))):
            if node.type == "heredoc_redirect":
                stdin = self._document(source, node)
                extra += node.children_by_field_name("argument")
                if any(child.type in ("pipeline", "&&") for child in node.children):
                    self.log.add(place_at(source, node), text_at(source, node), "holds a command, which is not read")
            elif node.type == "herestring_redirect":
                stdin = (*expander.value(node.children[-1].start_byte, node.children[-1].end_byte), Piece("\n"))
            elif node.type == "file_redirect":
                destinations = node.children_by_field_name("destination")
                extra += destinations[1:]
                sign = next((child.type for child in node.children if not child.is_named), "")
                descriptor = node.child_by_field_name("descriptor")
                own = descriptor is None or text_at(source, descriptor) == "1"
                if destinations and own and sign in (">", ">>", ">|", "&>", "&>>"):
                    target = expander.value(destinations[0].start_byte, destinations[0].end_byte)
                    append = sign.endswith(">>")
        outer, before = self.stdin, self.output
        self.stdin, self.output = stdin, before if target is None else []
        try:
            yield extra
        finally:
            self.stdin, printed, self.output = outer, self.output, before
        # A name that is not known is the same without its holes where it is used again.
        if target is not None and printed and (name := text_of(target)):
            self.state.files[name] = (*(self.state.files.get(name, ()) if append else ()), *printed)

    def _document(self, source: Source, node: Node) -> Pieces:
        """Return the text of a here-document, expanded unless its delimiter is quoted; () without a body.

        Leading tabs are removed behind `<<-`.
        """
        mark, body = (
            next((child for child in node.children if child.type == f"heredoc_{part}"), None)
            for part in ("start", "body")
        )
        if mark is None or body is None:
            return ()
        lines = _UNTABBED if any(child.type == "<<-" for child in node.children) else _WHOLE
        start = source.data.rfind(b"\n", 0, body.start_byte) + 1
        literal = any(character in text_at(source, mark) for character in "'\"\\")
        expand = source.literal if literal else self.expander(source).quoted
        return tuple(
            part for line in lines.finditer(source.data, start, body.end_byte) for part in expand(*line.span(1))
        )
