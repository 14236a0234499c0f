"""Shapes near the model's that would run faster, or split better: advice before weights exist.

Every shape differs from the asked one in one thing and keeps the parameters within a tolerance. It is
priced twice: in the layout of the best plan, where that can be had, and by a search of its own. What
counts is the time of a token for each parameter that it uses, so that a shape is not called faster
for being smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Prediction
from meshwright.solver.check import violations
from meshwright.solver.configuration import Configuration
from meshwright.solver.explain.alternatives import settle
from meshwright.solver.explain.remedies import fastest_on_all
from meshwright.solver.explanation import NearbyShape, ShapeAdvice
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.splits import divisors

_VOCABULARY_UNIT = 128  # times the largest tp of a node: what launchers pad to
_WIDTH_UNITS = (128, 256, 512, 1024)  # tiles of a GEMM, alone and for each rank of a node
_HEAD_SIZES = (64, 96, 128, 192, 256)
_LAYER_UNITS = (2, 4, 8)
_MOST_LAYERS_AWAY = 4
_WORTH = 0.002  # gain below which a shape is not worth a change


def shape_advice(
    problem: Problem, profile: Profile, *, tolerance: float = 0.02, most: int = 8
) -> ShapeAdvice | Literal["unknown"] | None:
    """Return nearby shapes, best first; None if the asked shape is known to have no plan.

    Args:
        problem: the asked model, cluster and workload.
        profile: its prices; layers that were timed are of the asked shape alone and are left out.
        tolerance: largest relative change of the number of parameters.
        most: shapes in the answer.
    """
    profile = replace(profile, layers=None)
    best = fastest_on_all(problem, profile)
    if best is None or best == "unknown":
        return best
    own, used = problem.model.num_parameters(), problem.model.num_active_parameters()
    found, not_searched = list[NearbyShape](), list[str]()
    for change, why, model in nearby(problem.model, problem.cluster.groups[0].island_gpus):
        sizes = model.num_parameters() / own, model.num_active_parameters() / used
        if all(abs(size - 1.0) <= tolerance for size in sizes):
            shape = _priced(problem, profile, best, (change, why, model))
            if shape == "unknown":
                not_searched.append(change)
            elif shape is not None and shape.gain > _WORTH:
                found.append(shape)
    found.sort(key=lambda shape: (-shape.gain, shape.change))
    return ShapeAdvice(
        config=best[0],
        prediction=best[1],
        num_parameters=own,
        shapes=tuple(found[:most]),
        not_searched=tuple(not_searched),
    )


def _priced(
    problem: Problem,
    profile: Profile,
    best: tuple[Configuration, Prediction],
    nearby_shape: tuple[str, str, ModelSpec],
) -> NearbyShape | Literal["unknown"] | None:
    change, why, model = nearby_shape
    there = replace(problem, model=model)
    found = fastest_on_all(there, profile)
    if found is None or found == "unknown":
        return found
    config, prediction = found
    own, used = problem.model.num_parameters(), model.num_active_parameters()
    price = best[1].step_time_s / problem.model.num_active_parameters()
    size = model.num_parameters()
    sizes = tuple(
        tp
        for tp in divisors(problem.cluster.groups[0].island_gpus)
        if all(heads % tp == 0 for heads in model.split_heads)
        and model.ffn_hidden_size % tp == 0
        and all(heads % tp == 0 or tp % heads == 0 for heads in model.kv_head_counts)
    )
    return NearbyShape(
        change=change,
        why=why,
        num_parameters=size,
        parameters_change=size / own - 1.0,
        step_time_s=prediction.step_time_s,
        gain=1.0 - prediction.step_time_s / used / price,
        gain_in_place=_in_place(there, profile, best[0], price),
        config=config,
        tensor_parallel_sizes=sizes,
    )


def _in_place(problem: Problem, profile: Profile, layout: Configuration, price: float) -> float | None:
    """Return the gain without another layout; None if the shape cannot run in it."""
    same = sum(layout.stage_layers) == problem.model.num_layers
    config = layout if same else settle(problem, replace(layout, stage_layers=()))
    if config is None or list(violations(problem, profile, config)):
        return None
    step = predict(problem, profile, config).step_time_s
    return 1.0 - step / problem.model.num_active_parameters() / price


def nearby(model: ModelSpec, island: int) -> Iterator[tuple[str, str, ModelSpec]]:
    """Yield shapes one change away: the change, its purpose, and the model."""
    seen = {model}
    for change, why, fields in (
        *_sizes(model, island),
        *_heads(model),
        *_layers(model),
        *_experts(model, island),
    ):
        try:
            other = replace(model, **fields)  # type: ignore[arg-type]
        except InvalidProblemError:
            continue
        if other not in seen:
            seen.add(other)
            yield change, why, other


Change = tuple[str, str, dict[str, object]]


def _multiples(value: int, units: Sequence[int]) -> list[tuple[int, int]]:
    """Return multiples below and above a value with their unit; the coarsest unit names each."""
    found: dict[int, int] = {}
    for unit in units:
        for near in (value // unit * unit, -(-value // unit) * unit):
            if near not in (0, value):
                found[near] = unit
    return sorted(found.items())


def _sizes(model: ModelSpec, island: int) -> Iterator[Change]:
    padded = (_VOCABULARY_UNIT, _VOCABULARY_UNIT * island)
    tiles = sorted((*_WIDTH_UNITS, *(unit * island for unit in _WIDTH_UNITS)))
    for what, name, units, why in (
        ("vocabulary", "vocab_size", padded, "no padding, whole tiles"),
        ("feed-forward", "ffn_hidden_size", tiles, f"whole tiles up to tp {island}"),
    ):
        now = getattr(model, name)
        for size, unit in _multiples(now, units):
            if size > now or name != "vocab_size":  # tokens cannot be taken away
                yield f"{what} {now} → {size}", f"a multiple of {unit}: {why}", {name: size}


def _heads(model: ModelSpec) -> Iterator[Change]:
    if model.mla is not None or model.local_attention is not None:
        return
    width, queries = (
        model.num_attention_heads * model.head_dim,
        model.num_attention_heads // model.num_kv_heads,
    )
    for size in _HEAD_SIZES:
        heads = width // size
        if size == model.head_dim or width % size or heads % queries:
            continue
        fields: dict[str, object] = {
            "head_dim": size, "num_attention_heads": heads, "num_kv_heads": heads // queries,
        }  # fmt: skip
        yield (
            f"heads {model.num_attention_heads} × {model.head_dim} → {heads} × {size}",
            "attention kernels by head size",
            fields,
        )


def _layers(model: ModelSpec) -> Iterator[Change]:
    for layers, unit in _multiples(model.num_layers, _LAYER_UNITS):
        if abs(layers - model.num_layers) <= _MOST_LAYERS_AWAY:
            why = f"a multiple of {unit}: even stages and chunks"
            yield f"layers {model.num_layers} → {layers}", why, {"num_layers": layers}
            width = round(model.ffn_hidden_size * model.num_layers / layers / 256) * 256
            changed: dict[str, object] = {"num_layers": layers, "ffn_hidden_size": width}
            if model.moe is None:
                yield f"layers {model.num_layers} → {layers}, feed-forward {width}", why, changed


def _experts(model: ModelSpec, island: int) -> Iterator[Change]:
    moe = model.moe
    if moe is None:
        return
    for count, unit in _multiples(moe.num_experts, (island, 2 * island)):
        width = round(moe.ffn_hidden_size * moe.num_experts / count / 64) * 64
        visited = moe.top_k * count / moe.num_experts
        if not 1 <= visited <= count or visited % 1 or width <= 0:
            continue  # a token must use as many parameters as before
        other = replace(moe, num_experts=count, ffn_hidden_size=width, top_k=int(visited))
        change = (
            f"experts {moe.num_experts} × {moe.ffn_hidden_size} → {count} × {width}, top {int(visited)}"
        )
        yield change, f"a multiple of {unit}: ep up to {count}", {"moe": other}
    for size, unit in _multiples(moe.ffn_hidden_size, _WIDTH_UNITS):
        other = replace(moe, ffn_hidden_size=size)
        change = f"expert width {moe.ffn_hidden_size} → {size}"
        yield change, f"a multiple of {unit}: whole tiles", {"moe": other}
