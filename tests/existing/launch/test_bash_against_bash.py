"""What the reader claims to know is what bash does: small harmless scripts are given to both."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.state import Budget, Log, State
from symconfig.existing.launch.text import Text

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="needs bash to compare with")


def really(script: str, command: str) -> list[str] | None:
    """The words that bash gives a program; None where bash fails."""
    done = subprocess.run(
        [str(BASH), "--norc", "-c", f"set +H\n{script}\nprintf '%s\\0' start {command}"],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        timeout=60,
        cwd="/",
    )
    if done.returncode or done.stderr:
        return None
    words = done.stdout.decode().split("\0")[:-1]
    return words[words.index("start") + 1 :]


def claimed(script: str, command: str) -> tuple[list[str], bool]:
    """The words that the reader finds, and whether it claims to know them all."""
    text = Text("x.sh", f"{script}\nprogram {command}\n".encode())
    log = Log([text], None)
    Interpreter(State(), Budget(), log).program(Source.of_file(text))
    if not log.commands:  # what it could not read at all, it says
        return [], not log.unread
    words = [field.joined() for field in log.commands[-1].words]
    for piece in (piece for word in words for piece in word.pieces):
        assert piece.place is None or text.at(piece.place) == piece.text
    return [word.text for word in words[1:]], not log.unread and not any(word.unknown for word in words)


def compare(script: str, command: str, must_know: bool = False) -> None:
    truth = really(script, command)
    if truth is None:
        return
    words, known = claimed(script, command)
    assert known or not must_know, (script, command, truth)
    if known:
        assert words == truth, (script, command)


EXACT = [
    ('unset A; A+=(${A:="a b"})', '$A "${A[@]}"'),
    ('unset B; B+=${B:="a b"}', "$B"),
    ("A=1", '$A "$A" \'$A\' a${A}b "x $A y"'),
    ("A='b c'", '$A "$A" x$A'),
    ("A=", '$A "$A" x'),
    ('A="a  b"; B="$A c"', '$B "$B"'),
    ("A=(1 'b c' d)", '"${A[@]}" ${A[@]} "${A[*]}" ${#A[@]} ${A[1]} "${A[-1]}"'),
    ("A=(); ", '"${A[@]}" x ${A[@]} "${A[*]}"'),
    ("A=1; A() { A=2; }; unset -f A; B=3; B() { B=4; }; unset B; B", "$A $B"),
    ("B=3; B[-1]=y; A=(a b [-1]=z c)", '"${A[@]}" "${B[@]}"'),
    ("A=(1 2); A+=(3); A[5]=x", '"${A[@]}" ${!A[@]} "${A[@]:1:2}"'),
    ("declare -A M=([a]=1 [b]='c d'); M[e]=f", '"${M[a]}" "${M[b]}" ${M[e]} ${#M[@]}'),
    ("", "a\\ b \\$x $'t\\tx' $'q' {1..3} x{1} '{a,b}'"),
    ("A=8", "${A:-1} ${B:-1} ${B:-'x y'} ${B:-x y} \"${B:-x y}\" ${A:+z} ${B:+z} ${B:=q}$B ${C-d}"),
    ("P=/a/b.tar.gz", "${P##*/} ${P%.*} ${P%%.*} ${P#*/} ${P%/*} ${#P}"),
    ("A=5; B=3", "$((A+B)) $((A*B-1)) $((A/B)) $((A%B)) $((A>B?1:2)) $(( (A+B)*2 )) $((-7/2))"),
    ("A=5; ((A++)); ((A+=2)); B=$((A*2))", "$A $B"),
    ("A=B; B=7", "${!A}"),
    ("set -- a 'b c'", '"$@" $# $1 "$*" ${@:2}'),
    ("set -- a b c; shift", '"$@"'),
    ('for i in 1 2 3; do A="$A --x $i"; done', "$A"),
    ("for ((i=0;i<3;i++)); do A+=($i); done", '"${A[@]}"'),
    ("i=0; while [ $i -lt 4 ]; do i=$((i+1)); done", "$i"),
    ("i=0; while true; do i=$((i+1)); if ((i==3)); then break; fi; done", "$i"),
    ("for i in 1 2 3; do [ $i = 2 ] && continue; A+=$i; done", "$A"),
    ("A=7b; case $A in 8b) B=1;; 7?) B=2;; *) B=3;; esac", "$B"),
    ("if [[ ab == a* && ! x == y ]]; then A=1; else A=2; fi", "$A"),
    ('A=1; if [[ $A != 1 ]]; then A=2; elif [[ ${1} != "slurm" ]]; then A=3; fi', "$A"),
    ("if [ 3 -gt 2 -a x != y ]; then A=1; fi", "$A"),
    ("f() { local x=$1; Y=$x-$2; }; x=o; f a 'b c'", '"$Y" $x'),
    ("f() { echo hi $1; }; A=$(f there)", '"$A" $(f x)'),
    ("A=$(echo a b; echo c)", '"$A" $A'),
    ("A=`echo x`", "$A"),
    ("A=$(dirname /a/b/c.sh); B=$(basename /a/b.sh)", "$A $B"),
    ("A=$(cat <<EOF\nx $((1+1))\nEOF\n)", '"$A"'),
    ("read -r A B <<< '1 2'; IFS=, read -ra C <<< '3,4'", '$A $B "${C[@]}"'),
    ("IFS=','; A='a,b'", '$A "$A"'),
    ("A='--x 1'; A+=' --y'; eval \"B='$A'\"", '"$B" $A'),
    ("A=1 # c\n# A=2\nB=2 #x", "$A $B a#b"),
    ("A=1; (A=2); { B=3; }", "$A $B"),
    ("A=(a b); B=(\"${A[@]}\" 'c d'); unset A", '"${B[@]}" ${A[@]}'),
    ("A=x; [ $A = y ] || B=1; [ $A = x ] && C=2", "$B $C"),
    ("A=$(printf '%s-%s ' a 3 b)", "$A"),
    ("A=$(seq 1 3 | tr x y; true)", "a"),
    ("A=é; B=\\é", '$A$B "${#A}"'),
    ("A='a\nb'", '"$A" $A'),
    ("export A=1 B='c d'; readonly C=3", '$A "$B" $C'),
    ('A="--a 1 \\\n  --b 2"', "$A"),
    ("A='*'; B='~'", '"$A" $B'),
    ("declare -i N=3; declare -a L=(1 2)", "$N ${L[1]}"),
]


@pytest.mark.parametrize(("script", "command"), EXACT)
def test_what_is_decidable_is_read_as_bash_does_it(script: str, command: str) -> None:
    assert really(script, command) is not None
    compare(script, command, must_know="seq" not in script)


NAMES = st.sampled_from(["A", "B", "C"])
CHARACTERS = st.text(st.sampled_from("ab1 .-_/,=:é"), max_size=5)
LITERALS = st.one_of(
    st.text(st.sampled_from("ab1.-_/,=:é+%@"), min_size=1, max_size=5),
    CHARACTERS.map(lambda text: f"'{text}'"),
    CHARACTERS.map(lambda text: f'"{text}"'),
    st.sampled_from(["\\ ", "\\$", "\\\\", '"\\""', "$'a\\tb'", '""', "''", '"\\a"']),
)
EXPANSIONS = st.builds(
    lambda name, form: form.replace("N", name),
    NAMES,
    st.sampled_from(
        [
            "$N",
            "${N}",
            '"$N"',
            "${N:-d e}",
            '"${N:-d e}"',
            "${N-x}",
            "${N:+y z}",
            "${N%b*}",
            '"${N##*/}"',
            "${N/a/1 2}",
            "${#N}",
            "${N^^}",
            '"${N[@]}"',
            "${N[@]}",
            "${N[0]}",
            '"${N[*]}"',
            "${#N[@]}",
            '"x${N[@]}y"',
            "${N:1}",
            '"${N:0:2}"',
            '${N:="a b"}',
            "$((${#N}+1))",
            '$(echo "$N")',
            '"$(echo $N)"',
            "`echo $N`",
            '"${N[@]:1}"',
            "${N//a}",
            '"${N[@]/#/--}"',
        ]
    ),
)
WORDS = st.lists(st.one_of(LITERALS, EXPANSIONS), min_size=1, max_size=3).map("".join)
CONDITIONS = st.builds(
    lambda left, sign, right: f'[ "{left}" {sign} "{right}" ]',
    st.sampled_from(["$A", "$B", "a"]),
    st.sampled_from(["=", "!="]),
    st.sampled_from(["a", "$C", ""]),
)
SIMPLE = st.one_of(
    st.builds(lambda name, word: f"{name}={word}", NAMES, WORDS),
    st.builds(lambda name, word: f"{name}+={word}", NAMES, WORDS),
    st.builds(lambda name, words: f"{name}=({' '.join(words)})", NAMES, st.lists(WORDS, max_size=3)),
    st.builds(lambda name, words: f"{name}+=({' '.join(words)})", NAMES, st.lists(WORDS, max_size=2)),
    st.builds(lambda words: f"set -- {' '.join(words)}", st.lists(WORDS, max_size=2)),
    NAMES.map(lambda name: f"unset {name}"),
)
STATEMENTS = st.one_of(
    SIMPLE,
    st.builds(lambda c, a, b: f"if {c}; then {a}; else {b}; fi", CONDITIONS, SIMPLE, SIMPLE),
    st.builds(
        lambda words, body: f"for C in {' '.join(words)}; do {body}; done",
        st.lists(WORDS, min_size=1, max_size=2),
        SIMPLE,
    ),
    st.builds(lambda c, a: f"{c} && {a}", CONDITIONS, SIMPLE),
    st.builds(lambda word, a, b: f"case {word} in a*) {a};; *) {b};; esac", WORDS, SIMPLE, SIMPLE),
)


def test_a_slice_that_is_not_followed_may_leave_nothing() -> None:
    compare('A=1\nA=("${A[@]:1}")', "${A:+y z}")


@settings(max_examples=250, deadline=None)
@given(st.lists(STATEMENTS, max_size=5), st.lists(WORDS, min_size=1, max_size=3))
def test_whatever_it_claims_to_know_is_so(statements: list[str], words: list[str]) -> None:
    # Names that nothing sets could be in the environment: here they are known to be unset.
    compare("\n".join(["unset A B C", *statements]), " ".join(words))
