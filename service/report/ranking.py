"""The ranked table of plans, in as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.profiles.figures import percent, tied
from meshwright.profiles.frameworks import OPTION_NUMBERS
from meshwright.profiles.units import MIB
from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Plan, ranked_plans
from meshwright.solver.configuration import VARIABLES, mesh_of

GUTTER = 1  # blanks before every column
_MFU = "MFU*"
_BAND = "± is the 80 % interval"
_EQUAL = " ≈"
_UNUSED = 3  # leaves: sizes that no plan uses
_AS_LIKELY = 0.5  # of the chance to be the fastest that the likeliest plan has


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the ranking."""

    title: str
    cell: Callable[[Plan], str]
    left: bool = False  # words are left-aligned, numbers right-aligned
    apart: bool = True  # one more blank in front; the sizes are close together
    leaves: int = 0  # narrow terminals drop the highest first; 0 stays

    @property
    def heading(self) -> str:
        """Return the printed title."""
        return " " * self.apart + self.title

    def text(self, plan: Plan) -> str:
        """Return the printed cell of one plan."""
        return " " * self.apart + self.cell(plan)


def _size(name: str) -> Callable[[Plan], str]:
    return lambda plan: str(getattr(plan.config, name))


_IN_FULL = ("precision", "optimizer")  # changes that a cell names; switches have a letter


def changes_of(plan: Plan) -> list[str]:
    """Return the changes of a plan to the request's workload: ``fp8``, ``moe_dispatcher hybridep``."""
    texts = []
    for name, value in plan.workload.items():
        if name in _IN_FULL:
            texts.append(value)
        elif value in ("true", "false"):
            texts.append(name if value == "true" else f"no {name}")
        else:
            texts.append(f"{name} {value}")
    return texts


def _switches_of(plan: Plan) -> str:
    return ", ".join(text for text in changes_of(plan) if text not in plan.workload.values())


def _letters(plans: Sequence[Plan]) -> dict[str, str]:
    sets = dict.fromkeys(filter(None, map(_switches_of, plans)))
    return {switches: chr(ord("a") + at % 26) for at, switches in enumerate(sets)}


def switch_notes(plans: Sequence[Plan]) -> list[str]:
    """Return the meaning of the letters in the column ``with``."""
    return [f"with {letter}: {switches}" for switches, letter in _letters(plans).items()]


def _with(plans: Sequence[Plan]) -> Callable[[Plan], str]:
    letters = _letters(plans)

    def cell(plan: Plan) -> str:
        words = [plan.workload[name] for name in _IN_FULL if name in plan.workload]
        return ", ".join([*words, *filter(None, [letters.get(_switches_of(plan))])]) or "–"

    return cell


def _differing(plans: Sequence[Plan]) -> list[Column]:
    shown: list[tuple[bool, Column]] = [
        (
            len({plan.config.num_gpus for plan in plans}) > 1,
            Column(title="GPUs", cell=lambda plan: str(plan.config.num_gpus)),
        ),
        (
            len({plan.config.global_batch_size for plan in plans}) > 1,
            Column(title="batch", cell=lambda plan: str(plan.config.global_batch_size)),
        ),
        (
            any(plan.workload for plan in plans),
            Column(title="with", cell=_with(plans)),
        ),
        (
            any(plan.launchers for plan in plans),
            Column(title="launchers", cell=lambda plan: ", ".join(plan.launchers), left=True),
        ),
    ]
    return [column for differs, column in shown if differs]


def columns_of(plans: Sequence[Plan] = (), *, moe: bool, marked: bool = False) -> list[Column]:
    """Return every column, in order; expert parallelism only with experts, what else plans differ in."""
    sizes = [
        Column(title=short, cell=_size(name), apart=short == "tp", leaves=_UNUSED * _is_unused(name, plans))
        for name, short in figures.SHORT_NAMES.items()
        if moe or name != "expert_parallel_size"
    ]
    equal = equal_to_first(plans)
    return [
        Column(title="#", cell=lambda plan: str(plan.rank or "–")),  # 0: not ranked
        *_differing(plans),
        *sizes,
        Column(title="recompute", cell=lambda plan: figures.recompute(plan.config), left=True),
        Column(title="step", cell=lambda plan: _step(plan, equal), left=True),
        Column(title="tokens/s/GPU", cell=lambda p: f"{p.prediction.tokens_per_s_per_gpu:.0f}", leaves=4),
        Column(title=_MFU, cell=lambda plan: percent(plan.prediction.mfu), leaves=5),
        Column(
            title="peak memory (stage)", cell=lambda plan: figures.peak_memory(plan.prediction), left=True
        ),
        Column(title="OOM risk", cell=lambda p: figures.risk(p.prediction.out_of_memory_probability)),
        _last(plans, marked=marked),
    ]


def _is_unused(name: str, plans: Sequence[Plan]) -> bool:
    return all(getattr(plan.config, name) == VARIABLES[name].off for plan in plans)


def equal_to_first(plans: Sequence[Plan]) -> frozenset[int]:
    """Return the ranks of the plans that the model cannot distinguish from the first.

    Errors that plans share cancel, so overlapping bands alone mean little: a plan counts if its chance to
    be the fastest is half of the likeliest's or more. Empty where chances are unknown.
    """
    chances = {plan.rank: plan.odds.best_probability for plan in plans if plan.odds is not None}
    least = _AS_LIKELY * max(chances.values(), default=0.0)
    alike = frozenset(rank for rank, chance in chances.items() if rank > 1 and chance >= least)
    return alike if chances.get(1, 0.0) >= least else frozenset()


def simplest_of_tied(plans: Sequence[Plan]) -> Plan | None:
    """Return the plan with the fewest sizes and switches among those tied with the first, and the first.

    None where no plan is tied with the first.
    """
    equal = equal_to_first(plans)
    tied_plans = [plan for plan in plans if plan.rank == 1 or plan.rank in equal]
    return min(tied_plans, key=_complexity, default=None) if equal else None


def _complexity(plan: Plan) -> int:
    """Return how many sizes and switches a plan uses in addition to replicas and micro-batches."""
    usual = ("dp ", "mbs ")
    pieces = figures.configuration_words(plan.config).split(" · ")
    return sum(not piece.startswith(usual) for piece in pieces) + len(plan.workload)


def ranking_notes(plans: Sequence[Plan]) -> list[str]:
    """Return the words below the ranking: the band, ties with the simplest of them, and the meshes."""
    notes = [_BAND]
    simplest = simplest_of_tied(plans)
    if simplest is not None:
        group = [f"#{rank}" for rank in sorted({1, *equal_to_first(plans)})]
        others = f"{', '.join(group[:-1])} and {group[-1]}"
        notes.append(f"≈ {others} are statistically tied; #{simplest.rank} is the simplest")
    ranked = ranked_plans(plans)
    if ranked[2:] and len({mesh_of(plan.config) for plan in ranked}) == len(ranked):
        notes.append(f"#1 to #{ranked[-1].rank} each use a different mesh")
    return notes


def _step(plan: Plan, equal: frozenset[int]) -> str:
    return figures.step_time(plan.prediction) + (_EQUAL if plan.rank in equal else "")


def _last(plans: Sequence[Plan], *, marked: bool) -> Column:
    """Return the unusual choices of plans, if any, behind the marks of the best and the simplest plan."""
    simplest = simplest_of_tied(plans)

    def mark(plan: Plan) -> str:
        marks = ["best"] * (plan.rank == 1) + ["simplest"] * (plan is simplest)
        return f"← {', '.join(marks)}" if marked and marks else ""

    if not any(map(_also, plans)):
        return Column(title="", cell=mark, left=True, leaves=6)
    return Column(title="also", cell=lambda p: " · ".join(filter(None, (mark(p), _also(p)))), left=True)


def _also(plan: Plan) -> str:
    return " · ".join([*figures.inner_words(plan.config), *_needs(plan)])


def _needs(plan: Plan) -> list[str]:
    return [f"needs {package}" for package in plan.needs]


def short_ranking(plans: Sequence[Plan], *, rates: bool, width: int) -> RenderableType:
    """Return the table of the default answer: a short layout, and only what differs between its rows.

    Args:
        plans: the rows, at least two.
        rates: whether plans are ranked by more than their step, so that tokens/s/GPU tell more.
        width: columns; those that matter least are left out where there is no room.
    """
    equal = equal_to_first(plans)
    asked = len({plan.config.global_batch_size for plan in plans}) > 1 or rates
    columns = [
        Column(title="layout", cell=lambda plan: figures.layout_words(plan.config), left=True),
        *(replace(column, leaves=5) for column in _differing(plans) if column.title != "with"),
        Column(title="zero", cell=_size("zero_stage"), leaves=4),
        Column(title="micro-batch", cell=_size("micro_batch_size")),
        Column(title="recompute", cell=lambda plan: figures.recompute(plan.config), left=True),
        *_split_of(plans),
        Column(title="step", cell=lambda plan: figures.seconds(plan.prediction.step_time_s)),
        *([Column(title="tokens/s/GPU", cell=_rate, leaves=2)] if asked else []),
        *_outlook_columns(plans),
        Column(title="memory", cell=lambda plan: f"{figures.gib(plan.prediction.peak_memory_bytes)} GiB"),
        Column(title="risk", cell=lambda p: figures.risk(p.prediction.out_of_memory_probability), leaves=1),
        Column(title="with", cell=own_changes(plans), left=True, leaves=6),
        Column(title="also", cell=_also, left=True, leaves=6),
    ]
    shown = [column for column in columns if len({column.cell(plan) for plan in plans}) > 1]
    number = Column(title="#", cell=lambda plan: str(plan.rank or "–"))
    mark = Column(title="", cell=lambda plan: "≈ #1" * (plan.rank in equal), left=True, leaves=7)
    numbers = [number] if any(plan.rank for plan in plans) else []
    shown = [*numbers, *shown, *([mark] if equal else [])]
    while _width(shown, plans) > width and max(column.leaves for column in shown):
        shown.remove(max(shown, key=lambda column: column.leaves))
    return _table(shown, plans)


def switch_words(change: str) -> str:
    """Return ``CUDA graph full iteration`` of ``cuda_graph full_iteration``."""
    name, _, value = change.partition(" ")
    if name == "power_limit_w":
        return f"power limit {float(value):g} W"
    if name == "bucket_bytes":
        return f"gradient buckets of {float(value) / MIB:,.0f} MiB"
    change = f"{name} {float(value):,.10g}" if name in OPTION_NUMBERS else change
    return change.replace("_", " ").replace("cuda ", "CUDA ").replace("moe ", "MoE ")


def own_changes(plans: Sequence[Plan]) -> Callable[[Plan], str]:
    """Return the cell of the changes that a plan does not share with all others."""
    common = set(changes_of(plans[0])).intersection(*map(changes_of, plans))
    return lambda plan: ", ".join(switch_words(one) for one in changes_of(plan) if one not in common)


def _rate(plan: Plan) -> str:
    return f"{plan.prediction.tokens_per_s_per_gpu:,.0f}"


def _split_of(plans: Sequence[Plan]) -> list[Column]:
    """Return the layers of each chunk, where nothing else distinguishes two plans."""
    words = [(figures.configuration_words(plan.config), *changes_of(plan)) for plan in plans]
    if len(set(words)) == len(words):
        return []
    return [
        Column(title="layers", cell=lambda p: figures.split(p.config.stage_layers), left=True, leaves=5)
    ]


def _outlook_columns(plans: Sequence[Plan]) -> list[Column]:
    found = list[Column]()
    if all(plan.outlook is not None and plan.outlook.days is not None for plan in plans):
        found.append(Column(title="days", cell=lambda plan: f"{plan.days:.1f}"))
    if all(plan.outlook is not None and plan.outlook.cost is not None for plan in plans):
        found.append(Column(title="cost", cell=_cost))
    return found


def _cost(plan: Plan) -> str:
    outlook = plan.outlook
    return "" if outlook is None or outlook.cost is None else f"{outlook.cost:,.0f}"


def ranking(plans: Sequence[Plan], *, moe: bool, width: int, peak: str) -> RenderableType:
    """Return the table of ``plans``; a list of lines if even the narrowest table has no room.

    ``peak`` is the denominator of MFU; it and other notes follow below the table.
    """
    columns = columns_of(plans, moe=moe, marked=True)
    left_out: list[str] = []
    while _width(columns, plans) > width:
        last = max(columns, key=lambda column: column.leaves)
        if not last.leaves:
            differing, equal = _differing(plans), equal_to_first(plans)
            lines = [figures.wrapped(_line(plan, differing, equal), width, hang=3) for plan in plans]
            notes = [*ranking_notes(plans), *switch_notes(plans)]
            return Group(*lines, *(figures.wrapped(note, width, indent=2) for note in notes))
        columns.remove(last)
        value = f" {last.cell(plans[0])}" if last.leaves == _UNUSED else ""
        left_out += [f"{last.title.rstrip('*')}{value}"] * bool(last.title)
    has_mfu = any(column.title == _MFU for column in columns)
    notes = ranking_notes(plans)
    if has_mfu:
        notes[0] = f"* of {peak}, causal attention counted · {notes[0]}"
    notes += switch_notes(plans)
    if left_out:
        notes.append(f"(no room for {', '.join(left_out)}; --json has all)")
    return Group(_table(columns, plans), *(figures.wrapped(note, width, indent=2) for note in notes))


def _width(columns: Sequence[Column], plans: Sequence[Plan]) -> int:
    cells = [[column.heading, *map(column.text, plans)] for column in columns]
    return sum(GUTTER + max(map(cell_len, texts)) for texts in cells)


def _table(columns: Sequence[Column], plans: Sequence[Plan]) -> Table:
    table = Table(box=None, padding=(0, 0, 0, GUTTER), pad_edge=True, header_style="dim", show_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="left" if column.left else "right", no_wrap=True)
    for plan in plans:
        table.add_row(
            *(Text(column.text(plan)) for column in columns), style="bold green" if plan.rank == 1 else ""
        )
    return table


def _line(plan: Plan, differing: Sequence[Column], equal: frozenset[int]) -> str:
    others = [f"{column.title} {column.cell(plan)}" for column in differing]
    words = figures.pieces(" · ".join([figures.configuration_words(plan.config), *others]), "·")
    risk = f"OOM risk {figures.risk(plan.prediction.out_of_memory_probability)}"
    cells = (_step(plan, equal), figures.peak_memory(plan.prediction), risk, *_needs(plan))
    number = f"{plan.rank}. " if plan.rank else ""
    return f"{number}{words}: {', '.join(map(tied, cells))}"
