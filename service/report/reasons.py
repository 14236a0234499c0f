"""Why a plan is as it is: from the ideal step to the real one, losses, limits, certainty."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from service.report import figures
from service.report.glossary import words
from service.report.wrapping import tied, wrapped
from solver.plan import Plan, Remedy
from solver.reasons import Limit, Loss, Odds, Why

_COMPUTING = ("ideal", "gemm_efficiency", "attention_efficiency", "memory_bound", "launch_floor")
SURE = 0.9995  # what would print as 100 % is said as more than 99.9 %


def reason_lines(plan: Plan, width: int) -> list[Text]:
    """Losses, limits and certainty of one plan; nothing where it has no reasons."""
    why = plan.why
    if why is None:
        return []
    step_s = sum(why.waterfall_s.values())
    told = [*(_loss(loss, step_s) for loss in why.losses), *(_limit(limit, step_s) for limit in why.limits)]
    if plan.odds is not None:
        told.append(f"Certainty: {odds_words(plan.odds, f'#{plan.rank}', 'its ranking')}")
    return [wrapped(line, width, indent=2) for line in told]


def odds_words(odds: Odds, subject: str, rivals: str) -> str:
    """``25 % that #1 is the fastest of these; 9 times in 10 it is at most 8.8 % slower …``."""
    chance, regret = odds.best_probability, figures.risk(odds.regret_p90)
    share = "more than 99.9 %" if chance > SURE else f"{chance * 100:.0f} %"
    most = f"less than {regret[1:]}" if regret.startswith("<") else f"at most {regret}"
    return (
        f"{tied(share)} that {subject} is the fastest of {rivals}; "
        f"9 times in 10 it is {tied(most)} slower than the fastest"
    )


def spent_s(why: Why) -> dict[str, float]:
    """Seconds of a step by cause, means over the ranks: the waterfall with all computing as one."""
    computing = [name for name in why.waterfall_s if name in _COMPUTING]
    others = {name: value for name, value in why.waterfall_s.items() if name not in _COMPUTING}
    return {"compute": sum(why.waterfall_s[name] for name in computing), **others}


def signed(value_s: float, step_s: float) -> str:
    """``+0.31 s``, ``−12 ms``: in the unit of the step."""
    factor, unit = (1.0, "s") if step_s >= 1 else (1e3, "ms")
    digits = len(figures.figure(step_s * factor).partition(".")[2])
    return f"{value_s * factor:+.{digits}f} {unit}".replace("-", "−")


def _loss(loss: Loss, step_s: float) -> str:
    """``Costs: bubble 0.58 s (10 %). Lower by …. vpp 5 takes 0.11 s off it; the step: +0.46 s``."""
    size = tied(f"{words(loss.term)} {signed(loss.seconds, step_s)[1:]} ({figures.percent(loss.share)})")
    line = f"costs: {size}" + (f"; lower: {loss.lowered_by}" if loss.lowered_by else "")
    if loss.change is None or loss.saves_s is None or loss.step_change_s is None:
        return line
    effect = f"{signed(-loss.saves_s, step_s)} of it, {signed(loss.step_change_s, step_s)} of the step"
    return f"{line}. {tied(loss.change)}: {tied(effect)}"


def _limit(limit: Limit, step_s: float) -> str:
    """``binds: memory: …; without it tp 4, dp 128 would take 0.15 s less``."""
    gain = tied(signed(-limit.gain_s, step_s))
    return f"binds: {limit.name}; without that limit {tied(limit.change)}: {gain}"


def measure_line(worth: Sequence[tuple[Plan, float]], *, width: int) -> Text:
    """Which plans to run next, and what choosing after them is expected to gain."""
    runs = ", ".join(tied(f"#{plan.rank} ({plan.plan_id[:4]}, {gain * 100:.2f} %)") for plan, gain in worth)
    line = f"Measure next: {runs}: expected gain in step time by choosing after each run"
    return wrapped(line, width, indent=2)


def remedy_line(remedy: Remedy) -> str:
    """``16 nodes: 12.3 s on 128 GPUs, tp 8 · pp 4 · …, 61.2 GiB``."""
    words = tied(figures.configuration_words(remedy.config))
    step, peak = (
        tied(figures.seconds(remedy.step_time_s)),
        tied(f"{figures.gib(remedy.peak_memory_bytes)} GiB"),
    )
    return f"{remedy.change}: {step} on {tied(f'{remedy.num_gpus} GPUs')}, {words}, {peak}"
