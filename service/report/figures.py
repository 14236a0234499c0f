"""How figures are written for people: few digits, always with their unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from profiles.units import GIB, TERA
from service.report.glossary import words
from solver.plan import Configuration, Prediction, StageGroup

# Short names of the glossary's sizes, in the order of the mesh.
SHORT_NAMES = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "virtual_pipeline_size": "vpp",
    "context_parallel_size": "cp",
    "expert_parallel_size": "ep",
    "data_parallel_size": "dp",
    "zero_stage": "zero",
    "micro_batch_size": "mbs",
}
_USUAL_SCHEDULES = ("none", "1f1b", "interleaved_1f1b")  # what pp and vpp say already
_SMALL_RISK = 0.001
_TENTHS_FROM, _WHOLE_FROM = 10.0, 100.0  # digits shrink as a figure grows: 3.28, 32.8, 328


def count(number: int) -> str:
    """``184 320``: thousands apart."""
    return f"{number:,}".replace(",", " ")


def figure(value: float) -> str:
    """Three significant digits: 3.28, 32.8, 328."""
    decimals = 2 if value < _TENTHS_FROM else 1 if value < _WHOLE_FROM else 0
    return f"{value:.{decimals}f}"


def seconds(value_s: float) -> str:
    """``32.8 s`` or ``328 ms``."""
    return f"{figure(value_s)} s" if value_s >= 1 else f"{figure(value_s * 1e3)} ms"


def seconds_like(value_s: float, whole_s: float) -> str:
    """``5.8 s`` of ``29.0 s``: in the unit and with the digits of the whole."""
    factor, unit = (1.0, "s") if whole_s >= 1 else (1e3, "ms")
    digits = len(figure(whole_s * factor).partition(".")[2])
    return f"{value_s * factor:.{digits}f} {unit}"


def gib(value_bytes: float) -> str:
    """Bytes in GiB with one decimal, the unit left to the reader's line."""
    return f"{value_bytes / GIB:.1f}"


def percent(share: float) -> str:
    """``46 %``."""
    return f"{share * 100:.0f} %"


def risk(probability: float) -> str:
    """``0.9 %``; what is smaller than a tenth of a per cent is said so."""
    return "<0.1 %" if probability < _SMALL_RISK else f"{probability * 100:.1f} %"


def step_time(prediction: Prediction) -> str:
    """``32.8 s ±4 %``: the wider side of the 80 % interval."""
    step_s = prediction.step_time_s
    wide_s = max(prediction.step_time_high_s - step_s, step_s - prediction.step_time_low_s)
    return f"{seconds(step_s)} ±{percent(wide_s / step_s)}"


def peak_memory(prediction: Prediction) -> str:
    """``49.2 of 79.2 GiB (0)``: the heaviest stage, its limit and its number."""
    used, limit = gib(prediction.peak_memory_bytes), gib(prediction.memory_limit_bytes)
    return f"{used} of {limit} GiB ({prediction.heaviest_stage})"


def recompute(configuration: Configuration) -> str:
    """``–``, ``selective``, ``full`` (every layer) or ``full ×2`` (layers of each chunk)."""
    if configuration.recompute_granularity == "none":
        return "–"
    own = configuration.stage_recompute_layers
    if own and configuration.recompute_granularity == "full":
        return f"full ×{min(own)}–{max(own)} by stage"
    every = configuration.recompute_layers >= max(configuration.stage_layers, default=0)
    if configuration.recompute_granularity == "selective" or every:
        return configuration.recompute_granularity
    return f"full ×{configuration.recompute_layers}"


def configuration_words(configuration: Configuration) -> str:
    """``tp 8 · pp 4 · dp 4 · zero 1 · mbs 1``: sizes that are on, micro-batch, recomputation."""
    always = {"micro_batch_size"}
    sizes = {short: getattr(configuration, name) for name, short in SHORT_NAMES.items()}
    off = {"zero": 0}
    words = [
        f"{short} {sizes[short]}"
        for name, short in SHORT_NAMES.items()
        if name in always or sizes[short] != off.get(short, 1)
    ]
    words += inner_words(configuration)
    if configuration.recompute_granularity != "none":
        words.append(f"{recompute(configuration)} recompute")
    return " · ".join(words)


def inner_words(configuration: Configuration) -> list[str]:
    """What few plans choose, for those that do: ``cp by all-to-all``, ``pp before dp``, ``shards of 8``."""
    split = configuration.context_parallel_size
    experts, shards = configuration.expert_tensor_parallel_size, configuration.zero_shard_size
    hybrid = configuration.zero_stage > 0 and shards < split * configuration.data_parallel_size
    order = _order_words(configuration)
    said = {
        configuration.pipeline_schedule: configuration.pipeline_schedule not in _USUAL_SCHEDULES,
        "cp by all-to-all": configuration.context_parallel_mode != "ring" and split > 1,
        f"etp {experts}": experts > 1,
        f"shards of {shards}": hybrid,
        order: bool(order),
        f"{configuration.offload} in host memory": configuration.offload != "none",
    }
    return [words for words, applies in said.items() if applies]


def _order_words(configuration: Configuration) -> str:
    """``pp before dp``: the axes that are numbered otherwise than by default; empty where none is."""
    usual, own = Configuration().rank_order.split("-"), configuration.rank_order.split("-")
    while own and usual[0] == own[0]:
        usual, own = usual[1:], own[1:]
    while own and usual[-1] == own[-1]:
        usual, own = usual[:-1], own[:-1]
    return " before ".join(own)


def split(stage_layers: Sequence[int]) -> str:
    """``3 4×18 5``: runs of equal chunks are counted."""
    runs: list[tuple[int, int]] = []
    for layers in stage_layers:
        length = runs.pop()[1] if runs and runs[-1][0] == layers else 0
        runs.append((layers, length + 1))
    return " ".join(f"{layers}×{length}" if length > 1 else f"{layers}" for layers, length in runs)


def placement(configuration: Configuration) -> str:
    """``2 × a100-sxm-80gb, 8 nodes each, tp 1 │ …``: runs of stages that stand on like nodes."""
    runs = [(stage, len(list(run))) for stage, run in groupby(configuration.stage_groups)]
    return " │ ".join(
        f"{length} × {stage.group}, {nodes(stage)}, tp {stage.tensor_parallel_size}"
        for stage, length in runs
    )


def kind_of_replica(configuration: Configuration) -> str:
    """``dp 16 · mbs 1, 3 micro-batches │ layers 32 │ 1 × h100-sxm-80gb, …``: one class of replicas."""
    layers = split(configuration.stage_layers)
    count = configuration.num_microbatches
    share = f"{count} micro-batch{'es' if count > 1 else ''}"
    words = f"{configuration_words(configuration)}, {share}"
    return f"{words} │ layers {layers} │ {placement(configuration)}"


def nodes(stage: StageGroup) -> str:
    """``8 nodes``, or GPUs where a stage does not fill its nodes."""
    if not stage.num_nodes.is_integer():
        return f"{stage.num_gpus} GPU{'s' if stage.num_gpus > 1 else ''}"
    return f"{stage.num_nodes:.0f} node{'s' if stage.num_nodes > 1 else ''}"


def times(breakdown_s: Mapping[str, float], step_time_s: float) -> str:
    """``compute 26.4 │ tensor parallel 3.9 │ rest 0.4 s``: causes that show at the step's precision."""
    factor, unit = (1.0, "s") if step_time_s >= 1 else (1e3, "ms")
    digits = len(figure(step_time_s * factor).partition(".")[2])
    return _terms({name: value * factor for name, value in breakdown_s.items()}, digits, unit)


def memory(memory_bytes: Mapping[str, int]) -> str:
    """``weights 4.1 │ gradients 8.2 │ rest 0.1 GiB``."""
    return _terms({name: size / GIB for name, size in memory_bytes.items()}, 1, "GiB")


def _terms(values: Mapping[str, float], digits: int, unit: str) -> str:
    """Named values; those that would print as zero are summed up as the rest."""
    least = 0.5 * 10.0**-digits
    shown = {words(name): value for name, value in values.items() if abs(value) >= least}
    rest = sum(value for value in values.values() if abs(value) < least)
    if abs(rest) >= least:
        shown["rest"] = rest
    return " │ ".join(f"{name} {value:.{digits}f}" for name, value in shown.items()) + f" {unit}"


def tera(flops: float) -> str:
    """FLOP/s in TFLOP/s."""
    return f"{flops / TERA:.0f} TFLOP/s"
