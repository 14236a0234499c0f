"""Draw the scripts of ``test_scripts.py`` anew, by a fixed seed.

``.ci/environment mutants python -m tests.golden.shell.drawing`` keeps scripts that run a branch of the
reader that none before them ran, and others of which it knows all words. It prints those in which bash runs
other words, which are not kept: sums of words, braces in ``case``, and unset variables, for instance.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import coverage

from meshwright.shell.values import UNKNOWN
from tests.golden.shell.test_scripts import commands, write

SHELL = Path(__file__).parents[3] / "shell"
DRAWN, KEPT, DEEPEST = 2500, 300, 7
# Alternatives of each part, with other parts between marks; where it is deep, those without parts.
GRAMMAR = {
    "start": (
        "A=«text»", "A=«text»", "B=«text»", "B=«text»", "N=«number»", "P=«text»", "P=«text»",
        "L=(a 'b c' 7b)", "declare -A M=([a]=1 [x]=two)", "I=2", "R=A", "set -- 1 'p q' r",
    ),
    "name": ("A", "B", "N", "P"),
    "number": ("8", "3", "0", "-3", "12", "010"),
    "text": ("7b", "a/b-c.tar.gz", "8", "x", "'x y'", "''", "-3", "llama-13b", "a*", "'a\"b'", "--flag"),
    "pattern": (
        "a", "*b", "*/", ".*", "[0-9]", "*-", "?", "b*", "[!a-c]", "[[:alpha:]]", "@(a|7b)", "x", "\\*",
        "tar",
    ),
    "words": ("x", "«word»", "«word» «word»", "«word» «word» «word»"),
    "word": (
        "7b", "«text»", "«expansion»", "«expansion»", "«expansion»", '"«expansion»"', '"«expansion»"',
        "x«expansion»", "«expansion»/y", '"«expansion» z"', "{1,«expansion»}", "{«text»,x}y", "«braces»",
    ),
    "braces": ("{a,b}", "{1..3}", "{3..1}", "{01..03}", "{a..c}", "{4..2..2}", "x{1,2}{a,b}", "{a}"),
    "expansion": (
        "$A", "$«name»", "$B", "$N", "$1", "$2", "$#", "$@", "$*", "$Z", "$'a\\tb\\x41'", "$((«sum»))",
        "$((«sum»))", "$(«program»)", "$(«program»)", "${«change»}", "${«change»}", "${«change»}",
        "${«change»}", "${«list»}", "${«list»}",
    ),
    "change": (
        "A", "«name»:-«word»", "«name»-«word»", "«name»:+«word»", "«name»:=«word»", "«name»#«pattern»",
        "«name»##«pattern»", "«name»%«pattern»", "«name»%%«pattern»", "«name»/«pattern»/«new»",
        "«name»//«pattern»/«new»", "«name»/#«pattern»/«new»", "«name»/%«pattern»/«new»", "«name»/«pattern»",
        "«name»^", "«name»^^", "«name»,", "«name»,,", "«name»:1", "«name»:1:2", "«name»: -2", "«name»:0:-1",
        "«name»:N", "#«name»", "Z:-«word»", "Z", "Z:+«word»", "2:-«word»", "«name»//[.-]/_",
    ),
    "list": (
        "L[@]", "L[0]", "L[-1]", "#L[@]", "L[@]:1", "L[@]:0:1", "L[*]", "L[@]/a/b", "!L[@]", "M[a]",
        "M[$A]",
        "M[@]", "#M[@]", "L", "@:2", "@", "#", "1", "L[N]", "L[@]#«pattern»", "*", "L[@]: -1",
        "L[1]:-«word»",
        "#L[0]", "!R", "L[I]", "L[I-1]", "@: -1", "L[@]: -4", "M[none]:-0",
    ),
    "new": ("x", "7b", "--a", "1"),
    "sum": (
        "N", "1", "2", "7", "$N", "0x1f", "010", "L[0]", "${#L[@]}", "8#17", "I", "I++", "--I",
        "I--", "++I",
        "«sum» + «sum»", "«sum» - «sum»", "«sum» * «sum»", "«sum» / «sum»", "«sum» % «sum»", "2 ** «digit»",
        "«sum» << «digit»", "«sum» >> «digit»", "«sum» & «sum»", "«sum» | «sum»", "«sum» ^ «sum»",
        "«sum» && «sum»", "«sum» || «sum»", "«sum» < «sum»", "«sum» > «sum»", "«sum» <= «sum»",
        "«sum» >= «sum»", "«sum» == «sum»", "«sum» != «sum»", "(«sum»)", "-«sum»", "!«sum»", "~«sum»",
        "«sum» ? «sum» : 5", "I += 2", "I = «sum»", "I *= 3", "I <<= 1", "I -= «sum»", "I %= 2",
    ),
    "digit": ("0", "1", "2", "3", "5"),
    "program": (
        "echo x", "echo «word» «word»", "printf '%s-%d' «new» 12", "printf '%03d%%' 7", "seq 1 3",
        "seq 0 2 4",
        "basename «word»", "basename a/b.gz .gz", "dirname «word»", "expr «digit» + 4",
        "expr 3 \\* «digit»",
        "echo $((«sum»))", "echo -n «new»", "echo «word» | sed 's/a/b/g'", "echo '2*«digit»' | bc", "seq 3",
        "echo «word» | sed -E 's/([a-z]+)-/<\\1>/'", "echo «word» | xargs", "echo «word» | tr -d 'a-c'",
        "echo «word» | cut -d- -f1", "false || echo «new»", "echo «word» | sed -e 's/[0-9]*$//' -e s/a/1/",
        "echo «word» | awk '{print $1}'", "printf '%s\\n' «word» «word»",
        "echo a.b/c | sed 's|\\.b/|-|;s/C/d/I'",
    ),
    "condition": (
        "true", "false", '[ "$«name»" = "$«name»" ]', '[ "$«name»" != «text» ]', '[ -z "$Z" ]',
        '[ -n "$«name»" ]', "[[ «word» == «pattern» ]]", "[[ «word» != «pattern» ]]",
        "[[ «word» < «text» ]]",
        "[[ -n «word» && «word» == «pattern» ]]", "[[ ! ( «word» = «text» ) || -z $Z ]]", "(( «sum» ))",
        "[ ${N:-4} -lt «digit» ]", "[ ${N:-4} -ge «digit» ]", "[ $N -eq «digit» ]", "[[ $N -ne «digit» ]]",
        "[[ $N -le «digit» ]]", "[ $N -gt «digit» ]", "[[ -v A ]]", "[ $# -gt 2 ]", "! false", 'test -z ""',
        "[[ $A == *«new»* ]]", "[ 1 -lt 2 -a 3 -gt 2 ]", "«condition» && «condition»",
        "«condition» || «condition»", "! «condition»",
    ),
    "doubt": (  # on a file, on the environment, or on what is not computed
        "[ -f a.txt ]", '[ "$A" = x -o "$B" = 8 ]', "[[ $A =~ ^[a-z]+ ]]", "grep -q a b.txt",
        "[ -z $NONE ]",
    ),
    "assignment": (
        "A=x", "«name»=«word»", "«name»=«word»", "«name»+=«word»", "«name»=$((«sum»))", "L=(«words»)",
        "L+=(«words»)", "L[«digit»]=«word»", "L[-1]=«word»", "L[N]+=x", "M[a]=«word»", "M[$A]=«word»",
        "export «name»=«word»", "declare -i N=3+4", "declare -i N=N*2", "N+=1", "unset «name»", "unset L",
        "unset M[a]", "unset Z", "set -- «words»", "shift", "shift 2", "set --", "let N=N+1", "let N=2**3",
        "printf -v «name» '%s.%02d' «new» 5", "((I += «sum»))", "((I = «sum»))", ": ${«name»:=«word»}",
        "«name»= B=«word»", "IFS=,", "IFS=-", "unset IFS", "«name»=`echo «new»`", "eval 'B=\"$A\"'",
        "«name»=$(cat <<EOF\n$A x\n--b ${N}\nEOF\n)", "for B in «words»; do :; done", "local N=1",
        'IFS=- read A B <<< "a-b-c"', 'read -ra L <<< "$P x"', "read -r P <<< $A", "read N < a.txt",
    ),
    "simple": (
        "run x", "run «words»", "run «words»", "«name»=«word» run «words»", "run «words» > /dev/null",
        "run «words» 2>&1 | cat", "eval run $A", 'run $L ${L[@]} "${L[@]}" "$@"', "run \\\n  «word»",
    ),
    "statement": (
        "run y", "«assignment»", "«assignment»", "«simple»", "«simple»", "«if»", "«loop»", "«case»",
        "«condition» && «simple» || «simple»", "{ «block»; }", "( «block» )", "{ «block»; } | cat",
        "if «doubt»; then «block»; else «block»; fi", "if «doubt»; then «block»; fi", "«function»",
    ),
    "block": ("run z", "«statement»", "«statement»; «statement»"),
    "if": (
        "if true; then run i; fi", "if «condition»; then «block»; fi",
        "if «condition»; then «block»; else «block»; fi",
        "if «condition»; then «block»; elif «condition»; then «block»; else «block»; fi",
    ),
    "leave": (":", "if «condition»; then break; fi", "if «condition»; then continue; fi; «simple»",
              "break 2"),
    "loop": (
        "for V in 1 2; do run $V; done", "for V in «words»; do «block»; «leave»; run $V; done",
        "for ((J=0; J<3; J++)); do «block»; «leave»; run $J; done", "for V; do «block»; «leave»; done",
        "for ((J=1; J<=4; J+=2)); do run $J; «block»; done",
        "K=0; while [ $K -lt 3 ]; do K=$((K+1)); «leave»; «block»; done",
        "K=5; until (( K <= 3 )); do K=$((K-1)); «block»; «leave»; done",
        "for V in 1 2; do for W in a b; do [ $W = b ] && break 2; run $V$W; done; done",
        "for V in 1 2; do for W in a b; do [ $W = b ] && continue 2; run $V$W; done; done",
    ),
    "end": (";;", ";;", ";&", ";;&"),
    "case": (
        "case x in *) run c;; esac",
        "case «word» in «pattern») «block»«end» «pattern») «block»;; *) «block»;; esac",
        'case «word» in 7b|8) «block»«end» ("a*") «block»«end» *) «simple»;; esac',
    ),
    "function": (
        "f() { run f $1; }; f 1", "f() { «assignment»; run f $1 $# $B; return 1; }; f «words»; run $B",
        "f() { local B=5; «assignment»; run $B «word»; }; f «words»; run $B",
        "f() { if «condition»; then return 0; fi; return 1; }; if f «word»; then «block»; else «block»; fi",
        "f() { local N; B=2; shift; run f $1 «word»; }; f a b && run y; run $B $N",
        "f() ( A=6; run $A ); f | cat",
    ),
}  # fmt: skip
MARK = re.compile("«(\\w+)»")


def drawn(seed: int) -> str:
    """A script: assignments in any order, and a few statements."""
    random = Random(seed)

    def filled(text: str, deep: int) -> str:
        return MARK.sub(lambda found: one_of(found[1], deep + 1), text)

    def one_of(part: str, deep: int) -> str:
        every = GRAMMAR[part]
        some = every if deep < DEEPEST else [one for one in every if "«" not in one]
        return filled(random.choice(some), deep)

    start = random.sample(GRAMMAR["start"], len(GRAMMAR["start"]))
    body = ["«statement»"] * random.randint(1, 4)
    return filled("\n".join([*start, *body, "run «words»"]), 0)


def of_bash(text: str, folder: str) -> list[list[str]]:
    """The words of every ``run`` that bash comes to."""
    done = subprocess.run(
        ["bash", "--norc"], input=f"{RUN}{text}\n", capture_output=True, text=True, timeout=10, check=False,
        cwd=folder, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    return [part.split("\x1f")[:-1] for part in done.stdout.split("\x1d")[1:]]


RUN = "exec 9>&1\nshopt -s extglob\nrun() { { printf '\\x1d'; printf '%s\\x1f' run \"$@\"; } >&9; }\n"


def is_known(text: str, found: list[list[str]]) -> bool:
    """Whether the reader knows all words of all commands, and which of them are run."""
    doubtful = any(one in text for one in GRAMMAR["doubt"])
    return not doubtful and not any(UNKNOWN in word for words in found for word in words)


def main() -> None:
    kept, seen, known = list[list[object]](), set[object](), 0
    with TemporaryDirectory() as folder:
        for text in map(drawn, range(DRAWN)):
            measured = coverage.Coverage(branch=True, data_file=None, source=[str(SHELL)])
            measured.start()
            try:
                found = commands(text)
            finally:
                measured.stop()
            data = measured.get_data()
            arcs = {(file, arc) for file in data.measured_files() for arc in data.arcs(file) or ()}
            judged = isinstance(found, list) and is_known(text, found)
            if arcs <= seen and (not judged or known >= KEPT):
                continue
            if judged and of_bash(text, folder) != [words for words in found if words[0] == "run"]:
                print(f"--- read {found}\n--- bash {of_bash(text, folder)}\n{text}")
                continue
            kept.append([text, found])
            seen |= arcs
            known += judged
    write(kept)
    print(len(kept), known)


if __name__ == "__main__":
    main()
