"""Options become a request; the file comes first, options stand over it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.launch_files import with_files
from meshwright.service.cli.main import app
from meshwright.service.cli.options import read_request
from meshwright.service.cli.problem_options import _is_model, model_part, without_files
from meshwright.service.requests import documents
from meshwright.service.requests.assignments import bounds_of, counts_of, prohibitions_of, values_of
from meshwright.service.requests.parse import parse_problem


def test_short_names_dashes_and_full_names_mean_the_same_variable() -> None:
    for text in ("tp=8", "tensor-parallel-size=8", "tensor_parallel_size = 8"):
        assert values_of("--pin", [text]) == {"tensor_parallel_size": 8}


@pytest.mark.parametrize(
    ("text", "meant"),
    [("tpp=8", "tp (tensor_parallel_size)"), ("cpp=2", "cp (context_"), ("zer=3", "zero (zero_stage)")],
)
def test_a_slip_in_a_short_name_is_told_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(InvalidProblemError) as refused:
        values_of("--pin", [text])
    assert f"Did you mean {meant}" in str(refused.value)


def test_a_constraint_with_such_a_slip_is_told_it_too() -> None:
    with pytest.raises(
        InvalidProblemError, match=r"character 6: cpp is not a variable. Nearest: cp \(context"
    ):
        read_request(constraint=["tp * cpp <= 8"])


def test_words_stay_words() -> None:
    assert values_of("--pin", ["recompute_granularity=full"]) == {"recompute_granularity": "full"}
    assert values_of("--pin", ["tp=-5", "pp=--5"]) == {
        "tensor_parallel_size": -5, "pipeline_parallel_size": "--5",
    }  # fmt: skip


def test_prohibitions_and_bounds_are_lists() -> None:
    assert prohibitions_of("--forbid", ["mbs=3,5"]) == {"micro_batch_size": [3, 5]}
    assert bounds_of("--bound", ["mbs=1:4"]) == {"micro_batch_size": [1, 4]}


def test_facts_of_the_framework_stand_over_those_of_the_file(tmp_path: Path) -> None:
    """Numbers are numbers and switches are switches: what an answer prints is what it was priced with."""
    file = tmp_path / "problem.json"
    file.write_text(json.dumps({"workload": {"framework_options": {"dora": False, "fp32_ends": 2}}}))
    stated = ["dora=true", "optimizer_offload_fraction=0.25,bucket_bytes=4e7", "moe_routing_groups=4/8"]
    request: dict[str, Any] = read_request(str(file), framework_options=stated)
    assert request["workload"]["framework_options"] == {
        "dora": True, "fp32_ends": 2, "optimizer_offload_fraction": 0.25, "bucket_bytes": 4e7,
        "moe_routing_groups": "4/8",
    }  # fmt: skip
    with pytest.raises(InvalidProblemError, match="--framework-options: dora is given more than once"):
        read_request(framework_options=["dora=true", "dora=false"])


@pytest.mark.parametrize("text", ["tp", "=8", "tp=", ""])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(InvalidProblemError, match="NAME=VALUE"):
        values_of("--pin", [text])


def test_a_name_given_twice_is_refused_not_overridden() -> None:
    for texts in (["tp=8", "tp=4"], ["tp=8", "tensor_parallel_size=8"]):
        with pytest.raises(InvalidProblemError, match="tensor_parallel_size is given more than once"):
            values_of("--pin", texts)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ("p50=900,p50=800,p100=8192", "p50 is given more than once"),
        ("p50=²,p100=8192", "is not a percentile"),
        (f"p50={'9' * 5000},p100=8192", "is not a percentile"),
        ("900,8192", "^--lengths: 900,8192: No such file.*p50=900"),
        ("", "^--lengths: .: Is a directory"),
    ],
)
def test_percentiles_that_are_none_are_refused(lengths: str, words: str) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        read_request(lengths=lengths)


@pytest.mark.parametrize("tokens", [float("nan"), float("inf")])
def test_tokens_that_are_no_number_are_refused_as_such(tokens: float) -> None:
    with pytest.raises(
        InvalidProblemError, match=f"^workload.total_tokens: {tokens} is not .* from 1 to 10*$"
    ):
        parse_problem(
            read_request(
                model="llama-3.1-8b", cluster="dgx-h100", num_nodes="1", global_batch_size="8",
                seq_length=4096, total_tokens=tokens,
            )
        )  # fmt: skip


def test_a_hole_in_a_list_of_values_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="NAME=VALUE"):
        prohibitions_of("--forbid", ["mbs=1,"])


def test_a_configuration_can_set_splits_and_switches() -> None:
    settings = values_of("--set", ["stage_layers=20,12", "sequence_parallel=False", "tp=2"])
    assert settings == {"stage_layers": [20, 12], "sequence_parallel": False, "tensor_parallel_size": 2}


@pytest.mark.parametrize("text", ["mbs=4", "mbs=1:x", "mbs=:4"])
def test_bounds_need_two_integers(text: str) -> None:
    with pytest.raises(InvalidProblemError, match="LOW:HIGH"):
        bounds_of("--bound", [text])


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    request = {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 16},
        "workload": {"global_batch_size": 512, "seq_length": 8192},
        "search": {"top_k": 5, "pin": {"tensor_parallel_size": 8}},
    }
    path.write_text(json.dumps(request))
    return path


def test_options_stand_over_the_file_and_leave_the_rest(problem_file: Path) -> None:
    request = read_request(problem_file, num_nodes="8", global_batch_size="256", pin=["pp=4"], top_k=3)
    problem = parse_problem(request)
    assert (problem.cluster.num_nodes, problem.workload.global_batch_size) == (8, 256)
    assert problem.workload.seq_length == 8192
    assert problem.options.top_k == 3
    assert problem.options.pin == {"tensor_parallel_size": 8, "pipeline_parallel_size": 4}


def test_a_gpu_type_instead_of_a_cluster_makes_one_group() -> None:
    request = read_request(
        model="llama-3.1-8b", gpu="a100-sxm-40gb", num_nodes="2", gpus_per_node=4, global_batch_size="8",
        seq_length=2048,
    )  # fmt: skip
    assert parse_problem(request).cluster.num_gpus == 8


def test_cluster_and_gpu_together_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="--cluster and --gpu both describe the cluster"):
        read_request(cluster="dgx-h100", gpu="a100-sxm-40gb")


def test_sizes_of_several_groups_are_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "mixed.json"
    path.write_text('{"cluster": {"groups": [{"gpu": "t4"}, {"gpu": "l4"}]}}')
    with pytest.raises(InvalidProblemError, match="several groups"):
        read_request(path, num_nodes="4")


LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def test_a_hugging_face_config_is_taken_from_its_file_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    assert model_part(str(folder)) == model_part(str(folder / "config.json"))
    request = read_request(
        model=str(folder), cluster="dgx-h100", num_nodes="1", global_batch_size="8", seq_length=2048
    )
    model = parse_problem(request).model
    assert (model.name, model.num_layers, model.num_kv_heads) == ("my-llama", 32, 8)


def test_a_folder_of_a_diffusers_pipeline_is_its_transformer_with_the_text_encoders(tmp_path: Path) -> None:
    flux, t5 = {"_class_name": "FluxTransformer2DModel"}, {"model_type": "t5"}
    for name, config in {"transformer": flux, "text_encoder_2": t5}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "model_index.json").write_text("{}")
    assert model_part(str(tmp_path)) == {"name": tmp_path.name, **flux, "text_encoder_2": t5}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "Llama-3.1-8B"])
def test_a_catalog_name_means_the_catalog_model_although_a_folder_or_file_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    (Path(name) / "config.json").write_text(json.dumps({**LLAMA_CONFIG, "num_hidden_layers": 7}))
    assert model_part(name) == {"name": name}
    assert model_part(f"./{name}")["num_hidden_layers"] == 7
    assert model_part(f"{name}/")["num_hidden_layers"] == 7
    (Path(name) / "config.json").rename("mine")
    Path(name).rmdir()
    Path("mine").rename(name)
    assert model_part(name) == {"name": name}
    assert model_part(f"./{name}")["num_hidden_layers"] == 7


@pytest.mark.parametrize("folder", ["dgx-h100", "h100-sxm-80gb"])
def test_a_catalog_cluster_or_gpu_is_meant_although_a_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir()
    assert read_request(cluster="dgx-h100")["cluster"] == {"name": "dgx-h100"}
    one = {"num_nodes": 1, "gpu": "h100-sxm-80gb"}
    assert read_request(gpu="h100-sxm-80gb")["cluster"] == {"groups": [one]}


def test_a_config_with_an_infinite_limit_as_transformers_4_writes_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}')
    request = read_request(
        model=str(tmp_path), cluster="dgx-h100", num_nodes="1", global_batch_size="8", seq_length=2048
    )
    assert parse_problem(request).model.num_parameters() == 7_285_403_648


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="No such file"):
        model_part(str(tmp_path / "config.json"))


def test_a_model_is_named_after_its_file_or_the_folder_of_its_config(tmp_path: Path) -> None:
    named = tmp_path / "my-model.json"
    named.write_text(json.dumps({**LLAMA_CONFIG, "_name_or_path": ""}))
    assert model_part(str(named))["name"] == "my-model"
    assert model_part(str(named.rename(tmp_path / "config.json")))["name"] == tmp_path.name


def test_a_file_without_a_model_is_no_unknown_name(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(InvalidProblemError, match=r"empty\.json holds no model"):
        model_part(str(tmp_path / "empty.json"))


def test_a_path_that_leads_nowhere_is_said_to_be_a_file() -> None:
    with pytest.raises(InvalidProblemError, match="org/team/model: No such file"):
        model_part("org/team/model")


def test_the_nodes_of_a_catalog_cluster_are_not_changed() -> None:
    with pytest.raises(
        InvalidProblemError,
        match=r'--gpus-per-node: belongs to --gpu. The catalog defines the nodes of "dgx-h100"',
    ):
        read_request(cluster="dgx-h100", num_nodes="1", gpus_per_node=4)


def test_what_options_allow_is_allowed_beside_what_the_file_does(tmp_path: Path) -> None:
    """A lever's option is pasted behind the file, whose plans it is compared with."""
    path = tmp_path / "problem.json"
    path.write_text('{"search": {"allow": ["fp8"]}}')
    assert read_request(str(path), allow=["offload"])["search"] == {"allow": ["fp8", "offload"]}
    path.write_text('{"search": {"allow": "fp8"}}')
    with pytest.raises(InvalidProblemError, match=r"search.allow: must be a list"):
        read_request(str(path), allow=["offload"])


def test_constraints_of_options_follow_those_of_the_file_and_may_use_short_names(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text('{"search": {"constraints": ["zero_stage < 3"]}}')
    request = read_request(path, constraint=["tp * cp <= 8", "rank_order == 'tp-cp-pp-dp'"])
    assert request["search"] == {
        "constraints": [
            "zero_stage < 3",
            "tensor_parallel_size * context_parallel_size <= 8",
            "rank_order == 'tp-cp-pp-dp'",
        ]
    }


@pytest.mark.parametrize(("text", "at"), [
    ("tp * cp <= 8 = 3", 14),  # behind two short names
    ("tensr * cp <= 8", 1),
    ("tp * cpp <= 8", 6),
    ("tp * cp <=", 11),
    ("pp == 1 and pipeline_schedule == 'nope'", 34),
])  # fmt: skip
def test_a_faulty_constraint_is_pointed_at_in_the_text_that_was_typed(text: str, at: int) -> None:
    with pytest.raises(InvalidProblemError, match=f"--constraint: character {at}: "):
        read_request(constraint=[text])


def test_a_word_that_is_none_names_the_nearest() -> None:
    with pytest.raises(InvalidProblemError, match=r"'nope' is none of none, gpipe.*Nearest: none"):
        read_request(constraint=["pipeline_schedule == 'nope'"])


def test_a_gpu_without_a_number_of_nodes_is_one_node_as_help_states(tmp_path: Path) -> None:
    work: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "global_batch_size": "8",
        "seq_length": 4096,
    }
    assert parse_problem(read_request(**work)).cluster.num_gpus == 8
    assert parse_problem(read_request(**work, num_nodes="2")).cluster.num_gpus == 16
    own = tmp_path / "mine.yaml"
    own.write_text("cluster: {name: dgx-a100, num_nodes: 4}")
    with pytest.raises(InvalidProblemError, match="num_nodes: is required"):  # 4 or 1 is not guessed
        parse_problem(read_request(own, **work))


def test_nodes_are_a_number_a_list_or_a_range() -> None:
    assert [counts_of("--num-nodes", text) for text in ("4", "2,4,8", "1:16")] == [
        4,
        [2, 4, 8],
        {"min": 1, "max": 16},
    ]
    with pytest.raises(InvalidProblemError, match=r"num_nodes: -4 is out of range.*Nearest: 1"):
        parse_problem(read_request(model="llama-3.1-8b", cluster="dgx-h100", num_nodes="1:-4"))
    for text in ("four", "1:2:3", "2,4:8", ""):
        with pytest.raises(InvalidProblemError, match="is not N, N,N or LOW:HIGH"):
            counts_of("--num-nodes", text)


def test_a_run_with_its_deadline_price_and_baseline_is_asked_for_by_options(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("{tensor_parallel_size: 8}")
    request = read_request(
        num_nodes="1:4", total_tokens=15e12, deadline_days=60.0, gpu_hour_price=2.0, gpus="fewest",
        objective="gpu_hours_per_token", reserve_nodes=1, baseline=own,
    )  # fmt: skip
    assert request["workload"] == {"total_tokens": 15 * 10**12}
    assert request["cluster"] == {"num_nodes": {"min": 1, "max": 4}}
    assert request["search"] == {
        "objective": "gpu_hours_per_token", "gpus": "fewest", "reserve_nodes": 1, "deadline_days": 60.0,
        "gpu_hour_price": 2.0, "baseline": {"tensor_parallel_size": 8},
    }  # fmt: skip


def test_adapters_are_asked_for_by_their_rank_layers_and_what_they_stand_beside() -> None:
    found = read_request(lora_rank=16, lora_target=["q_proj", "v_proj"], base_precision="nf4")
    assert found["workload"] == {
        "lora_rank": 16, "lora_targets": ["q_proj", "v_proj"], "base_precision": "nf4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("allow", ["offload", "fp8"]),
        ("freeze", ["vision", "projector"]),
        ("trained_module", ["embed_tokens", "lm_head"]),
        ("lora_target", ["q_proj", "v_proj"]),
    ],
)
def test_names_are_given_one_by_one_or_with_commas(option: str, names: list[str]) -> None:
    own: dict[str, Any] = {"lora_rank": 16} if option == "lora_target" else {}
    joined: dict[str, Any] = {**own, option: [",".join(names)]}
    apart: dict[str, Any] = {**own, option: names}
    assert read_request(**joined) == read_request(**apart)


def test_a_search_of_a_launch_file_is_told_what_the_file_leaves_open(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --bf16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --odd-flag 3 "
        "--global-batch-size $BATCH\n"
    )
    cluster = {"cluster": {"name": "dgx-h100", "num_nodes": 1}}
    told = {
        "assign": ["vocab_size=51200"],
        "variables": ["BATCH=64"],
        "ignored": ["--odd-flag"],
        "run": None,
    }
    found, read = with_files(cluster, file, **told)  # type: ignore[arg-type]
    problem = parse_problem(found)
    assert any("--odd-flag is ignored" in note for note in read.notes)  # which plan prints
    assert (problem.model.vocab_size, problem.workload.global_batch_size) == (51200, 64)
    fp8, _ = with_files(cluster, file, **{**told, "assign": ["vocab_size=51200", "precision=fp8"]})  # type: ignore[arg-type]
    assert parse_problem(fp8).workload.precision == "fp8"
    for wrong, match in (
        ("tp=2", "tensor_parallel_size: is chosen by the search. Allowed: --pin tensor_parallel_size=2"),
        ("hidden_size=2048", "hidden_size: unknown"),
    ):
        with pytest.raises(InvalidProblemError, match=match):
            with_files(cluster, file, **{**told, "assign": ["vocab_size=51200", wrong]})  # type: ignore[arg-type]
    with pytest.raises(InvalidProblemError, match="--set: needs a launch file"):
        without_files(**told)  # type: ignore[arg-type]


def test_a_search_is_told_sizes_of_which_the_batch_of_a_launch_file_follows(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(
        json.dumps(
            {"gradient_accumulation_steps": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
        )
    )
    request = {"cluster": {"name": "dgx-h100", "num_nodes": 1}, "model": {"name": "llama-3.1-8b"}}
    found, _ = with_files(
        request, file, assign=["seq_length=4096", "micro_batch_size=2"], variables=(), ignored=(), run=None
    )
    assert parse_problem(found).workload.global_batch_size == 2 * 4 * 8  # of each of 8 GPUs


def test_a_file_that_starts_fewer_ranks_than_the_cluster_has_is_answered_with_both_numbers(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nproc_per_node=2 pretrain_gpt.py --num-layers 12 --hidden-size 768 --bf16 "
        "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 "
        "--micro-batch-size 4 --global-batch-size 8\n"  # 2 ranks share 8 sequences, 8 ranks cannot
    )
    predict = ["predict", "--from-args", str(script), "--num-nodes", "1"]
    named = CliRunner().invoke(app, [*predict, "--cluster", "dgx-h100"])
    assert str(named.exception) == (
        "cluster: the file starts 2 processes; the cluster has 8 GPUs. "
        "Allowed: --gpu h100-sxm-80gb --num-nodes 1 --gpus-per-node 2"
    )
    fitting = CliRunner().invoke(app, [*predict, "--gpu", "h100-sxm-80gb", "--gpus-per-node", "2"])
    assert fitting.exit_code == 0, fitting.output


def test_a_launch_file_states_the_nodes_of_a_gpu_that_is_given_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun --nnodes=4 --nproc_per_node=8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --bf16 "
        "--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --vocab-size 50257 "
        "--micro-batch-size 1 --global-batch-size 32\n"
    )
    predict = ["predict", "--from-args", str(script), "--gpu", "h100", "--json"]
    found = CliRunner().invoke(app, predict)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["config"]["data_parallel_size"] == 4 * 8


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (json.dumps(LLAMA_CONFIG), "a model"),  # a config.json under another name
        ('{"hidden_size": 1024, "num_layers": 4}', "a model"),  # a shape
        ('{"model": "llama-3.1-8b", "cluster": "dgx-h100"}', "a problem"),
        ('{"model": {"hidden_size": 1024}, "hidden_size": 2}', "a problem"),
        ("{", "a problem"),  # whose reader says what is wrong
        ("base_model: m\nmodel_type: LlamaForCausalLM\nadapter: lora\nsequence_len: 8\n", "a problem"),
    ],
)
def test_what_a_file_states_tells_a_model_from_a_problem(tmp_path: Path, text: str, means: str) -> None:
    file = tmp_path / ("mine.json" if text.startswith("{") else "mine.yaml")
    file.write_text(text)
    assert _is_model(str(file)) == (means == "a model")


@pytest.mark.parametrize(
    "text", ['{"model": "llama-3.1-8b", "cluster": "dgx-h100"}', "model: llama-3.1-8b\ncluster: dgx-h100\n"]
)
def test_a_dash_reads_json_or_yaml_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "piped").write_text(text)
    monkeypatch.setattr(documents, "_STDIN", tmp_path / "piped")
    found = read_request("-", seq_length=2048)
    assert (found["model"], found["workload"]) == ({"name": "llama-3.1-8b"}, {"seq_length": 2048})


def test_an_unknown_field_of_stdin_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "piped").write_text('{"model": "llama-3.1-8b", "foo": 1}')
    monkeypatch.setattr(documents, "_STDIN", tmp_path / "piped")
    with pytest.raises(InvalidProblemError, match=r"foo: unknown field"):
        parse_problem(read_request("-"))
