"""Random requests for a launcher: models of every kind, adapters, numerics, options, images."""

from collections.abc import Iterator
from random import Random
from typing import Any

from meshwright.profiles.adapters import EXPERT_TARGETS, PARAMETER_TARGETS
from meshwright.profiles.capabilities import Capabilities, launcher_capabilities
from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.frameworks import OPTION_NUMBERS, OPTION_PARTS, OPTION_WORDS
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.profiles.switches import switches
from meshwright.profiles.tower_modules import TOWER_TARGETS
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.problem import Problem
from meshwright.solver.space.launcher_rules import problem_faults, unwritten

# Dense, of experts, with latent and local attention, sinks, mixers, ALiBi, prediction layers, and towers.
MODELS = (
    "llama-3.2-1b", "llama-3.1-8b", "qwen3-0.6b", "gpt2", "gemma-2-2b", "gemma-3-4b", "mistral-7b",
    "bloom-560m", "falcon-7b", "olmoe-1b-7b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b",
    "deepseek-v2-lite", "moonlight-16b-a3b", "mimo-7b", "glm-4.5-air", "ling-mini-2.0",
    "jamba-v0.1", "nemotron-h-56b", "lfm2-1.2b", "qwen3.5-9b", "qwen3.5-35b-a3b", "qwen3-vl-8b",
    "internvl3.5-8b", "llava-1.5-7b",
)  # fmt: skip
GPUS = (
    "h100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "a100-sxm-80gb", "l40s", "rtx-4090", "mi300x",
    "tpu-v5p",
)  # fmt: skip
TARGETS = (
    ["linear_qkv"], ["linear_qkv", "linear_fc1"], ["q_proj", "down_proj"], ["o_proj", "vision.o_proj"],
    [*EXPERT_TARGETS[:1]], [*PARAMETER_TARGETS[:1]], [*TOWER_TARGETS[:2]],
)  # fmt: skip
ALLOWED: tuple[list[str], ...] = (
    [], ["offload"], ["switches"], ["context_parallel_mode"], ["standalone_stages"], ["weight_shards"],
)  # fmt: skip
FLAGS = ("dora", "oft", "adapter_dropout", "flash_attention", "low_precision_weights", "quantizes_experts")
_FIELDS = 12  # that are left out at most before another request is drawn


def launched_problems(launcher: str, random: Random, count: int) -> Iterator[Problem]:
    """So many drawn requests, without the fields that they are refused for, that have launch files."""
    for _ in range(count):
        problem = _accepted(_drawn(launcher, random))
        if problem is None or unwritten(problem):
            continue
        if not list(problem_faults(problem, launcher_capabilities(problem.launcher))):
            yield problem


def _accepted(request: dict[str, Any]) -> Problem | None:
    """The problem without the fields of the workload that are refused; none if others are."""
    for _ in range(_FIELDS):
        try:
            return parse_problem(request)
        except InvalidProblemError as refused:
            if not _left_out(request["workload"], refused.errors[0]):
                return None
    return None


def _left_out(work: dict[str, Any], fault: FieldError) -> bool:
    """Leave out a refused field, or state the images that a tower reads; whether that changed anything."""
    match fault.pointer.strip("/").split("/"):
        case ["workload", "images_per_sample" | "image_tokens", *_] if "images_per_sample" not in work:
            work |= {"images_per_sample": 2, "image_tokens": 256}
        case ["workload", "framework_options", name] if name in work.get("framework_options", {}):
            del work["framework_options"][name]
        case ["workload", "seq_length"] if work["seq_length"] > 512:
            work["seq_length"] = 512
        case ["workload", name, *_] if name in work and name not in ("global_batch_size", "seq_length"):
            del work[name]
        case _:
            return False
    return True


def _drawn(launcher: str, random: Random) -> dict[str, Any]:
    nodes, each = random.choice((1, 1, 1, 2, 3)), random.choice((1, 2, 4, 6, 7, 8, 8))
    return {
        "model": {"name": random.choice(MODELS)},
        "launcher": launcher,
        "cluster": {"groups": [{"gpu": random.choice(GPUS), "num_nodes": nodes, "gpus_per_node": each}]},
        "workload": _workload(launcher_capabilities(launcher), random),
        "search": {"certify": "none", "allow": random.choice(ALLOWED)},
    }


def _workload(able: Capabilities, random: Random) -> dict[str, Any]:
    batching = random.choice(("packing", "padding", "padding_to_longest"))
    sample, _, reference = random.choice(able.samples).partition("/")
    options = [_option(random) for _ in range(random.choice((0, 0, 1, 2)))]
    adapters = {
        "lora_rank": 16,
        **_maybe(random, 0.4, "lora_targets", random.choice(TARGETS)),
        **_maybe(random, 0.4, "base_precision", random.choice(able.base_precisions)),
        **_maybe(random, 0.2, "trained_modules", ["embed_tokens", "lm_head"]),
    }
    compared = {"sample": sample, **({"reference": reference} if reference else {})}
    return {
        "global_batch_size": random.choice((16, 24, 32, 64)),
        "seq_length": random.choice((1024, 4096, 4096, 32_768, 131_072)),
        **_maybe(
            random, 0.25, "lengths", {"percentiles": {"p50": 300, "p100": 1024}, "batching": batching}
        ),
        **_maybe(random, 0.3, "precision", random.choice(("fp16", "fp8", "mxfp8", "nvfp4"))),
        **_maybe(random, 0.3, "optimizer", random.choice(able.optimizers or tuple(OPTIMIZERS))),
        **(adapters if random.random() < 0.4 else {}),
        **(compared if random.random() < 0.2 else {}),
        **_maybe(random, 0.2, "frozen", random.sample(("vision", "projector", "language"), 2)),
        "framework_options": {name: value for named in options for name, value in named.items()},
    }


def _option(random: Random) -> dict[str, Any]:
    """A setting of a switch, or one fact of the framework in another word or number."""
    if random.random() < 0.5:
        every = [setting for switch in switches().values() for setting in switch.settings]
        return dict(random.choice(every).options)
    name = random.choice((*OPTION_WORDS, *OPTION_NUMBERS, *OPTION_PARTS, *FLAGS))
    if name in OPTION_PARTS:
        return {name: "+".join(random.sample(OPTION_PARTS[name][0], random.randint(1, 2)))}
    if name in OPTION_NUMBERS:
        return {name: random.choice((OPTION_NUMBERS[name][0], 2.0))}
    return {name: random.choice(OPTION_WORDS[name]) if name in OPTION_WORDS else True}


def _maybe(random: Random, chance: float, name: str, value: object) -> dict[str, Any]:
    return {name: value} if random.random() < chance else {}
