"""Exporter of Megatron-LM: a plan becomes an arguments file, a torchrun script and a Slurm script.

Three rules: parts that Megatron-LM cannot run as planned are refused first (its own parser lets many of
them through); every value that the plan sets is written; approximations become warnings, in the files and
in the answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from meshwright.launchers.export import (
    SLURM_FILE,
    TORCHRUN_FILE,
    StartCommand,
    applying,
    common_environment,
    common_warnings,
    environment_lines,
    guard,
    header,
    package_checks,
    ranks_in_bash,
    slurm_script,
    with_readme,
)
from meshwright.launchers.megatron_core.names import (
    FROM_CHECKPOINT,
    decided_flags,
    environment,
    refused_flags,
    written_cut,
)
from meshwright.launchers.megatron_lm.flags import (
    FIXED_FACTS,
    WRITTEN_FACTS,
    Section,
    facts,
    gathers_fp8,
    is_fsdp,
    kernel_warning,
    lacks_flash,
    low_precision_has_units,
    packages_of,
    padded_vocabulary,
    padding_warning,
    reshards_states,
    sections,
)
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads
from meshwright.launchers.templates import filled, template
from meshwright.solver.space.launcher_rules import overlap_notes

# --------------------------------------------------------------------------------------------------
# The text of the files that start Megatron-LM: the arguments, torchrun on one node, Slurm on all.
#
# The arguments file is a Bash array, so that quoting is Bash's own and every flag can carry a comment.


_RELEASES = "0.16 to 0.19"
ARGUMENTS_FILE = "megatron_args.sh"
_OTHER_LAYERS = ("hybrid-override-pattern", "is-hybrid-model")  # would build other layers
_SINCE = "0.19"  # the first with | in the pattern, and with pretrain_hybrid.py
# Names of the data of a run: tokens of a pretraining, or conversations (--sft), with a data set that asks
# SFTTokenizer for ``tokenize_conversation`` (training/datasets/sft_dataset.py) and has no synthetic tokens.
_TOKENS = {
    "DATA": "the prefix of an indexed data set",
    "DRY": "; MOCK_DATA=1 is a dry start without one",
    "TOKENIZER": "for instance HuggingFaceTokenizer",
    "OR_MOCK": ", or set MOCK_DATA=1",
    "MOCK": """\
# What the plan does not decide. MOCK_DATA=1 is a dry start: synthetic tokens, ten steps, no tokenizer, no
# checkpoint. It logs the time of every step for `meshwright import`; Megatron-LM's interval is 100 steps.
if [[ "${MOCK_DATA:-0}" == 1 ]]; then
    run_args=(--mock-data --tokenizer-type NullTokenizer --train-iters "${TRAIN_ITERS:-10}"
        --lr "${LR:-1e-4}" --eval-iters 0 --eval-interval 1000
        --log-interval "${LOG_INTERVAL:-1}" --log-throughput)""",
}
_CONVERSATIONS = {
    "DATA": "a file of conversations, one JSON a line",
    "DRY": "",
    "TOKENIZER": "SFTTokenizer",
    "OR_MOCK": "",
    "MOCK": """\
# What the plan does not decide. Conversations (--sft) have no synthetic tokens.
if [[ "${MOCK_DATA:-0}" == 1 ]]; then
    echo "error: MOCK_DATA=1: --sft reads DATA_PATH alone" >&2
    exit 2""",
}

_RESHARDS = """
        # Optimizer states that another tp or pp can load, not other replicas alone.
        --ckpt-format torch_dist --dist-ckpt-optim-fully-reshardable"""


def program_of(target: Target) -> str:
    """Return the program that trains the plan's model."""
    return "pretrain_hybrid.py" if target.model.layer_pattern else "pretrain_gpt.py"


def versions_of(target: Target) -> str:
    """Return the releases of Megatron-LM that run the plan's files."""
    return _SINCE if target.model.layer_pattern else _RELEASES


def arguments_file(head: str, sections: Iterable[Section]) -> str:
    """Return a Bash array ``MEGATRON_ARGS`` with one flag per line."""
    lines = ["MEGATRON_ARGS=("]
    for section in sections:
        lines.append(f"    # {section.title}")
        lines += ["    " + shlex.join((flag.name, *flag.values)) for flag in section.flags]
    return "\n".join([head, *lines, ")", ""])


def torchrun_script(head: str, target: Target) -> str:
    """Return the script of one node's processes; run it on every node with its own NODE_RANK."""
    planned = [one.name for section in sections(target) for one in section.flags]
    values = {
        "ARGUMENTS": ARGUMENTS_FILE,
        "ROWS": str(padded_vocabulary(target)),
        "VERSIONS": versions_of(target),
        "PROGRAM": program_of(target),
        "NODES": str(target.num_nodes),
        "GPUS": ranks_in_bash(target),
        "MASTER": "localhost" if target.num_nodes == 1 else "",
        "ENVIRONMENT": environment_lines(
            (*environment(target, facts(target)), *common_environment(target))
        ),
        "PACKAGES": package_checks(packages_of(target)),
        **_data(target),
        "RESHARDS": _RESHARDS if reshards_states(target.config) else "",
        "GUARD": guard(
            (*decided_flags(), *refused_flags(), FROM_CHECKPOINT, *_OTHER_LAYERS, *planned)
        ).rstrip("\n"),
    }
    return "#!/usr/bin/env bash\n" + head + filled(template("megatron_lm/launch.sh"), values)


def _data(target: Target) -> dict[str, str]:
    return _TOKENS if target.workload.lengths is None else _CONVERSATIONS


def needs(target: Target) -> tuple[tuple[str, str], ...]:
    """Return the inputs that a run needs besides the plan, as named in the script."""
    data = _data(target)
    return (
        ("MEGATRON_LM_DIR", f"a checkout of Megatron-LM {versions_of(target)}"),
        ("DATA_PATH", data["DATA"] + data["DRY"]),
        ("TOKENIZER_TYPE", data["TOKENIZER"]),
        ("TOKENIZER_MODEL", "the file, folder or name of the tokenizer"),
        ("TRAIN_ITERS", "the number of steps"),
        ("LR", "the learning rate"),
    )


def export(target: Target) -> ExportBundle:
    """Return the arguments file and the two scripts that start it."""
    refuse_first(target, "megatron-lm", (low_precision_has_units,))
    warnings = list(found_warnings(target))
    packages = packages_of(target)
    product = f"Megatron-LM {versions_of(target)}"
    head = header(target, warnings, product, packages=packages)
    files = {
        ARGUMENTS_FILE: arguments_file(head, sections(target)),
        TORCHRUN_FILE: torchrun_script(head, target),
        SLURM_FILE: slurm_script(head, target),
    }
    kept = (("CHECKPOINTS", "checkpoints in this folder"),)
    start = StartCommand(program=program_of(target), needs=needs(target), takes=kept, packages=packages)
    return with_readme(target, files, product=product, start=start, warnings=warnings)


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the differences of Megatron-LM from the plan, and the parts that the plan leaves open."""
    yield from common_warnings(target, written=tuple(target.workload.framework_options))
    line = "one conversation" if pads(target) else "conversations that are packed already, one sequence"
    config, model = target.config, target.model
    tp, cp = config.tensor_parallel_size, config.context_parallel_size
    count, chunks = config.recompute_layers, config.stage_layers
    yield from applying(
        (
            target.workload.lengths is not None,
            f"--sft reads DATA_PATH as JSON lines, each with {line}. There is no MOCK_DATA",
        ),
        padding_warning(target),
        (
            config.sequence_parallel and tp == 1,
            "sequence parallelism does nothing at tp 1, so the files leave it out",
        ),
        (
            config.recompute_granularity == "full" and min(chunks) < count < max(chunks),
            f"chunks with fewer than {count} layers recompute all layers",
        ),
        (
            is_fsdp(target) and (tp > 1 or cp > 1),
            "Megatron-FSDP with tp or cp cannot have the single hardware queue that tp and cp want",
        ),
        (
            model.has_rotary_positions and model.rotary_base is None,
            "the model has no rotary base: if yours is not 10000, add --rotary-base",
        ),
        (
            model.moe and not (model.moe.balance_coefficient or model.moe.selection_bias),
            "nothing balances the experts: add --moe-aux-loss-coeff, or balance them another way",
        ),
        (
            model.sliding_window and cp > 1,
            "sliding-window attention under context parallelism depends on the Transformer Engine version",
        ),
    )
    yield from _fact_warnings(target)


def _fact_warnings(target: Target) -> Iterator[str]:
    known, stated = facts(target), target.workload.framework_options
    said = {*WRITTEN_FACTS, *FIXED_FACTS, *written_cut(target, known), "power_limit_w"}
    for name, fixed in FIXED_FACTS.items():
        if getattr(known, name) != fixed:
            yield (
                f"{name} is always {str(fixed).lower()} in Megatron-LM, but the prediction assumed the "
                "opposite"
            )
    for name in sorted(set(stated) - said):
        yield f"{name} = {stated[name]} is part of the prediction, but Megatron-LM has no flag for it"
    yield from applying(
        (
            known.low_precision_weights and not gathers_fp8(target),
            "low_precision_weights needs fp8 with ZeRO in Megatron-LM. The prediction assumes it anyway",
        ),
        kernel_warning(known),
        *((True, note) for note in overlap_notes(target.problem, target.config)),
        (
            lacks_flash(target),
            f"{target.gpu.display_name} keeps the attention scores. The prediction assumed the opposite",
        ),
    )
