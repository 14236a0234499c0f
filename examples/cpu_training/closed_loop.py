"""The closed loop on this machine: measure, plan, export, train, send back, predict what was held out.

    make bench ARGS="cpu-training --write" # writes docs/accuracy.md's section
    make bench ARGS="cpu-training --tiny"  # seconds, writes nothing

A service of its own plans a small GPT for two processes of this machine's CPU. Plans of every kind (data,
tensor, pipeline parallel; micro-batches; with and without recomputation) are exported and trained by
``train.py``. Half of them are sent back with ``POST /v1/plans/{id}/measurements``; the others are
predicted three times: from the catalog, from layers that ``meshwright profile`` timed, and calibrated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx

from meshwright.service.cli.client import ServiceClient
from meshwright.service.cli.demo import running_service
from meshwright.service.cli.jobs import followed

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- cpu-training -->", "<!-- /cpu-training -->"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ORIGINS = ("catalog", "timed layers", "calibrated")
GPT = {
    "name": "gpt-tiny-8m", "num_layers": 8, "hidden_size": 256, "ffn_hidden_size": 768,
    "num_attention_heads": 8, "num_kv_heads": 4, "head_dim": 32, "vocab_size": 4096, "rotary_base": 10000,
    "gated_mlp": True,
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    model: dict[str, Any]
    seq_length: int
    batch: int
    plans_each: int  # of data, tensor and pipeline parallel plans, of each recomputation
    steps: int
    recomputation: tuple[str, ...] = ("none", "full")
    profiles_all: bool = True  # operators and collectives beside the layers


WHOLE = Size(model=GPT, seq_length=256, batch=8, plans_each=2, steps=8)
TINY = Size(
    model={**GPT, "name": "gpt-tiny", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128,
           "head_dim": 8, "vocab_size": 512},
    seq_length=32, batch=2, plans_each=1, steps=2, recomputation=("full",), profiles_all=False,
)  # fmt: skip


@dataclass
class Trained:
    """One plan: what was predicted, what it took."""

    plan: dict[str, Any]
    seconds: float = 0.0
    peak_bytes: int = 0
    predicted: dict[str, tuple[float, int]] = field(default_factory=dict)  # seconds and bytes by origin

    @property
    def title(self) -> str:
        """The plan in words."""
        config = self.plan["config"]
        kind = next(
            (f"{axis} 2" for axis in ("tensor", "pipeline") if config[f"{axis}_parallel_size"] > 1),
            "data 2",
        )
        again = f", {config['recompute_layers']} recomputed" if config["recompute_layers"] else ""
        return f"{kind}, micro-batch {config['micro_batch_size']}{again}"


def problem_of(size: Size) -> dict[str, Any]:
    """The request: two processes, no ZeRO, one chunk a rank."""
    once = ("context_parallel_size", "virtual_pipeline_size", "expert_parallel_size")
    cores = {"gpu": "epyc-9004-core", "num_nodes": 1, "gpus_per_node": 2, "island_gpus": 2}
    return {
        "model": size.model,
        "cluster": {"name": "this-machine", "groups": [cores]},
        "workload": {"global_batch_size": size.batch, "seq_length": size.seq_length, "precision": "bf16"},
        "launcher": "megatron-lm",
        "search": {
            "top_k": 100, "certify": "none", "time_limit_s": 30, "max_out_of_memory_probability": 0.5,
            "pin": {"zero_stage": 0, **dict.fromkeys(once, 1)},
        },
    }  # fmt: skip


def chosen(plans: list[dict[str, Any]], each: int) -> list[Trained]:
    """Plans of both processes, spread over micro-batches, as many of every kind."""
    kinds: dict[tuple[int, ...], list[dict[str, Any]]] = defaultdict(list)
    for plan in plans:
        config = plan["config"]
        sizes = tuple(config[f"{axis}_parallel_size"] for axis in ("data", "tensor", "pipeline"))
        if max(sizes) > 1:
            kinds[sizes].append(plan)
    found = []
    for _sizes, some in sorted(kinds.items()):
        some.sort(key=lambda plan: plan["config"]["micro_batch_size"])
        step = max(1, (len(some) - 1) / max(each - 1, 1))
        found += [Trained(some[round(index * step)]) for index in range(min(each, len(some)))]
    return found


def profiled(size: Size, out: Path) -> dict[str, Any]:
    """What ``meshwright profile`` times here: layers on one process, collectives on two."""
    model, path = out / "model.json", out / "profile.json"
    model.write_text(json.dumps(size.model))
    path.unlink(missing_ok=True)
    common = ["-m", "meshwright", "profile", "--model", str(model), "--out", str(path), "--quick",
              "--seq-length", str(size.seq_length), "--device", "cpu"]  # fmt: skip
    batches = ",".join(str(2**n) for n in range(size.batch.bit_length()) if 2**n <= size.batch)
    groups = "gemm,attention,memory_bound,layer" if size.profiles_all else "layer"
    run([*common, "--tp", "1,2", "--micro-batch", batches, "--only", groups])
    if size.profiles_all:
        run([*TORCHRUN, *common, "--only", "collectives"])
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def run(words: list[str]) -> str:
    """A Python program with one thread a process; its output.

    Raises:
        RuntimeError: it failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1] / "src")}
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return done.stdout


def train(one: Trained, files: dict[str, str], folder: Path, steps: int) -> None:
    """Train a plan from its exported files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    words = [*TORCHRUN, str(HERE / "train.py"), str(folder / "megatron_args.sh"), "--steps", str(steps)]
    found = json.loads(run(words).splitlines()[-1])
    one.seconds, one.peak_bytes = found["step_time_s"], found["peak_memory_bytes"]
    print(f"{one.title}: {one.seconds:.3f} s, {one.peak_bytes / 2**20:.0f} MiB, loss {found['losses']}")


class Loop:
    """One service, its requests and answers."""

    def __init__(self, url: str, size: Size, out: Path) -> None:
        self.size, self.out, self.url = size, out, url
        self.http = httpx.Client(base_url=url, timeout=120.0)
        self.problem = problem_of(size)

    def plans(self) -> list[Trained]:
        """Plans of every kind, trained."""
        found = []
        with ServiceClient(self.url) as service:
            for granularity in self.size.recomputation:
                search = self.problem["search"]
                pinned = {**search["pin"], "recompute_granularity": granularity}
                request = {**self.problem, "search": {**search, "pin": pinned}}
                job_id = service.submit(request, key=None, fresh=True)["id"]
                done = followed(service, job_id)
                if done["state"] != "succeeded":
                    raise RuntimeError(f"the job {done['state']}: {done.get('problem')}")
                found += chosen(service.answer(job_id)["plans"], self.size.plans_each)
            for one in found:
                address = f"/v1/plans/{one.plan['plan_id']}/export"
                files = service.call("GET", address, params={"launcher": "megatron-lm"})["files"]
                train(one, files, self.out / one.plan["plan_id"], self.size.steps)
        return found

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request."""
        reply = self.http.post(path, json=body)
        if reply.is_error:
            raise RuntimeError(f"{path}: {reply.text[:1000]}")
        found: dict[str, Any] = reply.json()
        return found

    def predict(self, plans: list[Trained], origin: str, profile: str | None) -> None:
        """Price every plan again."""
        problem = {**self.problem, "profile": profile or "catalog"}  # not what this service has learnt
        for one in plans:
            found = self.post("/v1/predictions", {"problem": problem, "plan": one.plan["plan_id"]})
            seen = found["prediction"]
            one.predicted[origin] = seen["step_time_s"], max(map(grown_bytes, seen["stages"]))

    def teach(self, plans: list[Trained]) -> str:
        """Send back what plans took; the profile that was learnt."""
        for one in plans:
            body = {"step_time_s": one.seconds, "peak_memory_bytes": one.peak_bytes,
                    "memory_kind": "reserved", "memory_rank": "worst"}  # fmt: skip
            learnt = self.post(f"/v1/plans/{one.plan['plan_id']}/measurements", body)
        return str(learnt["profile"])


def halves(plans: list[Trained]) -> tuple[list[Trained], list[Trained]]:
    """Plans to learn from and plans to hold out, in turns: small and large micro-batches in both."""
    taught = [one for number, one in enumerate(plans) if number % 4 in (0, 3)]
    return taught, [one for one in plans if one not in taught]


def grown_bytes(stage: dict[str, Any]) -> int:
    """What a process grows by, as predicted: all but the context, which is there before the model."""
    return sum(count for term, count in stage["memory_bytes"].items() if term != "context")


def error_percent(plans: list[Trained], origin: str, *, memory: bool = False) -> float:
    """Mean absolute error of the predicted step time, or of the peak memory."""
    ratios = [
        one.predicted[origin][1] / one.peak_bytes if memory else one.predicted[origin][0] / one.seconds
        for one in plans
    ]
    return 100 * fmean(abs(ratio - 1) for ratio in ratios)


def section(taught: list[Trained], held: list[Trained], size: Size) -> str:
    """The section of the document."""
    rows = [
        "| held out | measured | " + " | ".join(ORIGINS) + " |",
        "|---|---|" + "---|" * len(ORIGINS),
    ]
    for one in held:
        cells = " | ".join(f"{one.predicted[origin][0]:.3f} s" for origin in ORIGINS)
        rows.append(f"| {one.title} | {one.seconds:.3f} s | {cells} |")
    for name, memory in (("step time", False), ("peak memory", True)):
        cells = " | ".join(f"{error_percent(held, origin, memory=memory):.0f} %" for origin in ORIGINS)
        rows.append(f"| **mean error, {name}** | | {cells} |")
    model = size.model
    return (
        f"""## The closed loop on one machine

Run `make bench ARGS="cpu-training --write"` to generate this section. A GPT of
{model["num_layers"]} layers, hidden size {model["hidden_size"]}, {size.batch} sequences of
{size.seq_length} tokens a step, is trained
by `examples/cpu_training` on two processes of a CPU (gloo, one thread each) from exported Megatron-LM
arguments. {len(taught)} of the {len(taught) + len(held)} plans were sent back to the service, the others
were held out. *Catalog* uses no
figure of this machine. *Timed layers* uses what `meshwright profile` measured on it. *Calibrated* is
fitted to the {len(taught)} runs that were sent back. A time is the fastest of {size.steps} steps:
the machine is shared. Memory is the growth of a process. On a CPU that includes what libraries load on
first use.
A busy machine limits what you can read from these figures: there, equal work differs twofold.

"""
        + "\n".join(rows)
        + "\n"
    )


def written(text: str, found: str) -> str:
    """The document with the section between its markers, added at its end where it had none."""
    block = f"{BEGIN}\n{found}{END}\n"
    if BEGIN not in text:
        return f"{text.rstrip()}\n\n{block}"
    return re.sub(f"{BEGIN}\n.*?{END}\n", lambda _match: block, text, flags=re.DOTALL)


def main() -> int:
    """Go round once; 0 when calibration did not make the held-out plans worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--write", action="store_true", help="put the section into docs/accuracy.md")
    parser.add_argument("--out", type=Path, default=Path("out/cpu_training"))
    options = parser.parse_args()
    size = TINY if options.tiny else WHOLE
    options.out.mkdir(parents=True, exist_ok=True)
    measured = profiled(size, options.out)
    with running_service(options.out) as (url, _log):
        loop = Loop(url, size, options.out)
        plans = loop.plans()
        loop.predict(plans, "catalog", None)
        loop.predict(plans, "timed layers", loop.post("/v1/profiles", measured)["id"])
        taught, held = halves(plans)
        loop.predict(plans, "calibrated", loop.teach(taught))
    for origin in ORIGINS:
        print(f"{origin}: held-out step times {error_percent(held, origin):.1f} % off, "
              f"memory {error_percent(held, origin, memory=True):.1f} %")  # fmt: skip
    (options.out / "section.md").write_text(section(taught, held, size))
    if options.write:
        DOCS.write_text(written(DOCS.read_text(), section(taught, held, size)))
    return 0 if error_percent(held, "calibrated") <= error_percent(held, "catalog") else 1


if __name__ == "__main__":
    sys.exit(main())
