"""Verification of a plan by its launcher's own code: every distinct rank as priced and as built.

The exported files are given to the launcher in its pinned environment, a process of its own with limits of
memory and time. Layers, parameters, matrices, bytes of states and FLOPs must be equal; peaks are traced and
shown next to the priced ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isclose
from pathlib import Path
from typing import Any, Literal

from meshwright.launchers.registry import export, launcher_of
from meshwright.launchers.target import Target, target_of
from meshwright.profiles.errors import InvalidProblemError, StoppedError
from meshwright.profiles.profile import Profile
from meshwright.profiles.units import GIB
from meshwright.service.verify.environments import (
    ACCELERATE,
    DEEPSPEED,
    MEGATRON_LM,
    MEMORY_BYTES,
    TIME_S,
    TORCHTITAN,
    Environment,
    MissingEnvironmentError,
)
from meshwright.service.verify.limits import unbuilt
from meshwright.service.verify.priced import (
    context_for,
    rank_bytes,
    rank_flops,
    rank_kinds,
    rank_layers,
    rank_matrices,
    rank_weights,
)
from meshwright.solver.answer import Plan, settled_problem
from meshwright.solver.problem import Problem

Verdict = Literal["verified", "partly verified", "differs", "not built"]
_LOOK_S = 0.5  # between two looks at the clock, and at who wants to leave
_INSIDE = Path(__file__).parent / "inside"
_PADDING = 1e-3  # of bytes: launchers round buffers up to whole shards
_FLOPS_TOLERANCE = 1e-2  # routers, norms and losses are counted by neither side alike


# Launchers with a script ``inside/build_NAME.py``, which runs in their environment.
BUILDERS: Mapping[str, Environment] = {
    "megatron-lm": MEGATRON_LM, "accelerate": ACCELERATE, "deepspeed": DEEPSPEED, "torchtitan": TORCHTITAN,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedQuantity:
    """One figure of one rank, priced and built."""

    rank: int
    stage: int
    name: str
    priced: Any
    built: Any
    exact: bool | None  # None: a peak, which is compared and not judged

    @property
    def error(self) -> float | None:
        """Return built / priced - 1 of numbers."""
        if isinstance(self.priced, list) or not self.priced:
            return None
        return float(self.built / self.priced - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The results of the launcher's own code for a plan."""

    plan_id: str
    launcher: str
    version: str
    verdict: Verdict
    reasons: tuple[str, ...]  # why not all is verified, or what differs
    ranks: tuple[int, ...]  # that were built: one of each kind
    quantities: tuple[VerifiedQuantity, ...]
    peak_memory_bytes: int | None  # the largest traced peak, with what is priced of no tensor

    def to_json(self) -> dict[str, Any]:
        """Return the verification as files and the API show it."""
        document = asdict(self)
        for one, shown in zip(self.quantities, document["quantities"], strict=True):
            shown["error"] = one.error
        return document


def verify(
    plan: Plan,
    problem: Problem,
    launcher: str | None = None,
    *,
    profile: Profile | None = None,
    own_files: Mapping[str, str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    time_s: float = TIME_S,
    stop: Callable[[], bool] = lambda: False,
) -> Verification:
    """Let the launcher build every distinct rank of a plan, and compare.

    Args:
        plan: what was found.
        problem: what it answers.
        launcher: another than the problem's.
        profile: the costs that it was priced with; None: the catalog's.
        own_files: files that take the place of those that an export of the plan has, by their names.
        memory_bytes: limit of the launcher's process.
        time_s: the same in seconds.
        stop: asked several times a second; True ends the launcher's process.

    Raises:
        StoppedError: ``stop`` returned True.
        InvalidProblemError: no launcher is named, or it cannot build without a GPU.
        MissingEnvironmentError: its environment was not made on this machine.
        RefusedExportError: the launcher cannot express the plan.
    """
    settled = settled_problem(plan, problem)
    name = launcher_of(settled, launcher)
    environment = environment_of(name)
    under = problem.under(name) if problem.launcher == "any" else replace(settled, launcher=name)
    target = target_of(plan, under)
    files = {**export(plan, target.problem, name).files, **(own_files or {})}
    ranks = distinct_ranks(target)
    if why := unbuilt(replace(plan, launchers=()), target.problem):
        return _judged(target, environment, [{"refusal": why}], ranks, profile)
    command = [str(environment.python), str(_INSIDE / f"build_{name.replace('-', '_')}.py")]
    case = _case(target, files, ranks, memory_bytes, time_s)
    answers = _asked(environment, command, case, time_s, stop, memory_bytes=memory_bytes)
    return _judged(target, environment, answers, ranks, profile)


def environment_of(launcher: str, *, elsewhere: bool = False) -> Environment:
    """Return the environment that a launcher builds in; ``elsewhere``: it is another machine's concern.

    Raises:
        InvalidProblemError: there is none.
        MissingEnvironmentError: its environment was not made.
    """
    if launcher not in BUILDERS:
        raise InvalidProblemError.of(
            "/launcher", f"{launcher} builds no rank without a GPU", allowed=", ".join(BUILDERS)
        )
    environment = BUILDERS[launcher]
    if not (elsewhere or environment.is_ready):
        raise MissingEnvironmentError(
            f"the environment of {launcher} is not installed in {environment.folder.parent}: "
            f"meshwright verify --install {launcher}"
        )
    return environment


def distinct_ranks(target: Target) -> tuple[int, ...]:
    """Return the first rank of every pipeline stage, and the last of all, which has the smallest shards."""
    config = target.config
    step = config.num_gpus // config.pipeline_parallel_size
    if config.rank_order == "tp-cp-pp-dp":
        step = config.tensor_parallel_size * config.weight_shard_size * config.context_parallel_size
    firsts = [stage * step for stage in range(config.pipeline_parallel_size)]
    return tuple(dict.fromkeys((*firsts, config.num_gpus - 1)))


def traced_microbatches(target: Target) -> int:
    """Return the micro-batches after which no rank holds more than before: twice the pipeline's stages."""
    config = target.config
    return min(config.num_microbatches, 2 * config.pipeline_parallel_size)


def _case(
    target: Target, files: Mapping[str, str], ranks: Sequence[int], memory_bytes: int, time_s: float
) -> str:
    """Return the launcher's input in addition to the files: the values that the cluster would give it."""
    launch = files["launch.sh"]
    return json.dumps({
        "files": dict(files),
        "world_size": target.config.num_gpus,
        "environment": dict(re.findall(r"^export (CUDA_\w+)=(\S+)$", launch, re.MULTILINE)),
        "ranks": list(ranks),
        "num_microbatches": traced_microbatches(target),
        "trace": 0 if target.config.context_parallel_size > 1 else traced_microbatches(target),
        "memory_bytes": memory_bytes,
        "time_s": int(time_s),
        "model": asdict(target.model),
        "seq_length": target.workload.seq_length,
        "micro_batch_size": target.config.micro_batch_size,
        "recompute_every_layer": target.config.recompute_granularity == "full",
        "architecture": target.problem.cluster.groups[0].gpu.architecture,
    })  # fmt: skip


def _asked(
    environment: Environment,
    command: Sequence[str],
    case: str,
    time_s: float,
    stop: Callable[[], bool],
    *,
    memory_bytes: int,
) -> list[dict[str, Any]]:
    """Return the launcher's answers, rank by rank; the last one states how it ended."""
    path = str(environment.path) if environment.unpacked else ""
    plain = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    plain["PYTHONDONTWRITEBYTECODE"] = ""  # as images set it: each process would compile all of torch anew
    try:
        said, errors = _output(command, case, plain, time_s, stop)
    except OSError as fault:  # its Python was moved or removed
        said, errors = "", f"{environment.python} does not start: {fault.strerror}; install it again"
    answers: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
    if not answers or not {"done", "refusal"} & set(answers[-1]):
        last = [line for line in errors.splitlines() if line.strip()][-1:] or ["no message"]
        memory = f"{memory_bytes / GIB:.3g} GiB (--memory-gib, verify_memory_bytes of a service)"
        limits = f"{memory} and {time_s:.0f} s (--time-limit, verify_time_s of a service)"
        said_last = f"the launcher's process ended: {last[0][:300]}"
        answers.append({"refusal": f"{said_last}; it may take {limits}"})
    return answers


def _output(
    command: Sequence[str],
    given: str,
    environment: Mapping[str, str],
    time_s: float,
    stop: Callable[[], bool],
) -> tuple[str, str]:
    """Return the output of a process of ours within ``time_s`` seconds, and its errors.

    Raises:
        StoppedError: ``stop`` returned True meanwhile.
    """
    ends_s, unsent = time.monotonic() + time_s, given or None
    with subprocess.Popen(  # noqa: S603 - our own script in our own environment
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=dict(environment), start_new_session=True,
    ) as process:  # fmt: skip
        while True:
            try:
                return process.communicate(unsent, timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                late, unsent = time.monotonic() > ends_s, None
                if not (late or stop()):
                    continue
                os.killpg(process.pid, signal.SIGKILL)  # ranks are processes of their own
                said, _ = process.communicate()
                if late:
                    return said, f"it took longer than {time_s:.0f} s"
                raise StoppedError("the launcher's process was stopped") from None


# --------------------------------------------------------------------------------------------------
# Comparison of prices and built ranks.


def _judged(
    target: Target,
    environment: Environment,
    answers: Sequence[dict[str, Any]],
    ranks: Sequence[int],
    profile: Profile | None,
) -> Verification:
    built = [one for one in answers if "rank" in one]
    priced_bytes = rank_bytes(target, profile)
    quantities = [each for one in built for each in _compared(target, one, priced_bytes)]
    wrong = [one for one in quantities if one.exact is False]
    reasons = [
        *(f"rank {one.rank}: {one.name} {one.built} instead of {one.priced}" for one in wrong),
        *_missing(target, built, answers[-1]),
    ]
    verdict: Verdict = "verified"
    if wrong:
        verdict = "differs"
    elif not built:
        verdict = "not built"
    elif reasons:
        verdict = "partly verified"
    peaks = [  # traced, plus the memory outside tensors, as it was priced
        int(one["peak_bytes"]) + priced_bytes[one["stage"]]["rest"] for one in built if "peak_bytes" in one
    ]
    return Verification(
        plan_id=target.plan.plan_id, launcher=target.problem.launcher, version=environment.pinned,
        verdict=verdict, reasons=tuple(dict.fromkeys(reasons)),
        ranks=tuple(one["rank"] for one in built if one["rank"] in ranks),
        quantities=tuple(quantities), peak_memory_bytes=max(peaks, default=None),
    )  # fmt: skip


def _compared(
    target: Target, seen: Mapping[str, Any], priced_bytes: Sequence[Mapping[str, int]]
) -> Iterator[VerifiedQuantity]:
    rank, stage = seen["rank"], seen["stage"]
    terms = priced_bytes[stage]
    in_8_bits = target.workload.precision == "fp8" and context_for(target).facts.low_precision_weights
    shares = seen.get("shards") or 1
    priced: dict[str, Any] = {
        "layers": rank_layers(target)[stage],
        "kinds": rank_kinds(target)[stage],
        "parameters": rank_weights(target)[stage] / shares,
        "matrices": rank_matrices(target, whole=bool(seen.get("whole_matrices")))[stage],
        "weight_bytes": terms["own_weights"],
        "gradient_bytes": terms["most_gradients"],
        "optimizer_bytes": terms["optimizer"],
        "flops": rank_flops(target)[stage],
    }
    tolerance = {"flops": _FLOPS_TOLERANCE, **dict.fromkeys(_BYTES, _PADDING)}
    for name, value in priced.items():
        if name in seen and not (name == "weight_bytes" and in_8_bits):
            known = tolerance.get(name)
            same = isclose(seen[name], value, rel_tol=known) if known else seen[name] == value
            yield VerifiedQuantity(
                rank=rank, stage=stage, name=name, priced=value, built=seen[name], exact=same
            )
    if "peak_bytes" in seen:
        yield VerifiedQuantity(
            rank=rank,
            stage=stage,
            name="peak_bytes",
            priced=terms["tensors"],
            built=seen["peak_bytes"],
            exact=None,
        )


_BYTES = ("weight_bytes", "gradient_bytes", "optimizer_bytes")


def _missing(target: Target, built: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> Iterator[str]:
    config, model = target.config, target.model
    if "refusal" in last:
        yield last["refusal"]
    if config.context_parallel_size > 1:
        yield "cp > 1: no attention of a CPU splits sequences over ranks; no step is traced"
    elif model.mla is not None and target.problem.launcher == "megatron-lm":
        yield "latent attention: local layers run in place of Transformer Engine's fused kernels"
    if target.workload.precision == "fp8":
        kernels = "Transformer Engine's" if target.problem.launcher == "megatron-lm" else "a GPU's"
        yield f"fp8: weights and activations in 8 bits are {kernels}; bf16 is built"
    for one in built:
        if "untraced" in one:
            yield f"no step is traced: {one['untraced']}"
        if "uncompared" in one:
            yield one["uncompared"]
