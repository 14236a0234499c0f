"""Train draws of the dense model with Megatron-Core itself, where it can be imported.

Without Transformer Engine its layers are those of the local specification: attention keeps its scores,
norms and activations are torch's. Gradients lie in Megatron-Core's fp32 buffer, and its own optimizer
updates.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from benchmarks.gpu_hour.drawn import Draw, Family, forecast, problem_of
from benchmarks.gpu_hour.training import LEARNING_RATE, WARM_STEPS
from benchmarks.gpu_hour.work import REHEARSED_STEPS_S, STEPS_S, Hour, Item
from meshwright.profiles.measure.provenance import device_state
from meshwright.profiles.profile import default_profile

MOST_DRAWS = 3
MOST_TOKENS = 8192  # of a micro-batch: the local specification keeps the scores of every head


def megatron_items(hour: Hour) -> list[Item]:
    """One item for each draw that Megatron-Core can train, its forecast first; one that says why not."""
    family = next(one for one in hour.families if not one.lora_rank and one.model.moe is None)
    mine = [draw for draw in hour.draws if _trainable(draw, family)][:MOST_DRAWS]
    trained = [
        Item(
            name=f"megatron-{draw.number:02d}",
            estimate_s=3.0 * STEPS_S + 30.0,
            run=partial(_trained, hour, family, draw),
            wants=("predict-megatron",),
        )
        for draw in mine
    ]
    forecasts = partial(_forecasts, hour, family, mine)
    return [Item(name="predict-megatron", estimate_s=10.0, run=forecasts), *trained]


def _trainable(draw: Draw, family: Family) -> bool:
    same = draw.family == family.name and draw.optimizer == "adamw"
    return same and draw.micro_batch_size * draw.seq_length <= MOST_TOKENS


def _with_engine() -> bool:
    return importlib.util.find_spec("transformer_engine") is not None


def _forecasts(hour: Hour, family: Family, draws: list[Draw]) -> dict[str, Any]:
    """What the catalog predicts under Megatron-Core.

    Raises:
        ImportError: Megatron-Core cannot be imported here.
    """
    core = importlib.import_module("megatron.core")
    forecasts = {}
    for draw in draws:
        problem = problem_of(family, draw, hour.gpu)
        if not _with_engine():
            options: dict[str, str | int | float | bool] = {
                "attention_kernel": "torch",
                "norm_fused": False,
            }
            problem = replace(problem, workload=replace(problem.workload, framework_options=options))
        profile = default_profile(problem.cluster, "megatron-core")
        forecasts[f"megatron-{draw.number:02d}"] = [asdict(forecast(problem, profile, draw, "catalog"))]
    version = str(getattr(core, "__version__", "unknown"))
    return {"forecasts": forecasts, "megatron_core": version, "transformer_engine": _with_engine()}


def _trained(hour: Hour, family: Family, draw: Draw) -> dict[str, Any]:
    """Seconds of a step of Megatron-Core's own model, buffers and optimizer.

    Raises:
        ImportError: a part of Megatron-Core cannot be imported here.
    """
    device = hour.device
    _joined(hour)
    step = _Step(hour, family, draw)
    device.forget_peak()
    began_s = time.perf_counter()
    for _ in range(WARM_STEPS):
        step.run()
    device.synchronize()
    each_s = (time.perf_counter() - began_s) / WARM_STEPS
    budget_s = REHEARSED_STEPS_S if hour.tiny else STEPS_S
    steps = max(2, min(10, int(budget_s / max(each_s, 1e-6))))
    began_s = time.perf_counter()
    for _ in range(steps):
        step.run()
    device.synchronize()
    seconds = (time.perf_counter() - began_s) / steps
    return {
        "draw": draw.to_json(), "step_time_s": seconds, "steps": steps,
        "peak_memory_bytes": device.peak_bytes(), "state": device_state(device),
    }  # fmt: skip


def _joined(hour: Hour) -> None:
    """Megatron-Core's groups of one rank."""
    if hour.device.kind == "cpu":
        importlib.import_module("examples.cpu_training.launchers.on_cpu")  # what Megatron-Core asks of CUDA
    distributed = hour.device.torch.distributed
    state = importlib.import_module("megatron.core.parallel_state")
    if not distributed.is_initialized():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kind = "nccl" if hour.device.kind == "cuda" else "gloo"
        distributed.init_process_group(kind, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    if not state.model_parallel_is_initialized():
        state.initialize_model_parallel()
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.model_parallel_cuda_manual_seed(1)


class _Step:
    """Megatron-Core's model of a draw, and its step."""

    def __init__(self, hour: Hour, family: Family, draw: Draw) -> None:
        device, torch, model = hour.device, hour.device.torch, family.model
        module = importlib.import_module
        specs = module("megatron.core.models.gpt.gpt_layer_specs")
        layer = (
            specs.get_gpt_layer_with_transformer_engine_spec() if _with_engine() else
            specs.get_gpt_layer_local_spec(normalization="RMSNorm")
        )  # fmt: skip
        full = draw.recompute == "full"
        self._config = module("megatron.core.transformer.transformer_config").TransformerConfig(
            num_layers=model.num_layers, hidden_size=model.hidden_size,
            ffn_hidden_size=model.ffn_hidden_size, num_attention_heads=model.num_attention_heads,
            num_query_groups=model.num_kv_heads, kv_channels=model.head_dim, normalization="RMSNorm",
            add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
            hidden_dropout=0.0, attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16, gradient_accumulation_fusion=False,
            use_cpu_initialization=device.kind == "cpu",
            recompute_granularity="full" if full else None, recompute_method="uniform" if full else None,
            recompute_num_layers=1 if full else None,
        )  # fmt: skip
        plain = module("megatron.core.models.gpt.gpt_model").GPTModel(
            config=self._config, transformer_layer_spec=layer, vocab_size=model.vocab_size,
            max_sequence_length=draw.seq_length, position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        )  # fmt: skip
        parallel = module("megatron.core.distributed")
        self._model = parallel.DistributedDataParallel(
            self._config,
            parallel.DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False),
            plain.to(device=device.name, dtype=torch.bfloat16),
        )
        optimizers = module("megatron.core.optimizer")
        settings = optimizers.OptimizerConfig(
            optimizer="adam", lr=LEARNING_RATE, bf16=True, params_dtype=torch.bfloat16, clip_grad=0.0
        )
        self._optimizer = optimizers.get_megatron_optimizer(settings, [self._model])
        shape = (draw.micro_batch_size, draw.seq_length + 1)
        tokens = torch.randint(model.vocab_size, shape, device=device.name)
        self._inputs, self._labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self._positions = torch.arange(draw.seq_length, device=device.name).expand_as(self._inputs)
        ones = torch.ones(1, 1, draw.seq_length, draw.seq_length, dtype=torch.bool, device=device.name)
        self._mask = ones.triu(1)
        self._count = draw.num_microbatches

    def run(self) -> None:
        """Every micro-batch, then the optimizer."""
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        for _ in range(self._count):
            losses = self._model(self._inputs, self._positions, self._mask, labels=self._labels)
            (losses.float().mean() / self._count).backward()
        self._model.finish_grad_sync()
        self._optimizer.step()
