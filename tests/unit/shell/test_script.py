"""What a launch script runs: the branch that a shell would take, or none that is guessed."""

from __future__ import annotations

import subprocess

import pytest

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.script import read_script
from meshwright.shell.values import UNKNOWN, unknown_value


def commands(text: str, **variables: str) -> list[str]:
    return [" ".join(word.text for word in words) for words in read_script(text, variables).commands]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('M=7\nif [ "$M" = 7 ]; then L=32; elif [ "$M" = 13 ]; then L=40; else L=80; fi\nrun $L', "run 32"),
        ("M=13b\ncase $M in 7b|8b) L=32;; 13*) L=40;; *) exit 1;; esac\nrun $L", "run 40"),
        ("[[ ${N:-8} -gt 4 ]] && X=big || X=small\nrun $X", "run big"),
        ("if [ $# -lt 2 ]; then A=usage; fi\nrun $A", "run usage"),
        ("go() { local T=$1; shift; run $T $@; }\ngo 4 a b", "run 4 a b"),
        ("A=()\nA+=(--x 1)\nif [ -n '' ]; then A+=(--y); fi\nrun ${A[@]}", "run --x 1"),
        ('O="--a 1"\nO+=" --b 2"\nrun $O', "run --a 1 --b 2"),
        ("N=4\nrun $N $(expr 4 \\* 8) $((N * 2))", "run 4 32 8"),
        ("F=a/b.t.gz\nrun ${F##*/} ${F%.gz} ${F/a/c} $(basename $F .gz)", "run b.t.gz a/b.t c/b.t.gz b.t"),
        ("if false; then run a; fi\nrun b", "run b"),
        ("exit 0\nrun a", ""),
        (": ${TP:=4}\nrun $TP", "run 4"),
    ],
)  # fmt: skip
def test_the_branch_that_a_shell_takes_is_read(text: str, seen: str) -> None:
    assert [one for one in commands(text) if one.startswith("run")][-1:] == ([seen] if seen else [])


def test_every_turn_of_a_loop_and_the_text_of_bash_c_are_read() -> None:
    assert commands("for x in a b; do run $x; done") == ["run a", "run b"]
    assert commands("for ((i=0;i<3;i++)); do run $i; done") == ["run 0", "run 1", "run 2"]
    for shell in ("bash -c", "bash -l -c", "/bin/bash -exc", "env X=1 sh -euo pipefail -c"):
        assert "torchrun t.py 8" in commands(f'N=8\nsrun {shell} "torchrun t.py $N"')
    assert "torchrun t.py 8" in commands("N=8\nsrun bash <<EOT\ntorchrun t.py $N\nEOT")
    name = "$(scontrol show hostnames | head -n 1)"  # which stays one word of what is not known
    text = f"H={name}\nsrun bash -c \"torchrun --master $H:29500 t.py --x '$H'\""
    unknown = f"{UNKNOWN}{name[:40]}{UNKNOWN}"
    assert f"torchrun --master {unknown}:29500 t.py --x {unknown}" in commands(text)


def test_a_container_has_the_variables_that_it_is_given() -> None:
    text = "docker run --gpus all -e KEY -e N=8 --env=M=4 img bash -c 'run $N $M'\necho $N"
    assert commands(text)[1:] == ["run 8 4", f"echo {UNKNOWN}N{UNKNOWN}"]


def test_a_file_next_to_the_script_is_put_in_by_cat() -> None:
    files = {"a.txt": "--x 1\n--y\n", "b.txt": "2\n"}
    for text in ("run $(cat conf/a.txt b.txt)", "cat > b.txt <<< 2\nrun $(<a.txt) $(cat b.txt)"):
        script = read_script(text, include=files.get)
        assert " ".join(word.text for word in script.commands[-1]) == "run --x 1 --y 2"
    assert UNKNOWN in "".join(word.text for word in read_script("run $(cat c.txt)").commands[0])


def test_a_file_that_the_script_writes_is_not_run_but_kept() -> None:
    script = read_script('Z=3\ncat <<EOT > dir/ds.json\n{"stage": $Z}\nrm -rf /\nEOT\nrun')
    assert script.files == {"ds.json": '{"stage": 3}\nrm -rf /\n'}
    assert read_script("echo 'a: 1' | tee b.yaml > c.yaml").files == {
        "b.yaml": "a: 1\n",
        "c.yaml": "a: 1\n",
    }
    assert [words[0].text for words in script.commands] == ["cat", "run"]


def test_a_file_that_a_python_program_writes_is_known_to_be_written() -> None:
    opened = "python -c \"open('a.yaml', 'w').write('x')\"\n"
    written = "python -c \"from pathlib import Path; Path('b.yaml').write_text('x')\"\nrun"
    assert [*read_script(opened + written).files] == ["a.yaml", "b.yaml"]


def test_what_hangs_on_a_file_is_in_doubt_and_what_both_branches_agree_on_is_not() -> None:
    script = read_script("A=1\nif [ -f x ]; then A=2; B=3; else A=4; B=3; fi\nrun $A $B")
    assert [word.text for word in script.commands[-1]] == ["run", f"{UNKNOWN}A@2{UNKNOWN}", "3"]


def test_variables_in_doubt_keep_their_order() -> None:
    names = [f"V{place}" for place in range(20)]  # faults name the first of them
    script = read_script(f"if [ -f x ]; then {'=1; '.join(names)}=1; fi\nrun")
    assert [name for name in script.words if name in names] == names


def test_a_value_in_doubt_is_refused_with_its_line_and_the_next_step() -> None:
    text = (
        "TP=1\nif [ -d /data ]; then\n TP=8\nfi\n"
        "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
        "--num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --vocab-size 512 "
        "--bf16 --tensor-model-parallel-size $TP\n"
    )
    with pytest.raises(InvalidProblemError, match=r"\$TP depends on a condition on line 2") as caught:
        read_launch_files(Source(name="a.sh", text=text), Overrides())
    assert "meshwright capture" in str(caught.value)
    found = read_launch_files(Source(name="a.sh", text=text), Overrides(variables={"TP": "4"}))
    assert found.configuration.tensor_parallel_size == 4
    assert any("TP is 4 (--var)" in note for note in found.notes)


@pytest.mark.parametrize(
    "text",
    [
        "run $(echo 0,1 | tr , ' ')",
        "run $(echo a b | awk '{print $2}')",
        "N=V; V=3; run ${!N}",
        "A=(1 2); run ${#A[@]}",
        "f() { echo 8; }; run $(f)",
        "X=0; [[ llama-13b =~ -([0-9]+)b ]] && X=1; run $X",
        "set -- -t 2; T=1; while getopts t: o; do T=$OPTARG; done; run $T",
    ],
)
def test_a_value_that_the_reader_does_not_compute_is_unknown(text: str) -> None:
    assert UNKNOWN in commands(text)[-1]


# One rule of bash(1) each; ``run`` prints its words. Nobody of bash's is shared with the reader.
_RULES = (
    "A=(1 2 3); A[0]=5; A[1]+=7; run ${A[1]} ${A[-1]}; unset A[1]; run ${A[@]}",
    'A=(1 2 3); run "${A[@]:1}" "${A[@]: -1}"; A=("${A[@]:1}"); run "${A[@]/#/--}" "x${A[@]}y"',
    "A=([1]=x [0]=y); run ${A[0]}; I=1; run ${A[I]} ${A[$I]} ${A[I-1]} $A",
    "declare -A S=([7b]=32 [13b]=40); S[1b]=16; K=13b; run ${S[$K]} ${S[1b]} ${S[none]:-0}",
    "declare -A S=([a]=one); run ${S[@]} ${S[@]/one/1} ${S[*]:-none} ${S[b]:-none} ${S:-none}",
    "S=(p q); for i in ${!S[@]}; do run $i ${S[i]}; done; declare -A T=([a]=1); run ${!T[@]}",
    "run --{a,b} x{1,2}y {01..3} {4..2..2} {a..c} {c..b} {a} '{a,b}'; for x in {1..3}; do run $x; done",
    "for x in 1 2 3; do if [ $x = 2 ]; then continue; fi; run $x; done",
    "for x in 1 2; do for y in a b; do [ $y = b ] && break 2; run $x$y; done; done",
    "i=0; while true; do i=$((i+1)); if [ $i -eq 4 ]; then break; fi; done; run $i",
    "X=a; N=0; case $X in a) L=1;& b) M=2;; c) N=3;; esac; run $L $M $N",
    "f() { local X=5 Z; Y=6; Z=7; }; X=1; Z=2; f; run $X $Y $Z",
    "f() { [ $1 = a ] && return 0; return 1; }; if f a; then run yes; fi; f b || run no",
    "f() { return 1; }; if f; then run yes; else run no; fi; g() { return 0; }; g || run never",
    "X=keep; if false; then for X in 1 2; do run no; done; fi; run $X",
    "a=3; b=2; ((a++)); ((a+=2)); let a=a*2; run $a $((a++)) $((--a)) $((a>b?a:0)) $((a**2/3))",
    "run $((-7/2)) $((-7%3)) $((0x10)) $((010)) $((1<<4)) $((6&3|8)) $((!0)) $((5>3 && 2<1)) $((10#08))",
    "for ((i=1; i<4; i++)); do if [ $i = 2 ]; then continue; fi; run $i; break; done; run end",
    '((a = 1 << 3)); run $a; X=x; run "${X: -2}" "${X: -1}"; A=(1 2); run "${A[@]: -3}"',
    "for ((i=1; i<=4; i*=2)); do run $i; done; declare -i N=3+4; run $N; N+=2*3; run $N; N=1+1; run $N",
    '[[ 10 < 9 ]] && run text; [[ ab == "a*" ]] || run quoted; X="a*"; [[ ab == $X ]] && run pattern',
    "X=a; [[ ( a = b ) || ! -z $X ]] && run or; [[ a = b ||\n -n $X ]] || run no",
    'A=(a "b c"); run "${A[*]}" "${A[@]}"; IFS=,; run "${A[*]}"',
    'IFS=,; X=1,2; run $X "$X"; for y in $X; do run $y; done',
    "A=1; A=2 run $A; run $A; B=3; B=4 run; run $B",
    'X=yes; run ${X:+--flag "$X"} ${Z:+--no} ${Z-} ${X:-${Z:-3}}',
    "X=a/b-c.d; run ${X//\\//-} ${X/%d/e} ${X/#a/z} ${X//[.-]/_} ${X%%-*} ${X^^} ${X: -3}",
    'X=a/b-c.d; run ${X:2:-2} ${X/b*/} "${X#"${X%%[!a]*}"}"; [[ $X == @(b*|a*) ]] && run either',
    "T=1; while getopts t:p: o; do case $o in t) T=$OPTARG;; esac; done; run $T $#",
    "run $(printf '%03d-%s' 7 a) $(seq 0 2 4)",
    "printf -v X '%d' 3; run $X $'a\\tb'",
    "X=$(cat <<EOF\n--a 1\n--b $((1+1))\nEOF\n); run $X",
    "X=a1; case $X in [z-a]*) run no;; [[:alpha:]]*) run ${X%%[[:digit:]]} ${X//[^[:digit:]]/};; esac",
    "f() { A=5; exit 1; }; A=1; f | cat; run $A; g() ( A=6; run $A ); g; run $A",
    'set -- a b; shift 0; run $1 "${@:-none}"; set --; run "${@:-none}"',
    "run $(echo 2^3 | bc) $(dirname /a)",
    "run $(printf '%s%d' 'a\\nb' 010) $(echo a -n)",
    'run "$@" --x "${@:2}" "${NONE[@]}"; run "" "x$@"; f() { run "$@" y; }; f "$@"; f ""',
    'N=8; run $[32/8] $[N*2] "x$[ (1+2) * N ]y"; X=$[N-1]; run $X',
    "run $(echo ' a=1 ; b=2' | sed -E 's/ *; */,/g; s/^ +//') $(echo a.b/c | sed 's|\\.b/|-|;s/C/d/I')",
    "run $(echo x=12 | sed -E 's/([a-z])=([0-9]+)/\\2\\1&/') $(echo a+b | sed 's/a+/c/;s/b\\{1\\}/[&]/')",
    "run $(echo a | sed 's/^/--/') $(printf 'a\\nb\\n' | sed 's/$/,/') $(echo 'a^b$' | sed 's/a^b$/c/')",
    "run $(echo 'a^b$c' | sed 's/a^b$c/d/') $(printf 'ab' | sed 's/b$/c/;s/\\(^a\\)/-\\1/')",
    "run $((1 || 0)) $((0 || 2)) $((0 || 0)) $((3 && 2)) $((3 && 0)) $((+5)) $((~5)) $((-5))",
    'X=$(cat <<-EOF\n\t--a 1\n\tEOF\n); run "$X"',
    "A=1; export A; run $A; declare B; B=2; declare B; run $B; f() { local A=3; }; f; run $A",
    "A=b/c; run ${A/} ${A//} ${A/#/x} ${A/b} ${A//\\//-}; B=QueRY; run ${B,} ${B,,} ${B^^}",
    "A='a*bcd'; run \"${A/\"a*\"b*/x}\" \"${A/\\*/x}\" \"${A/'*'*/y}\" \"${A/a*/z}\"",
    "run $(echo ' a   b ' | xargs) $(echo abc | sed 's/[^b]*$//') $(echo aXbX | sed -e s/X/1/ -e s/X/2/)",
)  # fmt: skip


def test_each_rule_of_the_shell_is_followed_as_bash_does() -> None:
    asked = "run() { printf '%s\\x1f' run \"$@\"; echo; }\n"
    asked += "".join(f"(\n{rule}\n)\nprintf '\\x1e\\n'\n" for rule in _RULES)
    done = subprocess.run(["bash"], input=asked, capture_output=True, text=True, check=True, timeout=20)
    said = [one.strip("\n").split("\x1f\n") for one in done.stdout.split("\x1e")[:-1]]
    for rule, lines in zip(_RULES, said, strict=True):
        words = [[word.text for word in some] for some in read_script(rule).commands]
        assert ["\x1f".join(some) for some in words if some[0] == "run"] == [
            line.removesuffix("\x1f") for line in lines if line
        ], rule


def test_what_only_a_program_knows_decides_no_branch() -> None:
    text = "A=1\nif nvidia-smi | check h200; then A=2; fi\nif mkdir -p d; then B=1; fi\nrun $A $B"
    assert [word.text for word in read_script(text).commands[-1]] == ["run", f"{UNKNOWN}A@2{UNKNOWN}", "1"]
    assert commands("run $(echo 5/2 | bc -l)") != ["run 2"]
    for word in ("$(hostname)", "$HOSTNAME"):  # *) was taken, as if the word were empty
        assert UNKNOWN in commands(f"case {word} in gpu*) N=8;; *) N=4;; esac; run $N")[-1]
    words = read_script("read X\nrun $((X*2))").commands[-1]
    assert [word.text for word in words] == ["run", f"{UNKNOWN}X{UNKNOWN}"]


@pytest.mark.parametrize(
    "loop",
    [
        "i=0; while [ $i -lt 100 ]; do i=$((i+1)); done",
        "for ((i=0; i<100; i++)); do :; done",
        "for i in {1..100}; do :; done",
    ],
)
def test_what_a_loop_of_many_turns_sets_is_in_doubt(loop: str) -> None:
    assert UNKNOWN in commands(f"{loop}; run $i")[-1]


def test_a_pattern_that_could_take_for_ever_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 3 brackets"):
        read_script(f"X={'a' * 3000}; run ${{X/{'?(a)' * 30}b/z}}")


@pytest.mark.parametrize(
    "program",
    [
        "sed 's/[[:alpha]/x/'",  # a class that does not end: searched for its end for ever
        "sed 's/[[:alpha/x/'",
        f"sed '{'s/a/aaaaaaaaaa/g;' * 12}'",
        f"sed '{'s/a/b/;' * 65}'",
        "sed 's/a*/x/g'",  # Python finds an empty match behind another one
        f"tr -d '{'a-z' * 100}'",
        "tr -d 'a-\U0010ffff'",  # a set of a million characters
    ],
)
def test_what_an_editor_might_never_finish_is_not_known(program: str) -> None:
    assert UNKNOWN in commands(f"run $(echo baaac | {program})")[-1]


def test_a_long_text_is_not_held_against_a_repetition() -> None:
    assert UNKNOWN in commands(f"run $(echo {'a' * 20_000} | sed 's/a*b/x/')")[-1]


# What one script hands to another.


SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16 "
)


@pytest.mark.parametrize(
    ("start", "sizes"),
    [
        ("export TP=8\nMBS=3\nbash train.sh 4", (8, 4)),  # MBS is not exported
        ("TP=4 sbatch train.sh 2", (4, 2)),
        ("sbatch --export=ALL,TP=2 train.sh", (2, 1)),
        ("export TP=8\n./train.sh", (8, 1)),
        ("TP=2\n./train.sh\nexport TP", (1, 1)),  # too late
        ("set -a\nTP=8\nset +a\nMBS=3\n./train.sh", (8, 1)),
        ("env TP=2 bash train.sh", (2, 1)),
        ("sbatch --export ALL,TP=2 train.sh", (2, 1)),
        ("export TP=2 MBS=4\nsbatch --export=MBS train.sh", (1, 4)),  # TP is not among them
        ("export -n TP\nsource train.sh 4", (1, 4)),
    ],
)
def test_what_a_script_hands_to_the_one_that_it_starts_counts(start: str, sizes: tuple[int, int]) -> None:
    # read as if it were started by hand: tp 1 and one sequence in every row
    train = (
        "TP=${TP:-1}\nMBS=${1:-${MBS:-1}}\ntorchrun --nproc_per_node 8 pretrain_gpt.py --vocab-size 512 "
        f"--micro-batch-size $MBS --global-batch-size 64 --tensor-model-parallel-size $TP {SIZES}\n"
    )
    found = read_launch_files(
        Source(name="a.sh", text=start + "\n", files={"a.sh": start, "train.sh": train}), Overrides()
    )
    config = found.configuration
    assert (config.tensor_parallel_size, config.micro_batch_size) == sizes


TRAIN = f"torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES pretrain_gpt.py --vocab-size 512 {SIZES}"


def test_a_job_hands_its_nodes_to_the_script_that_it_runs() -> None:
    start = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun bash train.sh\n"
    text = f"{TRAIN} --micro-batch-size 1\n"
    files = {"a.sh": start, "train.sh": text}
    found = read_launch_files(Source(name="a.sh", text=start, files=files), Overrides())
    assert found.configuration.num_gpus == 32  # 4 * 8; was refused


def test_a_job_of_another_size_than_its_header_says_is_refused() -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8\n{TRAIN} --micro-batch-size 1\n"
    same, other = "sbatch -N 2 train.sh\n", "sbatch -N 4 train.sh\n"
    files = {"train.sh": text}
    found = read_launch_files(Source(name="a.sh", text=same, files={"a.sh": same, **files}), Overrides())
    assert found.configuration.num_gpus == 16
    with pytest.raises(InvalidProblemError, match=r"line 1 of a\.sh gives sbatch --nodes"):
        read_launch_files(Source(name="a.sh", text=other, files={"a.sh": other, **files}), Overrides())


def test_a_script_that_starts_another_with_several_values_is_refused() -> None:
    train = f"torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size $1 --vocab-size 512 {SIZES}\n"
    start = "bash train.sh 1\nbash train.sh 2\n"
    with pytest.raises(InvalidProblemError, match=r"a.sh starts train.sh 2 times with different arg"):
        read_launch_files(
            Source(name="a.sh", text=start, files={"a.sh": start, "train.sh": train}), Overrides()
        )


def test_a_script_that_starts_two_others_which_train_otherwise_is_refused() -> None:
    train = f"torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --vocab-size 512 {SIZES}\n"
    start = "bash one.sh\nbash two.sh\n"
    files = {"a.sh": start, "one.sh": train, "two.sh": train.replace("-size 1", "-size 2")}
    with pytest.raises(InvalidProblemError, match=r"line 2 of a.sh starts two.sh, too, which trains"):
        read_launch_files(Source(name="a.sh", text=start, files=files), Overrides())
    same = read_launch_files(Source(name="a.sh", text=start, files={**files, "two.sh": train}), Overrides())
    assert same.configuration.micro_batch_size == 1


def test_what_nobody_reads_is_said_by_the_program_that_starts_or_the_file_that_is_missing() -> None:
    for text, says in (
        ("A=1\ntorchrun --nproc_per_node 8 my_train.py --a b\n", "line 2 starts my_train.py, which"),
        ("bash job.sh 3\n", r"^launch file: line 1 of a.sh: job.sh is not next to it[^;]*$"),
    ):
        with pytest.raises(InvalidProblemError, match=says):
            read_launch_files(Source(name="a.sh", text=text), Overrides())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('read TP PP <<< "4 8"\necho $TP $PP', ["4", "8"]),
        ("IFS=',' read -ra L <<< \"a,b,c\"\necho ${L[2]}", ["c"]),
        ('read FIRST REST <<< "a b c"\necho "$REST"', ["b c"]),
        ('read -r -d "" A <<< "one line"\necho "$A"', ["one line"]),
        # of an unset variable it would be one word, and one GPU
        ("IFS=',' read -ra L <<< \"$CUDA_VISIBLE_DEVICES\"\necho ${#L[@]}", [unknown_value("${#L[@]}")]),
        ("V=abcdef\necho ${V:1:3} ${V:4}", ["bcd", "ef"]),
        ("if [ ${BASH_VERSION:0:1} -lt 4 ]; then exit 1; fi\necho on", ["on"]),
    ],
)
def test_words_of_a_text_are_read_into_variables_and_cut(text: str, words: list[str]) -> None:
    assert [word.text for word in read_script(text).commands[-1]] == ["echo", *words]


def test_words_of_an_output_are_not_known() -> None:
    script = read_script('read A B <<< "$(head -n 1 hosts)"\necho "$A" "$B"')
    _, first, second = (word.text for word in script.commands[-1])
    assert first == unknown_value("$(head -n 1 hosts)")
    assert second in ("", first)


def test_told_arguments_of_a_script_are_counted() -> None:
    script = 'if [ "$#" -ne 2 ]; then exit 1; fi\necho $2 $@'
    assert [word.text for word in read_script(script, {"1": "a", "2": "b"}).commands[-1]] == [
        "echo", "b", "a", "b",
    ]  # fmt: skip
    assert read_script(script).stopped == 1


@pytest.mark.parametrize("use", ['"${A[@]}"', "$A"])
def test_a_list_that_an_unknown_condition_sets_may_be_either(use: str) -> None:
    script = read_script(f"A=(--a)\nif nvidia-smi | grep -q H100; then A=(--b); fi\necho {use}")
    either = [word.text.partition("=")[0] for word in script.commands[-1][1:]]
    assert either == ["--a", "--b"]
