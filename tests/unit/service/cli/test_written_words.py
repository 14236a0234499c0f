"""Options once, numbers with their units, words in any case, and hardware in one of several ways."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.service.cli.main import app
from meshwright.service.cli.options import read_request
from meshwright.service.cli.terminal import report_usage
from meshwright.service.files import check_folder
from meshwright.service.requests.assignments import long_names
from meshwright.service.requests.fields import OPTIONS
from meshwright.service.requests.numbers import written_out
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.schema import listed_values, with_usual_words
from tests.served.commands import commands, leaves

# --------------------------------------------------------------------------------------------------
# Each option once.


def _values(option: Any) -> list[str]:  # noqa: ANN401 - of Typer
    return [] if option.is_flag else ["1"] * option.nargs


@pytest.mark.parametrize("path", [path for path, _ in leaves()])
def test_every_option_of_one_value_is_refused_the_second_time(path: str) -> None:
    command = dict(leaves())[path]
    options = [one for one in command.params if one.param_type_name == "option"]
    for option in options:
        once = [option.opts[-1], *_values(option)]
        words = [*path.split(), *once, *once]
        if option.multiple or option.is_eager:
            continue
        with pytest.raises(TyperException, match="is given twice") as refused:
            commands().main(words, prog_name="meshwright", standalone_mode=False)
        assert option.opts[-1] in str(refused.value)


def test_options_that_repeat_are_taken_as_often_as_they_are_given() -> None:
    request = read_request(pin=["tp=8", "pp=4"], lora_target=["q_proj", "v_proj"], lora_rank=8)
    assert request["search"] == {"pin": {"tensor_parallel_size": 8, "pipeline_parallel_size": 4}}


def test_a_second_cluster_is_told_how_nodes_of_two_kinds_are_stated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ["plan", "--cluster", "dgx-h100", "--cluster=dgx-a100"]
    with pytest.raises(TyperException) as refused:
        app(typed, prog_name="meshwright", standalone_mode=False)
    assert report_usage(refused.value, commands(), typed) == 2
    assert capsys.readouterr().err == (
        "error: --cluster is given twice. For nodes of two kinds: --nodes 2xdgx-h100,4xdgx-a100.\n"
        "tip: meshwright plan --nodes 1xdgx-h100,1xdgx-a100\n"
    )


def test_of_two_numbers_of_nodes_with_a_range_the_last_one_is_pasted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ["plan", "--num-nodes", "5", "--num-nodes", "1:5"]
    with pytest.raises(TyperException) as refused:
        app(typed, prog_name="meshwright", standalone_mode=False)
    assert report_usage(refused.value, commands(), typed) == 2
    assert capsys.readouterr().err.endswith("\ntip: meshwright plan --num-nodes 1:5\n")


@pytest.mark.parametrize(("option", "values", "several"), [
    ("--global-batch-size", ("7", "6"), "7,6"),
    ("--launcher", ("trl", "torchtitan"), "any"),
])  # fmt: skip
def test_a_change_typed_behind_its_command_is_pasted_alone_or_among_several(
    option: str, values: tuple[str, str], several: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["plan", *(word for value in values for word in (option, value))]
    with pytest.raises(TyperException) as refused:
        app(typed, prog_name="meshwright", standalone_mode=False)
    assert report_usage(refused.value, commands(), typed) == 2
    tips = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tip: ")]
    assert tips == [f"tip: meshwright plan {option} {value}" for value in (values[-1], several)]


# --------------------------------------------------------------------------------------------------
# Numbers.


@pytest.mark.parametrize(
    ("option", "typed", "value"),
    [
        ("seq_length", "8k", "8192"),
        ("seq_length", "8K context", "8192"),
        ("seq_length", "4096 tokens", "4096"),
        ("seq_length", "128K", "131072"),
        ("seq_length", "1M", "1048576"),
        ("seq_length", "8_192", "8192"),
        ("seq_length", "1e4", "10000"),
        ("steps_total", "100k", "100000"),
        ("total_tokens", "15T", "15000000000000"),
        ("total_tokens", "1T tokens", "1000000000000"),
        ("total_tokens", "1 trillion", "1000000000000"),
        ("total_tokens", "300bn", "300000000000"),
        ("deadline_days", "30 days", "30"),
        ("deadline_days", "2 weeks", "14"),
        ("deadline_days", "3 months", "3 months"),  # of 28 to 31 days
        ("total_tokens", "1.5B", "1500000000"),
        ("total_tokens", "15e12", "15000000000000"),
        ("max_oom_probability", "5%", "0.05"),
        ("tolerance", "2 %", "0.02"),
        ("time_limit_s", "1m", "60"),
        ("deadline_s", "1.5h", "5400"),
        ("deadline_days", "2w", "14"),
        ("deadline_days", "36h", "1.5"),
        ("budget_gpu_minutes", "2h", "120"),
        ("max_power_kw", "1MW", "1000"),
    ],
)
def test_a_number_is_taken_with_its_unit(option: str, typed: str, value: str) -> None:
    whole = option in {"seq_length", "steps_total"}
    assert written_out(option, typed, whole=whole) == value


@pytest.mark.parametrize(
    "typed", ["", "k", "8kk", "8 k b", "1m", ".", "0x10", "1e999", "-8k", "nan", "9" * 99]
)
def test_other_words_are_left_to_the_options_own_error(typed: str) -> None:
    assert written_out("deadline_days", typed, whole=False) == typed


@pytest.mark.parametrize(
    ("given", "batch", "length"),
    [
        ({"global_batch_size": "512x8192"}, 512, 8192),
        ({"global_batch_size": "8 × 4k"}, 8, 4096),
        ({"global_batch_size": "2k", "seq_length": 512}, 2048, 512),
        ({"global_batch_size": "4M", "seq_length": 8192}, 512, 8192),  # 4 × 1024² / 8192
        ({"global_batch_size": "4M", "seq_length": 5000}, 800, 5000),  # 4 × 10⁶ / 5000
        ({"global_batch_size": "512k tokens", "seq_length": 4096}, 128, 4096),
        ({"global_batch_size": "2M,4M", "seq_length": 8192}, [256, 512], 8192),
        ({"global_batch_size": "256:512", "seq_length": 8192}, {"min": 256, "max": 512}, 8192),
    ],
)
def test_a_batch_is_stated_in_sequences_tokens_or_with_their_length(
    given: Mapping[str, Any], batch: object, length: int
) -> None:
    assert read_request(**given)["workload"] == {"global_batch_size": batch, "seq_length": length}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"global_batch_size": "4M"}, "so the sequence length is required"),
        (
            {"global_batch_size": "4M", "seq_length": 6000},
            "fill whole sequences of 6000.*Nearest: 699 or 700",
        ),
        ({"global_batch_size": "8x4096", "seq_length": 8192}, "with --seq-length 8192"),
        ({"num_nodes": "32 gpus"}, "Nearest: --num-gpus 32"),
    ],
)
def test_a_batch_or_count_that_cannot_be_meant_says_what_can(given: Mapping[str, Any], why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read_request(**given)


def test_several_sizes_in_one_word_are_several_sizes() -> None:
    search = read_request(pin=["tp=8,pp=4", "stage_layers=4,3"], forbid=["mbs=3,5,tp=2"])["search"]
    assert search == {
        "pin": {"tensor_parallel_size": 8, "pipeline_parallel_size": 4, "stage_layers": [4, 3]},
        "forbid": {"micro_batch_size": [3, 5], "tensor_parallel_size": [2]},
    }


# --------------------------------------------------------------------------------------------------
# Hardware.


@pytest.mark.parametrize(
    ("given", "cluster"),
    [
        ({"gpus": "64xH100"}, {"gpu": "H100", "num_gpus": 64}),
        ({"gpu": "8xH100"}, {"gpu": "H100", "num_gpus": 8}),
        ({"gpus": "16xH100", "num_nodes": "4"}, {"gpu": "H100", "num_gpus": 16, "num_nodes": 4}),
        ({"gpu": "h100", "num_gpus": 4}, {"groups": [{"gpu": "h100", "num_gpus": 4}]}),
        ({"gpu": "h100", "gpus": "4"}, {"groups": [{"gpu": "h100", "num_gpus": 4}]}),
        ({"nodes": "2xh100"}, {"gpu": "h100", "num_nodes": 2}),
        ({"nodes": "4", "cluster": "dgx-h100"}, {"name": "dgx-h100", "num_nodes": 4}),
        ({"nodes": "2xdgx-h100"}, {"name": "dgx-h100", "num_nodes": 2}),
        ({"cluster": "h100"}, {"gpu": "h100", "num_nodes": 1}),
        ({"cluster": "h100", "num_nodes": "2:4"}, {"gpu": "h100", "num_nodes": {"min": 2, "max": 4}}),
        ({"cluster": "dgx-h100", "num_gpus": 64}, {"name": "dgx-h100", "num_gpus": 64}),
        ({"cluster": "p5.48xlarge"}, {"name": "p5.48xlarge"}),
    ],
)
def test_hardware_is_stated_in_one_of_several_ways(given: Mapping[str, Any], cluster: object) -> None:
    assert read_request(**given)["cluster"] == cluster


def test_all_and_fewest_still_say_how_many_gpus_a_plan_uses() -> None:
    request = read_request(gpu="h100", gpus="Fewest", num_nodes="1:4")
    assert request["search"] == {"gpus": "fewest"}
    with pytest.raises(InvalidProblemError, match="--gpus 64xH100"):
        read_request(gpus="fewest", searches=False)
    assert read_request(gpus="2xL4", searches=False)["cluster"] == {"gpu": "L4", "num_gpus": 2}


def test_nodes_of_two_kinds_are_two_groups_with_their_own_links() -> None:
    cluster: Any = read_request(nodes="2xdgx-h100,4xdgx-a100")["cluster"]
    assert [(one["gpu"], one["num_nodes"]) for one in cluster["groups"]] == [
        ("h100-sxm-80gb", 2),
        ("a100-sxm-80gb", 4),
    ]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gpus": "8xH100", "cluster": "dgx-h100"}, "--cluster and --gpus both describe the cluster"),
        ({"nodes": "2xdgx-h100", "gpu": "h100"}, "--gpu and --nodes both describe the cluster"),
        ({"gpus": "8", "gpu": "h100", "num_gpus": 4}, "--num-gpus means the same"),
        ({"gpus": "H100"}, "has no number of GPUs.*Nearest: 8xH100"),
        ({"gpus": "4090"}, "has no number of GPUs.*Nearest: 1x4090"),  # and not so many of an unknown type
        ({"gpus": "2xdgx-h100"}, "is a node, not a GPU type. Nearest: --nodes 2xdgx-h100"),
        ({"gpu": "h100,a100"}, "--nodes 1xh100,1xa100"),
        ({"gpus": "8xM3 Max"}, "--gpus: .*Apple GPUs are not supported"),
        (
            {"gpus": "2x4xh100", "num_nodes": "3"},
            "--num-nodes: 3 contradicts --gpus 2x4xh100, which states 2 nodes",
        ),
        (
            {"gpus": "2x4xh100", "gpus_per_node": 8},
            "--gpus-per-node: 8 contradicts .* states 4 GPUs a node",
        ),
        ({"nodes": "2xh100", "num_nodes": "2,4"}, "--num-nodes: 2,4 contradicts --nodes 2xh100"),
        ({"cluster": "2xdgx-h100", "num_nodes": "1"}, "--num-nodes: 1 contradicts --cluster 2xdgx-h100"),
        ({"cluster": "16xH100", "gpus": "4"}, "--num-gpus: 4 contradicts --cluster 16xH100"),
        ({"gpus": "8xh100,8xa100", "num_nodes": "2"}, "--num-nodes: 2 contradicts .* several groups"),
    ],
)
def test_hardware_that_is_stated_twice_or_wrongly_is_refused(given: Mapping[str, Any], why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read_request(**given)


COUNTS_STATED: Mapping[str, tuple[str | None, ...]] = {
    "hardware": ("gpu h100", "gpus 4xh100", "gpus 16xh100", "gpus 2x4xh100", "nodes 2xh100", "cluster h100",
                 "cluster dgx-h100", "cluster 2xdgx-h100", "cluster 16xh100", "cluster g6.12xlarge"),
    "num_gpus": (None, "4", "12", "16"),
    "num_nodes": (None, "1", "2", "4"),
    "gpus_per_node": (None, "4", "8"),
}  # fmt: skip
WORDS_OF_COUNTS = {
    "gpus 4xh100": {"num_gpus": 4}, "gpus 16xh100": {"num_gpus": 16}, "cluster 16xh100": {"num_gpus": 16},
    "gpus 2x4xh100": {"num_nodes": 2, "gpus_per_node": 4}, "nodes 2xh100": {"num_nodes": 2},
    "cluster 2xdgx-h100": {"num_nodes": 2},
}  # fmt: skip


def test_every_number_of_gpus_or_nodes_is_true_of_the_cluster_or_refused() -> None:
    answered, refusals = 0, set[str]()
    for hardware, *numbers in product(*COUNTS_STATED.values()):
        names = ("num_gpus", "num_nodes", "gpus_per_node")
        stated = {name: int(text) for name, text in zip(names, numbers, strict=True) if text}
        option, words = str(hardware).split()
        given: dict[str, Any] = {option: words, **stated}
        if "num_nodes" in stated:
            given["num_nodes"] = str(stated["num_nodes"])
        try:
            cluster = cluster_from_mapping(read_request(**given)["cluster"])
        except InvalidProblemError as refused:
            refusals.update(
                one.pointer.rpartition("/")[2].strip("-").replace("-", "_") for one in refused.errors
            )
            continue
        (group,) = cluster.groups
        found = {
            "num_gpus": cluster.num_gpus,
            "num_nodes": group.num_nodes,
            "gpus_per_node": group.gpus_per_node,
        }
        for one in (stated, WORDS_OF_COUNTS.get(str(hardware), {})):
            assert one.items() <= found.items(), given
        answered += 1
    assert refusals == {"num_gpus", "num_nodes", "gpus_per_node"}, "a refusal names what contradicts"
    assert answered > 60, "most combinations without a contradiction have an answer"


def test_several_numbers_of_nodes_are_not_asked_of_a_number_of_gpus() -> None:
    request = read_request(gpus="16xH100", num_nodes="2,4")
    with pytest.raises(InvalidProblemError, match="16 GPUs are one cluster, not several numbers of nodes"):
        parse_problem({"model": "gpt2", "workload": WORKLOAD, **request})


def test_a_number_of_gpus_takes_the_place_of_a_files_number_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text('{"cluster": {"name": "dgx-h100", "num_nodes": 4}}')
    assert read_request(path, num_gpus=16)["cluster"] == {"name": "dgx-h100", "num_gpus": 16}
    path.write_text('{"cluster": {"gpu": "h100", "num_nodes": 4, "gpus_per_node": 16}}')
    part_of_a_node = read_request(path, num_gpus=12)["cluster"]
    assert part_of_a_node == {"gpu": "h100", "num_gpus": 12, "gpus_per_node": 12}
    assert cluster_from_mapping(part_of_a_node).num_nodes == 1


# --------------------------------------------------------------------------------------------------
# Words, the model as argument, and the folder.


WORKLOAD = {"global_batch_size": 8, "seq_length": 512}


@pytest.mark.parametrize(
    ("field", "written", "meant"),
    [
        ("precision", "BF16", "bf16"),
        ("precision", "torch.bfloat16", "bf16"),
        ("precision", "float16", "fp16"),
        ("precision", "FP8", "fp8"),
        ("optimizer", "AdamW_BF16", "adamw-bf16"),
    ],
)
def test_words_are_taken_as_torch_and_people_write_them(field: str, written: str, meant: str) -> None:
    raw = {
        "model": "llama-2-7b",
        "cluster": {"name": "dgx-h100"},
        "workload": {**WORKLOAD, field: written},
        "launcher": "Megatron_LM",
    }
    problem = parse_problem(raw)
    assert getattr(problem.workload, field) == meant
    assert problem.launcher == "megatron-lm"


LISTS = {
    "launcher": [], "objective": ["search"], "allow": ["search"], "certify": ["search"], "gpus": ["search"],
    "optimizer": ["workload"], "lora_targets": ["workload"], "base_precision": ["workload"],
    "trained_modules": ["workload"], "frozen": ["workload"], "sample": ["workload"],
    "reference": ["workload"],
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_every_word_of_a_closed_list_is_read_in_any_case(name: str) -> None:
    for word in listed_values(name):
        for written in (word.upper(), word.replace("_", "-"), word.replace("-", "_").title()):
            raw: Any = {name: written}
            read: Any = with_usual_words(dict.fromkeys(LISTS[name], raw) or raw)
            for one in LISTS[name]:
                read = read[one]
            assert read == {name: word}


def test_variables_and_their_words_are_read_in_any_case() -> None:
    pin = {"TP": 2, "Pipeline-Parallel-Size": 2, "Recompute": "FULL"}
    raw = {"model": "llama-2-7b", "cluster": "dgx-h100", "workload": WORKLOAD, "search": {"pin": pin}}
    found = parse_problem(raw).options.pin
    assert found == {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "recompute_granularity": "full"
    }  # fmt: skip
    assert long_names("TP * Cp <= 8") == "tensor_parallel_size * context_parallel_size <= 8"
    twice = {**raw, "search": {"pin": {"TP": 2, "tp": 2}}}
    with pytest.raises(InvalidProblemError, match="tp is tensor_parallel_size, which is given too"):
        parse_problem(twice)


@pytest.mark.parametrize(
    ("change", "pointer", "nearest"),
    [
        ({"workload": {**WORKLOAD, "precision": "BF61"}}, "/workload/precision", "bf16"),
        ({"workload": {**WORKLOAD, "precision": 16}}, "/workload/precision", None),
        ({"workload": {**WORKLOAD, "seq_length": "4k"}}, "/workload/seq_length", "4096"),
        ({"launcher": "fsdp"}, "/launcher", "torchtitan"),
        ({"launcher": "Ray"}, "/launcher", "megatron-lm"),
        ({"launcher": "HF_Trainer"}, "/launcher", "accelerate"),
        ({"launcher": 7}, "/launcher", None),
        ({"cluster": "64xH100 40GB"}, "/cluster/name", None),
        ({"cluster": {"gpu": "h100", "num_gpus": "8"}}, "/cluster/num_gpus", "8"),
    ],
)
def test_other_words_are_refused_with_the_nearest(
    change: Mapping[str, object], pointer: str, nearest: str | None
) -> None:
    raw = {"model": "llama-2-7b", "cluster": "dgx-h100", "workload": WORKLOAD, **change}
    with pytest.raises(InvalidProblemError) as refused:
        parse_problem(raw)
    (error,) = refused.value.errors
    assert (error.pointer, error.nearest) == (pointer, nearest)
    assert error.allowed or "must be text" in error.message


def test_the_argument_is_a_model_or_a_problem_file(tmp_path: Path) -> None:
    assert read_request("llama-3.1-8b")["model"] == {"name": "llama-3.1-8b"}
    assert read_request("Qwen/Qwen3-8B")["model"] == {"name": "Qwen/Qwen3-8B"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "_name_or_path": "mine"}))
    assert read_request(str(tmp_path))["model"] == read_request(str(tmp_path / "config.json"))["model"]
    problem = tmp_path / "problem.json"
    problem.write_text('{"model": {"name": "llama-2-7b"}}')
    assert read_request(str(problem))["model"] == {"name": "llama-2-7b"}
    assert read_request("mine", stored=True)["model"] == {"name": "mine"}  # of a service


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("lama-3.1-8b", "no such file, and no such model: .*llama-3.1-8b.*a problem file"),
        ("missing.json", "no file missing.json, and no model of that name.*a model"),
        ("/data/Qwen2.5-7B-Instruct", "no file .*Nearest: qwen2.5-7b"),  # on the machine that trains it
        ("bert-base-uncased", "an encoder: .*a shape with causal: false"),
        ("train.sh", "is a script.*--from-capture.*--from-args train.sh"),
        ("x" * 5000, "no model of that name"),
    ],
)
def test_an_argument_that_is_neither_says_both_ways(argument: str, why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        read_request(argument)
    with pytest.raises(InvalidProblemError, match="the model is given twice"):
        read_request("llama-2-7b", model="llama-3.1-8b")


def test_a_folder_that_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="/proc/x"):  # also as root, who may write everywhere else
        check_folder(Path("/proc/x"), force=False)
    check_folder(tmp_path / "new", force=False)
    assert list(tmp_path.iterdir()) == []


def test_options_that_name_their_second_form_are_options_of_one_value() -> None:
    assert all(not row.option.repeats for row in OPTIONS.values() if row.option and row.option.twice)
