"""An answer's reasons in three sentences: where its time goes, what binds, how sure its first rank is.

All figures behind them are ``reasons.reason_lines``, which ``meshwright explain --plan`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from service.report import figures
from service.report.reasons import SURE, odds_words, signed
from service.report.wrapping import tied, wrapped
from solver.plan import Plan
from solver.reasons import Limit, Loss, Odds, Why

_NAMED = 3  # losses
_LOSSES: Mapping[str, str] = {
    "gemm_efficiency": "matrix products below the peak",
    "attention_efficiency": "attention below the peak",
    "memory_bound": "memory-bound operators",
    "launch_floor": "waiting for the CPU to launch",
    "offload": "offloading",
    "recompute": "recomputing",
    "tensor_parallel": "tensor-parallel collectives",
    "context_parallel": "context-parallel exchange",
    "expert_parallel": "expert all-to-alls",
    "pipeline_transfer": "transfers between stages",
    "imbalance": "unequal stages",
    "bubble": "the pipeline's bubble",
    "data_parallel": "data-parallel collectives",
    "straggler": "waiting for the slowest node",
    "fixed": "a step's fixed costs",
}


def sentences(plans: Sequence[Plan], width: int, *, is_calibrated: bool) -> list[Text]:
    """Three sentences about the first plan; fewer where it has no reasons or stands alone."""
    best = plans[0]
    said = [] if best.why is None else [time_sentence(best.why), limit_sentence(best.why)]
    if best.odds is not None:
        alone = len(plans) == 1
        said.append(_alone() if alone else _certainty(best.odds, is_calibrated=is_calibrated))
    return [wrapped(line, width, indent=2) for line in said]


def time_sentence(why: Why) -> str:
    """How much of the step is the model's own work, and the largest of what is not."""
    step_s = sum(why.waterfall_s.values())
    ideal = f"{_share(why.waterfall_s['ideal'], step_s)} of the step is the model's own work at the peak"
    lost = [f"{_loss_words(loss.term)} ({_seconds(loss.seconds, step_s)})" for loss in why.losses[:_NAMED]]
    if not lost:
        return f"Time: {ideal}."
    return f"Time: {ideal}; most of the rest is {listed(lost)}."


def limit_sentence(why: Why) -> str:
    """What alone stops the most promising change; where nothing does, what a change would cost or win."""
    step_s = sum(why.waterfall_s.values())
    if why.limits:
        return f"Binds: {limit_words(why.limits[0], step_s)}"
    told = [loss for loss in why.losses if loss.change is not None and loss.step_change_s]
    loss = next((one for one in told if _longer_s(one) < 0), told[0] if told else None)
    if loss is None:
        return "Binds: no limit; no single change of a size lowers these losses."
    words, cost = _loss_words(loss.term), _seconds(_longer_s(loss), step_s)
    change = f"{tied(loss.change or '')}, which lowers {words} most"
    return (
        f"Binds: no limit; {change}, makes a step {cost} {'longer' if _longer_s(loss) > 0 else 'shorter'}."
    )


def _longer_s(loss: Loss) -> float:
    """By how much the change that lowers a loss makes the step longer."""
    return loss.step_change_s or 0.0


def limit_words(limit: Limit, step_s: float) -> str:
    """A limit: ``tp 4 would be 0.15 s faster but for memory (activations of stage 1, …)``."""
    kind, colon, detail = limit.name.partition(": ")
    by = f"{kind} ({detail})" if colon else f"this limit: {limit.name}"
    return f"{tied(limit.change)} would be {_seconds(limit.gain_s, step_s)} faster but for {by}."


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _certainty(odds: Odds, *, is_calibrated: bool) -> str:
    """How sure the rank is, and what would make it surer."""
    settled = is_calibrated or odds.best_probability > SURE
    more = "" if settled else "; runs of yours narrow that (meshwright calibrate)"
    return f"Certainty: {odds_words(odds, '#1', 'these')}{more}."


def _alone() -> str:
    """A ranking of one plan has no rival to be held against."""
    return "Certainty: no other plan is listed to compare with; --top-k 3 lists its rivals."


def _loss_words(term: str) -> str:
    """What a loss is, in words that need no glossary."""
    return _LOSSES.get(term, term.replace("_", " "))


def _seconds(value_s: float, step_s: float) -> str:
    """In the unit and with the digits of the step."""
    return tied(signed(abs(value_s), step_s)[1:])


def _share(part_s: float, step_s: float) -> str:
    """Of the step."""
    return tied(figures.percent(part_s / step_s))
