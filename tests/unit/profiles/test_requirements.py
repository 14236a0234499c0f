"""Packages that plans need beyond a stock installation of their launcher."""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.library import find_model
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.requirements import (
    Requirement,
    missing_from_stock,
    packages,
    requirements_of,
    unallowed,
)
from meshwright.profiles.switches import Option

DENSE, EXPERTS, SHARED = (find_model(name) for name in ("llama-3-8b", "qwen3-30b-a3b", "deepseek-v3"))
FACTS = framework_facts("megatron-core")
LATE = {"overlap_experts": True, "delay_wgrad": True}


def needed(options: dict[str, Option], **plan: int) -> list[Requirement]:
    return list(requirements_of("megatron-lm", with_options(FACTS, options), EXPERTS, **plan))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ()),
        ({"moe_dispatcher": "alltoall"}, ()),
        ({"moe_dispatcher": "allgather"}, ()),
        ({"moe_dispatcher": "deepep"}, ("DeepEP",)),
        ({"moe_dispatcher": "hybridep"}, ("HybridEP",)),
        (LATE, ()),
        ({"cuda_graph": "attn"}, ()),
        ({"cuda_graph": "full_iteration"}, ()),
        ({"recompute_modules": "layernorm+moe_act"}, ()),
        ({**LATE, "cuda_graph": "attn"}, ("Transformer Engine 2.12",)),
        (
            {**LATE, "cuda_graph": "attn+moe_router+moe_preprocess", "moe_dispatcher": "hybridep"},
            ("HybridEP", "Transformer Engine 2.12"),
        ),
    ],
)
def test_a_stock_installation_lacks_the_libraries_of_dispatchers_and_a_newer_transformer_engine(
    options: dict[str, Option], names: tuple[str, ...]
) -> None:
    for launcher in ("megatron-lm", "megatron-bridge"):
        assert missing_from_stock(requirements_of(launcher, with_options(FACTS, options), EXPERTS)) == names


def test_what_a_plan_does_not_do_needs_no_package() -> None:
    facts = with_options(FACTS, {**LATE, "cuda_graph": "attn"})
    assert (
        missing_from_stock(requirements_of("megatron-lm", facts, EXPERTS, overlaps=False)) == ()
    )  # no expert parallelism
    assert (
        missing_from_stock(requirements_of("megatron-lm", replace(facts, moe_dispatcher="hybridep"), DENSE))
        == ()
    )
    assert (
        missing_from_stock(
            requirements_of("torchtitan", replace(facts, moe_dispatcher="hybridep"), EXPERTS)
        )
        == ()
    )


def test_a_graph_of_the_router_holds_the_weight_gradients_of_shared_experts() -> None:
    facts = replace(with_options(FACTS, LATE), cuda_graph="moe_router")
    (router,) = requirements_of("megatron-lm", facts, EXPERTS)
    (shared,) = requirements_of("megatron-lm", facts, SHARED)
    assert (router.minimum, router.stock) == ("2.10.0", True)
    assert (shared.minimum, shared.stock) == ("2.12.0", False)


def test_the_newest_of_two_releases_is_named_once() -> None:
    found = needed({**LATE, "cuda_graph": "attn"}, zero_stage=2)  # 2.12 for graphs, 2.10 for Megatron-FSDP
    assert [one.minimum for one in found] == ["2.12.0"]
    (sharded,) = needed({}, zero_stage=3)
    assert (sharded.minimum, sharded.stock) == ("2.10.0", True)


def test_two_reasons_for_one_release_are_one_requirement() -> None:
    # 2.8 for sinks, and for weight gradients that are put off while gradients are reduced
    sinks = replace(EXPERTS, attention_sinks=True)
    (found,) = requirements_of("megatron-lm", with_options(FACTS, LATE), sinks)
    assert (found.name, found.stock) == ("Transformer Engine 2.8", True)
    both = [packages()[need] for need in ("attention sinks", "delayed weight gradients")]
    assert found.why.split("; ") == [one.why for one in both]
    assert found.source.split("; ") == [one.source for one in both]
    assert found.instead == " and ".join(one.instead for one in both)


@pytest.mark.parametrize(
    ("graph", "sent", "model", "newest"),
    [
        ("attn", "core_attn+attn_proj", EXPERTS, True),
        ("attn+moe_router", "qkv_linear", EXPERTS, True),
        ("attn+mlp", "mlp_norm", SHARED, True),  # whose first layers are dense
        ("attn+mlp", "mlp_norm", EXPERTS, False),
        ("attn", "mlp_norm", SHARED, False),
        ("attn", "expert_fc1+moe_act", EXPERTS, False),
        ("moe_router", "core_attn", EXPERTS, False),
        ("none", "core_attn", EXPERTS, False),
    ],
)
def test_offloading_from_inside_a_graph_needs_a_newer_transformer_engine(
    graph: str, sent: str, model: ModelSpec, newest: bool
) -> None:
    facts = replace(FACTS, cuda_graph=graph, offload_modules=sent)
    names = missing_from_stock(requirements_of("megatron-lm", facts, model, offloads=True))
    assert names == (("Transformer Engine 2.14",) if newest else ())
    assert missing_from_stock(requirements_of("megatron-lm", facts, model)) == (), "nothing is sent"
    allowed = ("offload", "cuda_graph")
    assert unallowed(("offload",), "megatron-lm", facts, model, offloads=True) == names
    assert unallowed(allowed, "megatron-lm", facts, model, offloads=True) == ()


STUBS = {
    "deep_ep.py": "Buffer = HybridEPBuffer = None", "flash_attn.py": "", "kernels.py": "",
    "fla/__init__.py": "", "fla/ops/__init__.py": "",
    "fla/ops/gated_delta_rule.py": "chunk_gated_delta_rule = None", "fla/ops/kda.py": "chunk_kda = None",
    "causal_conv1d.py": "causal_conv1d_fn = None",
    "mamba_ssm/__init__.py": "", "mamba_ssm/ops/__init__.py": "", "mamba_ssm/ops/triton/__init__.py": "",
    "mamba_ssm/ops/selective_scan_interface.py": "selective_scan_fn = None",
    "mamba_ssm/ops/triton/ssd_combined.py": "mamba_split_conv1d_scan_combined = None",
    "deepspeed/__init__.py": "", "deepspeed/ops/__init__.py": "",
    "deepspeed/ops/op_builder.py": "class AsyncIOBuilder:\n    is_compatible = lambda _: True",
}  # fmt: skip


def test_shared_weights_and_state_space_layers_need_their_packages() -> None:
    (engine,) = requirements_of("megatron-lm", FACTS, DENSE, weight_shards=True)
    assert (engine.name, engine.stock) == ("Transformer Engine 2.19", True)
    mixer = MixerSpec(kind="mamba2", num_heads=2, num_key_heads=1, key_head_dim=8, value_head_dim=8)
    (kernels,) = requirements_of("megatron-lm", FACTS, replace(DENSE, mixer=mixer))
    assert (kernels.name, kernels.stock) == ("mamba-ssm", True)


def test_every_check_holds_where_the_package_is_there_and_fails_where_it_is_not(tmp_path: Path) -> None:
    for name, text in STUBS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for package in {one.package for one in packages().values()}:
        release = "5.0.2" if package == "transformers" else "99.0"
        place = tmp_path / f"{package}-{release}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {release}\n")
    tried = (
        "import json, sys\nfailed = []\nfor name, check in json.load(sys.stdin).items():\n"
        "    try:\n        exec(check, {})\n"
        "    except (ImportError, AssertionError):\n        failed.append(name)\n"
        "print(json.dumps(failed))"
    )

    def failed(path: Path) -> list[str]:
        checks = json.dumps({name: one.check for name, one in packages().items()})
        done = subprocess.run(
            [sys.executable, "-c", tried], input=checks, env={"PYTHONPATH": str(path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return list(json.loads(done.stdout))

    assert failed(tmp_path) == []
    assert failed(tmp_path / "nothing") == [*packages()]


def test_every_check_is_python_that_a_shell_may_quote_and_every_requirement_names_its_source() -> None:
    for one in packages().values():
        ast.parse(one.check)
        assert "'" not in one.check
        assert ".py" in one.source or "METADATA" in one.source
        assert all((one.why, one.install, one.instead))
