"""What DeepSpeed's JSON may send away from the GPU, and what it may not."""

import json

import pytest

from meshwright.launchers.deepspeed.read import DEEPSPEED_READER
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from tests.launchers.cases import LLAMA_70B

CPU, DRIVE = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/scratch"}
LATE = {"update_interval": 4, "overlap_step": True}


def read(stage: int, **sections: object) -> LaunchFile:
    """A run on 64 GPUs."""
    raw = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **sections},
    }  # fmt: skip
    overrides = Overrides(model=LLAMA_70B, num_gpus=64, values={"seq_length": 4096})
    return DEEPSPEED_READER.read(Source(name="ds_config.json", text=json.dumps(raw)), overrides)


def test_weights_on_the_host_below_stage_3_do_nothing() -> None:
    found = read(2, offload_optimizer=CPU, offload_param=CPU)
    assert found.configuration.offload == "optimizer"
    # older names of the devices, which DeepSpeed takes alone
    assert read(2, cpu_offload=True).configuration.offload == "optimizer"
    away = read(3, cpu_offload=True, cpu_offload_param=True)
    assert away.configuration.offload == "optimizer+parameters"
    with pytest.raises(InvalidProblemError, match=r"cpu_offload: .*not both"):
        read(2, cpu_offload=False, offload_optimizer=CPU)
    assert "stage 2 shards no weights: zero_optimization.offload_param.device does nothing" in found.notes


def test_the_oldest_form_of_the_section_is_stage_1() -> None:
    # zero/config.py, read_zero_config_deprecated: "zero_optimization": true
    raw = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
    }  # fmt: skip
    overrides = Overrides(model=LLAMA_70B, num_gpus=64, values={"seq_length": 4096})
    for switch, stage in ((True, 1), (False, 0)):
        text = json.dumps({**raw, "zero_optimization": switch})
        found = DEEPSPEED_READER.read(Source(name="ds_config.json", text=text), overrides)
        assert found.configuration.zero_stage == stage


@pytest.mark.parametrize(
    ("sections", "offload"),
    [
        ({"offload_optimizer": CPU}, "optimizer"),
        ({"offload_optimizer": DRIVE}, "optimizer@nvme"),
        ({"offload_optimizer": CPU, "offload_param": CPU}, "optimizer+parameters"),
        ({"offload_optimizer": CPU, "offload_param": DRIVE}, "optimizer+parameters@nvme"),
        ({"offload_optimizer": DRIVE, "offload_param": DRIVE}, "optimizer@nvme+parameters@nvme"),
        ({"offload_param": CPU}, "parameters"),  # states are updated on the GPU
        ({"cpu_offload_param": True}, "parameters"),
        ({"offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}, "none"),
    ],
)
def test_devices_of_stage_3_are_read(sections: dict[str, object], offload: str) -> None:
    assert read(3, **sections).configuration.offload == offload


@pytest.mark.parametrize(
    ("stage", "size", "held"),
    [
        (3, 200_000_000, {"bucket_bytes": 4e8}),
        (2, 1e9, {"bucket_bytes": 2e9}),
        (3, 500_000_000, {}),  # DeepSpeed's own
        (0, 200_000_000, {}),  # without ZeRO there is none
        (3, "auto", {"bucket_bytes": 2.0 * 8192**2}),  # transformers: the square of the hidden size
    ],
)
def test_the_buffer_of_reductions_has_the_size_of_the_file(
    stage: int, size: object, held: dict[str, float]
) -> None:
    assert read(stage, reduce_bucket_size=size).workload.framework_options == held


@pytest.mark.parametrize(
    ("stage", "keys", "options"),
    [
        (3, {"zero_hpz_partition_size": 8}, {"secondary_shard_size": 8.0}),
        (3, {"zero_hpz_partition_size": 1}, {}),
        (3, {"zero_quantized_weights": True}, {"quantized_gathers": True}),
        (3, {"zero_quantized_gradients": True}, {"quantized_reductions": True}),
        (
            2,
            {"zero_quantized_gradients": True, "zero_hpz_partition_size": 8},
            {},
        ),  # stage 3 reads them alone
    ],
)
def test_zero_plus_plus_is_read_where_deepspeed_reads_it(
    stage: int, keys: dict[str, object], options: dict[str, object]
) -> None:
    assert read(stage, **keys).workload.framework_options == options


@pytest.mark.parametrize(
    ("group", "share"),
    [
        # 70.6 billion weights on 64 ranks are 1.103e9 each: 12 groups, of which int(.7 * 12) = 8 stay: a
        # third is within a twentieth of what is asked for
        (100_000_000, 0.3),
        # two groups, of which int(.7 * 2) = 1 stays; one group, which all goes
        (1_000_000_000, 1 / 2),
        (2_000_000_000, None),
    ],
)
def test_a_share_of_the_states_is_that_of_whole_groups(group: int, share: float | None) -> None:
    found = read(3, sub_group_size=group, offload_optimizer={"device": "cpu", "ratio": 0.3})
    assert found.workload.framework_options.get("optimizer_offload_fraction") == (
        share and pytest.approx(share)
    )
    assert any(f"CPU updates {share or 1.0:.0%} of its weights" in note for note in found.notes) == (
        group != 100_000_000
    )


def test_zenflow_and_superoffload_are_read_as_what_deepspeed_makes_of_them() -> None:
    raw = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU, "zenflow": LATE | {"topk_ratio": 0.1}},
    }  # fmt: skip
    overrides = Overrides(model=LLAMA_70B, num_gpus=64, values={"seq_length": 4096})
    found = DEEPSPEED_READER.read(Source(name="ds_config.json", text=json.dumps(raw)), overrides)
    options = found.workload.framework_options
    assert (options["cpu_update_interval"], options["selected_gradient_share"]) == (4.0, 0.1)
    raw["gradient_accumulation_steps"] = 2  # which ZenFlow would replace by its interval
    with pytest.raises(InvalidProblemError, match="gradient_accumulation_steps"):
        DEEPSPEED_READER.read(Source(name="ds_config.json", text=json.dumps(raw)), overrides)
    early = CPU | {"super_offload": True}
    away = read(3, offload_optimizer=early, sub_group_size=55_000_000)
    assert away.workload.framework_options["super_offload"] is True
    tiny = read(3, offload_optimizer=early, sub_group_size=0)  # DeepSpeed fills a group with one tensor
    assert "super_offload: a group for every matrix, priced as 20 groups" in tiny.notes
    whole = read(3, offload_optimizer=early, sub_group_size=2_000_000_000)
    assert "super_offload" not in whole.workload.framework_options
    assert any("one group of sub_group_size" in note for note in whole.notes)


def test_an_unknown_key_with_the_value_auto_is_listed_where_another_value_is_refused() -> None:
    assert read(3, rounds="auto").unread == ("zero_optimization.rounds",)
    with pytest.raises(InvalidProblemError, match=r"rounds: .*is not a key of its section"):
        read(3, rounds=7)


def test_limits_of_what_zero_gathers_change_no_price_and_other_ways_to_gather_are_refused() -> None:
    usual = read(3, stage3_max_live_parameters=1e9, sub_group_size="auto", stage3_prefetch_bucket_size=5e7)
    other = read(3, stage3_max_live_parameters=3e9, sub_group_size=1e9, stage3_prefetch_bucket_size=1e8)
    assert (usual.unread, other.unread) == ((), ())
    assert usual.workload == other.workload
    for name, value in (("contiguous_gradients", False), ("stage3_allgather_sequential", True)):
        with pytest.raises(InvalidProblemError, match=rf"{name}: line \d+: cannot be read"):
            read(3, **{name: value})


@pytest.mark.parametrize(
    ("stage", "sections", "field", "nearest"),
    [
        (3, {"zero_quantized_nontrainable_weights": True}, "zero_quantized_nontrainable_weights", None),
        (3, {"offload_optimizer": CPU, "zenflow": LATE}, "zero_optimization.zenflow", None),
        (2, {"offload_optimizer": CPU, "zenflow": {"overlap_step": True}}, "zenflow.update_interval", "4"),
        (
            2,
            {"offload_optimizer": CPU, "zenflow": LATE | {"topk_ratio": 0.0}},
            "zenflow.topk_ratio",
            "0.01",
        ),
        (2, {"offload_optimizer": CPU, "zenflow": LATE | {"update_interval": 1}}, "update_interval", "2"),
        (2, {"offload_optimizer": CPU, "zenflow": LATE | {"offload": True}}, "zenflow.offload", None),
        (2, {"offload_optimizer": CPU, "zenflow": {"update_interval": 4}}, "zenflow.overlap_step", "true"),
        (2, {"offload_optimizer": CPU | {"super_offload": True}}, "super_offload", "false"),
        (
            3,
            {"offload_optimizer": CPU | {"super_offload": True}, "offload_param": CPU},
            "super_offload",
            "false",
        ),
        (3, {"offload_optimizer": DRIVE | {"super_offload": True}}, "super_offload", "false"),
        (3, {"offload_optimizer": {"device": "none", "super_offload": True}}, "super_offload", "false"),
        (2, {"reduce_bucket_size": 0.5}, "reduce_bucket_size", None),
        (3, {"memory_efficient_linear": False}, "memory_efficient_linear", "true"),
        (2, {"offload_optimizer": DRIVE}, "offload_optimizer.device", "none"),
        (0, {"offload_optimizer": CPU}, "offload_optimizer.device", "none"),
        (0, {"cpu_offload": True}, "zero_optimization.cpu_offload", "false"),
        (3, {"offload_param": DRIVE}, "offload_param.device", "none"),
        (3, {"offload_optimizer": {"device": "nvme"}}, "offload_optimizer.nvme_path", None),
        (3, {"offload_optimizer": {"device": "disk"}}, "offload_optimizer.device", None),
        (2, {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}, "offload_optimizer.ratio", None),
        (3, {"offload_optimizer": {"device": "cpu", "ratio": 1.5}}, "offload_optimizer.ratio", "1"),
    ],
)
def test_what_deepspeed_ignores_or_refuses_is_named(
    stage: int, sections: dict[str, object], field: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        read(stage, **sections)
    faults = {one.pointer: one for one in caught.value.errors}
    (fault,) = (one for pointer, one in faults.items() if pointer.endswith(field))
    if nearest is not None:
        assert fault.nearest == nearest


@pytest.mark.parametrize(("size", "nearest"), [(-1, "0"), (0.5, "0"), (2.6, "3")])
def test_a_group_of_weights_is_a_whole_number(size: float, nearest: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"sub_group_size: .*whole number") as fault:
        read(3, sub_group_size=size)
    assert fault.value.errors[0].nearest == nearest
    assert read(3, sub_group_size=0).configuration.zero_stage == 3


def test_a_refused_section_is_named_once_for_each_of_its_values() -> None:
    raw = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2}, "sparse_attention": {"mode": "fixed", "block": 16},
    }  # fmt: skip
    overrides = Overrides(model=LLAMA_70B, num_gpus=64, values={"seq_length": 4096})
    with pytest.raises(InvalidProblemError) as caught:
        DEEPSPEED_READER.read(Source(name="ds_config.json", text=json.dumps(raw)), overrides)
    assert [one.pointer for one in caught.value.errors] == [
        "sparse_attention.mode",
        "sparse_attention.block",
    ]


def test_groups_of_an_update_are_priced_where_they_are_not_the_usual_ones() -> None:
    def group(stage: int = 3, **sections: object) -> object:
        return read(stage, **sections).workload.framework_options.get("sub_group_size")

    assert group(sub_group_size=100_000_000) == 1e8
    assert group(sub_group_size=0) == 1  # DeepSpeed fills a group with one tensor
    assert group(sub_group_size=1e9) is group(sub_group_size="auto") is group() is None
    assert group(2, sub_group_size=100_000_000) is None  # stage 3 alone has groups
    assert group(sub_group_size=100_000_000, offload_optimizer=CPU) is None


HALF = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}


def in_bf16(stage: int = 3, switches: dict[str, bool] = HALF, **sections: object) -> LaunchFile:
    raw = {
        "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True, **switches}, "zero_optimization": {"stage": stage}, **sections,
    }  # fmt: skip
    overrides = Overrides(model=LLAMA_70B, num_gpus=64, values={"seq_length": 4096})
    return DEEPSPEED_READER.read(Source(name="ds_config.json", text=json.dumps(raw)), overrides)


def test_masters_and_states_in_bf16_are_the_shards_of_stage_3_alone() -> None:
    assert in_bf16().workload.optimizer == "adamw-pure-bf16"
    assert in_bf16(switches={}).workload.optimizer == "adamw"
    with pytest.raises(InvalidProblemError, match="under stage 3 with AdamW's states in bf16 on the GPU"):
        in_bf16(2)  # stages 1 and 2 copy the shard: stage_1_and_2.py, 560
    with pytest.raises(InvalidProblemError, match="under stage 3 with AdamW's states in bf16 on the GPU"):
        in_bf16(zero_optimization={"stage": 3, "offload_optimizer": CPU})
    with pytest.raises(InvalidProblemError, match="DeepSpeed stops: it needs"):
        in_bf16(switches={"bf16_optimizer_states": True})  # base_optimizer.py, _configure_master_weights
    with pytest.raises(InvalidProblemError, match="under stage 3 with AdamW's states in bf16 on the GPU"):
        in_bf16(switches={"bf16_master_weights_and_grads": True})  # fp32 states must be on the host


def test_autocast_to_the_type_of_the_weights_casts_nothing() -> None:
    found = in_bf16(torch_autocast={"enabled": True, "dtype": "torch.bfloat16"})
    assert "torch_autocast to bf16 finds weights in bf16 and casts none" in found.notes
    assert found.workload == in_bf16().workload == in_bf16(torch_autocast={"enabled": False}).workload
    for other in ({}, {"dtype": "torch.float16"}):  # torch's own default is fp16
        with pytest.raises(InvalidProblemError, match="not supported over weights in bf16"):
            in_bf16(torch_autocast={"enabled": True, **other})
    with pytest.raises(InvalidProblemError, match="not supported over weights in fp32"):
        in_bf16(bf16={"enabled": False}, torch_autocast={"enabled": True, "dtype": "torch.bfloat16"})


SIZES = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 128 "
    "--max-position-embeddings 128 --bf16"
)
TEMPLATE = (
    "sed 's/CONFIG_MBSIZE/4/' ds_TEMPLATE.json | sed 's/ZERO_STAGE/1/' > ds_config_7B.json\n"
    f"deepspeed pretrain_gpt.py {SIZES} --vocab-size 512 --tensor-model-parallel-size 1 "
    "--micro-batch-size 4 --global-batch-size 32 --deepspeed --deepspeed_config ds_config_7B.json\n"
)


def test_the_stage_that_a_script_fills_into_deepspeeds_template_is_read() -> None:
    overrides = Overrides(num_gpus=8)
    alone = read_launch_files(Source(name="a.sh", text=TEMPLATE), overrides)
    assert alone.configuration.zero_stage == 1  # the template is not there, its place is filled
    away = '{"zero_optimization": {"stage": ZERO_STAGE, "offload_optimizer": {"device": "cpu"}}}'
    files = {"ds_TEMPLATE.json": away, "a.sh": TEMPLATE}
    found = read_launch_files(Source(name="a.sh", text=TEMPLATE, files=files), overrides)
    assert (found.configuration.zero_stage, found.configuration.offload) == (1, "optimizer")
    files["ds_TEMPLATE.json"] = '{"fp16": {"enabled": true}, "zero_optimization": {"stage": ZERO_STAGE}}'
    with pytest.raises(InvalidProblemError, match="but --bf16 on line 2 of the script"):
        read_launch_files(Source(name="a.sh", text=TEMPLATE, files=files), overrides)
    with pytest.raises(InvalidProblemError, match=r"ds_config_7B.json is not next to the file, and --z"):
        read_launch_files(Source(name="a.sh", text=TEMPLATE.partition("\n")[2]), overrides)
