"""Models and clusters written out and read back are equal."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping, model_from_mapping
from meshwright.profiles.library import (
    cluster_names,
    find_cluster,
    find_gpu,
    find_model,
    gpu_names,
    model_names,
)
from meshwright.profiles.model import MlaSpec, ModelSpec, MoeSpec, RotaryScaling, model_to_mapping


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
