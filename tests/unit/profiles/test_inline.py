"""Models and clusters as they stand in a request."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.profiles.errors import InvalidProblemError, UnknownNameError
from meshwright.profiles.inline import (
    cluster_from_mapping,
    cluster_of_words,
    cluster_to_mapping,
    is_counted,
    model_from_mapping,
)
from meshwright.profiles.library import (
    cluster_names,
    find_cluster,
    find_gpu,
    find_model,
    gpu_names,
    model_names,
)
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec, RotaryScaling
from meshwright.profiles.model_shapes import model_to_mapping

FIXTURES = Path(__file__).parent / "fixtures"
SHAPE: dict[str, object] = {
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 8,
    "vocab_size": 100,
}
LINK: dict[str, object] = {"kind": "nvlink", "bytes_per_s": 3e11, "latency_s": 3e-6}
GROUP: dict[str, object] = {"gpu": "h100-sxm-80gb", "num_nodes": 12, "gpus_per_node": 8}


def test_a_model_is_a_catalog_name_a_shape_or_a_hugging_face_config() -> None:
    assert model_from_mapping({"name": "llama-3.1-8b"}) is find_model("llama-3.1-8b")
    shape = model_from_mapping(SHAPE | {"name": "mine"})
    assert (shape.name, shape.num_kv_heads, shape.head_dim) == ("mine", 8, 8)
    config = json.loads((FIXTURES / "gpt2.json").read_text())
    assert model_from_mapping(config).num_layers == 12


def test_every_missing_size_is_named_once_in_the_order_of_the_fields() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_mapping({})
    assert [fault.pointer for fault in caught.value.errors] == [f"/model/{name}" for name in SHAPE]


def test_a_nested_shape_is_read_whole() -> None:
    moe = {"num_experts": 8, "top_k": 2, "ffn_hidden_size": 32}
    mla = {
        "q_lora_rank": 0,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    }
    model = model_from_mapping(SHAPE | {"moe": moe, "mla": mla})
    assert model.moe == MoeSpec(num_experts=8, top_k=2, ffn_hidden_size=32)
    assert model.head_dim == 12


@pytest.mark.parametrize("name", ["num_kv_heads", "head_dim"])
def test_null_leaves_a_size_of_the_heads_to_the_others(name: str) -> None:
    assert model_from_mapping(SHAPE | {name: None}) == model_from_mapping(SHAPE)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"num_layers": True}, "/model/num_layers"),
        ({"num_layers": 4.0}, "/model/num_layers"),
        ({"num_layers": "4"}, "/model/num_layers"),
        ({"num_layers": -1}, "/model/num_layers"),
        ({"num_layers": 10**9}, "/model/num_layers"),
        ({"num_layers": None}, "/model/num_layers"),
        ({"hidden_size": float("nan")}, "/model/hidden_size"),
        ({"vocab_size": 10**400}, "/model/vocab_size"),
        ({"num_kv_heads": 3}, "/model/num_kv_heads"),
        ({"num_attention_heads": 7}, "/model/num_attention_heads"),
        ({"gated_mlp": 1}, "/model/gated_mlp"),
        ({"normalization": "batchnorm"}, "/model/normalization"),
        ({"name": "a\nb"}, "/model/name"),
        ({"moe": 5}, "/model/moe"),
        ({"moe": {"num_experts": 8, "top_k": 9, "ffn_hidden_size": 1}}, "/model/moe/top_k"),
        ({"moe": {"num_experts": 8, "top_k": 1, "ffn_hidden_size": 1, "extra": 1}}, "/model/moe/extra"),
        ({"mla": {"kv_lora_rank": 8}}, "/model/mla/qk_nope_head_dim"),
        ({"hidden_sise": 4}, "/model/hidden_sise"),
        ({"a/b~c": 4}, "/model/a~1b~0c"),
    ],
)
def test_a_faulty_shape_names_the_exact_field(changes: dict[str, object], pointer: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_mapping(SHAPE | changes)
    assert pointer in [error.pointer for error in caught.value.errors]


def test_a_word_that_is_missing_is_named_with_the_words_that_it_may_be() -> None:
    with pytest.raises(InvalidProblemError, match=r"rotary_scaling\.kind: is required\. Allowed: .*yarn"):
        model_from_mapping({**SHAPE, "rotary_scaling": {"factor": 2.0}})


def test_all_faults_of_a_shape_are_reported_at_once_with_near_names() -> None:
    with pytest.raises(InvalidProblemError) as caught:
        model_from_mapping({**SHAPE, "num_layers": 0, "vocab_size": "x", "hidden_sise": 1})
    assert [(error.pointer, error.nearest) for error in caught.value.errors] == [
        ("/model/num_layers", "1"),
        ("/model/vocab_size", None),
        ("/model/hidden_sise", "hidden_size"),
    ]


def test_a_cluster_is_a_catalog_name_with_a_number_of_nodes() -> None:
    assert cluster_from_mapping({"name": "dgx-h100", "num_nodes": 16}).num_gpus == 128
    assert cluster_from_mapping({"name": "dgx-h100"}) is find_cluster("dgx-h100")


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        (
            {"num_gpus": 4, "num_nodes": 2, "gpus_per_node": 4},
            "2 × 4 = 8, but there are 4 GPUs.*Nearest: 8",
        ),
        ({"num_gpus": 16, "num_nodes": 1, "gpus_per_node": 8}, "1 × 8 = 8, but there are 16 GPUs"),
        ({"num_gpus": 4, "gpus_per_node": 8}, "4 GPUs don't fill nodes of 8.*Nearest: 8"),
        ({"num_gpus": 5, "num_nodes": 2}, "5 GPUs can't be split evenly over 2 nodes.*Nearest: 4 or 6"),
        ({"num_gpus": 4, "num_nodes": 16}, "4 GPUs can't be split evenly over 16 nodes.*Nearest: 64"),
    ],
)
def test_numbers_of_gpus_and_nodes_that_contradict_are_refused(counts: dict[str, int], why: str) -> None:
    with pytest.raises(InvalidProblemError, match=why):
        cluster_from_mapping({"gpu": "h100", **counts})


def test_links_left_out_are_the_usual_ones_and_a_warning_says_so() -> None:
    cluster = cluster_from_mapping({"groups": [GROUP]})
    assert cluster.groups[0].intra_node == find_gpu("h100-sxm-80gb").intra_node
    assert cluster.title == "96 × H100 SXM 80 GB, 12 nodes"
    h100 = "nvswitch 450 GB/s in a node, infiniband 50 GB/s between nodes for H100 SXM 80 GB"
    way = "(per GPU, each way). Set yours in a cluster file"
    assert cluster.warnings == (f"assuming {h100} {way}",)
    a100 = "nvswitch 300 GB/s in a node, infiniband 25 GB/s between nodes for A100 SXM 80 GB"
    three = cluster_from_mapping({"groups": [GROUP, GROUP | {"gpu": "a100-sxm-80gb"}, GROUP]})
    assert three.warnings == (f"assuming {h100}; {a100} {way}",)


def test_links_given_are_taken_without_a_warning() -> None:
    cluster = cluster_from_mapping({"groups": [GROUP | {"intra_node": LINK, "inter_node": LINK}]})
    assert cluster.warnings == ()
    assert cluster.groups[0].inter_node.bytes_per_s == pytest.approx(3e11)


def test_mixed_groups_keep_their_order_and_the_link_between_them() -> None:
    cluster = cluster_from_mapping(
        {"groups": [GROUP, {"gpu": "a100-sxm", "num_nodes": 2}], "between_groups": LINK, "name": "lab"}
    )
    assert [group.gpu.slug for group in cluster.groups] == ["h100-sxm-80gb", "a100-sxm-80gb"]
    assert cluster.between_groups is not None
    assert "cluster.groups.1.gpu: a100-sxm: assuming 80 GB" in cluster.warnings
    assert not cluster.is_homogeneous


def test_a_rack_of_gb200_is_one_island_and_a_node_of_five_is_not() -> None:
    rack = cluster_from_mapping({"groups": [{"gpu": "gb200", "num_nodes": 18, "gpus_per_node": 4}]})
    odd = cluster_from_mapping({"groups": [{"gpu": "gb200", "num_nodes": 2, "gpus_per_node": 5}]})
    assert (rack.groups[0].island_gpus, odd.groups[0].island_gpus) == (72, 5)


@pytest.mark.parametrize(
    ("raw", "pointer"),
    [
        ([], "/cluster"),
        ({}, "/cluster/name"),
        ({"name": 5}, "/cluster/name"),
        ({"name": "dgx-h100", "num_nodes": True}, "/cluster/num_nodes"),
        ({"name": "dgx-h100", "num_nodes": 2.5}, "/cluster/num_nodes"),
        ({"name": "dgx-h100", "nodes": 2}, "/cluster/nodes"),
        ({"groups": []}, "/cluster/groups"),
        ({"groups": {}}, "/cluster/groups"),
        ({"groups": [GROUP] * 65}, "/cluster/groups"),
        ({"groups": [5]}, "/cluster/groups/0"),
        ({"groups": [GROUP, GROUP | {"gpu": "h101"}]}, "/cluster/groups/1/gpu"),
        ({"groups": [GROUP | {"gpu": 7}]}, "/cluster/groups/0/gpu"),
        ({"groups": [GROUP | {"num_nodes": 0}]}, "/cluster/groups/0/num_nodes"),
        ({"groups": [GROUP | {"gpus_per_node": 10**6}]}, "/cluster/groups/0/gpus_per_node"),
        ({"groups": [GROUP | {"island_gpus": 3}]}, "/cluster/groups/0/island_gpus"),
        ({"groups": [GROUP | {"extra": 1}]}, "/cluster/groups/0/extra"),
        ({"groups": [GROUP | {"num_nodes": 900_000}]}, "/cluster/num_nodes"),
        ({"groups": [GROUP | {"num_nodes": 100_000}] * 2}, "/cluster/groups"),
        ({"groups": [GROUP], "between_groups": "fast"}, "/cluster/between_groups"),
        (
            {"groups": [GROUP | {"intra_node": LINK | {"bytes_per_s": float("nan")}}]},
            "/cluster/groups/0/intra_node/bytes_per_s",
        ),
        (
            {"groups": [GROUP | {"intra_node": LINK | {"bytes_per_s": 0}}]},
            "/cluster/groups/0/intra_node/bytes_per_s",
        ),
        (
            {"groups": [GROUP | {"inter_node": LINK | {"latency_s": -1.0}}]},
            "/cluster/groups/0/inter_node/latency_s",
        ),
        (
            {"groups": [GROUP | {"inter_node": LINK | {"latency_s": True}}]},
            "/cluster/groups/0/inter_node/latency_s",
        ),
        (
            {"groups": [GROUP | {"inter_node": LINK | {"bytes_per_s": 10**400}}]},
            "/cluster/groups/0/inter_node/bytes_per_s",
        ),
    ],
)
def test_a_faulty_cluster_names_the_exact_field(raw: object, pointer: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        cluster_from_mapping(raw)
    assert pointer in [error.pointer for error in caught.value.errors]


def test_unknown_catalog_names_list_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-70b"):
        model_from_mapping({"name": "lama-3.1-70b"})
    with pytest.raises(UnknownNameError, match="dgx-h100"):
        cluster_from_mapping({"name": "dgx-h1000"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted([*SHAPE, "name", "moe", "mla", "groups", "model_type", "layer_types"]))


def _fault(read: Callable[[object], object], raw: object) -> InvalidProblemError | None:
    try:
        read(raw)
    except InvalidProblemError as error:
        return error
    return None


@given(st.dictionaries(FIELDS, JSON, max_size=8) | JSON)
def test_arbitrary_json_is_read_or_refused_and_never_crashes(raw: object) -> None:
    for read, root in ((model_from_mapping, "/model"), (cluster_from_mapping, "/cluster")):
        fault = _fault(read, raw)
        assert fault is not None  # none of these is complete
        assert all(error.pointer.startswith(root) for error in fault.errors)
        assert len(str(fault)) < 10_000


GARBAGE: list[object] = [None, -1, "x", [], {}, True, 1e400, [[]], 10**30]


@pytest.mark.parametrize(
    "path",
    sorted(
        set(FIXTURES.glob("*.json"))
        - {FIXTURES / f"{name}.json" for name in ("real-configs", "drawn-configs", "drawn-diffusers")}
    ),
    ids=lambda path: path.stem,
)
def test_a_field_changed_in_a_real_config_never_crashes(path: Path) -> None:
    config = json.loads(path.read_text())
    refused = [
        fault
        for field, value in itertools.product(config, GARBAGE)
        if (fault := _fault(model_from_mapping, config | {field: value}))
    ]
    assert len(refused) > len(GARBAGE)
    assert all(error.pointer.startswith("/model/") for fault in refused for error in fault.errors)


def test_a_mixed_cluster_is_named_by_the_nodes_of_each_group() -> None:
    # 2 * 8 + 3 * 4 = 28
    groups = [
        {"gpu": "h100-sxm-80gb", "num_nodes": 2, "gpus_per_node": 8},
        {"gpu": "a100-sxm-80gb", "num_nodes": 3, "gpus_per_node": 4},
    ]
    title = cluster_from_mapping({"groups": groups}).title
    assert title == "2 × (8 H100 SXM 80 GB) + 3 × (4 A100 SXM 80 GB) = 28 GPUs"


def test_one_gpu_is_not_called_gpus() -> None:
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 1, "gpus_per_node": 1}
    assert cluster_from_mapping({"groups": [group]}).title == "1 × H100 SXM 80 GB"


def test_what_is_no_object_is_one_fault_not_one_for_each_field() -> None:
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 2, "gpus_per_node": 8, "intra_node": "nvlink"}
    with pytest.raises(InvalidProblemError) as caught:
        cluster_from_mapping({"groups": [group]})
    assert [fault.pointer for fault in caught.value.errors] == ["/cluster/groups/0/intra_node"]


def test_a_figure_out_of_range_names_the_nearest_one() -> None:
    link = {"kind": "ib", "bytes_per_s": 5e10, "latency_s": -1}
    group = {"gpu": "h100-sxm-80gb", "num_nodes": 2, "gpus_per_node": 8, "inter_node": link}
    with pytest.raises(InvalidProblemError, match=r"-1 is out of range. Allowed: 0 to 10. Nearest: 0"):
        cluster_from_mapping({"groups": [group]})


def test_a_group_may_state_its_host_and_keeps_it_in_its_mapping() -> None:
    host = {
        "host_link_bytes_per_s": 2.5e10, "host_memory_bytes": 10**12, "host_memory_bytes_per_s": 4e11,
        "nvme_bytes": 0, "nvme_read_bytes_per_s": 2e10, "nvme_write_bytes_per_s": 1e10,
    }  # fmt: skip
    raw = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2, **host}]}
    cluster = cluster_from_mapping(raw)
    (group,) = cluster.groups
    assert {name: getattr(group, name) for name in host} == host
    assert cluster_from_mapping(cluster_to_mapping(cluster)) == cluster


def test_a_host_link_that_is_no_speed_is_named() -> None:
    raw = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2, "host_link_bytes_per_s": 0}]}
    with pytest.raises(InvalidProblemError, match="host_link_bytes_per_s"):
        cluster_from_mapping(raw)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("nvme_bytes", -1, "0"),
        ("nvme_read_bytes_per_s", 0, "1"),
        ("host_memory_bytes_per_s", 1e16, "1e+15"),
    ],
)
def test_a_drive_that_cannot_be_names_the_nearest_one(name: str, value: float, nearest: str) -> None:
    raw = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2, name: value}]}
    with pytest.raises(InvalidProblemError) as caught:
        cluster_from_mapping(raw)
    (fault,) = caught.value.errors
    assert (fault.pointer, fault.nearest) == (f"/cluster/groups/0/{name}", nearest)


# Models and clusters written out and read back are equal.


def test_every_catalog_model_and_cluster_survives_the_round_trip() -> None:
    for name in model_names():
        assert model_from_mapping(_through_json(model_to_mapping(find_model(name)))) == find_model(name)
    for name in cluster_names():
        assert cluster_from_mapping(_through_json(cluster_to_mapping(find_cluster(name)))) == find_cluster(
            name
        )


def _through_json(raw: object) -> object:
    return json.loads(json.dumps(raw, allow_nan=False))


SIZES = st.integers(1, 512)
MOES = st.builds(
    MoeSpec,
    num_experts=st.integers(8, 256),
    top_k=st.integers(1, 8),
    ffn_hidden_size=SIZES,
    num_dense_layers=st.just(0),
    frequency=st.integers(1, 4),
)
MLAS = st.builds(
    MlaSpec,
    q_lora_rank=st.integers(0, 64),
    kv_lora_rank=SIZES,
    qk_nope_head_dim=st.just(8),
    qk_rope_head_dim=st.just(4),
    v_head_dim=SIZES,
)
SCALINGS = st.builds(
    RotaryScaling,
    kind=st.sampled_from(["llama3", "yarn", "linear"]),
    factor=st.floats(1, 64),
    original_max_position_embeddings=st.none() | st.integers(1, 10**6),
    mscale=st.none() | st.floats(0, 2),
)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    kv_heads, mla = draw(st.integers(1, 16)), draw(st.none() | MLAS)
    return ModelSpec(
        name=draw(st.text("abc-123", min_size=1, max_size=20)),
        num_layers=draw(SIZES),
        hidden_size=draw(SIZES),
        ffn_hidden_size=draw(SIZES),
        num_attention_heads=kv_heads * draw(st.integers(1, 8)),
        num_kv_heads=kv_heads,
        head_dim=12 if mla else draw(SIZES),
        vocab_size=draw(SIZES),
        gated_mlp=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        moe=draw(st.none() | MOES),
        mla=mla,
        num_mtp_layers=draw(st.integers(0, 2)),
        sliding_window=draw(st.none() | SIZES),
        sliding_window_every=draw(st.integers(1, 8)),
        max_position_embeddings=draw(st.none() | SIZES),
        rotary_base=draw(st.none() | SIZES),
        normalization=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        qkv_bias=draw(st.booleans()) and mla is None,
        query_key_norm="none" if mla else draw(st.sampled_from(["none", "per_head", "all_heads"])),
        activation=draw(st.sampled_from([None, "gelu", "quick_gelu", "squared_relu"])),
        activation_clamp=draw(st.none() | st.floats(0.5, 10)),
        attention_softcap=draw(st.none() | st.floats(1, 100)),
        attention_sinks=draw(st.booleans()),
        rotary_fraction=draw(st.sampled_from([0.25, 0.5, 1.0])),
        rotary_scaling=draw(st.none() | SCALINGS),
        norm_position=draw(st.sampled_from(["before", "after", "before_and_after"])),
        embedding_scale=draw(st.floats(0.1, 100)),
        attention_output_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        display_name=draw(st.sampled_from(["", "A Model"])),
    )


LINKS = st.builds(
    LinkSpec,
    kind=st.sampled_from(["nvlink", "pcie", "roce"]),
    bytes_per_s=st.floats(1e6, 1e13),
    latency_s=st.floats(0, 1e-2),
    source=st.sampled_from(["", "measured"]),
)


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    def group() -> NodeGroup:
        per_node = draw(st.integers(1, 16))
        return NodeGroup(
            gpu=find_gpu(draw(st.sampled_from(gpu_names()))),
            num_nodes=draw(st.integers(1, 1000)),
            gpus_per_node=per_node,
            island_gpus=per_node * draw(st.integers(1, 9)),
            intra_node=draw(LINKS),
            inter_node=draw(LINKS),
        )

    return ClusterSpec(
        name=draw(st.sampled_from(["custom", "lab"])),
        groups=tuple(group() for _ in range(draw(st.integers(1, 3)))),
        between_groups=draw(st.none() | LINKS),
        display_name=draw(st.sampled_from(["node of ours", "lab node"])),
    )


@given(models())
def test_any_model_survives_the_round_trip(model: ModelSpec) -> None:
    assert model_from_mapping(_through_json(model_to_mapping(model))) == model


@given(clusters())
def test_any_cluster_survives_the_round_trip(cluster: ClusterSpec) -> None:
    assert cluster_from_mapping(_through_json(cluster_to_mapping(cluster))) == cluster


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("8xH100", 8), ("8 x H100", 8), ("H100x8", 8), ("h100:8", 8), ("8 H100", 8), ("MI300Xx8", 8),
        ("4090x2", 2), ("2 3090", 2), ("2xH100,1xA100", 3),
    ],
)  # fmt: skip
def test_gpus_are_counted_as_people_write_them(text: str, gpus: int) -> None:
    cluster = cluster_from_mapping(cluster_of_words(text, count="gpus"))
    assert cluster.num_gpus == gpus


@pytest.mark.parametrize(
    "name", ["rtx4090", "RTX 4090", "4090", "tpu7x", "4090 laptop", "2080 Ti", "6000 Ada"]
)
def test_a_number_in_a_gpus_name_counts_nothing(name: str) -> None:
    assert not is_counted(name)
