"""Manifests of schedulers as the commands that their containers run, each in its line."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from meshwright.shell.manifests import Manifest, holds_manifest, manifest_of
from meshwright.shell.script import read_script

POD = """\
        spec:
          containers:
          - name: train
            image: our/image
            command: [torchrun, --nproc_per_node=8]
            args:
            - train.py
            - --size
            - "$(SIZE)"   # of our nodes
            env:
            - {name: SIZE, value: "4"}
            - name: TOKEN
              valueFrom: {secretKeyRef: {name: hf, key: token}}
            resources: {limits: {nvidia.com/gpu: 8}}
"""
OF_KINDS = {  # before the pod, the pods that run it
    "batch/v1\nkind: Job\nspec:\n    parallelism: 4\n    completions: 4\n    template:": 4,
    "kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  pytorchReplicaSpecs:\n    Worker:\n      replicas: 3\n"
    "      template:": 3,
    "batch.volcano.sh/v1alpha1\nkind: Job\nspec:\n    tasks:\n    - replicas: 2\n      template:": 2,
    "jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec:\n  replicatedJobs:\n  - replicas: 2\n    template:\n"
    "     spec:\n      parallelism: 3\n      template:": 6,
    "leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n      size: 5\n"
    "      workerTemplate:": 5,
    "v1\nkind: Pod\nx:": 1,
}


def read(text: str) -> Manifest:
    found = manifest_of(text)
    assert found is not None
    return found


def commands(found: Manifest) -> list[tuple[int, str]]:
    """The commands of a manifest, each with the line of its last word."""
    script = read_script(found.script, environment=dict(found.environment))
    return [(words[-1].line, " ".join(word.text for word in words)) for words in script.commands]


@pytest.mark.parametrize("head", OF_KINDS)
def test_the_pods_of_every_kind_are_its_nodes_and_keep_their_lines(head: str) -> None:
    text = f"apiVersion: {head}\n{POD}"
    found = read(text)
    assert (found.num_nodes, found.gpus_per_node) == (OF_KINDS[head], 8)
    last = text[: text.index("$(SIZE)")].count("\n") + 1
    assert commands(found) == [(last, "torchrun --nproc_per_node=8 train.py --size 4")]


def test_operators_set_what_torchrun_reads_without_options() -> None:
    specs = "".join(
        f"    {one}:\n      replicas: {count}\n      template:\n{POD}" for one, count in WORKERS
    )
    head = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec:\n  nprocPerNode: auto\n"
    found = read(f"{head}  pytorchReplicaSpecs:\n{specs}")
    assert found.environment.items() >= {("PET_NNODES", "4"), ("PET_NPROC_PER_NODE", "8"), ("SIZE", "4")}
    assert "TOKEN" not in found.environment
    assert len(commands(found)) == 1  # master and workers run the same
    trainer = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nspec:\n  trainer:\n    numNodes: 2\n"
        "    numProcPerNode: 4\n    command: [torchrun, train.py]\n"
    )
    assert read(trainer).environment == {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4", "WORLD_SIZE": "8"}


WORKERS = (("Master", 1), ("Worker", 3))


def test_the_text_of_a_shell_keeps_its_lines() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [/bin/bash, -exc]\n    args:\n"
        "    - |\n      N=8   # GPUs\n      torchrun --nproc_per_node $N \\\n"
        "        train.py --name $(NAME) $(date)\n    env: [{name: NAME, value: ours}]\n"
    )
    found = read(text)
    assert found.script.split("\n")[7:9] == ["N=8   # GPUs", "torchrun --nproc_per_node $N \\"]
    ((line, words),) = [one for one in commands(found) if "torchrun" in one[1]]
    assert (line, words.split()[:6]) == (
        10,
        ["torchrun", "--nproc_per_node", "8", "train.py", "--name", "ours"],
    )


SKY = """\
resources:
  accelerators: {H100: 4}
num_nodes: 2
envs: {MODEL: ours}
setup: pip install it
run: |
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE train.py --model $MODEL
"""
DSTACK = """\
type: task
nodes: 2
env: [MODEL=ours]
commands:
  - pip install it
  - torchrun --nnodes=$DSTACK_NODES_NUM --nproc_per_node=$DSTACK_GPUS_PER_NODE train.py --model $MODEL
resources: {gpu: "H100:80GB:4"}
"""
COMPOSE = """\
services:
  train:
    environment: {MODEL: ours}
    command: torchrun --nnodes=2 --nproc_per_node=4 train.py --model $MODEL
"""


@pytest.mark.parametrize("text", [SKY, DSTACK, COMPOSE])
def test_tasks_of_other_schedulers_are_read(text: str) -> None:
    ran = [words for _, words in commands(read(text)) if words.startswith("torchrun")]
    assert ran == ["torchrun --nnodes=2 --nproc_per_node=4 train.py --model ours"]


MEGATRON = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --bf16 --mock-data "
    "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 --vocab-size 50304 "
    "--tokenizer-type NullTokenizer --tensor-model-parallel-size"
)
APPLIED = f"""\
TP=4
cat <<EOF | kubectl apply -f -
apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 4
      template:
        spec:
          containers:
          - command: [torchrun, --nproc_per_node=8, pretrain_gpt.py]
            args: {MEGATRON.split()!r}
            resources: {{limits: {{nvidia.com/gpu: 8}}}}
EOF
""".replace("'--tensor-model-parallel-size'", "--tensor-model-parallel-size, '$TP'")


def launch(name: str, text: str, gpus: int = 32, files: Mapping[str, str] | None = None) -> LaunchFile:
    return read_launch_files(Source(name=name, text=text, files=files or {}), Overrides(num_gpus=gpus))


def test_what_kubectl_is_given_is_read_from_a_here_document_and_from_a_file() -> None:
    text = APPLIED.partition("-f -\n")[2].removesuffix("EOF\n").replace("$TP", "4")
    for name, script, files in (
        ("run.sh", APPLIED, {}),
        ("run.sh", APPLIED.replace("cat <<EOF | kubectl apply -f -", "kubectl create -f - <<EOF"), {}),
        (
            "run.sh",
            APPLIED.replace("| kubectl apply -f -", "> job.yaml") + "kubectl apply -f job.yaml\n",
            {},
        ),
        ("run.sh", "kubectl apply -f job.yaml\n", {"job.yaml": text}),
        ("job.yaml", text, {}),
    ):
        found = launch(name, script, files=files)
        assert (found.launcher, found.configuration.tensor_parallel_size) == ("megatron-lm", 4)
        assert (found.num_nodes, found.gpus_per_node) == (4, 8)


def test_files_of_config_maps_lie_beside_the_command() -> None:
    text = (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n"
        "      - command: [llamafactory-cli, train, /config/sft.yaml]\n"
        '        env: [{name: NPROC_PER_NODE, value: "8"}]\n---\napiVersion: v1\nkind: ConfigMap\n'
        "data:\n  sft.yaml: |\n"
        "    model_name_or_path: Qwen/Qwen3-8B\n    stage: sft\n    do_train: true\n    dataset: ours\n"
        "    template: qwen\n    cutoff_len: 2048\n    finetuning_type: lora\n    bf16: true\n"
        "    per_device_train_batch_size: 2\n    output_dir: out\n"
    )
    found = launch("job.yaml", text, 8)
    assert (found.workload.global_batch_size, found.workload.seq_length) == (16, 2048)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (POD.replace("our/image", "{{ .Values.image }}"), "line 6: a Helm template .*helm template"),
        (POD.replace("command", "x").replace("args", "y"), "no container has a command"),
        (POD.replace("- train.py", "- : ]"), "line 9: not YAML"),
        (POD.replace("- train.py", "- " + "[" * 9_000), "line 9: .* nested deeper than 100"),
    ],
)
def test_a_manifest_that_cannot_be_read_names_the_line(text: str, words: str) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        launch("job.yaml", f"apiVersion: v1\nkind: Pod\n{text.replace('        spec', 'spec')}")


HOSTILE = {  # and why it is refused; none: it is read
    "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}' if n else 'a'] * 9)}]\n" for n in range(40)): "aliases",
    "x: &x0 {b: 1}\n"
    + "".join(f"x{n}: &x{n} {{<<: *x{n - 1}, <<: *x{n - 1}}}\n" for n in range(1, 60)): "aliases",
    "a: &a " + "x" * 50_000 + "\nspec: {containers: [{command: [" + "*a, " * 9_000 + "]}]}\n": "aliases",
    "spec:\n" + "".join(f"{' ' * n}a:\n" for n in range(300)): "nested deeper",
    "spec:\n  " + "- " * 50_000 + "a\n": "nested deeper",
    "spec:\n  " + "? " * 50_000 + "a\n": "nested deeper",
    "spec: &a [*a]\n": "part of",
    "spec: {containers: [&a {<<: *a, command: [a]}]}\n": "part of",
    "spec:\n" + "  template: {}\n" * 12_000: "no container",
    f"spec: {{containers: [{{command: [a], resources: {{limits: {{x/gpu: '{'9' * 5_000}'}}}}}}]}}\n": "",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_manifest_ends_soon(text: str) -> None:
    fault = read(f"apiVersion: v1\nkind: Pod\n{text}containers: []\n").fault
    assert HOSTILE[text] in fault
    assert bool(fault) == bool(HOSTILE[text])


def test_commands_with_words_far_apart_keep_them() -> None:
    pods = "".join(f"- {{command: *a, args: [x{n}]}}\n" for n in range(600))
    found = read(f"apiVersion: v1\nkind: Pod\na: &a [torchrun]\ncontainers:\n{pods}")
    assert len(found.script) < 200_000  # characters
    assert commands(found)[-1] == (604, "torchrun x599")


def test_variables_of_variables_do_not_grow_without_bound() -> None:
    names = "".join(f"      - {{name: A{n}, value: {f'$(A{n - 1})' * 2}}}\n" for n in range(1, 60))
    env = f"    env:\n      - {{name: A0, value: x}}\n{names}"
    found = read(f"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - command: [a]\n{env}")
    assert found.environment["A3"] == "x" * 8
    assert sum(map(len, found.environment.values())) < 200_000  # characters


@pytest.mark.parametrize("lead", ["\n", " \n", "\r\n", "# a\n", "\t# a\r\n"])
def test_a_text_of_blank_lines_ends_soon(lead: str) -> None:
    assert not holds_manifest(lead * 1_000 + "!")
    assert holds_manifest(lead * 1_000 + "resources: {}\nrun: a\n")


@pytest.mark.parametrize(
    "text", ["", "run: 8\n", APPLIED, "apiVersion: v1\nkind: Service\nspec: {}\n", "services: {a: b}\n"]
)
def test_other_texts_are_no_manifests(text: str) -> None:
    assert not holds_manifest(text)
    assert manifest_of(text) is None
