"""What a launch script runs: the branch that a shell would take, or none that is guessed."""

from __future__ import annotations

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.launchers.reading.base import Source, Told
from meshwright.service.launchers.reading.registry import read_launch_files
from meshwright.service.launchers.reading.shell import read_script
from meshwright.service.launchers.reading.shell_values import UNKNOWN


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
        ("N=$(echo 0,1,2,3 | tr ',' '\\n' | wc -l)\nrun $N $(expr 4 \\* 8) $((N * 2))", "run 4 32 8"),
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
    assert commands("for ((i=0;i<3;i++)); do run; done") == ["run"]
    assert "torchrun t.py 8" in commands('N=8\nsrun bash -c "torchrun t.py $N"')


def test_a_file_that_the_script_writes_is_not_run_but_kept() -> None:
    script = read_script('Z=3\ncat <<EOT > dir/ds.json\n{"stage": $Z}\nrm -rf /\nEOT\nrun')
    assert script.files == {"ds.json": '{"stage": 3}\nrm -rf /\n'}
    assert [words[0].text for words in script.commands] == ["cat", "run"]


def test_what_hangs_on_a_file_is_in_doubt_and_what_both_branches_agree_on_is_not() -> None:
    script = read_script("A=1\nif [ -f x ]; then A=2; B=3; else A=4; B=3; fi\nrun $A $B")
    assert [word.text for word in script.commands[-1]] == ["run", f"{UNKNOWN}A@2{UNKNOWN}", "3"]


def test_a_value_in_doubt_is_refused_with_its_line_and_the_next_step() -> None:
    text = (
        "TP=1\nif [ -d /data ]; then\n TP=8\nfi\n"
        "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
        "--num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 --vocab-size 512 "
        "--bf16 --tensor-model-parallel-size $TP\n"
    )
    with pytest.raises(InvalidProblemError, match=r"\$TP hangs on a condition of line 2") as caught:
        read_launch_files(Source(name="a.sh", text=text), Told())
    assert "meshwright capture" in str(caught.value)
    found = read_launch_files(Source(name="a.sh", text=text), Told(variables={"TP": "4"}))
    assert found.configuration.tensor_parallel_size == 4
    assert any("TP is 4 (--var)" in note for note in found.notes)
