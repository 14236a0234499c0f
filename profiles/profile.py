"""A profile: everything measured that one prediction needs, with a version of its own.

Constants exist at three levels: global, software stack, cluster (calibration). Each level is a fit
regularised towards the level above; ``catalog/calibration/stacks.yaml`` holds the first two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.profiles.capabilities import (
    launcher_capabilities,
    launcher_names,
    launchers_placing_stages,
)
from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.cluster import ClusterSpec, GpuSpec, LinkSpec, NodeGroup
from meshwright.profiles.collectives.collectives import Fabric, Lines
from meshwright.profiles.collectives.tables import SLOWEST_BYTES_PER_S, slowdown_tables
from meshwright.profiles.errors import ProfileError, UnknownNameError
from meshwright.profiles.figures import percent
from meshwright.profiles.frameworks import FrameworkFacts, framework_facts, framework_names
from meshwright.profiles.gpus import NETWORK_LATENCY_S
from meshwright.profiles.links import KINDS, LinkPace
from meshwright.profiles.operators.operators import (
    GpuOperators,
    architectures_log_spread,
    operators_of,
)

if TYPE_CHECKING:
    from meshwright.profiles.measured.layers import MeasuredLayers

# --------------------------------------------------------------------------------------------------
# The constants' levels as the catalog holds them: value, uncertainty and source of each.
#
# ``catalog/calibration/stacks.yaml``: the global level, and one level for each software stack round it.


STACKS_FILE = CATALOG / "calibration" / "stacks.yaml"
SIGMAS = ("log_time_sigma", "log_memory_sigma")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelConstant:
    """One constant at one level."""

    value: float
    log_sd: float  # posterior standard deviation of ln(constant); of what is not fitted, an estimate
    source: str  # "fitted", or where the value comes from
    identified: bool = True  # False: the runs do not narrow its prior, or it is at a bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The global level, or what one software stack has of its own."""

    fitted_on: str
    sigmas: dict[str, float]  # spreads of ln(measured / predicted), uncalibrated
    constants: Mapping[str, LevelConstant]
    slowest_network_bytes_per_s: float = SLOWEST_BYTES_PER_S  # per GPU, of the runs that it was fitted on


def stack_names() -> tuple[str, ...]:
    """Return the stacks that have a level of their own."""
    return tuple(catalog_file(STACKS_FILE)["stacks"])


def level_of(stack: str | None) -> Level:
    """Return the level of one stack in the file (empty if it has none); None: the global one."""
    levels = catalog_file(STACKS_FILE)
    raw: dict[str, Any] = levels["global"] if stack is None else levels["stacks"].get(stack, {})
    return Level(
        fitted_on=str(raw.get("fitted_on", "")),
        sigmas={name: float(raw[name]) for name in SIGMAS if name in raw},
        constants={
            name: LevelConstant(
                value=float(entry["value"]),
                log_sd=float(entry["log_sd"]),
                source=str(entry["source"]),
                identified=bool(entry.get("identified", True)),
            )
            for name, entry in raw.get("constants", {}).items()
        },
        slowest_network_bytes_per_s=float(raw.get("slowest_network_bytes_per_s", SLOWEST_BYTES_PER_S)),
    )


@cache
def unidentified_constants(stack: str) -> tuple[str, ...]:
    """Return the constants that a stack's own runs do not identify."""
    identified = {name for name, constant in level_of(stack).constants.items() if constant.identified}
    return tuple(name for name in level_of(None).constants if name not in identified)


# --------------------------------------------------------------------------------------------------
# What the constants of a cluster leave over: a Gaussian process on the log residual of measured runs.
#
# Rasmussen and Williams 2006 ("Gaussian Processes for Machine Learning", section 2.2). With kernel ``k(a,
# b) = A^2 exp(-|a - b|^2 / (2 l^2))``, runs X and what is left of them r, a configuration x has the mean
# ``k(x, X) w`` with ``w = (K + noise)^-1 r`` and the spread that is left by knowing the runs.


FloatArray = NDArray[np.float64]
MAX_LOG = 4.6  # a hundredfold; what is more comes from a broken process


def squared_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return squared Euclidean distances of all rows of ``a`` (n, F) to all of ``b`` (m, F): (n, m)."""
    apart = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    return np.asarray(np.maximum(apart, 0.0))


EXPERTS_FEATURE = 16  # the column of features that separates models with experts from dense ones


def has_experts(features: FloatArray) -> NDArray[np.bool_]:
    """Return which rows of ``features`` (n, F) have experts, (n,); none without such a column."""
    if features.shape[1] <= EXPERTS_FEATURE:
        return np.zeros(len(features), dtype=np.bool_)
    return np.asarray(features[:, EXPERTS_FEATURE] > 0.0)


# Columns that set a regime of runs apart, and from which value on: products of 8 bits, experts, products of
# 4 bits, adapters, offload.
FP8_FEATURE = 15
_REGIMES = ((FP8_FEATURE, 0.0), (EXPERTS_FEATURE, 0.0), (22, 0.5), (24, 0.0), (25, 0.0))


def regimes(features: FloatArray) -> NDArray[np.int64]:
    """Return a number for the regime of each row of ``features`` (n, F), (n,).

    Runs of two regimes take other kernels or another path through the machine: precisions, experts,
    adapters, offload.
    """
    found: NDArray[np.int64] = np.zeros(len(features), dtype=np.int64)
    for bit, (column, least) in enumerate(_REGIMES):
        if column < features.shape[1]:
            found += (features[:, column] > least).astype(np.int64) << bit
    return found


def shared_kernel(
    a: FloatArray, b: FloatArray, shared: tuple[float, float], common: float = 1.0
) -> FloatArray:
    """Return the covariance of the factor that a cluster's runs of one kind of model share, (n, m).

    One factor of all dense models and another of all with experts: the two depend on different parts of a
    cluster's machine and release. Within one problem it is the same for every plan.

    Args:
        a: features, (n, F).
        b: features, (m, F).
        shared: its standard deviation for dense models and for those with experts, log.
        common: part of its variance that runs of different regimes share.
    """
    own, other = has_experts(a), has_experts(b)
    alike = own[:, None] == other[None, :]
    variance = np.where(own, shared[1] ** 2, shared[0] ** 2)[:, None]
    part = np.where(regimes(a)[:, None] == regimes(b)[None, :], 1.0, common)
    return np.asarray(np.where(alike, variance * part, 0.0))


def roughness(launch_share: FloatArray | float, launch_noise: float) -> FloatArray:
    """Return the noise of a run relative to a run without launch delays.

    Launches wait for the host's CPU, which every job shares with what else runs there.

    Args:
        launch_share: of the step that depends on launches, 0 to 1.
        launch_noise: growth of the noise if the whole step depends on launches, as a multiple, added as
            squares.
    """
    return np.asarray(np.sqrt(1.0 + (launch_noise * np.asarray(launch_share)) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The process after its runs were seen; matrices as tuples of rows."""

    points: tuple[tuple[float, ...], ...]  # features of the runs, (K, F)
    weights: tuple[float, ...]  # (K,) of the mean
    amplitude: float  # of the mean's kernel, log time
    length: float
    trend_amplitude: float  # what the constants themselves leave open far from any run, log time
    trend_length: float
    precision: tuple[tuple[float, ...], ...]  # (K, K) inverse covariance of the runs, both kernels
    noise: float  # of one run
    scale: float  # spread over the process's own, from leaving one run out at a time
    launch_noise: float = 0.0  # growth of the noise if the whole step depends on launches
    usual_noise: float = 0.0  # of one run, before these were heard
    # Spread of the factor that a cluster's runs of one kind have in common, dense models and experts, log.
    shared: tuple[float, float] = (0.0, 0.0)
    factors: tuple[float, float] = (0.0, 0.0)  # its mean given the runs, log: dense models, experts
    common: float = 1.0  # part of its variance that runs of different regimes share
    own_factors: tuple[tuple[int, float], ...] = ()  # what it has beside that in each regime of the runs

    def _kernels(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        apart = squared_distances(features, np.array(self.points))
        near = self.amplitude**2 * np.exp(-0.5 * apart / self.length**2)
        return near, self.trend_amplitude**2 * np.exp(-0.5 * apart / self.trend_length**2)

    def log_factor(self, features: FloatArray) -> FloatArray:
        """Return the mean of ``ln(measured / predicted)`` at each row of ``features`` (n, F), bounded."""
        near, _ = self._kernels(features)
        factor = np.where(has_experts(features), self.factors[1], self.factors[0])
        own = dict(self.own_factors)
        factor = factor + np.array([own.get(int(regime), 0.0) for regime in regimes(features)])
        mean = near @ np.array(self.weights) + factor
        return np.asarray(np.clip(mean, -MAX_LOG, MAX_LOG))

    def sigma(self, features: FloatArray, launch_share: FloatArray | float = 0.0) -> FloatArray:
        """Return the spread of ``ln(measured / predicted)`` of one run per row, noise included: (n,)."""
        near, trend = self._kernels(features)
        known = near + trend + shared_kernel(features, np.array(self.points), self.shared, self.common)
        common = np.where(has_experts(features), self.shared[1], self.shared[0])
        prior = self.amplitude**2 + self.trend_amplitude**2 + common**2
        left = prior - np.einsum("nk,kl,nl->n", known, np.array(self.precision), known)
        noise = self.noise * roughness(launch_share, self.launch_noise)
        spread = self.scale * np.sqrt(np.maximum(left, 0.0) + noise**2)
        return np.asarray(np.minimum(spread, MAX_LOG))

    def covariance(self, features: FloatArray) -> FloatArray:
        """Return the covariance of ``ln(time / predicted)`` at each pair of rows, (n, n).

        What a run is off by alone counts as its configuration's: most of it comes back with every run.
        """
        near, trend = self._kernels(features)
        known, apart = near + trend, squared_distances(features, features)
        known = known + shared_kernel(features, np.array(self.points), self.shared, self.common)
        prior = shared_kernel(features, features, self.shared, self.common)
        prior += self.amplitude**2 * np.exp(-0.5 * apart / self.length**2)
        prior += self.trend_amplitude**2 * np.exp(-0.5 * apart / self.trend_length**2)
        left = prior - known @ np.array(self.precision) @ known.T
        return np.asarray(self.scale**2 * (left + self.noise**2 * np.eye(len(features))))


# GPUs with measured collectives that serve for a GPU without any: over NVLink (or what resembles it), and
# over PCIe (the measured L40S went through the host: a sixth of PCIe between four of them).
_FAST_LINK = "a100-sxm-80gb"
_PCIE = "rtx-pro-6000-server"

# FlashAttention 2 and cuDNN's fused attention need compute capability 8.0 (their documentation).
_WITHOUT_FLASH = ("volta", "turing")
# Kernels that have no instructions for Blackwell: torch's scaled_dot_product_attention takes cuDNN's there
# (torch 2.13 ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp check_prefer_cudnn_attention``).
_BEFORE_BLACKWELL = ("flash1", "flash2", "flash3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The fitted constants of one software stack; shares multiply the tables of ``profiles``."""

    gemm: float  # level of GEMM rates against the operator table
    attention: float  # level of flash attention rates against the operator table
    grouped_gemm: float  # further share of grouped (expert) GEMMs
    score_gemm: float  # share of peak of the batched GEMMs of unfused attention
    score_bytes: float  # bytes moved for one attention score of unfused attention, forward
    hbm: float  # share of memory bandwidth that memory-bound operators reach
    elementwise: float  # bytes moved by norms, residuals and activations over their least
    permute_bytes: float  # bytes moved to route one token's hidden element to one expert and back, forward
    loss_bytes: float  # bytes moved for one logit, forward and backward
    floor_s: float  # CPU floor of one dense layer's forward pass
    floor_backward: float  # the backward pass's floor over the forward's
    floor_tensor: float  # what each further tensor-parallel rank adds to floor_across, as a share of it
    floor_across: float  # launches of a stage that waits for messages across islands over those of others
    floor_moe: float  # of an operator of an expert layer over one of a dense layer
    collective_latency_s: float  # of any collective, in addition to the tables
    fast_link: float  # bandwidth inside an island over that of the measured collectives
    network: float  # the same across islands, on each rail
    tensor_exposed: float  # share of tensor-parallel time that GEMMs do not hide, where overlapped
    expert_exposed: float  # share of expert all-to-all time that is not hidden
    expert_imbalance: float  # tokens of the busiest expert rank over the mean
    gather_exposed: float  # least share of ZeRO-3 gathers that computing cannot hide
    transfer_exposed: float  # share of point-to-point time that is not hidden
    update_bytes: float  # bytes moved for one weight by the optimizer step
    straggler: float  # relative loss with each doubling of nodes
    fixed_s: float  # of every step
    activation: float  # kept activations over the formulas
    base_bytes: float  # allocated whatever the layout: workspaces, small buffers
    context_bytes: float  # outside the allocator: driver context, libraries, communicators
    reserve: float  # reserved over allocated, where memory is not short
    log_time_sigma: float  # spread of ln(measured / predicted) step time, uncalibrated
    log_memory_sigma: float  # the same of peak memory


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The measurements of one cluster and framework."""

    title: str
    framework: FrameworkFacts
    constants: Constants
    gpu_operators: GpuOperators
    group: NodeGroup  # the node group that decides: the slowest GPU of a mixed cluster
    time_factor: float = 1.0  # a cluster's own calibration
    layers: MeasuredLayers | None = None  # timed ones, preferred over the operator tables
    residual: Residual | None = None  # residual of the step time after calibration
    memory_residual: Residual | None = None  # the same of peak memory
    log_time_sigma: float = 0.15
    log_memory_sigma: float = 0.08
    warnings: tuple[str, ...] = field(default=())
    unidentified: tuple[str, ...] = ()  # constants that no run of the stack identifies: the global level's
    by_group: tuple[Profile, ...] = ()  # of each of a mixed cluster's distinct groups; empty: all alike
    uncalibrated: Profile | None = None  # what a calibration corrected; None: nothing did
    learnt_from: tuple[str, ...] = ()  # names of the runs that the calibration learnt from
    paces: tuple[LinkPace, ...] = ()  # of each of ``KINDS``, where links differ; empty: all alike
    shares_measured: bool = False  # this GPU's own runs, layers or operators set the shares that it reaches

    @property
    def borrowed(self) -> bool:
        """Return whether the shares of the GPU's peak are those of another architecture."""
        return bool(self.group.gpu.nearest) and not self.shares_measured

    @cached_property
    def fabric(self) -> Fabric:
        """Return the links of the deciding group, with the shares that collectives reach."""
        group, constants = self.group, self.constants
        at_line_rate = Lines(
            island_gpus=float(group.island_gpus),
            nodes_per_island=max(group.island_gpus / group.gpus_per_node, 1.0),
            fast_bytes_per_s=group.intra_node.bytes_per_s,
            network_bytes_per_s=group.inter_node.payload_bytes_per_s,
            rail_only=group.links is not None and group.links.rail_only,
        )
        beside = frozenset((one.measured_like, one.group.intra_node.bytes_per_s) for one in self.by_group)
        tables = slowdown_tables(self.measured_like, at_line_rate, group.measured, beside)
        reached = replace(
            at_line_rate,
            fast_bytes_per_s=at_line_rate.fast_bytes_per_s * constants.fast_link,
            network_bytes_per_s=at_line_rate.network_bytes_per_s * constants.network,
        )
        timed = group.measured is not None and any(one.num_nodes > 1 for one in group.measured.curves)
        # the catalog's tables count the usual latency, those timed on these nodes their own
        hop_s = 0.0 if timed else max(group.inter_node.latency_s - NETWORK_LATENCY_S, 0.0)
        return Fabric(lines=reached, tables=tables, launch_s=constants.collective_latency_s, hop_s=hop_s)

    @property
    def measured_like(self) -> str:
        """Return the GPU type with measured collectives like those inside an island."""
        return _PCIE if self.group.intra_node.kind == "pcie" else self.gpu_operators.tables or _FAST_LINK

    @cached_property
    def fabrics(self) -> tuple[Fabric, ...]:
        """Return the links that each of ``KINDS`` of groups crosses: at the pace of the slowest."""

        def slowed(pace: LinkPace) -> Fabric:
            lines = self.fabric.lines
            network = replace(lines, network_bytes_per_s=lines.network_bytes_per_s * pace.share)
            return replace(self.fabric, lines=network, hop_s=self.fabric.hop_s + pace.hop_s)

        return tuple(map(slowed, self.paces)) or (self.fabric,) * len(KINDS)

    def across(self, network: LinkSpec) -> Profile:
        """Return the profile of single GPUs on another network, with what the stack loses of its rate."""
        if network not in self._across:  # of two groups, once for all plans that use both
            stack, own = self.framework.stack, self.group.inter_node
            shares = [network_share(stack, link.payload_bytes_per_s) for link in (own, network)]
            constants = replace(self.constants, network=self.constants.network * (shares[1] / shares[0]))
            group = replace(self.group, inter_node=network, island_gpus=1, measured=None)
            self._across[network] = replace(self, group=group, constants=constants)
        return self._across[network]

    @cached_property
    def _across(self) -> dict[LinkSpec, Profile]:
        return {}

    @cached_property
    def version(self) -> str:
        """Return the first 12 hex digits of SHA-256 over every number: equal profiles, equal versions."""
        parts = [asdict(part) for part in (self.framework, self.constants, self.gpu_operators)]
        text = repr([*parts, self.group.to_mapping()]) + repr(
            (
                self.time_factor,
                self.log_time_sigma,
                self.log_memory_sigma,
                self.residual,
                self.memory_residual,
            )
        )
        text += "" if self.layers is None else repr(asdict(self.layers))
        text += "".join(one.version for one in self.by_group)
        text += repr(self.paces) if self.paces else ""
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def stack_constants(stack: str | None) -> Constants:
    """Return the constants of one stack, filled up from the global level; None: the global level itself.

    Raises:
        ProfileError: the file lacks a constant or has an unknown one.
    """
    values: dict[str, float] = {}
    for level in (level_of(None), level_of(stack)):
        values |= {name: constant.value for name, constant in level.constants.items()} | level.sigmas
    known = {f.name for f in fields(Constants)}
    if values.keys() != known:
        raise ProfileError(f"stacks.yaml, {stack}: wrong constants {sorted(values.keys() ^ known)}")
    return Constants(**values)


def network_share(stack: str | None, line_bytes_per_s: float) -> float:
    """Return the share of a network's line rate that a stack reaches.

    On networks at least as fast as those of the runs that it was fitted on it is a constant. What is lost
    there takes a time per byte in hosts and GPUs, which a slower network does not lengthen.
    """
    if line_bytes_per_s >= level_of(stack).slowest_network_bytes_per_s:
        return stack_constants(stack).network
    share, least_s = stack_constants(None).network, 1.0 / line_bytes_per_s
    lost_s = (1.0 / share - 1.0) / max(line_bytes_per_s, level_of(None).slowest_network_bytes_per_s)
    beyond = 1.0 / stack_constants(stack).network - 1.0 / share
    lost_s += beyond / max(line_bytes_per_s, level_of(stack).slowest_network_bytes_per_s)
    return least_s / (least_s + lost_s)


@cache
def framework_of(launcher_or_framework: str) -> str:
    """Return a launcher's framework, or the framework of that name; of ``any`` the first's.

    Raises:
        UnknownNameError: neither a launcher nor a framework.
    """
    launchers = {"any", *launcher_names()}
    if launcher_or_framework in launchers:
        return launcher_capabilities(launcher_or_framework).framework
    if launcher_or_framework not in framework_names():
        known = {*launchers, *framework_names()}
        raise UnknownNameError.among("/launcher", launcher_or_framework, known)
    return launcher_or_framework


def launchers_of_stack(stack: str) -> tuple[str, ...]:
    """Return the launchers with a framework that runs on a software stack, sorted."""
    frameworks = ((name, framework_facts(framework_of(name))) for name in launcher_names())
    return tuple(sorted(name for name, facts in frameworks if facts.stack == stack))


def deciding_group(cluster: ClusterSpec) -> NodeGroup:
    """Return the group that sets the pace: the slowest large products, memory and links of all groups.

    At small products and those in 8 bits another group may be slower: the price of an operator is that on
    the slowest (``cost.context.on_slowest``). Its islands are the smallest ones: a collective waits for the
    group that crosses most of them.
    """
    slowest = min(cluster.groups, key=_pace_of)
    narrowest = min(cluster.groups, key=lambda group: group.island_gpus)
    networks = [group.inter_node for group in cluster.groups]
    if cluster.between_groups is not None and not cluster.is_homogeneous:
        networks.append(cluster.between_groups)
    hbm_bytes_per_s = min(group.gpu.hbm_bytes_per_s for group in cluster.groups)
    return replace(
        slowest,
        gpu=replace(slowest.gpu, hbm_bytes_per_s=hbm_bytes_per_s),
        gpus_per_node=narrowest.gpus_per_node,
        island_gpus=narrowest.island_gpus,
        intra_node=min((group.intra_node for group in cluster.groups), key=lambda link: link.bytes_per_s),
        inter_node=min(networks, key=lambda link: link.payload_bytes_per_s),
    )


def _pace_of(group: NodeGroup) -> tuple[float, float, str]:
    """Return the rate of large products, FLOP/s, then of memory, bytes/s: of equal GPUs any will do."""
    share = operators_of(group.gpu, group.inter_node.kind).gemm["fp16"]  # every type has one
    return group.gpu.peak_bf16_flops * share, group.gpu.hbm_bytes_per_s, group.gpu.slug


def default_profile(cluster: ClusterSpec, launcher_or_framework: str) -> Profile:
    """Return the uncalibrated profile of a cluster under a launcher or framework.

    In a mixed cluster it is that of a mesh over all nodes: the GPU that is slowest at an operator decides
    its time, the slowest network that of messages, the smallest memory the limit. ``by_group`` prices each
    node group by itself.

    Raises:
        UnknownNameError: neither a launcher nor a framework.
    """
    profile = _profile_of(deciding_group(cluster), launcher_or_framework)
    if cluster.is_homogeneous:
        return profile
    by_group = tuple(_profile_of(group, launcher_or_framework) for group in cluster.distinct_groups)
    each = [profile, *by_group]
    keeps_scores = next((one.framework for one in each if not one.framework.flash), profile.framework)
    return replace(
        profile,
        framework=keeps_scores,
        gpu_operators=replace(
            profile.gpu_operators,
            host=max(one.gpu_operators.host for one in each),
            launch_s=max(one.gpu_operators.launch_s for one in each),
        ),
        warnings=(*profile.warnings, _mixed_warning(cluster, profile, launcher_or_framework)),
        by_group=by_group,
    )


def _mixed_warning(cluster: ClusterSpec, profile: Profile, launcher_or_framework: str) -> str:
    able = launchers_placing_stages()
    if launcher_or_framework in able:
        link = ". No link between the groups given: using the slower of their networks"
        return "mixed cluster: each stage runs on one node group" + link * (cluster.between_groups is None)
    slug, gpus = profile.group.gpu.slug, [group.gpu for group in cluster.groups]
    narrowest = min(gpus, key=lambda gpu: (gpu.hbm_bytes_per_s, gpu.slug != slug)).slug
    slowest = slug if narrowest == slug else f"{slug} for products, {narrowest} for memory traffic"
    return (
        f"mixed cluster: every stage runs at the speed of the slowest GPU ({slowest}). "
        f"To place stages on node groups, use --launcher {' or '.join(able)}"
    )


def _profile_of(group: NodeGroup, launcher_or_framework: str) -> Profile:
    facts = framework_facts(framework_of(launcher_or_framework))
    constants = replace(
        stack_constants(facts.stack),
        network=network_share(facts.stack, group.inter_node.payload_bytes_per_s),
    )
    operators = operators_of(group.gpu, group.inter_node.kind)
    warnings = []
    if facts.attention_kernel in _BEFORE_BLACKWELL and group.gpu.architecture == "blackwell":
        facts = replace(facts, attention_kernel="cudnn")
    if facts.flash and group.gpu.architecture in _WITHOUT_FLASH:
        facts = replace(facts, attention_kernel="megatron-fused")
        warnings.append(f"{group.gpu.slug} has no flash attention, so attention scores stay in memory")
    if group.gpu.nearest:
        warnings.append(borrowed_words(group.gpu))
    elif not operators.measured:
        warnings.append(
            f"no operator measurements for {group.gpu.slug}: using the {group.gpu.architecture} "
            "architecture's efficiencies"
        )
    return Profile(
        title=f"{group.gpu.display_name} under {facts.name}, uncalibrated",
        framework=facts,
        constants=constants,
        gpu_operators=operators,
        group=group,
        log_time_sigma=constants.log_time_sigma,
        log_memory_sigma=constants.log_memory_sigma,
        warnings=tuple(warnings),
        unidentified=unidentified_constants(facts.stack),
    )


def borrowed_words(gpu: GpuSpec) -> str:
    """Return the sentence about a GPU type that has no measured architecture of its own."""
    wider = percent(np.expm1(architectures_log_spread()))
    return (
        f"no measurements of {gpu.slug}: the efficiencies of {gpu.nearest} ({gpu.architecture}) "
        f"add ± {wider}. To narrow it, measure runs or use meshwright profile"
    )


def with_own_shares(profile: Profile) -> Profile:
    """Return the profile as one with measured shares of its GPU; no interval counts borrowed ones."""
    words = borrowed_words(profile.group.gpu) if profile.borrowed else ""
    return replace(profile, shares_measured=True, warnings=tuple(w for w in profile.warnings if w != words))


def of_unknown_software(profile: Profile) -> Profile:
    """Return the profile for an unmeasured framework: the global level's constants and uncertainty.

    What the framework keeps, fuses and shards stays that of the nearest known one.
    """
    general = stack_constants(None)
    return replace(
        profile,
        title=f"{profile.title}, software unknown",
        constants=general,
        unidentified=tuple(level_of(None).constants),
        log_time_sigma=general.log_time_sigma,
        log_memory_sigma=general.log_memory_sigma,
    )
