"""Values of launch files are found where they are set, and edits leave every other byte alone."""

import pytest

from meshwright.launchers.editing.edits import Texts
from meshwright.launchers.editing.sites import sites_of

SCRIPT = """\
#!/bin/bash
TP=8   # --tensor-model-parallel-size 4 in a comment
PP="${PP:-2}"
: ${CP:=1}
ARGS=(
    --tensor-model-parallel-size $TP   # ours
    --sequence-parallel
    --pipeline-model-parallel-size ${PP}
)
OTHER="--micro-batch-size 1 --recompute-modules core_attn mlp \\
    --context-parallel-size=$CP"
torchrun pretrain_gpt.py "${ARGS[@]}" $OTHER \\
    --lr 3e-4 \\
    --bf16
"""
WRAPPED = 'sbatch -N 1 --wrap="torchrun pretrain_gpt.py --micro-batch-size 1 --bf16"\n'
TITAN = "torchrun -m torchtitan.train --config llama3_8b activation-checkpoint:full\n"
WRITTEN = "cat >a.yaml <<EOF\ntp: 8 # ranks\nEOF\ncat >a.toml <<EOF\ntensor = 8\nEOF\n"
COMMENTED = '// ours\n{\n "zero": {"stage": 3}, # all {\n "device": "a//b", /* "stage": 1 */\n}\n'
YAML = """\
# our run
tp: 8 # ranks
model:
  name: "a"   # quoted
fsdp: {stage: 3, offload: false}
last: true
"""
PODS = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - env:
    - name: TP
      value: "8"
    command: ["torchrun", "pretrain_gpt.py", "--bf16", "--micro-batch-size", "1", "--swiglu"]
    args:
    - --tensor-model-parallel-size
    - $(TP)
    - --recompute-granularity
    - full   # all of it
    - --pipeline-model-parallel-size=2
    - --sequence-parallel
    - train.py
"""
JSON = '{\n\t"micro": 1,\n\t"zero": {"stage": 3, "device": "none"},\n\t"fp16": false\n}\n'
TOML = '[parallelism]\ntensor = 8 # ranks\nmode = "full"\n\n[training]\nlocal = 1\n'
PYTHON = (
    'SIZE = 8\nconfig = Parallel(\n    tensor=SIZE,\n    mode="é",\n    local=1,\n)\nconfig.other = 2\n'
)


@pytest.mark.parametrize(
    ("file", "text", "name", "new", "old_line", "new_line"),
    [
        ("a.sh", SCRIPT, "tensor_model_parallel_size", "2", "TP=8   # --t", "TP=2   # --t"),
        ("a.sh", SCRIPT, "pipeline_model_parallel_size", "4", 'PP="${PP:-2}"', 'PP="${PP:-4}"'),
        ("a.sh", SCRIPT, "context_parallel_size", "2", ": ${CP:=1}", ": ${CP:=2}"),
        ("a.sh", SCRIPT, "micro_batch_size", "16", "size 1 --r", "size 16 --r"),
        ("a.sh", WRAPPED, "micro_batch_size", "2", "size 1 --b", "size 2 --b"),
        ("a.sh", TITAN, "activation_checkpoint.mode", "none", "t:full", "t:none"),
        ("a.sh", WRITTEN, "tp", "2", "tp: 8 # ranks", "tp: 2 # ranks"),
        ("a.sh", WRITTEN, "tensor", "2", "tensor = 8", "tensor = 2"),
        ("a.yaml", PODS, "tensor_model_parallel_size", "2", 'value: "8"', 'value: "2"'),
        ("a.yaml", PODS, "recompute_granularity", "none", "- full   #", "- none   #"),
        ("a.yaml", PODS, "pipeline_model_parallel_size", "4", "size=2", "size=4"),
        ("a.yaml", PODS, "micro_batch_size", "4", '"1", "--s', '"4", "--s'),
        ("a.json", COMMENTED, "zero.stage", "2", '"stage": 3', '"stage": 2'),
        ("a.json", COMMENTED, "device", "b", "a//b", "b"),
        ("a.yaml", YAML, "tp", "2", "tp: 8 # ranks", "tp: 2 # ranks"),
        ("a.yaml", YAML, "model.name", "b", 'name: "a"   #', 'name: "b"   #'),
        ("a.yaml", YAML, "fsdp.stage", "2", "{stage: 3, o", "{stage: 2, o"),
        ("a.json", JSON, "zero.stage", "2", '"stage": 3', '"stage": 2'),
        ("a.json", JSON, "zero.device", "cpu", '"device": "none"', '"device": "cpu"'),
        ("a.json", JSON, "fp16", "True", '"fp16": false', '"fp16": true'),
        ("a.toml", TOML, "parallelism.tensor", "4", "tensor = 8 # ranks", "tensor = 4 # ranks"),
        ("a.toml", TOML, "parallelism.mode", "none", 'mode = "full"', 'mode = "none"'),
        ("a.py", PYTHON, "parallelism.tensor", "2", "SIZE = 8", "SIZE = 2"),
        ("a.py", PYTHON, "local", "4", "local=1", "local=4"),
        ("a.py", PYTHON, "other", "4", "config.other = 2", "config.other = 4"),
    ],
)
def test_a_value_is_replaced_where_it_is_set(  # noqa: PLR0917 - a table
    file: str, text: str, name: str, new: str, old_line: str, new_line: str
) -> None:
    texts = Texts({file: text})
    edits = next(texts.replaced(*texts.named(name)[0], new))
    assert texts.edited(edits) == {file: text.replace(old_line, new_line)}


@pytest.mark.parametrize(
    ("file", "text", "name", "old", "new"),
    [
        ("a.sh", SCRIPT, "sequence_parallel", "    --sequence-parallel\n", ""),
        ("a.sh", SCRIPT, "lr", "    --lr 3e-4 \\\n", ""),
        ("a.sh", SCRIPT, "bf16", "3e-4 \\\n    --bf16\n", "3e-4\n"),
        ("a.sh", SCRIPT, "micro_batch_size", "--micro-batch-size 1 --r", "--r"),
        ("a.yaml", YAML, "last", "last: true\n", ""),
        (
            "a.yaml",
            PODS,
            "recompute_granularity",
            "    - --recompute-granularity\n    - full   # all of it\n",
            "",
        ),
        ("a.yaml", PODS, "pipeline_model_parallel_size", "    - --pipeline-model-parallel-size=2\n", ""),
        ("a.yaml", PODS, "micro_batch_size", '"--micro-batch-size", "1", ', ""),
        ("a.yaml", PODS, "swiglu", ', "--swiglu"]', "]"),
        ("a.yaml", PODS, "bf16", '"--bf16", ', ""),
        ("a.json", JSON, "micro", '"micro": 1,\n\t', ""),
        ("a.json", JSON, "fp16", ',\n\t"fp16": false', ""),
        ("a.toml", TOML, "training.local", "local = 1\n", ""),
    ],
)
def test_a_value_is_removed_with_its_name(file: str, text: str, name: str, old: str, new: str) -> None:
    texts = Texts({file: text})
    edits = next(texts.removed(*texts.named(name)[0]))
    assert texts.edited(edits) == {file: text.replace(old, new)}


@pytest.mark.parametrize(
    ("file", "text", "anchor", "name", "value", "old", "new"),
    [
        ("a.sh", SCRIPT, "tensor_model_parallel_size", "tp_comm_overlap", None,
         "$TP   # ours\n", "$TP   # ours\n    --tp-comm-overlap\n"),
        ("a.sh", SCRIPT, "lr", "new_size", "4", "3e-4 \\\n", "3e-4 \\\n    --new-size 4 \\\n"),
        ("a.sh", SCRIPT, "micro_batch_size", "new_size", "4", "size 1 --r", "size 1 --new-size 4 --r"),
        ("a.yaml", YAML, "model.name", "model.new", "4", "# quoted\n", "# quoted\n  new: 4\n"),
        ("a.yaml", PODS, "recompute_granularity", "new_size", "4", "of it\n",
         'of it\n    - --new-size\n    - "4"\n'),
        ("a.yaml", PODS, "pipeline_model_parallel_size", "new", "4", "=2\n", "=2\n    - --new=4\n"),
        ("a.yaml", PODS, "micro_batch_size", "new", None, '"1", ', '"1", "--new", '),
        ("a.json", JSON, "zero.stage", "zero.new", "true", "3, ", '3, "new": true, '),
        ("a.json", JSON, "micro", "new", "x", "1,\n", '1,\n\t"new": "x",\n'),
        ("a.toml", TOML, "parallelism.mode", "parallelism.new", "4", '"full"\n', '"full"\nnew = 4\n'),
        ("a.py", PYTHON, "local", "new", "true", "local=1", "local=1,\n    new=True"),
    ],
)  # fmt: skip
def test_a_value_is_added_next_to_its_neighbour(  # noqa: PLR0917 - a table
    file: str, text: str, anchor: str, name: str, value: str | None, old: str, new: str
) -> None:
    texts = Texts({file: text})
    edits = next(texts.added(texts.named(anchor)[0], name, value))
    assert texts.edited(edits) == {file: text.replace(old, new)}


def test_a_value_that_a_program_hands_on_is_replaced_in_its_command() -> None:
    program = (
        "p.add_argument('--batch', default=2)\nTrainingArguments(per_device_train_batch_size=args.batch)\n"
    )
    texts = Texts({"a.sh": "train.py --batch 4\n", "train.py": program})
    ways = texts.replaced(*texts.named("per_device_train_batch_size")[0], "8")
    edited = [texts.edited(edits) for edits in ways]
    assert {"a.sh": "train.py --batch 8\n"} in edited
    assert {"train.py": program.replace("default=2", "default=8")} in edited
    assert {"train.py": program.replace("args.batch", "8")} in edited


def test_values_in_comments_and_computed_ones_are_no_literals() -> None:
    texts = Texts({"a.sh": "A=$((4 * 2))\n# --x 3\nrun --x $A --y $(date)\n"})
    assert [(file, site.line) for file, site in texts.named("x")] == [("a.sh", 3)]
    assert texts.literals(*texts.named("x")[0]) == []
    assert texts.literals(*texts.named("y")[0]) == []


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.toml", "a.py", "a.sh"])
def test_a_file_that_cannot_be_parsed_has_no_values(name: str) -> None:
    assert sites_of(name, "{[(\x07 = :\n") == []


def test_a_line_of_comment_signs_is_read_at_once() -> None:
    """It takes no second per sign, as patterns do that may cut it at every blank."""
    assert [site.name for site in sites_of("a.yaml", f"{'# ' * 200}\na: 1\n")] == ["a"]
    assert [site.name for site in sites_of("a.json", f'{"// " * 200}\n/* b */ {{"a": 1}}\n')] == ["a"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("run --d \\\n    --a full --b 1\nls\n", "run --d\nls\n"),
        ("run --d \\\n    --a full --b 1 \\\n  --e\n", "run --d \\\n  --e\n"),
        ("X=(\n    --a full --b 1\n)\n", "X=(\n)\n"),
        ("X=(\n    --a full --b 1 --c\n)\n", "X=(\n    --c\n)\n"),
        ("run --a full --b 1 --c\n", "run --c\n"),
    ],
)
def test_a_line_with_nothing_left_goes(text: str, left: str) -> None:
    texts = Texts({"a.sh": text})
    edits = [edit for name in ("a", "b") for edit in next(texts.removed(*texts.named(name)[0]))]
    assert texts.edited(edits) == {"a.sh": left}


def test_neighbours_on_a_line_are_removed_together() -> None:
    text = 'X="--d \\\n    --a full --b 1"\n'
    texts = Texts({"a.sh": text})
    edits = [edit for name in ("a", "b") for edit in next(texts.removed(*texts.named(name)[0]))]
    assert texts.edited(edits) == {"a.sh": 'X="--d"\n'}


def test_two_edits_of_one_place_are_refused() -> None:
    texts = Texts({"a.yaml": YAML})
    first, second = (next(texts.replaced(*texts.named("tp")[0], one)) for one in ("1", "2"))
    assert texts.edited([*first, *second]) is None
