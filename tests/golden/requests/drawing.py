"""Draw the changes of ``test_requests.py`` anew, by a fixed seed.

``.ci/environment mutants python -m tests.golden.requests.drawing`` keeps changes that run a branch of
``READERS`` that none before them ran, or that set a new value.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin

import coverage

from meshwright.profiles.adapters import LORA_TARGETS, TRAINED_MODULES
from meshwright.profiles.frameworks import OPTION_NUMBERS, OPTION_WORDS
from meshwright.profiles.optimizers import OPTIMIZERS
from meshwright.service.requests.fields import FIELDS, RequestField
from meshwright.solver.configuration import VARIABLES
from meshwright.solver.problem import ALLOWED
from tests.golden.requests.test_requests import BASES, Changes, PathError, outcome, write

ROOT = Path(__file__).parents[3]
READERS = ("service/requests", "profiles/inline.py", "profiles/reading.py", "profiles/sequences.py")
DRAWN, KEPT = 4000, 400
WORDS = ("", "x", "full", "bf16", "1")
OTHERS: tuple[object, ...] = ("x", 3, -1, 1.5, True, None, [], [1], {}, {"a": 1})  # of any kind
SIZES = (0, 1, 1, 2, 2, 3, 4, 4, 8, 16, 32, 64, 80, 2**31, -1)
VALUES: dict[str, tuple[object, ...]] = {
    "model": ("llama-3.1-70b", {"name": "nothing"}, {"name": "llama-3.1-8b", "num_layers": 16}, {}),
    "model.name": ("llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "llama3.1-8b", "gpt-3-175b"),
    "model.num_layers": (1, 3, 0, 10**6, "x"),
    "cluster": ("dgx-h100", "dgx-h10", {"name": "dgx-h100"}, {"groups": []}, {}),
    "cluster.name": ("dgx-b200", "dgx-a100", "nothing", ""),
    "cluster.num_nodes": (1, 3, 64, 0, [2, 4], "1:8", "2,4", "8:2", "x", 2.5, {"from": 1, "to": 8}, [4, 4]),
    "cluster.gpus_per_node": (1, 4, 8, 9, 0),
    "cluster.groups.0.gpu": ("a100-sxm-40gb", "x", "l40s", 1),
    "cluster.groups.0.gpus_per_node": (4, 8, 0, 72),
    "cluster.groups.1.num_nodes": (1, 3, 0),
    "workload.global_batch_size": (1, 7, 96, 1024, [64, 128], "64:512", "512:64", [64, 64], [], 0, "64,x",
                                   {"from": 64, "to": 256}, {"from": 64}, [128, 0]),
    "workload.seq_length": (1, 512, 1000, 131072, 10**7, 10**7 + 1, 0),
    "workload.lora_targets": (["q_proj"], ["linear_qkv", "linear_proj"], [*LORA_TARGETS], [], ["x"],
                              ["q_proj", "v_proj"], ["linear_fc1", "q_proj"]),
    "workload.trained_modules": ([TRAINED_MODULES[0]], [*TRAINED_MODULES], ["x"], ["norm", "norm"]),
    "workload.lora_rank": (8, 16, 0, 65536, 65537),
    "workload.base_precision": ("nf4", "int8", "nf4-double", "fp32", "fp8"),
    "workload.optimizer_rank": (128, 0, 65537),
    "workload.optimizer_interval": (100, 0, -1),
    "workload.lengths": (
        {"percentiles": {"p50": 900, "p100": 4096}}, {"percentiles": {"p50": 9000, "p100": 90}},
        {"histogram": [{"length": 900, "share": 0.5}, {"length": 4096, "share": 0.5}]}, {"histogram": []},
        {"percentiles": {"p100": 10**6}, "batching": "padding"}, {"batching": "packing"}, {"x": 1},
        {"percentiles": {"p50": 100, "p100": 2048}, "batching": "padding_to_longest"},
        {"percentiles": {"q5": 1}}, {"percentiles": {}, "histogram": []},
    ),
    "workload.images_per_sample": (1, 2.5, 0.5, 10001, -1),
    "workload.image_tokens": (256, 1024, 0, {"p50": 256, "p100": 1024}, {"p100": 10**9},
                              {"p50": 9, "p100": 1}),
    "workload.frozen": (["vision"], ["vision", "language"], ["language"], ["projector", "vision"], ["x"]),
    "workload.total_tokens": (10**12, 1, 10**18 + 1),
    "launcher": ("none", "any", "megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "accelerate",
                 "ms-swift", "nanotron", "maxtext", "llama-factory", "trl", "axolotl", "megatron",
                 "flagscale"),
    "stack": ("megatron-lm-2021", "fsdp1", "deepspeed-2021", "x"),
    "profile": ("x", "", "a" * 201),
    "search.baseline": ({"tp": 2}, {"tensor_parallel_size": 3}, {"pp": 4, "mbs": 2}, {"x": 1}, "x",
                        {"stage_layers": [16, 16]}),
    "search.time_limit_s": (10, 0, 86401, 0.5),
    "search.max_out_of_memory_probability": (0.1, 0.5, 1.0, 0.0),
    "search.num_nodes": (2, [1, 2], "1:4", [1, 99], [], "2:1", {"from": 1, "to": 4}, 5),
    "search.reserve_nodes": (1, 0, 3, 99),
    "search.max_power_kw": (20, 0.1, 10**8, 1.5),
    "search.deadline_days": (10, 0, 0.001),
    "search.reliability": ({"gpu_hours_per_interruption": 50000}, {"restart_s": -1}, {"x": 1}, "x",
                           {"restart_s": 300, "checkpoint_bytes_per_s_per_gpu": 1e8}),
    "search.pin": ({"tp": 2}, {"tensor_parallel_size": 8}, {"stage_layers": [16, 16]}, {"x": 1},
                   {"pp": [2]}, {"stage_layers": 4},
                   {"recompute_granularity": "full", "recompute_layers": 1}, {"cp": 2},
                   {"zero_stage": 4}, {"sequence_parallel": True, "tp": 1}, {"pipeline_schedule": "1f1b"}),
    "search.bounds": ({"tp": [1, 4]}, {"mbs": [4, 1]}, {"x": [1, 2]}, {"tp": [1]}, {"pp": [0, 2]},
                      {"sequence_parallel": [0, 1]}, {"dp": [2, 8], "pp": [1, 1]}),
    "search.forbid": ({"tp": [8]}, {"zero_stage": [0, 1, 2, 3]}, {"x": [1]},
                      {"pipeline_schedule": ["gpipe"]},
                      {"recompute_granularity": ["full", "full"]}, {"tp": []}, {"tp": ["x"]}),
    "search.allow": (["switches"], ["none"], ["fp8"], ["offload"], ["standalone_stages"], ["x"], [*ALLOWED],
                     ["weight_shards", "none"], ["context_parallel_mode"], ["adamw-8bit"]),
    "search.constraints": (
        ["tensor_parallel_size <= 4"], ["tp * pp == 8", "tp * pp == 8"], ["x > 1"], ["tp >"], ["tp == 'x'"],
        ["gpus('h100-sxm-80gb') <= 8"], ["gpus('x') <= 8"], ["not sequence_parallel"], ["tp"], [" "],
        ["zero_stage >= 1 => pp == 1"], ["stages('a100-sxm-80gb') == 1"], ["num_gpus <= 16"], ["1 +"] * 40,
    ),
    "sweep": (
        {"global_batch_size": [64, 128]}, {"precision": ["bf16", "fp8"], "seq_length": [4096, 8192]},
        {"tp": [1, 2]}, {"x": [1]}, {"num_nodes": []}, {"num_nodes": [1, 1]}, {"launcher": ["none", "x"]},
        {},
        {"cluster": ["dgx-h100", {"name": "dgx-a100", "num_nodes": 1}]}, {"cluster": [1.5]}, {"tp": [[1]]},
        {"optimizer": ["adamw", "muon"]}, {"seq_length": [*range(1, 300)]}, {"num_nodes": [1, 2]},
    ),
    "priority": (0, 9, 10, "x"),
    "deadline_s": (60, 0.0001, 10**9),
    "labels": ({"team": "nlp"}, {"-a": "b"}, {"a": "b c"}, ["x"], {f"n{n}": "" for n in range(17)},
               {"z": "1", "a": "2"}),
    "configuration": ({}, {"tp": 2, "pp": 2}, {"tensor_parallel_size": 3}, {"pp": 4, "vpp": 2}, {"x": 1},
                      {"pp": 2, "stage_layers": [20, 12]}, {"dp": 4, "mbs": 2, "cp": 2}, {"ep": 8},
                      {"pp": 3}, {"recompute_granularity": "full"}, {"zero_stage": 3, "ep": 2, "etp": 2}),
    "configuration.stage_groups": (
        [{"group": "h100-sxm-80gb"}, {"group": "a100-sxm-80gb", "tensor_parallel_size": 2}],
        [{"group": "h100-sxm-80gb", "tensor_parallel_size": 8}], [{"group": "x"}], [{"tp": 1}], [], [1],
        [{"group": "a100-sxm-80gb", "tensor_parallel_size": 0}, {"group": "h100-sxm-80gb"}], [{"group": 1}],
        [{"group": "h100-sxm-80gb"}] * 2 + [{"group": "a100-sxm-80gb"}] * 2,
    ),
    "configuration.replicas": (
        [{"stage_groups": [{"group": "h100-sxm-80gb", "tensor_parallel_size": 8}], "num_microbatches": 96,
          "micro_batch_size": 1, "data_parallel_size": 1},
         {"stage_groups": [{"group": "a100-sxm-80gb", "tensor_parallel_size": 8}], "num_microbatches": 32,
          "micro_batch_size": 1, "data_parallel_size": 1}],
        [{"stage_groups": [{"group": "h100-sxm-80gb"}]}], [1], {}, [{"num_microbatches": 1}],
    ),
}  # fmt: skip
SECTIONS: dict[str, dict[str, tuple[object, ...]]] = {  # names of parts, with the values that they take
    "workload.framework_options": {
        **{name: (*words, "x", 1) for name, words in OPTION_WORDS.items()},
        **dict.fromkeys(OPTION_NUMBERS, (0, 1, 2.0, 0.5, 10**9, "x")),
        "x": (1,),
        "flash": (True,),
    },
    "search.pin": dict.fromkeys(VARIABLES, SIZES),
    "configuration": dict.fromkeys(VARIABLES, SIZES),
    "search.reliability": {"gpu_hours_per_interruption": (1, 0, "x"), "restart_s": (60, -1)},
}
OFTEN = (
    "configuration",
    "workload.global_batch_size",
    "launcher",
    "search.pin",
    "workload.framework_options",
)


def drawn() -> list[list[Any]]:
    """Return changes that run branches which no change before them ran."""
    kept, seen = list[list[Any]](), set[object]()
    rows = {row.path: row for row in FIELDS if row.type}
    paths = [*rows, *VALUES, *SECTIONS, *OFTEN * 4]
    for base in BASES:
        seen |= branches(base, {})[0]
    for number in range(DRAWN):
        random = Random(f"requests {number}")
        base, changes = random.choice([*BASES]), dict[str, Any]()
        for _ in range(random.choice((1, 1, 1, 2, 2, 3))):
            path, value = change(random, random.choice(paths), rows)
            changes[path] = value
        try:
            run, found = branches(base, changes)
        except PathError:
            continue
        except Exception as fault:  # noqa: BLE001 - a bug: it is shown, and drawing goes on
            print(f"BUG {base} {changes}: {type(fault).__name__}: {fault}", flush=True)
            continue
        run |= {f"{at} {value}" for at, value in found.items()} if isinstance(found, dict) else sorts(found)
        if run - seen:
            kept.append([base, changes, found])
            seen |= run
        if len(kept) == KEPT:
            break
    return kept


def change(random: Random, path: str, rows: dict[str, RequestField]) -> tuple[str, object]:
    """Draw a path with one of its values, now and then of another kind."""
    if path in SECTIONS and random.random() < 0.7:
        name, values = random.choice([*SECTIONS[path].items()])
        return f"{path}.{name}", random.choice(values)
    if random.random() < 0.1 and path != "configuration":  # which other code reads as an object
        return path, random.choice(OTHERS)
    return path, random.choice(VALUES.get(path) or _of_type(rows[path]))


def _of_type(row: RequestField) -> tuple[object, ...]:
    if get_origin(row.type) is Literal:
        return (*get_args(row.type), *WORDS)
    if row.type is bool:
        return True, False
    if row.type == "Optimizer":
        return (*OPTIMIZERS, "x")
    if row.type in (int, float):
        ends = [row.limits[name] for name in ("ge", "gt", "le", "lt") if name in row.limits]
        return (*ends, *(one + 1 for one in ends if isinstance(one, int)), 1, 5, 0.5)
    return (*OTHERS, *WORDS)


def sorts(refusal: object) -> set[str]:
    """Return the sentences of a refusal without quotes and numbers."""
    return {re.sub(r"\"[^\"]*\"|'[^']*'|[\d.e+]+", "", one) for one in str(refusal).split(" | ")}


def branches(base: str, changes: Changes) -> tuple[set[object], object]:
    """Return the branches that changes run, and the outcome."""
    measured = coverage.Coverage(
        branch=True, data_file=None, include=[str(ROOT / f"{one}*") for one in READERS]
    )
    measured.start()
    try:
        found = outcome(base, changes)
    finally:
        measured.stop()
    data = measured.get_data()
    return {(file, arc) for file in data.measured_files() for arc in data.arcs(file) or ()}, found


if __name__ == "__main__":
    found = drawn()
    write(found)
    print(len(found), sum(isinstance(what, str) for *_, what in found), flush=True)
