"""Flags of a torchtitan command count before the file that it names."""

import re

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from tests.launchers.exported import older
from tests.launchers.plans import CASES

FOUND = CASES["torchtitan"]["llama-3.1-70b-fsdp"]


def read(flags: str) -> LaunchFile:
    files = export(FOUND.plan, FOUND.problem, "torchtitan").files
    script = files["launch.sh"].replace('"${program[@]}"', f'"${{program[@]}}" {flags}')
    files = {**files, "launch.sh": script}
    return read_launch_files(Source(name="launch.sh", text=script, files=files))


def test_a_flag_replaces_the_files_value_and_is_noted() -> None:
    plain, found = read(""), read("--training.seq_len=2048 activation-checkpoint:full")
    assert (plain.workload.seq_length, found.workload.seq_length) == (8192, 2048)
    assert found.configuration.recompute_granularity == "full"
    assert found.configuration.data_parallel_size == plain.configuration.data_parallel_size
    assert any("training.seq_len is 2048, not the file's" in note for note in found.notes)
    assert plain.notes == ()


def test_a_flag_that_contradicts_the_run_is_refused_with_its_line() -> None:
    with pytest.raises(
        InvalidProblemError, match=r'training.seq_len: line \d+: "long" is not a whole number'
    ):
        read("--training.seq_len long")
    with pytest.raises(InvalidProblemError, match="writes a checkpoint and trains nothing"):
        read("--checkpoint.create_seed_checkpoint=true")


def test_torchtitans_positions_and_router_norm_hold_where_a_file_states_none() -> None:
    case = CASES["torchtitan"]["deepseek-v3-experts"]
    files = export(case.plan, case.problem, "torchtitan").files
    text, lacking = re.subn(r"(?m)^(MAX_SEQ_LEN|ROUTER_NORMALIZED)\b.*\n", "", files["torchtitan_plan.py"])
    source = Source(name="launch.sh", text=files["launch.sh"], files={**files, "torchtitan_plan.py": text})
    model = read_launch_files(source).model
    assert (lacking, model.max_position_embeddings) == (2, 131_072)
    assert model.moe is not None
    assert model.moe.normalized_top_k is True


def test_a_script_of_ones_own_that_starts_an_exported_file_is_read_with_what_lies_beside_it() -> None:
    files = dict(older("llama-3.1-70b-stages"))
    exported = ("launch.sh", "launch.sbatch")
    own = re.sub(r"(?m)^.*by Meshwright.*\n", "", files["launch.sh"])
    beside = {name: text for name, text in files.items() if name not in exported}
    found = read_launch_files(Source(name="train.sh", text=own, include=beside.get))
    assert (found.model.num_layers, found.configuration.num_gpus) == (80, 128)


STAGED = CASES["torchtitan"]["llama-3.1-70b-stages"]


def split_by_torchtitan(*lines: str) -> tuple[int, ...]:
    """80 layers on 4 ranks with an interleaved schedule, with ``lines`` instead of the list of modules."""
    text = older("llama-3.1-70b-stages")["torchtitan_0_2.toml"]
    text = text.replace('flavor = "meshwright-0123456789ab"', 'flavor = "70B"')
    kept = [line for line in text.splitlines() if not line.startswith("module_fqns")]
    at = kept.index("[parallelism]") + 1
    plain = "\n".join([*kept[:at], *lines, *kept[at:]])
    return read_launch_files(Source(name="torchtitan_0_2.toml", text=plain)).configuration.stage_layers


def test_torchtitan_counts_the_embedding_and_the_head_as_the_file_says() -> None:
    # 80 layers and 1 + 1 in 8 stages: two of 11, six of 10; without those of embedding and head
    assert split_by_torchtitan() == (10, 11, 10, 10, 10, 10, 10, 9)
    # 80 and 0 + 3: three of 11, five of 10; the last one less 3
    less = "pipeline_parallel_{}_stage_less_layers = {}"
    split = split_by_torchtitan(less.format("first", 0), less.format("last", 3))
    assert split == (11, 11, 11, 10, 10, 10, 10, 7)
    with pytest.raises(InvalidProblemError, match="12 exceeds the 11 layers of a stage"):
        split_by_torchtitan(less.format("first", 12))


def test_torchtitan_takes_only_layers_a_stage_that_fill_all_ranks_alike() -> None:
    # 82 layers by 7: 12 stages, 3 a rank, of 7 but for the last two of 6
    each = "pipeline_parallel_layers_per_stage = {}"
    assert split_by_torchtitan(each.format(7)) == (6, *[7] * 9, 6, 5)
    # by 9: 10 stages, by 25: 4, one a rank, which an interleaved schedule does not run
    for layers, stages in ((9, 10), (25, 4)):
        with pytest.raises(InvalidProblemError, match=f"makes {stages} stages of 82 layers"):
            split_by_torchtitan(each.format(layers))


def test_8_bits_and_asynchronous_tensor_ranks_are_read_from_flags_and_tables() -> None:
    assert read("").workload.framework_options == {}
    found = read("--compile.enable_async_tensor_parallel=true")
    assert found.workload.framework_options == {"overlap_tensor": True}
    text = older("llama-3.1-70b-stages")["torchtitan_0_2.toml"]
    text = text.replace('flavor = "meshwright-0123456789ab"', 'flavor = "70B"')
    text = text.replace("[model]", '[model]\nconverters = ["quantize.linear.float8"]')

    def recipe(lines: str) -> tuple[str, object]:
        read = read_launch_files(Source(name="plan.toml", text=text + lines))
        return read.workload.precision, read.workload.framework_options.get("precision_recipe")

    assert recipe("") == ("fp8", "fp8-current")  # 0.2 scales tensors unless it is asked otherwise
    assert recipe('\n[quantize.linear.float8]\nrecipe_name = "rowwise"\n') == ("fp8", "fp8-rowwise")
    for lines, expected in (
        ("", False),  # weights are gathered in 16 bits unless the file asks for 8
        ("[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n", None),
    ):
        found = read_launch_files(Source(name="plan.toml", text=f"{text}\n{lines}"))
        assert found.workload.framework_options.get("low_precision_gathers") is expected
    filtered = '\n[quantize.linear.float8]\nfilter_fqns = ["attention.wk"]\n'
    with pytest.raises(InvalidProblemError, match=r"filter_fqns: .*16 bits next to 8-bit ones"):
        recipe(filtered)


def recomputed(lines: str, mesh: str = "tensor_parallel_degree = 8") -> tuple[str, int, tuple[int, ...]]:
    """How a Llama 70B of 80 layers is recomputed under torchtitan 0.2: kind, layers of a chunk, of each."""
    text = (
        f'[model]\nname = "llama3"\nflavor = "70B"\n[parallelism]\n{mesh}\n'
        f"[training]\nlocal_batch_size = 8\nseq_len = 8192\n[activation_checkpoint]\n{lines}"
    )
    found = read_launch_files(Source(name="a.toml", text=text), Overrides(num_gpus=64)).configuration
    return found.recompute_granularity, found.recompute_layers, found.stage_recompute_layers


def test_torchtitan_0_2_recomputes_every_nth_layer_unless_it_is_told_to_go_by_operators() -> None:
    option = 'mode = "selective"\nselective_ac_option = {}\n'
    assert recomputed(option.format('"op"')) == ("selective", 0, ())
    assert recomputed(option.format('"2"')) == ("full", 40, ())  # 80 ÷ 2
    assert recomputed("") == recomputed('mode = "selective"\n') == ("full", 40, ())  # its default is "2"
    assert recomputed(option.format(3)) == ("full", 26, ())  # 80 ÷ 3
    assert recomputed(option.format('"1"')) == recomputed(option.format('"0"')) == ("full", 80, ())
    assert recomputed(option.format('"81"')) == ("none", 0, ())
    with pytest.raises(InvalidProblemError, match=r'selective_ac_option: .* Allowed: "op", or every how'):
        recomputed(option.format('"ops"'))


def test_torchtitan_0_2_stops_a_replay_early_where_its_file_says_so() -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n'
        '[activation_checkpoint]\nmode = "full"\nearly_stop = true\n'
    )
    found = read_launch_files(Source(name="a.toml", text=text), Overrides(num_gpus=8)).workload
    assert found.framework_options["replay_stops_early"] is True


def test_torchtitan_0_2_counts_layers_by_rank_from_chunk_to_chunk() -> None:
    option = 'mode = "selective"\nselective_ac_option = "{}"\n'
    # stages of 10 11 10 10 10 10 10 9 layers
    mesh = "pipeline_parallel_degree = 8"
    assert recomputed(option.format(2), mesh) == ("full", 5, (*[5] * 7, 4))
    # chunks of 20 21 20 19 layers: rank 0 counts 20, of which 6 are replayed, then 40, of which 13;
    # rank 1 counts 21, of which 7, then 40, of which 13
    mesh = 'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"'
    assert recomputed(option.format(3), mesh) == ("full", 7, (6, 7, 7, 6))
    # in a V the last chunk is rank 0's: it counts 39, of which 13; rank 1 counts 41, of which 13
    mesh = mesh.replace("Interleaved1F1B", "ZBVZeroBubble")
    assert recomputed(option.format(3), mesh) == ("full", 7, (6, 7, 6, 7))


def named(config: str, more: str = "", module: str = "llama3", **files: str) -> LaunchFile:
    command = (
        f"torchrun --nproc_per_node 8 -m torchtitan.train --module {module} --config {config} {more}\n"
    )
    beside = {"config_registry.py": files["registry"]} if files else {}
    return read_launch_files(Source(name="run.sh", text=command, files=beside), Overrides())


def test_a_configuration_of_torchtitan_is_known_by_name_and_the_command_counts_before_it() -> None:
    found = named("llama3_70b", "--training.local_batch_size 2 --parallelism.tensor_parallel_degree=4")
    # torchtitan 0.3.0 says tensor_parallel_degree 8, local_batch_size 8 and full recomputation
    assert (found.model.name, found.workload.seq_length) == ("llama-3.1-70b", 8192)
    configuration = found.configuration
    assert (configuration.tensor_parallel_size, configuration.data_parallel_size) == (4, 2)
    assert (configuration.micro_batch_size, configuration.recompute_granularity) == (2, "full")
    experts = named("deepseek_v3_16b", module="deepseek_v3")
    assert (experts.model.num_layers, experts.configuration.expert_parallel_size) == (27, 8)


def test_run_train_takes_module_and_configuration_from_variables() -> None:
    text = "NGPU=4 MODULE=qwen3 CONFIG=qwen3_14b ./run_train.sh --training.seq_len 2048\n"
    found = read_launch_files(Source(name="go.sh", text=text), Overrides())
    assert (found.model.name, found.num_nodes, found.gpus_per_node) == ("qwen3-14b", 1, 4)
    assert found.workload.seq_length == 2048


def test_run_train_of_0_2_starts_the_toml_that_config_file_names() -> None:
    text = (
        "NGPU=8 CONFIG_FILE=./train_configs/llama3_70b.toml ./run_train.sh --training.local_batch_size 2\n"
    )
    toml = '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nseq_len = 8192\n'
    toml += "[parallelism]\ntensor_parallel_degree = 8\n"
    source = Source(name="go.sh", text=text, files={"go.sh": text, "llama3_70b.toml": toml})
    found = read_launch_files(source, Overrides())
    assert (found.model.name, found.configuration.tensor_parallel_size) == ("llama-3.1-70b", 8)
    assert found.configuration.micro_batch_size == 2
    with pytest.raises(InvalidProblemError, match=r"line 1 of go\.sh: llama3_70b\.toml is not next to it"):
        read_launch_files(Source(name="go.sh", text=text), Overrides())


def test_converters_of_the_command_and_of_older_files_are_in_8_bits_too() -> None:
    found = named("llama3_8b", "--model.converters quantize.linear.float8")
    assert found.workload.precision == "fp8"
    older = '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n'
    older += '[training]\nlocal_batch_size = 1\nseq_len = 8192\n[float8]\nrecipe_name = "rowwise"\n'
    found = read_launch_files(Source(name="a.toml", text=older), Overrides(num_gpus=8))
    assert found.workload.framework_options["precision_recipe"] == "fp8-rowwise"
    assert found.unread == ()


def test_8_bits_of_older_files_are_on_off_or_refused() -> None:
    text = older("llama-3.1-70b-stages")["torchtitan_0_2.toml"]
    text = text.replace('flavor = "meshwright-0123456789ab"', 'flavor = "70B"')

    def precision(value: str) -> str:
        lines = f"{text}\n[float8]\nenable_float8_linear = {value}\n"
        return read_launch_files(Source(name="plan.toml", text=lines)).workload.precision

    assert [precision(value) for value in ("true", "false")] == ["fp8", "bf16"]
    with pytest.raises(InvalidProblemError, match=r"enable_float8_linear: line \d+: .* neither true nor"):
        precision('"${EIGHT}"')


def test_flags_of_older_sections_count_too() -> None:
    command = "torchrun --nproc_per_node 8 train.py --job.config_file a.toml "
    command += "--experimental.pipeline_parallel_degree 2"
    toml = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 2\nseq_len = 2048\n'
    files = {"run.sh": command, "a.toml": toml}
    found = read_launch_files(Source(name="a.toml", text=toml, files=files), Overrides(num_gpus=8))
    assert found.configuration.pipeline_parallel_size == 2


@pytest.mark.parametrize("config", ["llama3_8b_mxfp8", "llama3_8b_first_85_pct_layers_nvfp4"])
def test_a_configuration_in_a_precision_that_is_not_priced_is_refused(config: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"model\.converters: .*not supported"):
        named(config)


REGISTRY = """
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer


def small() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B", "flex"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=None,
    )


def big() -> Trainer.Config:
    config = small()
    config.model_spec = model_registry("70B")
    config.parallelism.tensor_parallel_degree = 8
    config.activation_checkpoint = FullAC.Config()
    return config
"""


def test_a_registry_beside_the_script_counts_before_torchtitans_own() -> None:
    small, big = named("small", registry=REGISTRY), named("big", registry=REGISTRY)
    assert (small.model.name, small.workload.seq_length) == ("llama-3.1-8b", 4096)
    assert (small.configuration.micro_batch_size, small.configuration.recompute_granularity) == (2, "none")
    assert (big.model.name, big.configuration.tensor_parallel_size) == ("llama-3.1-70b", 8)
    assert big.configuration.recompute_granularity == "full"
    own = named(
        "llama3_8b", registry=REGISTRY.replace("def small", "def llama3_8b").replace("small()", "x()")
    )
    assert (own.workload.seq_length, named("llama3_8b").workload.seq_length) == (4096, 8192)
    assert named("llama3_8b", registry=REGISTRY).workload.seq_length == 8192  # it is not in this registry
    with pytest.raises(InvalidProblemError, match="2 configurations are in it, none is named"):
        read_launch_files(Source(name="config_registry.py", text=REGISTRY), Overrides(num_gpus=8))
    with pytest.raises(InvalidProblemError, match=r"--config: line 1: llama3_9b is not a configuration"):
        named("llama3_9b")


def test_flavors_for_debugging_are_models_of_torchtitan() -> None:
    text = '[model]\nname = "deepseek_v3"\nflavor = "debugmodel"\n'
    text += "[training]\nseq_len = 2048\nlocal_batch_size = 8\n"
    found = read_launch_files(Source(name="a.toml", text=text), Overrides(num_gpus=8))
    apart = {
        "elementwise_fused": False,
        "norm_fused": False,
    }  # torchtitan compiles where it is asked to
    for compiled, options in (("", apart), ("compile = false\n", apart), ("compile = true\n", {})):
        once = read_launch_files(Source(name="a.toml", text=f"{text}{compiled}"), Overrides(num_gpus=8))
        assert once.workload.framework_options == options
    assert (found.model.num_layers, found.model.vocab_size) == (6, 2048)
    loss = f'{text}[compile]\nenable = true\ncomponents = ["loss"]\n'
    once = read_launch_files(Source(name="a.toml", text=loss), Overrides(num_gpus=8))
    assert once.workload.framework_options == apart
    moe = found.model.moe
    assert moe is not None
    assert (moe.num_experts, moe.shared_ffn_hidden_size) == (8, 512)  # 2 shared × 256


def split_experts(ep: int, more: str = "", tp: int = 2) -> tuple[int, int, int]:
    text = '[model]\nname = "deepseek_v3"\nflavor = "debugmodel"\n'
    text += (
        f"[training]\nseq_len = 2048\nlocal_batch_size = 8\n[parallelism]\ntensor_parallel_degree = {tp}\n"
    )
    text += f"expert_parallel_degree = {ep}\n{more}"
    config = read_launch_files(Source(name="a.toml", text=text), Overrides(num_gpus=8)).configuration
    assert (config.tensor_parallel_size, config.data_parallel_size) == (tp, 8 // tp)
    return config.expert_parallel_size, config.expert_tensor_parallel_size, config.data_parallel_size


def test_tensor_ranks_of_experts_are_read_as_torchtitan_0_2_builds_their_mesh() -> None:
    # Of 8 ranks: dp 4 × tp 2; efsdp = dp × tp / (etp × ep), distributed/parallel_dims.py
    line = "expert_tensor_parallel_degree = {}\n".format
    assert split_experts(4) == (4, 1, 4)  # whole experts on 4 ranks, efsdp 2
    assert split_experts(4, line(1)) == (4, 1, 4)
    assert split_experts(4, line(2)) == (4, 2, 4)  # halves of experts on 8 ranks, efsdp 1
    assert split_experts(1, line(2)) == (1, 2, 4)  # Llama 4's files: all tensor ranks split every expert
    assert split_experts(1, line(1)) == (1, 2, 4)  # which they do without ep, whatever the file says
    with pytest.raises(
        InvalidProblemError,
        match=r"expert_tensor_parallel_degree: line 10: 2 is neither 1 nor tensor_parallel_degree.* 1 or 4",
    ):
        split_experts(2, line(2), tp=4)
    with pytest.raises(InvalidProblemError, match="expert_parallel_degree: line 9: 8 does not divide"):
        split_experts(8, line(2))
    with pytest.raises(InvalidProblemError, match=r"is not a field of torchtitan 0\.3"):
        named("deepseek_v3_16b", "--parallelism.expert_tensor_parallel_degree 2", module="deepseek_v3")


def llama4(flavor: str, batch: int, *, tp: int = 8, pp: int = 1) -> str:
    """torchtitan 0.2.2's own file, models/llama4/train_configs, as far as a price depends on it."""
    return (
        f'[model]\nname = "llama4"\nflavor = "{flavor}"\n[optimizer]\nname = "AdamW"\n'
        f"[training]\nlocal_batch_size = {batch}\nseq_len = 8192\n"
        "[parallelism]\ndata_parallel_replicate_degree = 1\ndata_parallel_shard_degree = -1\n"
        f"tensor_parallel_degree = {tp}\nenable_async_tensor_parallel = false\n"
        f"pipeline_parallel_degree = {pp}\ncontext_parallel_degree = 1\n"
        f"expert_parallel_degree = 1\nexpert_tensor_parallel_degree = {tp}\n"
        '[activation_checkpoint]\nmode = "full"\n[compile]\nenable = false\n'
        'components = ["model", "loss"]\n'
        '[quantize.linear.float8]\nfilter_fqns = ["output", "router.gate"]\n'
    )


def test_torchtitans_llama_4_scout_is_read_on_the_64_gpus_that_its_file_is_for() -> None:
    text = llama4("17bx16e", 8)
    found = read_launch_files(Source(name="llama4_17bx16e.toml", text=text), Overrides(num_gpus=64))
    config = found.configuration
    ranks = (config.tensor_parallel_size, config.data_parallel_size, config.zero_stage)
    assert ranks == (8, 8, 3)
    # Without expert ranks apply_moe_ep_tp splits every expert over the 8 tensor ranks.
    assert (config.expert_parallel_size, config.expert_tensor_parallel_size) == (1, 8)
    assert (config.micro_batch_size, config.num_microbatches, config.recompute_layers) == (8, 1, 48)
    model = found.model
    assert (
        model.num_parameters() == 107_769_861_120
    )  # as transformers' Llama4ForCausalLM of that config counts
    assert model.query_key_norm == "none"  # torchtitan's model has none; Hugging Face's normalises both
    # models/moe/moe.py, score_before_experts: the router's weights multiply what the experts read
    assert model.moe is not None
    assert model.moe.weights_on_input
    assert model.sliding_window is None  # nor fixed blocks of attention, which are the _irope flavors'
    assert found.unread == ()


def test_one_tensor_rank_splits_no_sequence() -> None:
    for tp in (1, 2):
        text = llama4("17bx16e", 8, tp=tp)
        source = Source(name="llama4_17bx16e.toml", text=text)
        found = read_launch_files(source, Overrides(num_gpus=64))
        assert found.configuration.sequence_parallel is (tp == 2)


def test_torchtitans_llama_4_maverick_has_experts_in_every_second_layer() -> None:
    # PyTorch's Schedule1F1B refuses 1 micro-batch for 4 stages, which is what the file itself asks for.
    source = Source(name="llama4_17bx128e.toml", text=llama4("17bx128e", 1, pp=4))
    with pytest.raises(
        InvalidProblemError,
        match=r"local_batch_size: line 7: 1 micro-batch for 4 stages .* 4 micro-batches",
    ):
        read_launch_files(source, Overrides(num_gpus=64))
    source = Source(name="llama4_17bx128e.toml", text=llama4("17bx128e", 4, pp=4))
    found = read_launch_files(source, Overrides(num_gpus=64))
    moe, config = found.model.moe, found.configuration
    assert moe is not None
    assert (moe.num_experts, moe.num_dense_layers, moe.frequency) == (128, 1, 2)  # layers 1, 3, … 47
    assert found.model.num_parameters() == 400_711_848_960
    # 48 layers, embedding and head as one each: 50 in 4 stages of 13 13 12 12
    assert config.stage_layers == (12, 13, 12, 11)
    assert (config.data_parallel_size, config.zero_stage, config.num_microbatches) == (2, 2, 4)


def test_a_flavor_of_llama_4_that_masks_attention_by_document_is_refused_by_its_line() -> None:
    source = Source(name="a.toml", text=llama4("17bx16e_irope", 8))
    with pytest.raises(
        InvalidProblemError, match=r"model\.flavor: line 3: .*17bx16e_irope.* Allowed: .*17bx16e"
    ):
        read_launch_files(source, Overrides(num_gpus=64))


def test_a_python_configuration_of_llama_4_is_of_no_release_and_refused() -> None:
    # Before 0.3 took Llama 4 out, 17bx128e had experts in every layer under the same name.
    registry = REGISTRY.replace('"8B"', '"17bx128e"')
    with pytest.raises(InvalidProblemError, match=r'model\.flavor: .*"17bx128e" of "llama4".* --model'):
        named("small", module="llama4", registry=registry)


def test_settings_of_a_converter_that_is_not_listed_do_nothing() -> None:
    found = read("--quantize.linear.mx.recipe_name=mxfp8_cublas")
    assert found.workload == read("").workload
    with pytest.raises(InvalidProblemError, match=r"quantize\.linear\.mx: not supported"):
        read("--model.converters=quantize.linear.mx")


@pytest.mark.parametrize(
    ("config", "parameters", "tp"), [("qwen35_9b", 9_409_813_744, 2), ("qwen35_35b_a3b", 35_107_181_936, 2)]
)
def test_qwen_3_5_is_read_by_its_names_as_its_class_builds_it(
    config: str, parameters: int, tp: int
) -> None:
    text = f"torchrun --nproc_per_node=8 -m torchtitan.train --module qwen3_5 --config {config}\n"
    found = read_launch_files(Source(name="run.sh", text=text))
    # as many as torchtitan 0.3.0's Qwen35Model has on meta tensors, which predicts no further tokens
    assert (found.model.num_parameters(), found.model.num_mtp_layers) == (parameters, 0)
    assert (found.configuration.tensor_parallel_size, found.images_stated) == (tp, False)


def test_older_names_of_torchtitan_are_read() -> None:
    text = (
        '[model]\nname = "llama2"\nflavor = "13B"\n[optimizer]\nname = "AdamW"\n[training]\n'
        "batch_size = 2\nseq_len = 2048\ndata_parallel_degree = -1\ntensor_parallel_degree = 2\n"
        '[experimental]\npipeline_parallel_degree = 1\n[activation_checkpoint]\nmode = "full"\n'
    )
    found = read_launch_files(Source(name="a.toml", text=text), Overrides(num_gpus=16))
    mesh = found.configuration
    assert (mesh.tensor_parallel_size, mesh.data_parallel_size, mesh.zero_stage) == (2, 8, 3)
    assert found.workload.global_batch_size == 2 * 8
    assert found.model.num_parameters() == 13_015_864_320  # Llama 2 13B's
