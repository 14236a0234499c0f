"""From a question on post-training to its ranked placements."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product

import numpy as np

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.errors import FieldError, InvalidProblemError, StoppedError
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.clock import Watch, look
from meshwright.solver.post_training.beside import critic_prices, reward_engine, reward_prices, with_scoring
from meshwright.solver.post_training.calibration import (
    OF_TRAINING,
    Correction,
    corrections_of,
    spread_of,
)
from meshwright.solver.post_training.engines import (
    COLOCATED_SHARE,
    MEMORY_SHARES,
    Engine,
    has_precision,
    sizes_of,
)
from meshwright.solver.post_training.lengths import RUNAWAY, SIGMAS, AnswerLengths
from meshwright.solver.post_training.limits import constants_of, layout_text
from meshwright.solver.post_training.problem import (
    PARTS,
    EngineRole,
    LengthsOutcome,
    Mode,
    PostTraining,
    PostTrainingAnswer,
    RolePlan,
    SideRole,
    TrainingRole,
    role_plan_id,
)
from meshwright.solver.post_training.roles import (
    CriticPrice,
    EnginePrice,
    Placement,
    Prices,
    RewardPrice,
    placed,
)
from meshwright.solver.post_training.rollout import rollout_of
from meshwright.solver.post_training.training import (
    KnownPrices,
    TrainingPrice,
    awake_share,
    counts_of,
    least_nodes,
    training_prices,
    without_layout_constraints,
)
from meshwright.solver.predict import Z_80_PERCENT
from meshwright.solver.problem import Problem, ShouldStop, problem_digest

# NeMo-RL's guide on refit: DeepSeek-V3 14.2 s by NCCL; its release notes of v0.3: an 8B in 5 s
REFIT_FIXED_S, REFIT_BYTES_PER_S = 4.0, 100e9
OTHER_S = 4.0  # sampling of a buffer, rewards by code, preparation (output of NeMo-RL's pull request 1052)
_LOADS = (1.0, 1.15, 1.35, 1.6, 2.0, 2.7, 4.0, 6.0, 8.0)  # of an equal share of the answers
_MEANS = (0.75, 1.25)  # factors of a stated mean
_UNSTATED = (0.5, 2.0)  # of an assumed one
_RUNAWAYS = (0.0, 3 * RUNAWAY)
_EVERY_STEP = 4  # steps off that are all tried; of more, the largest
_LONG_TAIL = 0.25  # share of generation above which the tail binds
_PRICING = 0.75  # of the time; the rest is for placements
_CLOSING_S = 1.0  # for placements after the time limit or a stop; a worker waits twice as long
_DOUBLINGS = 6  # of a pool that holds no engine
_MANY = 1 << 14  # answers of an engine that are simulated one by one; of more, a sample
_STOPPED = "stopped before the roles were placed"


def profile_by_default(problem: Problem) -> Profile:
    """Return the catalog's costs of a training role."""
    return default_profile(problem.cluster, problem.priced_as)


def plan_post_training(
    asked: PostTraining,
    *,
    profile_of: Callable[[Problem], Profile] = profile_by_default,
    watch: Watch | None = None,
    on_search: Callable[[str, int], object] = lambda _group, _nodes: None,
    on_best: Callable[[float], object] | None = None,
    known: KnownPrices | None = None,
) -> PostTrainingAnswer:
    """Return the ranked placements of the roles.

    Args:
        asked: the question.
        profile_of: costs of the training role.
        watch: of all searches together; what is priced when it ends is placed. None: they have no limit.
        on_search: called before each search of a training layout, with group and nodes.
        on_best: called with the seconds of a step as soon as roles are placed, and of each shorter one.
            None: roles are placed once, after all searches.
        known: training layouts of this question on pools of other sizes; those that are searched are added.

    Raises:
        InvalidProblemError: no role fits the pool: the field, its value, why, and the nearest that works.
        StoppedError: it was stopped before a training layout was found.
    """
    watch = watch or Watch(time_limit_s=math.inf)
    pricing = Watch(time_limit_s=_PRICING * watch.left_s, should_stop=watch.should_stop)
    engines, training = list[EnginePrice](), list[TrainingPrice]()

    def is_over() -> bool:
        return (pricing if training else watch).interrupted()

    with watch.cut():
        engines.extend(engine_prices(asked, asked.lengths))
    if not engines and not is_over():
        raise _no_engine(asked)
    _require_reward_model(asked)
    corrections = measured_corrections(asked, profile_of, watch)
    best_s = math.inf
    for price in training_prices(asked, profile_of, should_stop=is_over, on_search=on_search, known=known):
        training.append(price)
        if on_best is not None:
            found_s = _best_s(prices_of(asked, training, engines, corrections), pricing)
            if found_s < best_s:
                on_best(best_s := found_s)
    if not training and not is_over():
        raise _no_training(asked, profile_of, is_over)
    prices = prices_of(asked, training, engines, corrections)
    found = ranked(prices, asked.top_k, watch.closing(_CLOSING_S))
    watch.stopped = watch.interrupted() or pricing.stopped
    if not found:
        with watch.cut():
            reason = _no_placement(asked, prices)
            if not watch.interrupted():
                raise reason
        raise StoppedError(_STOPPED)
    plans = _plans(asked, prices, found)
    outcomes = list[LengthsOutcome]()
    with watch.cut():
        outcomes.extend(_outcomes(asked, prices, found[0]))
    proved = found[0].proved and not watch.stopped
    return PostTrainingAnswer(
        status="optimal" if proved else "feasible",
        plans=plans,
        bound_s=min(one.bound_s for one in found),
        choices=len(training) + len(engines),
        searches=len(training),
        outcomes=tuple(outcomes),
        deciding=_deciding(outcomes),
        notes=tuple(_notes(asked, was_cut=watch.stopped)),
        measure_next=_measure_next(asked, prices, found[0]),
        corrections={part: one.factor for part, one in corrections.items()},
    )


def _best_s(prices: Prices, watch: Watch) -> float:
    """Return the step of the best placement of what is priced so far; infinity: there is none yet."""
    found: list[Placement | None] = []
    with watch.cut():
        found.append(placed(prices))
    return min((one.step_s for one in found if one is not None), default=math.inf)


def measured_corrections(
    asked: PostTraining, profile_of: Callable[[Problem], Profile], watch: Watch
) -> dict[str, Correction]:
    """Return what the measured steps of a question say of its parts' prices."""
    return corrections_of([
        (plan_post_training(step.asked, profile_of=profile_of, watch=watch).plans[0].parts_s, step.parts_s)
        for step in asked.measured
    ])  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Prices of the roles.


def refit_s_of(asked: PostTraining) -> float:
    """Return the seconds in which the engines get the new weights, or the new adapters alone."""
    alone = asked.adapts and asked.places.syncs_adapters
    moved = asked.trained_parameters if alone else asked.model.num_parameters()
    return REFIT_FIXED_S + 2.0 * moved / REFIT_BYTES_PER_S


def ways_of(asked: PostTraining) -> tuple[tuple[Mode, int], ...]:
    """Return the ways that a request leaves open, each with its steps off policy."""
    places = asked.places
    ahead = places.most_steps_off
    most = asked.max_steps_off if ahead is None else min(asked.max_steps_off, ahead)
    steps = [step for step in range(1, most + 1) if step <= _EVERY_STEP or step == most]
    ways: list[tuple[Mode, int]] = [("colocated", 0), ("apart", 0), *(("async", step) for step in steps)]
    pins = asked.pins
    return tuple(
        (mode, step)
        for mode, step in ways
        if mode in places.able("modes", asked.engine)
        and pins.mode in (None, mode)
        and (pins.steps_off is None or step == pins.steps_off)
        and (asked.reward_model is None or mode in places.reward_modes)
        and (not asked.has_critic or mode in places.critic_modes)
    )


def engine_of(asked: PostTraining, group: NodeGroup, size: int, share: float) -> Engine:
    """Return an engine of the request's model."""
    return Engine(
        kind=asked.engine,
        model=asked.model,
        group=group,
        tensor_parallel_size=size,
        precision=asked.precision,
        memory_share=share,
    )


def engine_prices(asked: PostTraining, lengths: AnswerLengths) -> Iterator[EnginePrice]:
    """Yield engines of every group, layout and load: those that hold the longest answer."""
    pins, batches = asked.pins, sorted({max(step, 1) for _, step in ways_of(asked)})
    shares = asked.places.memory_shares if pins.memory_share is None else (pins.memory_share,)
    for name, group in asked.groups.items():
        for size in sizes_of(asked.model, group):
            if pins.tensor_parallel_size not in (None, size):
                continue
            for share in shares:
                engine = engine_of(asked, group, size, share)
                if engine.cache_tokens >= lengths.longest:
                    yield from _loads(asked, lengths, name, engine, batches)


def _loads(
    asked: PostTraining, lengths: AnswerLengths, name: str, engine: Engine, batches: Sequence[int]
) -> Iterator[EnginePrice]:
    for count in batches:
        for load in loads_of(asked, name, engine.tensor_parallel_size):
            look()
            number = load * count
            answers = lengths.drawn(min(number, _MANY), asked.samples * count)
            seen = rollout_of(engine, answers, lengths.prompt, of=number)
            yield EnginePrice(
                group=name,
                tensor_parallel_size=engine.tensor_parallel_size,
                memory_share=engine.memory_share,
                answers=load,
                batches=count,
                seconds=seen.seconds / count,
                tail_s=seen.tail_s / count,
                running=seen.running,
                cache_tokens=int(engine.cache_tokens),
            )


def loads_of(asked: PostTraining, name: str, size: int) -> list[int]:
    """Return the answers of an engine that are priced: equal shares of what training leaves.

    Engines of one layout that share the answers evenly are never slower than uneven ones, so that for one
    group these are all that matter. Of several groups, loads in between are priced as well.
    """
    group = asked.groups[name]
    counts = {nodes * each for nodes, each in counts_of(group)}
    rests = {group.num_gpus, *counts}
    for _ in range(1 + _roles_beside(asked)):
        rests |= {rest - taken for rest in rests for taken in counts if rest > taken}
    numbers = {rest // size for rest in rests if rest >= size}
    if len(asked.groups) > 1:
        total = sum(one.num_gpus for one in asked.groups.values())
        numbers |= {total // size} if total >= size else set()
        shares = {math.ceil(asked.samples / (total / size) * factor) for factor in _LOADS}
    else:
        shares = set()
    for value in constants_of(role_constraints(asked)):
        numbers |= {value, value // size, value * group.gpus_per_node // size}
    numbers = {number for number in numbers if 0 < number <= group.num_gpus // size}
    shares |= {math.ceil(asked.samples / number) for number in numbers}
    return sorted({min(max(share, 1), asked.samples) for share in shares})


def _roles_beside(asked: PostTraining) -> int:
    """Return how many further roles may have GPUs of their own."""
    own = asked.reward_model is not None and "own" in asked.places.reward
    return own + (asked.has_critic and "own" in asked.places.critic)


def prices_of(
    asked: PostTraining,
    training: Sequence[TrainingPrice],
    engines: Sequence[EnginePrice],
    corrections: Mapping[str, Correction],
) -> Prices:
    """Return the prices of all roles for ``placed``, corrected by measured steps."""
    times = {part: corrections[part].factor if part in corrections else 1.0 for part in PARTS}
    pinned = asked.pins.rollout_nodes
    most = {} if pinned is None else {
        name: pinned * group.gpus_per_node for name, group in asked.groups.items()
    }  # fmt: skip
    lengths, scored = asked.lengths, times["reward"]
    every = [with_scoring(asked, _corrected(one, times), lengths, scored) for one in training]
    return Prices(
        training=tuple(every),
        rewards=_rewards(asked, lengths, scored),
        critics=tuple(_critic_corrected(one, times["critic"]) for one in critic_prices(asked, [*training])),
        has_reward_model=asked.reward_model is not None,
        critic_takes_turns="turn" in asked.places.critic,
        scores_as_answers_end=asked.places.scores_as_answers_end,
        engines=tuple(_engine_corrected(one, times["generate"]) for one in engines),
        gpus={name: group.num_gpus for name, group in asked.groups.items()},
        samples=asked.samples,
        passes=asked.passes,
        critic=asked.has_critic * times["critic"],
        refit_s=refit_s_of(asked) * times["refit"],
        other_s=(OTHER_S + asked.reward_s) * times["other"],
        corrections=corrections,
        ways=ways_of(asked),
        colocated_share=COLOCATED_SHARE if asked.pins.memory_share is None else 1.0,
        most_rollout_gpus=most,
        gpus_per_node={name: group.gpus_per_node for name, group in asked.groups.items()},
        constraints=role_constraints(asked),
    )


def _corrected(price: TrainingPrice, times: Mapping[str, float]) -> TrainingPrice:
    passes = times["log_probabilities"]
    return replace(
        price, update_s=price.update_s * times["update"], forward_s=price.forward_s * passes,
        adapters_s=price.adapters_s * passes, reference_s=price.reference_s * passes,
        swap_s=price.swap_s * times["swap"],
    )  # fmt: skip


def _rewards(asked: PostTraining, lengths: AnswerLengths, factor: float) -> tuple[RewardPrice, ...]:
    return tuple(replace(one, seconds=one.seconds * factor) for one in reward_prices(asked, lengths))


def _critic_corrected(price: CriticPrice, factor: float) -> CriticPrice:
    return replace(price, values_s=price.values_s * factor, update_s=price.update_s * factor)


def _engine_corrected(price: EnginePrice, factor: float) -> EnginePrice:
    return replace(price, seconds=price.seconds * factor, tail_s=price.tail_s * factor)


def role_constraints(asked: PostTraining) -> tuple[str, ...]:
    """Return the constraints that are on roles, not on training's layout, and the launcher's own."""
    own = tuple(text for text in asked.constraints if layout_text(text) is None)
    return (*own, *asked.places.constraints)


# --------------------------------------------------------------------------------------------------
# Placements, best first: the best of each way, then others.


def ranked(prices: Prices, top_k: int, watch: Watch) -> list[Placement]:
    """Return placements, best first: each mode's best, and others up to ``top_k`` in time."""
    found: list[Placement] = []
    with watch.cut():
        for mode in dict.fromkeys(mode for mode, _ in prices.ways):
            ways = [way for way in prices.ways if way[0] == mode]
            best = placed(prices, ways=ways)
            if best is not None:
                found.append(best)
        while found and len(found) < top_k:
            other = placed(prices, without=found)
            if other is None:
                break
            found.append(other)
    return sorted(found, key=lambda one: one.step_s)


def _plans(asked: PostTraining, prices: Prices, found: Sequence[Placement]) -> tuple[RolePlan, ...]:
    digest = question_digest(asked)
    first = found[0].step_s
    return tuple(
        replace(
            role_plan(asked, prices, one, digest),
            rank=rank, slower=None if rank == 1 else one.step_s / first - 1.0,
        )
        for rank, one in enumerate(found, 1)
    )  # fmt: skip


def question_digest(asked: PostTraining) -> str:
    """Return SHA-256, in hex, of what is asked, without the limits of the search."""
    parts = {
        "training": problem_digest(asked.training),
        "algorithm": [
            asked.prompts,
            asked.responses,
            asked.updates,
            asked.reference,
            *([asked.algorithm] if asked.has_critic else []),
            *([asked.reward_s] if asked.reward_s else []),
            *([] if asked.reward_model is None else [model_to_mapping(asked.reward_model)]),
        ],
        "lengths": [
            asked.lengths.prompt,
            asked.lengths.mean,
            asked.lengths.longest,
            asked.lengths.percentiles,
        ],
        "rollout": [asked.engine, asked.precision, *([] if asked.sleeps else ["awake"])],
        "launcher": [asked.launcher, asked.trainer],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def whole_digest(asked: PostTraining) -> str:
    """Return SHA-256, in hex, of all that decides the answer: also pins, limits and measured steps."""
    parts = {
        "asked": question_digest(asked),
        "limits": [asdict(asked.pins), asked.max_steps_off, asked.constraints, asked.top_k, asked.reward_s],
        "layout": [asked.training.options.pin, asked.training.options.constraints],
        "measured": [[whole_digest(one.asked), dict(one.parts_s)] for one in asked.measured],
        "assumed": [asked.mean_is_assumed, repr(asked.reward_model)],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def role_plan(asked: PostTraining, prices: Prices, placement: Placement, digest: str) -> RolePlan:
    """Return a placement with its step, its parts and what binds it; rank 1."""
    price = prices.training[placement.training]
    rows = [(prices.engines[at], count) for at, count in placement.engines]
    reward, critic = _reward_role(prices, placement), _critic_role(prices, placement)
    parts = {
        "generate": max(row.seconds for row, _ in rows),
        "reward": 0.0 if reward is None else reward.seconds,
        "refit": prices.refit_s,
        "swap": price.swap_s if placement.mode == "colocated" else 0.0,
        "log_probabilities": prices.passes_s(price),
        "update": price.update_s,
        "critic": 0.0 if critic is None else critic.seconds,
        "other": prices.other_s,
    }
    training = TrainingRole(
        group=price.group, nodes=price.nodes, gpus=price.gpus, plan=price.plan, sequences=price.sequences
    )
    rollout = tuple(_engine_role(row, count) for row, count in rows)
    engine_gpus = sum(role.gpus for role in rollout)
    gpus = max(price.gpus, engine_gpus) if placement.mode == "colocated" else price.gpus + engine_gpus
    gpus += sum(role.gpus for role in (reward, critic) if role is not None)
    sigma = _log_sigma(parts, prices, placement)
    band = math.exp(Z_80_PERCENT * sigma)
    pool = sum(prices.gpus.values())
    named = {
        "mode": placement.mode, "off": placement.steps_off,
        "training": [price.group, price.gpus, price.plan.plan_id],
        "engines": [[*row.layout, row.answers, count] for row, count in rows],
        **{
            name: [role.group, role.gpus, role.tensor_parallel_size]
            for name, role in {"reward": reward, "critic": critic}.items()
            if role is not None and role.gpus
        },
    }  # fmt: skip
    return RolePlan(
        plan_id=role_plan_id(digest, named),
        rank=1,
        mode=placement.mode,
        steps_off=placement.steps_off,
        training=training,
        rollout=rollout,
        parts_s=parts,
        step_s=placement.step_s,
        step_low_s=placement.step_s / band,
        step_high_s=placement.step_s * band,
        tokens_per_s_per_gpu=asked.samples * asked.lengths.mean / placement.step_s / pool,
        num_gpus=gpus,
        binds=_binds(parts, prices, placement, rows),
        reward=reward,
        critic=critic,
    )


def _reward_role(prices: Prices, placement: Placement) -> SideRole | None:
    if not prices.has_reward_model:
        return None
    price = prices.training[placement.training]
    if placement.reward is None:
        return SideRole(
            group=price.group, nodes=price.nodes, gpus=0, seconds=price.scoring_s or 0.0,
            tensor_parallel_size=price.scoring_tp,
        )  # fmt: skip
    own = prices.rewards[placement.reward]
    return SideRole(
        group=own.group, nodes=own.nodes, gpus=own.gpus, seconds=own.seconds,
        tensor_parallel_size=own.tensor_parallel_size,
    )  # fmt: skip


def _critic_role(prices: Prices, placement: Placement) -> SideRole | None:
    if not prices.critic:
        return None
    price = prices.training[placement.training]
    if placement.critic is None:
        return SideRole(group=price.group, nodes=price.nodes, gpus=0, seconds=prices.critic_s(price))
    own = prices.critics[placement.critic]
    seconds = own.values_s + own.update_s
    return SideRole(group=own.group, nodes=own.nodes, gpus=own.gpus, seconds=seconds)


def _engine_role(row: EnginePrice, count: int) -> EngineRole:
    return EngineRole(
        group=row.group, engines=count, tensor_parallel_size=row.tensor_parallel_size,
        memory_share=row.memory_share, answers=row.answers, running=row.running,
        cache_tokens=row.cache_tokens, generate_s=row.seconds, tail_s=row.tail_s,
    )  # fmt: skip


def side_s_of(prices: Prices, placement: Placement) -> float:
    """Return the seconds of training in a placement's step."""
    critic = None if placement.critic is None else prices.critics[placement.critic]
    in_turn = prices.has_reward_model and placement.reward is None
    return prices.side_s(prices.training[placement.training], critic, scores_in_turn=in_turn)


def _doubts(parts: Mapping[str, float], prices: Prices, placement: Placement) -> dict[str, float]:
    """Return seconds of one standard deviation that each part adds to the step."""
    sigmas = {part: spread_of(part) for part in PARTS}
    own = prices.training[placement.training].log_sigma
    sigmas |= {part: max(sigmas[part], own) for part in OF_TRAINING}
    sigmas |= {part: one.sigma for part, one in prices.corrections.items()}
    waited = {**parts, **_beside_critic(parts, prices, placement)}
    doubts = {part: sigmas[part] * waited[part] for part in PARTS}
    if placement.mode == "async":
        ends = {
            ("generate",): parts["generate"], ("reward",): parts["reward"],
            (*OF_TRAINING, "other"): side_s_of(prices, placement),
        }  # fmt: skip
        longest = max(ends, key=lambda names: ends[names])
        doubts |= dict.fromkeys((one for names in ends for one in names if names != longest), 0.0)
    return doubts


def _beside_critic(parts: Mapping[str, float], prices: Prices, placement: Placement) -> Mapping[str, float]:
    """Return the seconds of training's parts that a step waits for, next to a critic on GPUs of its own."""
    if placement.critic is None:
        return {}
    critic = prices.critics[placement.critic]
    passes, update = parts["log_probabilities"], parts["update"]
    return {
        "log_probabilities": passes if passes >= critic.values_s else 0.0,
        "update": update if update >= critic.update_s else 0.0,
        "critic": critic.values_s * (critic.values_s > passes)
        + critic.update_s * (critic.update_s > update),
    }


def _log_sigma(parts: Mapping[str, float], prices: Prices, placement: Placement) -> float:
    doubts = _doubts(parts, prices, placement)
    together = sum(doubts[name] for name in OF_TRAINING)  # one model's error, in all
    others = [doubts[name] for name in ("generate", "reward", "refit", "other", "swap")]
    return math.hypot(together, *others) / placement.step_s


def _binds(
    parts: dict[str, float],
    prices: Prices,
    placement: Placement,
    rows: Sequence[tuple[EnginePrice, int]],
) -> str:
    side = side_s_of(prices, placement)
    if placement.reward is not None and parts["reward"] > max(parts["generate"], side):
        return "the reward model: generation and training wait for it"
    if placement.mode == "async" and side >= parts["generate"]:
        return "training: generation waits for it"
    busiest = max((row for row, _ in rows), key=lambda row: row.seconds)
    if busiest.running < busiest.answers * busiest.batches:
        waiting = busiest.answers * busiest.batches - busiest.running
        return f"memory of keys and values: {waiting} answers of an engine wait for others to end"
    if busiest.tail_s > _LONG_TAIL * busiest.seconds:
        return f"the longest answers: the last tenth takes {busiest.tail_s:.0f} s of generation alone"
    return "training" if side > parts["generate"] else "generation"


def _measure_next(asked: PostTraining, prices: Prices, first: Placement) -> str:
    plan = role_plan(asked, prices, first, "")
    doubts = _doubts(plan.parts_s, prices, first)
    total = sum(value**2 for value in doubts.values())
    name = max(doubts, key=lambda part: doubts[part])
    share = 100.0 * doubts[name] ** 2 / total
    return f"{name.replace('_', ' ')}, which holds {share:.0f} % of the doubt on the step"


# --------------------------------------------------------------------------------------------------
# Other lengths than are assumed.


def _outcomes(asked: PostTraining, prices: Prices, first: Placement) -> Iterator[LengthsOutcome]:
    """Yield the best placement where answers are shorter, longer, or reach the limit less or more often."""
    if not asked.lengths.is_assumed:
        return
    before = choice_of(prices, first)
    for factor in _UNSTATED if asked.mean_is_assumed else _MEANS:
        lengths = asked.lengths.varied(mean=factor)
        own = _repriced(asked, prices, lengths)
        yield from _outcome(own, before, "mean", f"a mean of {lengths.mean:.0f} tokens")
    for sigma in SIGMAS:
        lengths = asked.lengths.varied(sigma=sigma)
        tenth = float(np.quantile(lengths.answers, 0.9)) + lengths.prompt
        own = _repriced(asked, prices, lengths)
        yield from _outcome(own, before, "p90", f"one answer in ten beyond {tenth:.0f} tokens")
    for share in _RUNAWAYS:
        words = f"{share * 100:g} % of the answers at {asked.lengths.longest} tokens"
        own = _repriced(asked, prices, asked.lengths.varied(runaway=share))
        yield from _outcome(own, before, "p99", words)


def _repriced(asked: PostTraining, prices: Prices, lengths: AnswerLengths) -> Prices:
    ratio = 1.0 if asked.places.pads else lengths.mean / asked.lengths.mean
    factor, scored = _factor(prices, "generate"), _factor(prices, "reward")
    training = tuple(
        replace(
            one,
            update_s=one.update_s * ratio,
            forward_s=one.forward_s * ratio,
            adapters_s=one.adapters_s * ratio,
        )
        for one in prices.training
    )
    training = tuple(with_scoring(asked, one, lengths, scored) for one in training)
    engines = tuple(_engine_corrected(one, factor) for one in engine_prices(asked, lengths))
    rewards = _rewards(asked, lengths, scored)
    critics = tuple(_critic_corrected(one, ratio) for one in prices.critics)
    return replace(prices, training=training, engines=engines, rewards=rewards, critics=critics)


def _factor(prices: Prices, part: str) -> float:
    return prices.corrections[part].factor if part in prices.corrections else 1.0


def _outcome(
    own: Prices, before: tuple[object, ...], percentile: str, words: str
) -> Iterator[LengthsOutcome]:
    found = placed(own)
    if found is not None:
        yield LengthsOutcome(
            percentile=percentile,
            words=words,
            step_s=found.step_s,
            roles=roles_words(own, found),
            changes=choice_of(own, found) != before,
        )


def choice_of(prices: Prices, placement: Placement) -> tuple[object, ...]:
    """Return what a team decides: the mode, who trains on how many GPUs, and the engines' sizes."""
    price = prices.training[placement.training]
    sizes = sorted({prices.engines[at].layout[:2] for at, _ in placement.engines})
    beside = [
        None if at is None else rows[at].gpus
        for rows, at in ((prices.rewards, placement.reward), (prices.critics, placement.critic))
    ]
    return placement.mode, price.group, price.gpus, tuple(sizes), *beside


def roles_words(prices: Prices, placement: Placement) -> str:
    """Return a placement in a few words."""
    price = prices.training[placement.training]
    engines = " + ".join(
        f"{count} engine{'s' * (count > 1)} of tp {prices.engines[at].tensor_parallel_size}"
        for at, count in placement.engines
    )
    steps = placement.steps_off
    way = placement.mode if placement.mode != "async" else f"{steps} step{'s' * (steps > 1)} off"
    scores = "" if placement.reward is None else f", {prices.rewards[placement.reward].gpus} GPUs score"
    critic = (
        "" if placement.critic is None else f", {prices.critics[placement.critic].gpus} have the critic"
    )
    return f"{way}: {price.gpus} GPUs train, {engines}{scores}{critic}"


def _deciding(outcomes: Sequence[LengthsOutcome]) -> str:
    """Return the percentile whose values change the choice; else the one that moves the step most."""
    spreads = {}
    for name in dict.fromkeys(one.percentile for one in outcomes):
        steps = [one.step_s for one in outcomes if one.percentile == name]
        changes = any(one.changes for one in outcomes if one.percentile == name)
        spreads[name] = (changes, max(steps) - min(steps))
    return max(spreads, key=lambda name: spreads[name]) if spreads else ""


# --------------------------------------------------------------------------------------------------
# Why there is no placement.


def _no_training(
    asked: PostTraining, profile_of: Callable[[Problem], Profile], is_over: ShouldStop
) -> InvalidProblemError:
    own = [at for at, text in enumerate(asked.constraints) if layout_text(text) is not None]
    free = without_layout_constraints(asked)
    without = next(training_prices(free, profile_of, should_stop=is_over), None) if own else None
    if own and is_over():
        raise StoppedError(_STOPPED)
    if without:
        return InvalidProblemError([
            FieldError(
                pointer=f"/search/constraints/{at}",
                message=f"no layout of training keeps {asked.constraints[at]}",
                allowed="sizes that some number of nodes has (meshwright plan MODEL lists them)",
            )
            for at in own
        ])  # fmt: skip
    pool, tokens = asked.training.cluster, asked.training.workload.seq_length
    asleep = replace(asked, sleeps=True)
    if not asked.sleeps and next(training_prices(asleep, profile_of, should_stop=is_over), None):
        return InvalidProblemError.of(
            "/rollout/sleep",
            f"false: engines keep {awake_share(asked):.0%} of memory, too much next to the training of "
            f"{asked.model.title} (sequences of {tokens} tokens)",
            allowed="true, or engines with a smaller memory_share", nearest="true",
        )  # fmt: skip
    nodes = least_nodes(asked, profile_of, is_over)
    return InvalidProblemError.of(
        "/cluster",
        f"no number of nodes of {pool.title} holds the training of {asked.model.title} "
        f"({asked.trainer}, sequences of {tokens} tokens)",
        allowed="more nodes, a smaller model, or a smaller lengths.max",
        nearest=None if nodes is None else f"{nodes} nodes",
    )


def _no_engine(asked: PostTraining) -> InvalidProblemError:
    pinned, longest = asked.pins.tensor_parallel_size, asked.lengths.longest
    share = asked.pins.memory_share or max(MEMORY_SHARES)
    held = {
        (name, size): engine_of(asked, group, size, share).cache_tokens
        for name, group in asked.groups.items()
        for size in sizes_of(asked.model, group)
    }
    able = sorted({size for (_, size), tokens in held.items() if tokens >= longest})
    if able:
        sizes = ", ".join(map(str, able))
        return InvalidProblemError.of(
            "/rollout/tp",
            f"{pinned} GPUs do not hold {asked.model.title} and one answer of {longest} tokens",
            allowed=sizes,
            nearest=str(min(able, key=lambda size: abs(size - (pinned or size)))),
        )
    best, largest = max(held.values()), max(size for _, size in held)
    if best <= 0.0:
        return InvalidProblemError.of(
            "/rollout/engine",
            f"{asked.engine} can't hold {asked.model.title} in {asked.precision} at any size "
            f"of this pool (up to {largest} GPUs, {share:g} of their memory)",
            allowed="more GPUs, or fewer bits" if asked.precision == "bf16" else "more GPUs",
            nearest=_holding(asked, share),
        )
    return InvalidProblemError.of(
        "/lengths/max",
        f"an engine holds {best:.0f} tokens of keys and values at most, but one answer has up to {longest}",
        allowed=f"up to {best:.0f} tokens, or more GPUs",
        nearest=f"{best:.0f}",
    )


def _holding(asked: PostTraining, share: float) -> str | None:
    """Return the nearest change with which an engine holds the model: fewer bits, or more nodes."""
    longest, doublings = asked.lengths.longest, range(_DOUBLINGS + 1)
    for precision, doubling in sorted(product({asked.precision, "fp8"}, doublings), key=lambda one: one[1]):
        for group in asked.groups.values():
            more = replace(group, num_nodes=group.num_nodes << doubling)
            question = replace(asked, precision=precision)
            if has_precision(group, precision) and any(
                engine_of(question, more, size, share).cache_tokens >= longest
                for size in sizes_of(asked.model, more)
            ):
                bits = "" if precision == asked.precision else f"precision: {precision}"
                nodes = f"{more.num_nodes} nodes" if doubling else ""
                return " and ".join(filter(None, (bits, nodes)))
    return None


def _require_reward_model(asked: PostTraining) -> None:
    """Refuse a reward model that no copy in the pool holds.

    Raises:
        InvalidProblemError: the field, its value, and the sizes that hold it.
    """
    model, pins, longest = asked.reward_model, asked.pins, asked.lengths.longest
    if model is None:
        return
    share = max(MEMORY_SHARES) if "own" in asked.places.reward else COLOCATED_SHARE
    able = sorted({
        size
        for group in asked.groups.values()
        for size in sizes_of(model, group)
        if reward_engine(asked, model, group, size, share).cache_tokens >= longest
    })  # fmt: skip
    pinned = pins.reward_tensor_parallel_size
    if not able:
        raise InvalidProblemError.of(
            "/reward/model",
            f"no copy of {model.title} with one answer of {longest} tokens fits in the pool's GPUs",
            allowed="a smaller reward model, or more GPUs",
        )
    if pinned is not None and pinned not in able:
        raise InvalidProblemError.of(
            "/reward/tp", f"{pinned} GPUs do not hold {model.title} and one answer of {longest} tokens",
            allowed=", ".join(map(str, able)), nearest=str(min(able, key=lambda size: abs(size - pinned))),
        )  # fmt: skip


def _no_placement(asked: PostTraining, prices: Prices) -> InvalidProblemError:
    modes = {mode for mode, _ in ways_of(asked)}
    if prices.constraints and placed(replace(prices, constraints=())) is not None:
        return InvalidProblemError(list(_constraint_faults(asked, prices)))
    for words, own in {"reward model": prices.rewards, "critic": prices.critics}.items():
        if own and placed(replace(prices, rewards=(), critics=(), has_reward_model=False, critic=0.0)):
            return InvalidProblemError.of(
                "/cluster", f"{asked.training.cluster.title} has no GPUs left for the {words}",
                allowed="more nodes" if words == "critic" else "more nodes, or rewards by code",
            )  # fmt: skip
    if "colocated" not in modes:
        return InvalidProblemError.of(
            "/cluster",
            f"{asked.training.cluster.title} is too small for training and generation on GPUs of their own",
            allowed="more nodes, or roles that take turns on the same GPUs",
            nearest="asynchrony: {mode: colocated}",
        )
    return InvalidProblemError.of(
        "/cluster", f"no placement of both roles fits {asked.training.cluster.title}", allowed="more nodes"
    )


def _constraint_faults(asked: PostTraining, prices: Prices) -> Iterator[FieldError]:
    """Yield each constraint without which there is a placement; all of them together if there is none."""
    single = False
    for at, text in enumerate(asked.constraints):
        if text not in prices.constraints:
            continue
        others = tuple(one for one in prices.constraints if one != text)
        found = placed(replace(prices, constraints=others))
        if found is not None:
            single = True
            yield FieldError(
                pointer=f"/search/constraints/{at}", message=f"no placement of the roles keeps {text}",
                allowed=f"without it the best is {roles_words(prices, found)}",
            )  # fmt: skip
    if not single:
        yield FieldError(
            pointer="/search/constraints", message="no placement of the roles keeps these together",
            allowed="fewer constraints",
        )  # fmt: skip


def _notes(asked: PostTraining, *, was_cut: bool) -> Iterator[str]:
    if was_cut:
        yield "stopped before all roles were priced and placed. Raise search.time_limit_s for more time"
    if asked.mean_is_assumed:
        yield f"lengths.mean is not stated: {asked.lengths.mean:.0f} tokens are assumed"
    if asked.lengths.is_assumed:
        yield f"lengths are assumed: log-normal answers, {100 * RUNAWAY:g} % of them run to lengths.max"
    if asked.engine != "vllm":
        yield f"kernels of {asked.engine} are priced as vLLM's, its host as hidden: measure a step"
    if asked.adapts and asked.places.syncs_adapters:
        yield "engines run adapters beside the weights, whose kernels are not priced: measure a step"
    if asked.model.sliding_window:
        yield "an engine's memory and time are upper bounds: windows of local attention are not counted"
