"""What the default search leaves to packages: ``make bench ARGS=default-switches``.

Each model of experts is planned twice under Megatron-LM: as a request without ``search.allow``, and with
every switch. The best of all listed plans of the first answer, those that need a package among them, must
be within ``WITHIN`` of the best plan of the second; the command fails where one is not. CPU seconds are of
the first, and of the same request without switches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.search import aligned
from meshwright.profiles.profile import default_profile
from meshwright.profiles.switches import EVERY_SWITCH, NO_SWITCH
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask

WITHIN = 1.05
SEQ_LENGTH = 4096
# model, DGX H100, sequences of a batch
MODELS = (
    ("qwen3-30b-a3b", 2, 128),
    ("qwen3-235b-a22b", 16, 256),
    ("deepseek-v3", 64, 512),
    ("deepseek-v2-lite", 1, 64),
    ("mixtral-8x7b", 4, 128),
    ("mixtral-8x22b", 8, 128),
    ("gpt-oss-120b", 4, 128),
    ("gpt-oss-20b", 1, 64),
    ("olmoe-1b-7b", 1, 64),
    ("kimi-k2", 64, 512),
    ("dbrx", 8, 128),
    ("glm-4.5-air", 8, 128),
)
HEADINGS = (
    "model", "GPUs", "default", "with packages", "every switch", "of that", "needs", "CPU", "no switch",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The two answers to one question."""

    default: Answer
    every: Answer
    cpu_s: float  # of the first
    plain_cpu_s: float  # of the request without switches

    @property
    def default_s(self) -> float:
        """The first plan's step."""
        return self.default.plans[0].prediction.step_time_s

    @property
    def listed_s(self) -> float:
        """The shortest step that is listed."""
        return min(plan.prediction.step_time_s for plan in self.default.plans)

    @property
    def every_s(self) -> float:
        """The shortest step under every switch."""
        return self.every.plans[0].prediction.step_time_s


def compared(model: str, nodes: int, batch: int) -> Compared:
    """Plan one model by default, with every switch, and without any."""
    began_s = time.process_time()
    default = _answer(model, nodes, batch, [])
    ended_s = time.process_time()
    _answer(model, nodes, batch, [NO_SWITCH])
    plain_cpu_s = time.process_time() - ended_s
    every = _answer(model, nodes, batch, [EVERY_SWITCH])
    return Compared(default=default, every=every, cpu_s=ended_s - began_s, plain_cpu_s=plain_cpu_s)


def _answer(model: str, nodes: int, batch: int, allow: Sequence[str]) -> Answer:
    problem = parse_problem(
        {
            "model": {"name": model},
            "cluster": {"name": "dgx-h100", "num_nodes": nodes},
            "workload": {"global_batch_size": batch, "seq_length": SEQ_LENGTH},
            "launcher": "megatron-lm",
            "search": {"top_k": 1, "certify": "none", "time_limit_s": 300.0, "allow": list(allow)},
        }
    )
    return ask(problem, default_profile(problem.cluster, problem.launcher))


def line(model: str, nodes: int, found: Compared) -> tuple[str, ...]:
    """One row of the table."""
    packages = "; ".join(" + ".join(plan.needs) for plan in found.default.plans if not plan.ranked)
    steps = (f"{step_s:.2f} s" for step_s in (found.default_s, found.listed_s, found.every_s))
    share = f"{found.listed_s / found.every_s:.3f}"
    times = (f"{cpu_s:.1f} s" for cpu_s in (found.cpu_s, found.plain_cpu_s))
    return (model, str(8 * nodes), *steps, share, packages or "–", *times)


def main() -> int:
    """Print the table; 1 where a default is further from every switch than ``WITHIN``."""
    found = [(model, nodes, compared(model, nodes, batch)) for model, nodes, batch in MODELS]
    rows = [line(*one) for one in found]
    sys.stdout.write(f"{aligned(HEADINGS, rows)}\n")
    return int(any(one.listed_s > WITHIN * one.every_s for _, _, one in found))


if __name__ == "__main__":
    sys.exit(main())
