"""Differences between any two plans, from one table of figures that the page reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.profiles.units import GIB
from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Answer, Prediction
from meshwright.solver.configuration import Configuration

Value = float | str
# The settings by which configurations are compared, in addition to sizes.
_WORDS = ("pipeline_schedule", "recompute_granularity", "offload", "rank_order")
_LABELS = {
    "zero_stage": "ZeRO stage",
    "micro_batch_size": "micro-batch size",
    "num_microbatches": "micro-batches",
    "recompute_granularity": "recompute",
    "stage_layers": "layers of each chunk",
}
RESULT = "Result"
_SEEN_S = 5e-4  # a time that does not print as zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One row of the comparison."""

    key: str
    label: str
    hint: str
    unit: str  # s, GiB, %, tokens/s, or empty for words
    part: str  # RESULT, Time, Memory of the heaviest stage, Configuration

    @property
    def has_bar(self) -> bool:
        """Return whether its part holds like figures, which bars of one scale show."""
        return bool(self.unit) and self.part != RESULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One configuration."""

    key: str
    label: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonTable:
    """All sides; ``first`` and ``second`` are compared where no script runs."""

    quantities: tuple[Quantity, ...]
    sides: tuple[Side, ...]
    first: Side
    second: Side

    def as_json(self) -> str:
        """Return JSON for the page's script; safe inside a script element."""
        data = {
            "units": {quantity.key: [quantity.unit, quantity.part] for quantity in self.quantities},
            "sides": {side.key: dict(side.values) for side in self.sides},
        }
        return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")

    @staticmethod
    def shown(value: Value | None, unit: str) -> str:
        """Return a value as the table shows it; the page's script writes it the same way."""
        if value is None or isinstance(value, str):
            return value or "–"
        digits = {"s": 3, "GiB": 1, "%": 1, "tokens/s": 0}.get(unit, 0)
        return f"{value:.{digits}f}"

    @property
    def hidden(self) -> frozenset[str]:
        """Return the keys of what both print alike."""
        return frozenset(one.key for one in self.quantities if not self.difference(one))

    def change(self, quantity: Quantity) -> float:
        """Return the surplus of the second over the largest of its unit and part: from -1 to 1."""
        own = self._surplus(quantity)
        alike = [one for one in self.quantities if (one.unit, one.part) == (quantity.unit, quantity.part)]
        most = max(abs(self._surplus(one)) for one in alike) if quantity.has_bar else 0.0
        return round(own / most, 3) if most else 0.0

    def _surplus(self, quantity: Quantity) -> float:
        a, b = (side.values.get(quantity.key, 0.0) for side in (self.first, self.second))
        return 0.0 if isinstance(a, str) or isinstance(b, str) else b - a

    def difference(self, quantity: Quantity) -> str:
        """Return the surplus of the second over the first."""
        a, b = self.first.values.get(quantity.key), self.second.values.get(quantity.key)
        if isinstance(a, str) or isinstance(b, str):
            return "" if a == b else "differs"
        change = (b or 0.0) - (a or 0.0)
        said = self.shown(abs(change), quantity.unit)
        if float(said) == 0.0:
            return ""
        return f"{'+' if change > 0 else '−'}{said}"


def comparison_of(answer: Answer, chosen: str) -> ComparisonTable | None:
    """Return the plans of a ranking and the client's configuration; None if there is only one side."""
    sides = [
        _side(
            plan.plan_id,
            f"#{plan.rank} {figures.configuration_words(plan.config)}",
            plan.config,
            plan.prediction,
            plan.why.waterfall_s if plan.why else plan.prediction.time_breakdown_s,
        )
        for plan in answer.plans
    ]
    if answer.baseline is not None:
        own = answer.baseline
        label = f"yours: {figures.configuration_words(own.config)}"
        sides.append(_side("yours", label, own.config, own.prediction, own.prediction.time_breakdown_s))
    if len(sides) <= 1:
        return None
    first = next((side for side in sides if side.key == chosen), sides[0])
    others = [side for side in sides if side.key != first.key]
    return ComparisonTable(
        quantities=_quantities(sides),
        sides=tuple(sides),
        first=first,
        second=others[-1] if answer.baseline is not None else others[0],
    )


def _side(
    key: str,
    label: str,
    config: Configuration,
    seen: Prediction,
    terms_s: Mapping[str, float],
) -> Side:
    """Return every figure of one configuration; those that are zero are left out."""
    heaviest = seen.stages[seen.heaviest_stage].memory_bytes
    values: dict[str, Value] = {
        "step": round(seen.step_time_s, 6),
        "rate": round(seen.tokens_per_s_per_gpu, 1),
        "mfu": round(seen.mfu * 100, 2),
        "peak": round(seen.peak_memory_bytes / GIB, 3),
        "risk": round(seen.out_of_memory_probability * 100, 6),
    }
    values |= {f"t.{name}": round(value, 6) for name, value in terms_s.items() if abs(value) >= _SEEN_S}
    values |= {f"m.{name}": round(size / GIB, 3) for name, size in heaviest.items() if size}
    values |= {f"c.{name}": getattr(config, name) for name in figures.SHORT_NAMES}
    values |= {f"c.{name}": str(getattr(config, name)).replace("_", " ") for name in _WORDS}
    values["c.stage_layers"] = figures.split(config.stage_layers)
    values["c.num_microbatches"] = config.num_microbatches
    return Side(key=key, label=label, values=values)


def _quantities(sides: list[Side]) -> tuple[Quantity, ...]:
    there = {key for side in sides for key in side.values}
    rows = [
        Quantity(key="step", label="step time", hint="of one optimizer step", unit="s", part=RESULT),
        Quantity(key="rate", label="rate of a GPU", hint="tokens trained", unit="tokens/s", part=RESULT),
        Quantity(key="mfu", label="MFU", hint="model FLOPs utilisation", unit="%", part=RESULT),
        Quantity(key="peak", label="peak memory", hint="of the heaviest stage", unit="GiB", part=RESULT),
        Quantity(
            key="risk", label="OOM risk", hint="probability of running out of memory", unit="%", part=RESULT
        ),
    ]
    time, memory, how = "Where the time goes", "Memory of the heaviest stage", "Configuration"
    rows += [
        Quantity(key=f"t.{name}", label=figures.words(name), hint=hint, unit="s", part=time)
        for name, hint in figures.TIME_TERMS.items()
    ]
    rows += [
        Quantity(key=f"m.{name}", label=figures.words(name), hint=hint, unit="GiB", part=memory)
        for name, hint in figures.MEMORY_TERMS.items()
    ]
    rows += [
        Quantity(
            key=f"c.{name}",
            label=_LABELS.get(name, figures.words(name)),
            hint=figures.COLUMNS.get(figures.SHORT_NAMES.get(name, ""), ""),
            unit="",
            part=how,
        )
        for name in (*figures.SHORT_NAMES, "num_microbatches", *_WORDS, "stage_layers")
    ]
    return tuple(row for row in rows if row.key in there)
