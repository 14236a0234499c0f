"""Gains that launchers publish next to ours: ``make bench ARGS=published``.

Each row prices the run that its source describes; nothing is fitted on these figures. Where a source leaves
a figure open, a comment states our assumption.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.bench_peers import DOCUMENT, written
from benchmarks.fit.accuracy_tables import table
from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup, clock_share
from meshwright.profiles.library import find_cluster, find_gpu, find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, Workload

Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure."""

    what: str
    published: float
    ours: float

    def cells(self) -> list[str]:
        """Return the row of a table."""
        off = self.ours / self.published - 1.0
        return [self.what, f"{self.published:.2f}", f"{self.ours:.2f}", f"{off:+.0%}"]


# --------------------------------------------------------------------------------------------------
# ZeRO++ (arXiv:2306.10209): DeepSpeed's blog of June 2023, figures 6 and 7 (deepspeedai/DeepSpeed edaa7221,
# blogs/zeropp/assets/images/eval1.png, eval2.png): TFLOP/s a GPU of ZeRO-3 and of ZeRO++ on 24 nodes of 16
# V100 32 GB. The shape of the 18B model is the tutorial's (docs/_tutorials/zeropp.md), which recomputes
# every layer; the others' are not stated. Sums in 4 bits need matrices that 2 * 384 divides, so widths
# are multiples of 3: we take GPT-3's. In releases of that year replays gather over all ranks (v0.10.0,
# runtime/zero/partition_parameters.py: "not forward").

ZERO_PLUS_PLUS: Options = {
    "secondary_shard_size": 16, "quantized_gathers": True, "quantized_reductions": True,
    "secondary_in_forward": False,
}  # fmt: skip
_SHAPES = {"18B": (40, 6144), "49B": (27, 12288), "91B": (50, 12288), "138B": (76, 12288)}
# by InfiniBand links of 100 Gbit/s a node, and thousands of tokens a GPU: ZeRO-3, ZeRO++
_PUBLISHED = {
    (1, 1): {"18B": (14, 31), "49B": (11, 22), "91B": (11, 22), "138B": (11, 22)},
    (1, 2): {"18B": (26, 46), "49B": (20, 38), "91B": (20, 38), "138B": (20, 38)},
    (4, 1): {"18B": (25, 35), "49B": (23, 36), "91B": (23, 36), "138B": (23, 36)},
    (4, 2): {"18B": (40, 53), "49B": (36, 51), "91B": (36, 51), "138B": (36, 50)},
}
_NODES, _GPUS = 24, 16


def _gpt(layers: int, hidden: int) -> ModelSpec:
    return replace(
        find_model("gpt-3-175b"), name=f"GPT {layers} x {hidden}", num_layers=layers,
        hidden_size=hidden, num_attention_heads=32, num_kv_heads=32, head_dim=hidden // 32,
        ffn_hidden_size=4 * hidden,
    )  # fmt: skip


def _dgx_2(links: int) -> ClusterSpec:
    gpu = find_gpu("v100-sxm-32gb")
    network = replace(gpu.inter_node, bytes_per_s=links * 12.5e9 / _GPUS)
    group = NodeGroup(
        gpu=gpu, num_nodes=_NODES, gpus_per_node=_GPUS, island_gpus=_GPUS,
        intra_node=LinkSpec(kind="nvswitch", bytes_per_s=150e9, latency_s=3.4e-6), inter_node=network,
    )  # fmt: skip
    return ClusterSpec(name="DGX-2", groups=(group,))


def tflops(model: ModelSpec, cluster: ClusterSpec, tokens: int, options: Options) -> float:
    """Return teraflops a second of a GPU under ZeRO-3, recomputation counted as these figures count it."""
    gpus = cluster.num_gpus
    workload = Workload(
        global_batch_size=gpus * tokens // 512, seq_length=512, precision="fp16", framework_options=options
    )
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="deepspeed")
    config = Configuration(
        data_parallel_size=gpus, zero_stage=3, zero_shard_size=gpus, micro_batch_size=tokens // 512,
        recompute_granularity="full", recompute_layers=model.num_layers, stage_layers=(model.num_layers,),
    )  # fmt: skip
    found = predict(problem, default_profile(cluster, "deepspeed"), config)
    return found.hfu * found.peak_flops_per_gpu / 1e12


def zero_plus_plus() -> Iterator[Row]:
    """Return gains of ZeRO++ over ZeRO-3 by bandwidth, tokens and model."""
    for (links, thousands), by_model in _PUBLISHED.items():
        for name, (before, after) in by_model.items():
            model, cluster = _gpt(*_SHAPES[name]), _dgx_2(links)
            own = [tflops(model, cluster, 1024 * thousands, options) for options in ({}, ZERO_PLUS_PLUS)]
            words = f"{name}, {links} x 100 Gbit/s, {thousands}K tokens"
            yield Row(f"{words}: ZeRO-3, TFLOP/s", before, own[0])
            yield Row(f"{words}: gain of ZeRO++", after / before, own[1] / own[0])


# --------------------------------------------------------------------------------------------------
# Twin-Flow (deepspeedai/DeepSpeed edaa7221, blogs/deepspeed-offloadpp/README.md and images/h100-8.png,
# a100-8.png): training speed over ZeRO-Offload "with some tuning on offload ratio". Neither ratio nor batch
# is stated: the least ratio of tenths that fits, and one sequence of 2,048 a GPU, recomputed, are taken.


def twin_flow() -> Iterator[Row]:
    """Return the gain of leaving a share of the optimizer's states on the GPU, and of leaving all there."""
    for name, cluster_name, gain in (("opt-30b", "dgx-h100", 6.07), ("opt-13b", "dgx-a100-40gb", 3.04)):
        model, found = find_model(name), find_cluster(cluster_name)
        cluster = replace(found, groups=(replace(found.groups[0], num_nodes=1),))
        config = Configuration(
            data_parallel_size=8, zero_stage=3, zero_shard_size=8, offload="optimizer",
            recompute_granularity="full", recompute_layers=model.num_layers,
            stage_layers=(model.num_layers,),
        )  # fmt: skip
        steps = []
        for tenths in range(10, -1, -1):
            options = {"optimizer_offload_fraction": tenths / 10} if tenths else {}
            workload = Workload(
                global_batch_size=8, seq_length=2048, precision="fp16", framework_options=options
            )
            problem = Problem(model=model, cluster=cluster, workload=workload, launcher="deepspeed")
            tried = config if tenths else replace(config, offload="none")
            one = predict(problem, default_profile(cluster, "deepspeed"), tried)
            if one.peak_memory_bytes <= one.memory_limit_bytes:
                steps.append((f"ratio {tenths / 10:g}" if tenths else "without offload", one.step_time_s))
        for ratio, step_s in steps[-2:]:
            yield Row(
                f"{name} on 8 GPUs ({cluster_name}), {ratio}: speed over ratio 1",
                gain,
                steps[0][1] / step_s,
            )


# --------------------------------------------------------------------------------------------------
# ZenFlow: blogs/zenflow-corebinding/README.md of deepspeedai/DeepSpeed states a set-up: Qwen 2.5 3B and
# 1.5B on 2 GPUs of a DGX A100 40 GB, which share the memory of both its processors (16 channels of
# DDR4-3200), ZeRO-2, 8 sequences in all (512 tokens each, not recomputed, in DeepSpeedExamples'
# finetune_llama.py), an interval of 4 steps, a tenth of the gradients selected, cores bound to ranks.
# blogs/deepspeed-zenflow/README.md states "up to 5" without one: we take one sequence of 2,048 on each of 4
# A100, and the tutorial's interval of 4 steps.
# SuperOffload: DeepSpeedExamples' training/DeepSpeed-SuperOffload/README.md states "about 50% higher
# throughput" for its scripts; that of Llama 70B has 4 GH200, 4 sequences of 4,096 in all, and recomputes.
# The scripts' share of states on the GPU (ratio) is not priced next to SuperOffload, and left out.
# blogs/deepspeed-superoffload states "up to 4" without a set-up.

_LATE: Options = {"cpu_update_interval": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hidden:
    """A run with updates on the host, and the options that hide them."""

    what: str
    model: str
    gpu: str
    gpus: int
    zero: int
    length: int
    micro: int = 1
    recompute: bool = True
    host_bytes_per_s: float | None = None  # memory bandwidth of the host; None: each GPU's usual share
    options: Options
    gain: float
    step_s: float = 0.0  # of ZeRO-Offload; 0: not stated

    def seconds(self, options: Options) -> float:
        """Return the predicted step."""
        gpu, model = find_gpu(self.gpu), find_model(self.model)
        group = NodeGroup(
            gpu=gpu, num_nodes=1, gpus_per_node=self.gpus, island_gpus=self.gpus,
            intra_node=gpu.intra_node, inter_node=gpu.inter_node,
            host_memory_bytes_per_s=self.host_bytes_per_s,
        )  # fmt: skip
        cluster = ClusterSpec(name=self.gpu, groups=(group,))
        config = Configuration(
            data_parallel_size=self.gpus, zero_stage=self.zero, zero_shard_size=self.gpus,
            offload="optimizer", micro_batch_size=self.micro, stage_layers=(model.num_layers,),
            recompute_granularity="full" if self.recompute else "none",
            recompute_layers=model.num_layers if self.recompute else 0,
        )  # fmt: skip
        workload = Workload(
            global_batch_size=self.gpus * self.micro, seq_length=self.length, framework_options=options
        )
        problem = Problem(model=model, cluster=cluster, workload=workload, launcher="deepspeed")
        return predict(problem, default_profile(cluster, "deepspeed"), config).step_time_s


_BOUND: Options = {**_LATE, "selected_gradient_share": 0.1}
_HIDDEN = (
    _Hidden(
        what="ZenFlow, Qwen 2.5 3B on 2 A100", model="qwen2.5-3b", gpu="a100-sxm-40gb", gpus=2, zero=2,
        length=512, micro=4, recompute=False, host_bytes_per_s=409.6e9, options=_BOUND,
        gain=2.24, step_s=2.497,
    ),
    _Hidden(
        what="ZenFlow, Qwen 2.5 1.5B on 2 A100", model="qwen2.5-1.5b", gpu="a100-sxm-40gb", gpus=2, zero=2,
        length=512, micro=4, recompute=False, host_bytes_per_s=409.6e9, options=_BOUND,
        gain=2.40, step_s=1.365,
    ),
    _Hidden(
        what="ZenFlow, Llama 2 7B on 4 A100 (published: up to)", model="llama-2-7b", gpu="a100-sxm-40gb",
        gpus=4, zero=2, length=2048, options=_LATE, gain=5.0,
    ),
    _Hidden(
        what="SuperOffload, Llama 70B on 4 GH200 (published: about)", model="llama-3.1-70b",
        gpu="gh200-96gb", gpus=4, zero=3, length=4096, options={"super_offload": True}, gain=1.5,
    ),
)  # fmt: skip


def hidden_updates() -> Iterator[Row]:
    """Return the gain of updates on the host that run under passes, and the step without them."""
    for one in _HIDDEN:
        plain_s = one.seconds({})
        if one.step_s:
            yield Row(f"{one.what}: step of ZeRO-Offload, s", one.step_s, plain_s)
        yield Row(f"{one.what}: speed over ZeRO-Offload", one.gain, plain_s / one.seconds(one.options))


# --------------------------------------------------------------------------------------------------
# Zeus (NSDI 2023): seconds of an epoch of ResNet-50 on ImageNet, 128 images a batch, by power limit
# (ml-energy/zeus a17ec338, examples/research_reproducibility/zeus_nsdi23/trace/summary_power_v100.csv,
# summary_power_a40.csv). We price its work as matrix products alone.

_EPOCHS = {
    ("V100 PCIe", 250): {250: 3603.6, 225: 3684.6, 200: 3799.4, 175: 3945.8, 150: 4243.3, 125: 5158.9},
    ("A40", 300): {
        300: 3739.5,
        275: 3777.3,
        250: 3804.2,
        225: 3862.4,
        200: 3992.4,
        175: 4463.2,
        150: 6147.5,
    },
}


def power_limits() -> Iterator[Row]:
    """Return how much longer an epoch takes under a power limit."""
    for (name, own_w), epochs_s in _EPOCHS.items():
        gpu = replace(find_gpu("v100-pcie-32gb"), power_watts=float(own_w))
        for limit_w, epoch_s in epochs_s.items():
            if limit_w < own_w:
                longer = epoch_s / epochs_s[own_w]
                yield Row(
                    f"{name} at {limit_w} of {own_w} W: time", longer, 1.0 / clock_share(gpu, limit_w)
                )


# --------------------------------------------------------------------------------------------------
# ZeRO-Infinity (arXiv:2104.07857): a model of 10^12 weights, 128 layers of 25,600, on 512 V100 32 GB at
# more than 25 petaflops in all, 49 TFLOP/s a GPU; drives of 25 GB/s a node. Slices of 4 GPUs and 5
# sequences of 1,024 a GPU are taken. The source sends checkpoints of activations to the host as well, which
# is not priced next to drives: the time alone is compared.


def zero_infinity() -> Iterator[Row]:
    """Return the rate of a GPU with optimizer states and weights on drives."""
    model = replace(_gpt(128, 25600), num_attention_heads=160, num_kv_heads=160, head_dim=160)
    node = replace(
        _dgx_2(8).groups[0], num_nodes=32, host_memory_bytes=int(1.5e12), nvme_bytes=int(28e12),
        nvme_read_bytes_per_s=25e9, nvme_write_bytes_per_s=25e9, host_link_bytes_per_s=3e9,
    )  # fmt: skip
    cluster = ClusterSpec(name="DGX-2", groups=(node,))
    sliced, replicas, micro = 4, 128, 20
    workload = Workload(global_batch_size=replicas * micro, seq_length=1024, precision="fp16")
    problem = Problem(model=model, cluster=cluster, workload=workload, launcher="deepspeed")
    config = Configuration(
        tensor_parallel_size=sliced, data_parallel_size=replicas, zero_stage=3, zero_shard_size=replicas,
        micro_batch_size=micro, recompute_granularity="full", recompute_layers=128, stage_layers=(128,),
        offload="optimizer@nvme+parameters@nvme",
    )  # fmt: skip
    found = predict(problem, default_profile(cluster, "deepspeed"), config)
    yield Row("1T on 512 V100: TFLOP/s a GPU", 49.0, found.hfu * found.peak_flops_per_gpu / 1e12)


# --------------------------------------------------------------------------------------------------
# Shapes (Anthony et al. 2024, arXiv:2401.14489): GPT-Neo's 2.7B has 32 heads of 80; other heads make it up
# to 18 % faster for equal parameters. There are as many score matrices as heads, so most of it comes
# from attention without a flash kernel, which moves them through memory; with one, little is left.


def shapes() -> Iterator[Row]:
    """Return the gain of fewer, wider heads by attention kernel on A100, 4 sequences of 2,048 a GPU."""
    (group,) = find_cluster("dgx-a100").groups
    cluster = ClusterSpec(name="DGX A100", groups=(replace(group, num_nodes=1),))
    config = Configuration(
        data_parallel_size=8, micro_batch_size=4, num_microbatches=2, zero_stage=1, zero_shard_size=8,
        stage_layers=(32,),
    )  # fmt: skip
    for kernel, words in (("torch", "torch's softmax, as the source"), ("flash2", "FlashAttention 2")):
        steps = []
        for heads in (32, 20):
            model = replace(
                _gpt(32, 2560), num_attention_heads=heads, num_kv_heads=heads, head_dim=2560 // heads
            )
            workload = Workload(
                global_batch_size=64, seq_length=2048, framework_options={"attention_kernel": kernel}
            )
            problem = Problem(model=model, cluster=cluster, workload=workload, launcher="megatron-lm")
            steps.append(predict(problem, default_profile(cluster, "megatron-lm"), config).step_time_s)
        yield Row(f"GPT-Neo 2.7B, 20 heads for 32, {words}: speed", 1.18, steps[0] / steps[1])


SECTIONS: dict[str, tuple[str, Callable[[], Iterator[Row]]]] = {
    "zero++": ("ZeRO++ on 384 V100 (DeepSpeed's blog, figures 6 and 7)", zero_plus_plus),
    "twin-flow": ("Twin-Flow (ZeRO-Offload++)", twin_flow),
    "hidden-updates": ("ZenFlow and SuperOffload", hidden_updates),
    "power": ("Power limits (Zeus)", power_limits),
    "zero-infinity": ("ZeRO-Infinity", zero_infinity),
    "shapes": ("Shapes of GPT-Neo", shapes),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=SECTIONS, help="one of the sections")
    parser.add_argument("--write", action="store_true", help=f"write them into docs/{DOCUMENT.name}")
    chosen = parser.parse_args(arguments)
    for name, (title, rows) in SECTIONS.items():
        if chosen.only in (None, name):
            cells = [row.cells() for row in rows()]
            command = f'`make bench ARGS="published --only {name}"`'
            text = "\n".join([
                f"**{title}**: {command}", "", *table(["", "published", "ours", "off by"], cells),
            ])  # fmt: skip
            print(text)
            if chosen.write:
                page = written(DOCUMENT.read_text(encoding="utf-8"), f"published {name}", text)
                DOCUMENT.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
