"""Exported plans before the launchers' own parsers: ``make launchers``.

Hundreds of random plans of the search's own space must pass and mean what was planned; every mutant must be
refused by our rules, and by the parser where it notices such. What one of our rules alone refuses
(``--refusals``) the launcher refuses too, or it is a deliberate limit. Where a launcher can build a rank
without a GPU, every rank's layers and weights are those that we priced. The last line counts plans and
mutants.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from meshwright.launchers.images import most_pixels
from meshwright.launchers.nanotron.export import nanotron_file
from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import BUILT_MODELS, exact_types, launcher_capabilities
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.profiles.frameworks import FrameworkFacts, framework_facts, with_options
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.profile import framework_of
from meshwright.service.verify.environments import FOLDER_VARIABLE, Environment
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload
from meshwright.solver.space.launcher_rules import problem_faults
from meshwright.solver.splits import nanotron_split
from tests.launchers import post_training, refusals
from tests.launchers.blind_spots import Change, changes, unexplained
from tests.launchers.cases import CASES, plan
from tests.launchers.dry_runs import DRY_RUNS, unlike
from tests.launchers.edits import EDITS, found_by_us
from tests.launchers.environments import (
    ENVIRONMENTS,
    ROOT,
    TORCH_ENVIRONMENT,
    interpreter,
    newest,
    ready,
    versions,
)
from tests.launchers.model_types import judged, record, recorded, unlike_model
from tests.launchers.mutants import MUTANTS, Mutant
from tests.launchers.plans import CASES as OTHER_CASES
from tests.launchers.plans import (
    legal_targets,
    pairs_of,
    placed_targets,
    problem_of,
    problem_under,
    random_targets,
    tuned,
    with_towers,
)
from tests.launchers.tables import INSTALLED_IN, PARSERS, SOURCES, changed_rows, renewed
from tests.launchers.verified import try_verified
from tests.processes.warm_python import SETTLED

MODELS = (
    "llama-3.1-8b", "gpt-3-175b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "llama-3.1-70b",
    "llama-2-7b", "qwen3-8b", "qwen2.5-7b", "glm-4.5-air", "llama-3-8b", "gpt-oss-20b",
)  # fmt: skip
JUDGES = Path(__file__).parent / "judges"
SPLITS_A_PLAN, LEAST_SPLITS = 5, 20  # random models whose split nanotron is asked for
LONG = 1000  # characters of a fault: a plan, and what was found
CONTEXTS = 2  # plans in which one value of one file is changed
EXPORTER = {"torchtitan-0.3": "torchtitan"}
# What --quick tries beside plans, before the same start of the judge.
QUICKLY = {"accelerate": ("changes", "refusals"), "trl": ("changes",), "deepspeed": ("refusals",),
           "megatron-lm": ("refusals",)}  # fmt: skip


Case = dict[str, object]
Verdict = dict[str, Any]  # what the launcher has seen, and why it refused
Try = Generator[tuple[str, list[Case]], list[Verdict], None]  # asks a judge for verdicts of cases


@dataclass
class Count:
    """What the last line says."""

    launchers: int = 0
    plans: int = 0
    refused_mutants: int = 0
    unnoticed_mutants: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The figures in one line."""
        return (
            f"launchers={self.launchers} plans={self.plans} refused_mutants={self.refused_mutants} "
            f"unnoticed_mutants={self.unnoticed_mutants}"
        )


def plans(name: str, count: int, seed: int = 0) -> Iterator[Target]:
    """Random plans, equally many of each model that the launcher trains; another seed draws others."""
    drawn = f" {seed}" if seed else ""
    if name == "flagscale":  # plans on equal nodes are Megatron-LM's
        yield OTHER_CASES[name]["llama-3.1-70b-placed"]
        yield from placed_targets(count, random.Random(f"{name}{drawn}"))
        return
    launcher = EXPORTER.get(name, name)
    able, models = launcher_capabilities(launcher), [find_model(model) for model in MODELS]
    problems = [problem_of(launcher, model, seq_length=4096) for model in models]
    problems = [problem for problem in problems if not list(problem_faults(problem, able))]
    for index, problem in enumerate(problems):
        share = count // len(problems) + (index < count % len(problems))
        yield from random_targets(problem, share, random.Random(f"{launcher} {index}{drawn}"))
        if len(able.offload) > 1:
            away = replace(problem, options=replace(problem.options, allow=("offload",)))
            yield from random_targets(
                away, share // 4, random.Random(f"{launcher} {index} offloaded{drawn}")
            )
        if able.weight_shards and launcher == "megatron-lm":  # the judged Megatron-Bridge has none
            shared = replace(problem, options=replace(problem.options, allow=("weight_shards",)))
            yield from random_targets(
                shared, share // 4, random.Random(f"{launcher} {index} shared{drawn}")
            )
    rng, pairs = random.Random(f"{launcher}{drawn}"), pairs_of(launcher)
    for pair in rng.sample(pairs, min(count // 4, len(pairs))):  # settings of two switches together
        yield from legal_targets(problem_under(rng.choice(problems), pair))
    if launcher == "megatron-lm":
        yield CASES["mixtral-8x7b-overlapped"]
        yield CASES["mixtral-8x7b-weight-shards"]
    yield from tuned(launcher)
    yield from with_towers(launcher)
    if name in ("torchtitan-0.3", "llama-factory-accelerate"):
        yield from OTHER_CASES[launcher].values()


# Schedules with a backward pass in two halves, for which torch compiles neither stages nor their loss.
SPLIT = ("interleaved_zb", "zb_v", "dualpipe_v")


def files_of(found: Target) -> dict[str, str]:
    """The files of a plan, of the release that it is for."""
    name, version = found.problem.launcher, found.version or None
    return export(found.plan, found.problem, name, version=version).files


def case_of(found: Target, files: dict[str, str]) -> Case:
    """What a judge is told beside the files: as much as the cluster would tell it."""
    launch = files["launch.sh"]
    return {
        "files": files,
        "world_size": found.config.num_gpus,
        "data_parallel_size": found.config.data_parallel_size,
        "node_rank": found.num_nodes - 1,
        "environment": dict(re.findall(r"^export (CUDA_\w+)=(\S+)$", launch, re.MULTILINE)),
    }


def verdicts(environment: Environment, judge: str, cases: list[Case]) -> list[Verdict]:
    """The judge's answers, in order; it compiles nothing, so that it need not load torch's compilers."""
    path = os.pathsep.join(filter(None, [str(environment.path) if environment.unpacked else ""]))
    done = subprocess.run(
        [interpreter(environment), str(JUDGES / f"{judge}.py")],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True, text=True, check=False, env={**os.environ, **SETTLED, "PYTHONPATH": path},
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]  # no chatter
    if len(answers) != len(cases):
        raise RuntimeError(f"{judge} broke down: {done.stderr[-800:]}")
    return answers


def judge_together(environment: Environment, *tries: Try) -> None:
    """Start each judge once for all that is tried: it loads its launcher for five CPU seconds."""
    asked = [(one, *next(one)) for one in tries]
    answers = {
        judge: iter(
            verdicts(environment, judge, [case for _, its, some in asked if its == judge for case in some])
        )
        for judge in dict.fromkeys(judge for _, judge, _ in asked)
    }
    for one, judge, cases in asked:
        with suppress(StopIteration):
            one.send(list(islice(answers[judge], len(cases))))


def differences(found: Target, seen: dict[str, object]) -> Iterator[str]:
    """What the launcher understood otherwise than it was planned."""
    config, known = found.config, facts_of(found)
    planned: dict[str, object] = {
        "num_layers": found.model.num_layers,
        "num_kv_heads": found.model.num_kv_heads,
        "ffn_hidden_size": found.model.ffn_hidden_size,
        "last_rank": found.num_nodes - 1,
        "stage_layers": list(config.stage_layers),
        "head_stage": config.pipeline_parallel_size - 1,
        "precision": found.workload.precision,
        "compiled": known.elementwise_fused and config.pipeline_schedule not in SPLIT,
        **trained(found.workload),
        **(images(found) if found.model.tower else {}),
        **found.workload.framework_options,
        **switched(found, known),
    }
    facts: dict[str, object] = seen.pop("model", {})  # type: ignore[assignment]
    yield from unlike_model(found.model, facts)
    for name, value in seen.items():
        wanted = planned[name] if name in planned else getattr(config, name, None)
        if value != wanted:
            yield f"{name}: {value} instead of {wanted}"


def facts_of(found: Target) -> FrameworkFacts:
    """The facts that the plan was priced under."""
    framework = framework_of(found.problem.priced_as)
    return with_options(framework_facts(framework), found.workload.framework_options)


def switched(found: Target, known: FrameworkFacts) -> dict[str, object]:
    """Switches in the words of judges; where a fact is one, under its own name behind ``facts.``."""
    config = found.config
    facts = {f"facts.{one.name}": getattr(known, one.name) for one in fields(known)}
    layers = known.offload_layers
    sent = [f"{layers:g} layers"] if layers else known.offload_modules.split("+")
    away = sent if "activations" in config.offload else []
    return facts | {
        "facts.overlap_tensor": known.overlap_tensor and config.sequence_parallel,
        "facts.recompute_modules": sorted(known.recomputed),
        "activations_on_host": sorted(away),
        "microbatch_group": config.pipeline_parallel_size,
        "placed": [[one.group, one.tensor_parallel_size] for one in config.stage_groups],
        "replayed_by_stage": [
            *(
                config.stage_recompute_layers
                or (min(config.recompute_layers, n) for n in config.stage_layers)
            )
        ],
        "first_forward": config.pipeline_schedule == "gpipe",
        "num_nodes": found.num_nodes,
        "one_product_of_experts": True,
        "optimizer_on_host": "optimizer" in config.offload,
        "padded_vocab_size": found.model.padded_vocabulary(
            known.vocabulary_multiple * config.tensor_parallel_size
        ),
        "reduced_in": "fp32" if known.gradient_dtype == "fp32" else found.workload.precision,
        "recipe": "fp8-delayed"
        if (found.workload.precision, known.precision_recipe) == ("fp8", "none")
        else known.precision_recipe,
        "reduces_behind": config.zero_stage == 3,
        "seq_length": found.workload.seq_length,
        "precision_aware": found.workload.optimizer == "adamw-bf16" or "optimizer" in config.offload,
        "replayed_layers": "every"
        if config.recompute_layers >= max(config.stage_layers)
        else config.recompute_layers,
    }


def trained(workload: Workload) -> dict[str, object]:
    """Adapters, what they stand beside, and the optimizer's bits; targets are in no order."""
    return {
        "lora_rank": workload.lora_rank,
        "lora_targets": sorted(workload.lora_targets) if workload.lora_rank else [],
        "base_precision": workload.base_precision,
        "trained_modules": sorted(workload.trained_modules),
        "dora": bool(workload.framework_options.get("dora")),
        "rounded": rounded(workload),
        "moments": "bfloat16" if workload.optimizer == "adamw-bf16" else "float32",
        "masters": "bf16" if workload.optimizer == "adamw-pure-bf16" else "fp32",
        "optimizer_bits": 8 if "8bit" in workload.optimizer else 32,
        "optimizer_rank": workload.optimizer_rank,
        "orthogonalised": workload.optimizer.startswith("muon"),
        "moments_of_rows": workload.optimizer.startswith("adam-mini"),
        "loaded_as": "bfloat16"
        if (workload.lora_rank and workload.base_precision != "fp32")
        or workload.optimizer
        in (
            "adamw-8bit-bf16",
            "adamw-pure-bf16",
            "galore-8bit-bf16",
            "galore-pure-bf16",
            "apollo-pure-bf16",
            "adam-mini-pure-bf16",
            "badam",
            "adamw-paged-bf16",
            "adamw-8bit-paged-bf16",
        )
        else "float32",
    }


def rounded(workload: Workload) -> list[str | int]:
    """What quantisation-aware training rounds inputs and weights to, and the weights of one scale."""
    word = str(workload.framework_options.get("fake_quantization", "none"))
    inputs, _, weights = word.rpartition("-")
    group = int(workload.framework_options.get("fake_quantized_group", 32))
    return [] if word == "none" else [inputs or weights, weights, group]


def images(found: Target) -> dict[str, object]:
    """Return what of a tower is trained, and the largest image."""
    frozen = found.problem.workload.frozen_parts
    replays = found.config.recompute_granularity == "full" and "vision" not in frozen
    return {
        "trained_tower": found.model.tower_parameters(frozen),
        "trained_language": "language" not in frozen,
        "replayed_tower": replays,
        "most_pixels": most_pixels(found),
    }


def try_plans(name: str, judge: str, targets: list[Target], count: Count) -> Try:
    """Every plan passes and is understood as it was planned."""
    files = [files_of(one) for one in targets]
    cases = [case_of(found, text) for found, text in zip(targets, files, strict=True)]
    for found, verdict in zip(targets, (yield judge, cases), strict=True):
        count.plans += 1
        if verdict["refusal"]:
            count.faults.append(f"{name}: {found.config}: {verdict['refusal']}")
        count.faults += [f"{name}: {found.config}: {text}" for text in differences(found, verdict["seen"])]


def try_splits(judge: str, splits: int, count: Count) -> Try:
    """Stages of so many random Llamas: light and heavy heads, padded vocabularies, empty stages."""
    rng, drawn = random.Random("nanotron splits"), list[tuple[ModelSpec, int, int]]()
    for _ in range(splits):
        heads, layers, ffn = rng.choice([8, 24, 32]), rng.randint(1, 80), 128 * rng.randint(8, 256)
        model = replace(
            find_model("llama-3.1-8b"), num_layers=layers, hidden_size=128 * heads, ffn_hidden_size=ffn,
            num_attention_heads=heads, num_kv_heads=8, vocab_size=rng.choice([256, 32000, 128256, 500_009]),
        )  # fmt: skip
        drawn.append((model, rng.randint(1, layers), rng.choice([1, 2, 8])))
    cases: list[Case] = []
    for model, pp, tp in drawn:
        config = Configuration(pipeline_parallel_size=pp, tensor_parallel_size=tp)
        target = Target(plan=plan(config), problem=problem_of("nanotron", model))
        cases.append({"files": {"nanotron.yaml": nanotron_file("", target)}, "world_size": pp * tp})
    empty = 0
    for (model, pp, tp), verdict in zip(drawn, (yield judge, cases), strict=True):
        split, head = nanotron_split(model, pp, tp)
        empty += 0 in split
        seen = verdict["seen"]
        if verdict["refusal"] or (seen["stage_layers"], seen["head_stage"]) != (list(split), head):
            count.faults.append(f"nanotron: {pp} stages, tp {tp} of {model}: {split}, {head} but {verdict}")
    print(f"nanotron: splits: {len(drawn)} models, {empty} with a stage without a layer")


def try_mutants(name: str, judge: str, count: Count) -> Try:
    """Every mutant is refused by us, and by the launcher exactly where it is known to notice."""
    launcher = EXPORTER.get(name, name)
    mutants = MUTANTS[launcher]()
    cases = [case_of(mutant.target, files_without_rules(launcher, mutant)) for mutant in mutants]
    for mutant, verdict in zip(mutants, (yield judge, cases), strict=True):
        try:
            export(mutant.target.plan, mutant.target.problem, launcher)
            count.faults.append(f"{name}: we let pass: {mutant.name}")
        except (RefusedExportError, InvalidProblemError):
            pass
        noticed = verdict["refusal"] is not None
        count.refused_mutants += noticed
        count.unnoticed_mutants += not noticed
        if noticed != mutant.noticed:
            word = verdict["refusal"] or "accepted"
            count.faults.append(f"{name}: {mutant.name}: expected noticed={mutant.noticed}, was {word}")


def try_dry_runs(name: str, count: Count, *, ends: bool) -> Try:
    """Check that every rank the launcher builds holds the layers and weights that we priced.

    ``ends``: build only the first and the last stage.
    """
    judge, plans_of = DRY_RUNS[name]
    runs = [replace(run, ends=run.ends or ends) for run in plans_of()]
    targets = [run.target for run in runs]
    files = [export(one.plan, one.problem, EXPORTER.get(name, name)).files for one in targets]
    cases = [
        {**case_of(run.target, text), "ranks": run.ranks()} for run, text in zip(runs, files, strict=True)
    ]
    for run, verdict in zip(runs, (yield judge, cases), strict=True):
        wrong = [verdict["refusal"]] if verdict["refusal"] else unlike(run, verdict["seen"])
        count.faults += [f"{name}: dry run of {run.name}: {text}" for text in wrong]
    print(f"{name}: dry runs: {len(runs)} plans, {sum(len(run.ranks()) for run in runs)} ranks")


TYPES_A_PLAN = 3  # model types that are tried for each random plan: all of them with 32 plans


def try_model_types(
    name: str, environment: Environment, count: Count, *, types: int | None = None, seed: int = 0
) -> Try:
    """Ranks of so many model types that the launcher can state; None: of all configs, and recorded."""
    judge, launcher = DRY_RUNS[name][0], EXPORTER.get(name, name)
    runs = list(judged(launcher, types=types, seed=seed))
    targets = [one.run.target for one in runs]
    files = [export(one.plan, one.problem, launcher).files for one in targets]
    cases = [
        {**case_of(one.run.target, text), "ranks": one.run.ranks()}
        for one, text in zip(runs, files, strict=True)
    ]
    wrong: dict[tuple[str, str], list[str]] = {}  # by type and config: several types have one named alike
    for one, verdict in zip(runs, (yield judge, cases), strict=True):
        said = [verdict["refusal"]] if verdict["refusal"] else unlike(one.run, verdict["seen"])
        said = [*said, *unlike_model(one.run.target.model, verdict["seen"].get("model", {}))]
        found = wrong.setdefault((one.model_type, one.config), [])
        found += [f"{one.model_type}: {one.run.name}: {text}" for text in said]
    built = [one for one in runs if not wrong[one.model_type, one.config]]
    right, tried = {one.model_type for one in built}, {one.model_type for one in runs}
    print(f"{name}: model types: {len(right)} exact of {len(tried)}, {len(built)} plans")
    if types is None:
        version = environment.pinned
        BUILT_MODELS.write_text(recorded({launcher: record(version, built)}))
        for text in (text for said in wrong.values() for text in said[:1]):
            print(f"{name}: not recorded: {text[:300]}")
        return
    exact = exact_types(launcher)
    told = [text for one in runs if one.model_type in exact for text in wrong[one.model_type, one.config]]
    told += [f"{kind}: exact, but not recorded" for kind in sorted(right - exact)]
    count.faults += [f"{name}: {text}" for text in told]


def try_changes(name: str, judge: str, count: Count, seed: int) -> Try:
    """Every value of every file, changed alone: the judge notices, or it is known why it cannot."""
    launcher = EXPORTER.get(name, name)
    drawn = [*tuned(launcher), *plans(name, len(MODELS), seed)]
    targets = [*(CASES if launcher == "megatron-lm" else OTHER_CASES[launcher]).values(), *drawn]
    changed: list[tuple[Target, Change]] = []
    times = Counter[tuple[str, str]]()
    for found in targets:
        files = files_of(found)
        for change in changes(files):
            times[change.key, str(change.old)] += 1
            if times[change.key, str(change.old)] <= CONTEXTS:
                changed.append((found, change))
    cases = [case_of(found, {**change.files}) for found, change in changed]
    tried: dict[str, bool] = {}
    for (found, change), verdict in zip(changed, (yield judge, cases), strict=True):
        noticed = verdict["refusal"] is not None or any(differences(found, verdict["seen"]))
        tried[change.key] = tried.get(change.key, False) or noticed
    count.faults += [f"{name}: {text}" for text in unexplained(name, tried)]
    print(f"{name}: {len(changed)} changes of {len(tried)} values, {sum(tried.values())} noticed")


def try_refusals(name: str, judge: str, options: argparse.Namespace, count: Count) -> Try:
    """Every configuration that one rule of ours refuses is refused by the launcher too, or deliberately."""
    launcher, answers = EXPORTER.get(name, name), refusals.Answers()
    models = [one for one in MODELS if not options.build or refusals.is_built(launcher, one)]
    asked: list[tuple[refusals.Refusal, dict[str, str]]] = []
    for one in refusals.drawn(launcher, models, options.refusals, options.seed):
        files = refusals.files_of(one.target, launcher)
        if files is None or not refusals.states_it(one, files, launcher):
            answers.unsaid[one.rule] += 1
        else:
            asked.append((one, files))
    cases = [case_of(one.target, files) for one, files in asked]
    for (one, _), verdict in zip(asked, (yield judge, cases), strict=True):
        other = not verdict["refusal"] and any(differences(one.target, verdict["seen"]))
        answers.take(one, launcher, verdict["refusal"], other=other, builds=options.build)
    print(*answers.lines(name), sep="\n", flush=True)
    count.plans += len(asked)
    count.faults += [f"{name}: refused by us alone: {text}" for text in answers.faults]


def try_edits(name: str, judge: str, count: Count) -> Try:
    """Every edited file is noticed by us, and by the launcher exactly where it is known to notice."""
    launcher = EXPORTER.get(name, name)
    edits = EDITS[launcher]()
    cases = [case_of(edit.target, edit.files(launcher)) for edit in edits]
    for edit, verdict in zip(edits, (yield judge, cases), strict=True):
        ours, wanted = found_by_us(edit, launcher), "listed" if edit.listed else "refused"
        if ours != wanted:
            count.faults.append(f"{name}: edit {edit.name}: {ours} by us instead of {wanted}")
        noticed = verdict["refusal"] is not None
        count.refused_mutants += noticed
        count.unnoticed_mutants += not noticed
        if noticed != edit.was_noticed(name):
            word = verdict["refusal"] or "accepted"
            count.faults.append(f"{name}: edit {edit.name}: was {word}")


def files_without_rules(launcher: str, mutant: Mutant) -> dict[str, str]:
    """What our exporter would write if it had no rules."""
    found = mutant.target
    with (
        patch("meshwright.launchers.rules.refuse"),
        patch("meshwright.launchers.flagscale.export.refuse"),
    ):
        files = export(found.plan, found.problem, launcher).files
    if mutant.edit:
        old, new = mutant.edit
        assert any(old in text for text in files.values()), mutant.name
        files = {file: text.replace(old, new) for file, text in files.items()}
    return files


def try_scripts(plans_each: int, count: Count) -> None:
    """Bash and torchrun read the scripts of every launcher; a node rank that is none is refused by ours."""
    # FlagScale's runner starts torchrun by ssh; MaxText runs on JAX.
    names = [name for name in launcher_names() if name not in ("flagscale", "maxtext")]
    targets = [found for launcher in names for found in plans(launcher, plans_each)]
    judge_together(
        TORCH_ENVIRONMENT,
        try_plans("torchrun", "torchrun", targets, count),
        try_beyond(targets[0], count),
    )


def try_beyond(found: Target, count: Count) -> Try:
    """A node rank that is none is refused by ours."""
    files = export(found.plan, found.problem, found.problem.launcher).files
    beyond = {**case_of(found, files), "node_rank": found.num_nodes}
    (verdict,) = yield "torchrun", [beyond]
    if not verdict["refusal"]:
        count.faults.append("torchrun: a node rank beyond the last one was started")
    count.unnoticed_mutants += 1


def try_launcher(name: str, environment: Environment, options: argparse.Namespace, count: Count) -> None:
    """All of one launcher."""
    if options.record:
        if name in DRY_RUNS:
            judge_together(environment, try_model_types(name, environment, count))
        return
    judge = EXPORTER.get(name, name).replace("-", "_")
    if options.verify:
        count.faults += try_verified(EXPORTER.get(name, name), MODELS, options.verify, options.seed)
        return
    kinds, tries = kinds_of(name, options), list[Try]()
    if "plans" in kinds:
        tries += legal_and_illegal(name, environment, judge, options, count)
    if "changes" in kinds:
        tries.append(try_changes(name, judge, count, options.seed))
    if "refusals" in kinds:
        tries.append(try_refusals(name, judge, options, count))
    judge_together(environment, *tries)


def kinds_of(name: str, options: argparse.Namespace) -> tuple[str, ...]:
    """What is tried of a launcher: plans, or changes of their values, or refusals; or what CI tries."""
    if options.install:
        return ()
    if options.quick:
        return ("plans", *QUICKLY.get(name, ()))
    alone = "refusals" if options.refusals else "changes" if options.changes else "plans"
    # FlagScale's judge knows process meshes alone; most values are those of Megatron-LM's parser.
    return () if name == "flagscale" and alone != "plans" else (alone,)


def legal_and_illegal(
    name: str, environment: Environment, judge: str, options: argparse.Namespace, count: Count
) -> Iterator[Try]:
    """Yield plans, mutants, edits and dry runs of one launcher."""
    yield try_plans(name, judge, list(plans(name, options.plans, options.seed)), count)
    if name == "nanotron":  # its judge builds models; its parser does not know what we write
        yield try_splits(judge, max(LEAST_SPLITS, SPLITS_A_PLAN * options.plans), count)
    else:
        yield try_mutants(name, judge, count)
        if name != "flagscale":  # its judge knows process meshes; what is not of them is Megatron-LM's
            yield try_edits(name, judge, count)
    if name in DRY_RUNS:
        types = TYPES_A_PLAN * options.plans
        yield try_dry_runs(name, count, ends=options.quick)
        yield try_model_types(name, environment, count, types=types, seed=options.seed)


def try_table(name: str, environment: Environment, count: Count, *, update: bool) -> None:
    """Hold the table of a program's arguments against its parser, or write it anew."""
    path, text = renewed(name, environment)
    if update:
        before, after = (yaml.safe_load(one) for one in (path.read_text("utf-8"), text))
        print(*(f"  {line}\n" for line in changed_rows(before, after)), sep="", end="")
        path.write_text(text, "utf-8")
    elif text != path.read_text("utf-8"):
        count.faults.append(f"{name}: its parser is not that of {path.name}: --update --only {name}")


def main() -> int:
    """Try everything; 1 when anything went wrong."""
    if sys.argv[1:2] == ["post-training"]:
        return post_training.main(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=100, help="random plans for each launcher")
    every = [*ENVIRONMENTS, "torchrun", *INSTALLED_IN]
    parser.add_argument("--only", nargs="*", default=every, help="launchers to try")
    parser.add_argument(
        "--latest", action="store_true", help="try the newest release of each, not the pinned one"
    )
    parser.add_argument(
        "--changes",
        action="store_true",
        help="change every value of every file alone; nothing else is tried",
    )
    parser.add_argument(
        "--verify",
        type=int,
        default=0,
        metavar="COUNT",
        help="put so many drawn plans of each before meshwright verify; nothing else is tried",
    )
    parser.add_argument(
        "--refusals",
        type=int,
        default=0,
        metavar="COUNT",
        help="write so many configurations that one rule of ours alone refuses, for each rule, and let the "
        "launcher judge them; nothing else is tried",
    )
    parser.add_argument(
        "--build",
        action="store_true",
        help="with --refusals: what a parser accepts is built as meshwright verify does, where it can be",
    )
    parser.add_argument("--seed", type=int, default=0, help="which plans are drawn")
    parser.add_argument(
        "--record", action="store_true", help="build every config of every model type alone, and record it"
    )
    parser.add_argument("--update", action="store_true", help="write the tables of arguments anew")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="for CI: two plans of each launcher, and of some changed values or a refusal of each rule",
    )
    parser.add_argument("--install", action="store_true", help="make the environments; nothing is tried")
    options = parser.parse_args()
    if options.quick:
        options.plans, options.refusals = 2, 1
    count = Count()
    os.environ[FOLDER_VARIABLE] = str(ROOT)
    unavailable = ready(TORCH_ENVIRONMENT)
    for name in options.only:
        environment = ENVIRONMENTS.get(INSTALLED_IN.get(name, name), TORCH_ENVIRONMENT)
        if options.latest and environment is not TORCH_ENVIRONMENT:
            environment = newest(environment)
        why = (unavailable if environment.torch else None) or ready(environment)
        if why:
            print(f"{name}: not run, not installable here: {why}")
            continue
        print(f"{name}: {versions(environment)}", flush=True)
        count.launchers += 1
        if (name in PARSERS and "plans" in kinds_of(name, options)) or (options.update and name in SOURCES):
            try_table(name, environment, count, update=options.update)
        if options.install or options.update or name in INSTALLED_IN:
            continue
        if name == "torchrun":
            try_scripts(max(options.plans // 10, 2), count)
            continue
        try_launcher(name, environment, options, count)
    for fault in count.faults:
        print(f"fault: {fault}" if len(fault) < LONG else f"fault: {fault[:200]} … {fault[200 - LONG :]}")
    print(count.line())
    return 1 if count.faults else 0


if __name__ == "__main__":
    sys.exit(main())
