"""Attention and launches of transformers' own layers, as a dispatch mode counts them, and as priced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from meshwright.profiles.attention import EAGER, SDPA, implementation, transformers_releases
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_cluster
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Columns, Configuration
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.launches import kernels_of_modules
from meshwright.solver.cost.scores import eager_scores
from meshwright.solver.problem import Problem, Workload

_TOKENS = 32
_VIEWS = (
    "view", "transpose", "expand", "slice.", "unsqueeze", "aten.t.", "detach", "alias", "permute", "split",
    "select", "squeeze", "as_strided", "empty",
)  # fmt: skip


class Kernels(TorchDispatchMode):  # type: ignore[misc]
    """Lists operators that launch a kernel, with the bytes that they read and write of large tensors."""

    def __init__(self, least: float = 1.0) -> None:
        super().__init__()
        self.least, self.moved = least, list[float]()

    def __torch_dispatch__(
        self,
        operator: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run an operator, and note it unless it is a view."""
        found = operator(*args, **(kwargs or {}))
        if not any(one in str(operator) for one in _VIEWS):
            tensors = [one for one in tree_leaves((args, kwargs, found)) if isinstance(one, torch.Tensor)]
            self.moved.append(sum(size(one) for one in tensors if one.numel() >= self.least))
        return found


def size(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip


def raw_config(model_type: str, layers: int, **more: object) -> dict[str, Any]:
    kind = "sliding_attention" if more.get("sliding_window") else "full_attention"
    own = {} if model_type == "llama" else {"layer_types": [kind] * layers}
    return {"model_type": model_type, "num_hidden_layers": layers, **SMALL, **own, **more}


def context(raw: Mapping[str, Any], kernel: str) -> Context:
    model = model_from_config(dict(raw), name="small")
    workload = Workload(
        global_batch_size=1, seq_length=_TOKENS, optimizer="adamw-pure-bf16",
        framework_options={"attention_kernel": kernel, "elementwise_fused": False, "norm_fused": False},
    )  # fmt: skip
    problem = Problem(
        model=model, cluster=find_cluster("dgx-h100"), workload=workload, launcher="accelerate"
    )
    row = Columns.of(
        [Configuration(micro_batch_size=1, num_microbatches=1, stage_layers=(model.num_layers,))]
    )
    ctx = context_of(problem, row, default_profile(problem.cluster, problem.priced_as))
    return ctx.of(model.shapes()[0])


def launched(model_type: str, asked: str, layers: int, **more: object) -> int:
    """Count the kernels of a forward pass of transformers' model in bf16."""
    raw = raw_config(model_type, layers, **more)
    config = AutoConfig.for_model(**raw, attn_implementation=asked)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    with Kernels() as counted:
        model(input_ids=torch.zeros(1, _TOKENS, dtype=torch.long), use_cache=False)
    return len(counted.moved)


@pytest.mark.parametrize(
    ("model_type", "asked", "more"),
    [
        ("llama", "sdpa", {}),
        ("llama", "eager", {}),
        ("qwen3", "sdpa", {}),
        ("mistral", "sdpa", {"sliding_window": 16}),  # an explicit mask
        ("gemma2", "eager", {"sliding_window": 16}),  # a soft cap, and centred norms
    ],
)
def test_a_layer_of_transformers_launches_as_many_kernels_as_are_priced(
    model_type: str, asked: str, more: dict[str, Any]
) -> None:
    layer = launched(model_type, asked, 2, **more) - launched(model_type, asked, 1, **more)
    ctx = context(raw_config(model_type, 1, **more), EAGER if asked == "eager" else SDPA)
    assert kernels_of_modules(ctx, "dense") == pytest.approx(layer)


@pytest.mark.parametrize(
    ("model_type", "more"), [("llama", {}), ("gemma2", {"softcap": 50.0}), ("gpt_oss", {})]
)
def test_eager_attention_moves_and_keeps_as_many_bytes_of_a_score_as_are_priced(
    model_type: str, more: dict[str, Any]
) -> None:
    heads, keys, tokens = 4, 2, 256
    module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    run: Callable[..., tuple[torch.Tensor, ...]] = module.eager_attention_forward

    def tensor(*sides: int) -> torch.Tensor:
        return torch.empty(*sides, device="meta", dtype=torch.bfloat16, requires_grad=True)

    own = SimpleNamespace(
        head_dim=8, num_key_value_groups=heads // keys, training=True, sinks=tensor(heads)
    )
    inputs = (tensor(1, heads, tokens, 8), tensor(1, keys, tokens, 8), tensor(1, keys, tokens, 8))
    mask, scores, kept = tensor(1, 1, tokens, tokens).detach(), heads * tokens**2, dict[int, int]()

    def keep(one: torch.Tensor) -> torch.Tensor:
        if one.numel() >= scores:
            kept[one.untyped_storage()._cdata] = size(one)
        return one

    with Kernels(0.9 * scores) as ahead, torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        out = run(own, *inputs, mask, dropout=0.0, scaling=1.0, **more)[0]
    with Kernels(0.9 * scores) as back:
        out.backward(torch.empty_like(out))
    sinks = {"sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    priced = eager_scores(
        context(raw_config(model_type, 1, **(sinks if model_type == "gpt_oss" else {})), EAGER)
    )
    assert priced is not None
    found = [sum(ahead.moved) / scores, sum(back.moved) / scores, sum(kept.values()) / scores]
    assert found == pytest.approx([priced.forward, priced.backward, priced.kept], rel=0.02)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_oss", "mistral"])
def test_transformers_takes_the_attention_that_the_table_states_for_its_release(model_type: str) -> None:
    raw = raw_config(model_type, 2, sliding_window=16) if model_type != "llama" else raw_config("llama", 2)
    more = {"num_local_experts": 4, "num_experts_per_tok": 2} if model_type == "gpt_oss" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw, **more))
    newest = [one for one in transformers_releases() if one[0].isdigit()][-1]
    stated = implementation(model_from_config({**raw, **more}, name="small"), newest)
    assert model.config._attn_implementation == ("eager" if stated.kernel == EAGER else stated.kernel)
