"""GPU types that a request describes itself: reading, writing, and the nearest one in the catalog.

A data sheet's figures are enough. The shares of them that operators reach, the kernels and the host are
those of the nearest GPU type in the catalog (``nearest_gpu``), and predictions have a wider interval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf, log

from meshwright.profiles.cluster import MAX_GPUS_PER_NODE, MAX_NODES, GpuSpec, LinkSpec, transport_of
from meshwright.profiles.library import find_gpu, gpu_names
from meshwright.profiles.model_shapes import Json
from meshwright.profiles.reading import FieldReader
from meshwright.profiles.units import GB, GIB, TERA

PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "tf32", "fp32")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NAME_FORM = "a to z, 0 to 9 and . _ -, 64 at most"
CPU = "cpu"  # architecture of what the catalog has for runs without a GPU
MAX_BYTES_PER_S = 1e15
MAX_LATENCY_S = 10.0
MAX_SOURCES = 20
USUAL_NODE = 8  # GPUs of a node where a described GPU states no number
# How far a part may lie above the catalog's best in FLOP per byte of its memory and per joule. Assumed:
# three doublings, for parts that do not exist yet. Beyond it a figure is taken for a wrong unit.
HEADROOM = 8.0
# Seconds of one hop where a link states none, as in links.yaml.
NETWORK_LATENCY_S, _PCIE_LATENCY_S, _FAST_LATENCY_S = 14e-6, 5.7e-6, 3.4e-6
SOCKET_LATENCY_S = NETWORK_LATENCY_S + 20e-6  # kernel's TCP takes 10 to 30 microseconds one way


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure of a data sheet, in base units or in those of data sheets."""

    base: str
    short: str
    unit: float  # base units of one short unit
    low: float  # in base units
    high: float

    def name_in(self, reader: FieldReader) -> str:
        """Return the field that states it, and record a fault where both do."""
        if reader.has(self.base) and reader.has(self.short):
            reader.value(self.short)
            reader.fault(self.short, f"{self.base} is given too", allowed=f"{self.base} or {self.short}")
        return self.short if reader.has(self.short) and not reader.has(self.base) else self.base

    def read(self, reader: FieldReader) -> float:
        """Return the value in base units; required."""
        name = self.name_in(reader)
        for known in (self.base, self.short):
            reader.value(known)
        if reader.has(name):
            unit = self.unit if name == self.short else 1.0
            return unit * reader.number(name, low=self.low / unit, high=self.high / unit)
        if reader.is_object:
            reader.fault(self.base, "is required", allowed=f"{self.base} or {self.short}")
        return self.low


_MEMORY = _Figure(base="memory_bytes", short="memory_gib", unit=GIB, low=2.0**28, high=2.0**44)
_BANDWIDTH = _Figure(base="hbm_bytes_per_s", short="hbm_gb_per_s", unit=GB, low=1e9, high=MAX_BYTES_PER_S)
_PEAK = _Figure(base="peak_flops", short="peak_tflops", unit=TERA, low=1e9, high=1e18)
_RATE = _Figure(base="bytes_per_s", short="gb_per_s", unit=GB, low=1.0, high=MAX_BYTES_PER_S)


def gpu_from_mapping(raw: object, pointer: str = "/gpu", warnings: list[str] | None = None) -> GpuSpec:
    """Return the GPU type that a mapping describes, filled up from the nearest one in the catalog.

    Args:
        raw: ``peak_flops``, ``memory_bytes``, ``hbm_bytes_per_s`` (or ``peak_tflops``, ``memory_gib``,
            ``hbm_gb_per_s``); and ``name``, ``power_watts``, links, architecture and GPUs per node.
        pointer: where it is in the request.
        warnings: gets a sentence for each figure that the nearest GPU type provides.

    Raises:
        InvalidProblemError: every fault with its pointer, and what is allowed.
    """
    reader = FieldReader(raw, pointer)
    name = _name(reader)
    display_name = reader.text("display_name", default="") or name
    memory_bytes, hbm_bytes_per_s = _MEMORY.read(reader), _BANDWIDTH.read(reader)
    peaks, peaks_at = _peaks(reader)
    power_watts = reader.number("power_watts", low=0.1, high=1e5) if reader.has("power_watts") else None
    reader.value("power_watts")
    architecture = _architecture(reader)
    links = {key: link_from(reader.child(key), network=key == "inter_node") for key in _LINKS}
    counts = {
        "gpus_per_node": reader.optional_integer("gpus_per_node", high=MAX_GPUS_PER_NODE),
        "island_gpus": reader.optional_integer("island_gpus", high=MAX_NODES),
    }
    sources = reader.texts("sources") if reader.value("sources") is not None else []
    if len(sources) > MAX_SOURCES:
        reader.fault("sources", "are too many", allowed=f"{MAX_SOURCES} at most")
    reader.refuse_unknown()
    if not reader.faults:
        _refuse_beyond_physics(reader, peaks_at, peaks, hbm_bytes_per_s, power_watts)
    reader.finish()
    usual = nearest_gpu(peaks, hbm_bytes_per_s, power_watts, architecture)
    if warnings is not None:
        warnings += _assumed(pointer, usual, links)
    per_node = counts["gpus_per_node"] or USUAL_NODE
    return GpuSpec(
        slug=name,
        display_name=display_name,
        memory_bytes=int(memory_bytes),
        hbm_bytes_per_s=hbm_bytes_per_s,
        peak_flops=peaks,
        architecture=usual.architecture,
        intra_node=links["intra_node"] or usual.intra_node,
        inter_node=links["inter_node"] or usual.inter_node,
        gpus_per_node=per_node,
        island_gpus=counts["island_gpus"] or per_node,
        power_watts=power_watts,
        sources=tuple(sources),
        nearest="" if architecture else usual.slug,
    )


def gpu_to_mapping(gpu: GpuSpec) -> dict[str, Json]:
    """Return the mapping that ``gpu_from_mapping`` reads back."""
    raw: dict[str, Json] = {
        "name": gpu.slug,
        "display_name": gpu.display_name,
        "memory_bytes": gpu.memory_bytes,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "peak_flops": dict(gpu.peak_flops),
        "intra_node": link_to_mapping(gpu.intra_node),
        "inter_node": link_to_mapping(gpu.inter_node),
        "gpus_per_node": gpu.gpus_per_node,
        "island_gpus": gpu.island_gpus,
    }
    if gpu.power_watts is not None:
        raw["power_watts"] = gpu.power_watts
    if not gpu.nearest:
        raw["architecture"] = gpu.architecture
    return raw | ({"sources": list(gpu.sources)} if gpu.sources else {})


def link_from(reader: FieldReader | None, *, network: bool = True) -> LinkSpec | None:
    """Return a link of ``kind`` and ``bytes_per_s`` (or ``gb_per_s``); None: missing or faulty.

    Args:
        reader: of its fields; ``latency_s`` is that of its kind in the catalog where it is left out.
        network: whether it joins nodes.
    """
    if reader is None:
        return None
    kind = reader.text("kind")
    bytes_per_s = _RATE.read(reader)
    inside_s = _PCIE_LATENCY_S if kind == "pcie" else _FAST_LATENCY_S
    usual_s = network_latency_s(kind) if network else inside_s
    latency_s = reader.number("latency_s", low=0, high=MAX_LATENCY_S, default=usual_s)
    source = reader.text("source", default="")
    reader.refuse_unknown()
    if reader.faults:
        return None
    return LinkSpec(kind=kind, bytes_per_s=bytes_per_s, latency_s=latency_s, source=source)


def network_latency_s(kind: str) -> float:
    """Return the seconds of one hop of a kind of network that states none."""
    return SOCKET_LATENCY_S if transport_of(kind) == "ethernet" else NETWORK_LATENCY_S


def link_to_mapping(link: LinkSpec) -> dict[str, Json]:
    """Return the mapping that ``link_from`` reads back."""
    raw: dict[str, Json] = {"kind": link.kind, "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
    return raw | ({"source": link.source} if link.source else {})


def link_rate(link: LinkSpec) -> str:
    """Return ``nvswitch 450 GB/s``."""
    return f"{link.kind} {link.bytes_per_s / GB:g} GB/s"


def nearest_gpu(
    peaks: Mapping[str, float],
    hbm_bytes_per_s: float,
    power_watts: float | None = None,
    architecture: str = "",
) -> GpuSpec:
    """Return the GPU type of a measured architecture with the most similar data sheet.

    Least sum of squared differences of the logarithms of the 16-bit peak, memory bandwidth and power (where
    it is stated); a precision of 8 or 4 bits that only one of the two has counts as a factor of 2. The
    size of the memory says nothing of how fast operators are.

    Args:
        peaks: dense peaks by precision, FLOP/s.
        hbm_bytes_per_s: memory bandwidth.
        power_watts: power limit; None leaves it out.
        architecture: only GPU types of this one; empty: of any.
    """
    sheet = _sheet(peaks, hbm_bytes_per_s, power_watts)

    def apart(gpu: GpuSpec) -> float:
        other = _sheet(gpu.peak_flops, gpu.hbm_bytes_per_s, gpu.power_watts)
        return sum((a - other[key]) ** 2 for key, a in sheet.items() if key in other)

    return min((one for one in _known() if architecture in ("", one.architecture)), key=apart)


def _sheet(
    peaks: Mapping[str, float], hbm_bytes_per_s: float, power_watts: float | None
) -> dict[str, float]:
    found = {
        "peak": log(peaks.get("bf16") or peaks["fp16"]),
        "bandwidth": log(hbm_bytes_per_s),
        **{name: log(2.0) * (name in peaks) for name in ("fp8", "fp4")},
    }
    return found | ({"power": log(power_watts)} if power_watts else {})


@cache
def _catalog() -> tuple[GpuSpec, ...]:
    found = (find_gpu(name) for name in gpu_names() if find_gpu(name).slug == name)
    return tuple(gpu for gpu in found if gpu.architecture != CPU)


def _known() -> list[GpuSpec]:
    """Return the catalog's GPU types with an architecture of their own."""
    return [gpu for gpu in _catalog() if not gpu.nearest]


_LINKS = ("intra_node", "inter_node")


def _name(reader: FieldReader) -> str:
    name = reader.text("name", default="own-gpu")
    if not NAME.fullmatch(name):
        reader.fault("name", "is not usable", allowed=NAME_FORM)
    elif name in gpu_names():
        reader.fault(
            "name", f"the catalog already has a GPU with this name: write gpu: {name}, or use another name"
        )
    return name


def _peaks(reader: FieldReader) -> tuple[dict[str, float], str]:
    name = _PEAK.name_in(reader)
    if isinstance(stated := reader.value(name), int | float):
        for known in (_PEAK.base, _PEAK.short):
            reader.value(known)
        reader.fault(name, "needs a figure for each precision", nearest=f"{{bf16: {stated}}}")
        return {}, name
    peaks = reader.child(name)
    for known in (_PEAK.base, _PEAK.short):
        reader.value(known)
    if peaks is None:
        reader.fault(name, "is required", allowed=f"{_PEAK.base} or {_PEAK.short}, dense, by precision")
        return {}, name
    unit = _PEAK.unit if name == _PEAK.short else 1.0
    found = {
        key: unit * peaks.number(key, low=_PEAK.low / unit, high=_PEAK.high / unit)
        for key in PRECISIONS
        if peaks.value(key) is not None
    }
    peaks.refuse_unknown()
    if not {"bf16", "fp16"} & found.keys():
        peaks.fault(
            "", "has no 16-bit peak", allowed="bf16 or fp16, and any of " + ", ".join(PRECISIONS[2:])
        )
    return found, name


def _architecture(reader: FieldReader) -> str:
    stated = reader.text("architecture", default="")
    known = dict.fromkeys(gpu.architecture for gpu in _known())
    if stated and stated not in known:
        reader.fault(
            "architecture",
            f"{stated} has no measured efficiencies: leave it out to use the efficiencies of the nearest",
            allowed=", ".join(sorted(known)),
        )
        return ""
    return stated


def _refuse_beyond_physics(
    reader: FieldReader,
    peaks_at: str,
    peaks: Mapping[str, float],
    hbm_bytes_per_s: float,
    power_watts: float | None,
) -> None:
    """Record faults of figures more than ``HEADROOM`` above the catalog's best in their ratio."""
    at = FieldReader({}, f"{reader.pointer}/{peaks_at}", reader.faults)
    memory = f"{hbm_bytes_per_s / GB:g} GB/s"
    flops = (_PEAK.unit, "TFLOP/s") if peaks_at == _PEAK.short else (1.0, "FLOP/s")
    for name, peak in peaks.items():
        alike = [gpu for gpu in _catalog() if name in gpu.peak_flops]
        most = hbm_bytes_per_s * max(gpu.peak_flops[name] / gpu.hbm_bytes_per_s for gpu in alike)
        _refuse_above(at, name, peak, most, given=memory, unit=flops)
        if power_watts is not None:
            most = power_watts * max(gpu.peak_flops[name] / (gpu.power_watts or inf) for gpu in alike)
            _refuse_above(at, name, peak, most, given=f"{power_watts:g} W", unit=flops)
    if power_watts is not None:
        field = _BANDWIDTH.name_in(reader)
        unit = (_BANDWIDTH.unit, "GB/s") if field == _BANDWIDTH.short else (1.0, "B/s")
        most = power_watts * max(gpu.hbm_bytes_per_s / (gpu.power_watts or inf) for gpu in _catalog())
        _refuse_above(reader, field, hbm_bytes_per_s, most, given=f"{power_watts:g} W", unit=unit)


def _refuse_above(
    reader: FieldReader, name: str, value: float, best: float, *, given: str, unit: tuple[float, str]
) -> None:
    most, (factor, word) = HEADROOM * best, unit
    if value > most:
        limit = f"{most / factor:.3g}"
        reader.fault(
            name,
            f"{value / factor:g} {word} is beyond what {given} can feed",
            allowed=f"at most {limit} {word}, {HEADROOM:g} times the best of the catalog for {given}",
            nearest=limit,
        )


def _assumed(pointer: str, usual: GpuSpec, links: Mapping[str, LinkSpec | None]) -> list[str]:
    """Return one sentence about the links that are not given; none if all are."""
    where = {"intra_node": "in a node", "inter_node": "between nodes"}
    assumed = [
        f"{link_rate(getattr(usual, name))} {where[name]}" for name, link in links.items() if link is None
    ]
    place = pointer.lstrip("/").replace("/", ".")
    words = f"{place}: assuming the links of the nearest GPU ({usual.display_name}): {', '.join(assumed)}"
    return [f"{words} (each way)"] if assumed else []
