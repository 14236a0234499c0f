"""The common form of all exports: a launcher's own files, and the two scripts that start them."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.launchers.target import ExportBundle, Target, pads, pads_to_longest, trained
from meshwright.launchers.templates import filled, template
from meshwright.profiles.capabilities import judged_versions, model_facts
from meshwright.profiles.figures import NO_BREAK
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.requirements import Requirement
from meshwright.profiles.units import GIB
from meshwright.profiles.vendors import vendor_of
from meshwright.solver.configuration import RANK_ORDERS, VARIABLES, Configuration
from meshwright.solver.explain.sentences import limit_sentence, time_sentence

# --------------------------------------------------------------------------------------------------
# Parts of a plan that no launcher's files can express.


def common_warnings(target: Target, written: Sequence[str] = ("launch_blocking",)) -> Iterator[str]:
    """Yield warnings on mixed clusters, rings over the network, and options in no file but ``written``."""
    config, near, limit_w = target.config, target.near_gpus, target.problem.power_limit_w
    ranks = config.tensor_parallel_size * config.context_parallel_size
    crosses = config.context_parallel_size > 1 and near % ranks and config.num_gpus > near
    yield from applying(
        (crosses, f"tp * cp = {ranks} ranks cross the network: only {near} GPUs share the fast link"),
        (
            not target.problem.cluster.is_homogeneous,
            "order the node ranks like the cluster's groups (Slurm sorts hosts by name)",
        ),
        (limit_w, f"no file sets power_limit_w: run sudo nvidia-smi -pl {limit_w:g} on every node first"),
        unwritten_options(target, {*written, "power_limit_w"}),
        (
            target.workload.precision == "bf16" and "bf16" not in target.gpu.peak_flops,
            f"{target.gpu.display_name} has no bf16 units. Use fp16 for speed",
        ),
    )


def applying(*warnings: tuple[object, str]) -> Iterator[str]:
    """Yield the warnings that apply, of pairs of a condition and a text."""
    return (text for applies, text in warnings if applies)


def unwritten_options(target: Target, written: Iterable[str]) -> tuple[object, str]:
    """Return the warning on framework options that no file states, with whether there are any."""
    names = sorted(set(target.workload.framework_options) - {*written})
    listed = ", ".join(names)[:200]
    return names, f"the prediction assumes framework options that these files don't set: {listed}"


def zero_2_warning(target: Target) -> tuple[bool, str]:
    """Return the warning on ZeRO-2 under FSDP2, with whether the plan has it."""
    kept = "ZeRO-2 is FSDP2 that does not reshard weights after the forward pass"
    return target.config.zero_stage == 2, kept  # noqa: PLR2004 - ZeRO-2


def rotary_base_warning(target: Target) -> tuple[bool, str]:
    """Return the warning on a rotary base that is written by default, with whether it is."""
    return target.model.rotary_base is None, "the model has no rotary base: the files set 10000"


MIB = 2**20
# DistributedDataParallel's own buckets (torch 2.13 nn/parallel/distributed.py), which 0 stands for.
TORCH_BUCKET_MIB = 25


def bucket_units(target: Target, unit_bytes: float) -> int | None:
    """Return the size of the plan's gradient buckets in a launcher's unit; None for the launcher's own."""
    size = target.facts.bucket_bytes
    return max(int(size / unit_bytes), 1) if size else None


def bucket_option(
    size_mib: int | None, launcher: str, configuration: Configuration, unit_bytes: float = MIB
) -> dict[str, str | int | float | bool]:
    """Return the bucket size of DistributedDataParallel, if replicas use it and it is not torch's default.

    Without a size, accelerate keeps torch's default (transformers 5.23 trainer.py, ``ddp_bucket_cap_mb``).
    """
    replicas = configuration.zero_stage == 0 and configuration.data_parallel_size > 1
    if size_mib is None or size_mib == TORCH_BUCKET_MIB or launcher == "deepspeed" or not replicas:
        return {}
    return {"bucket_bytes": float(size_mib * unit_bytes)}


def written_bucket(target: Target, unit_bytes: float) -> tuple[str, ...]:
    """Return ``bucket_bytes`` if a whole number of units states the priced size."""
    return () if target.facts.bucket_bytes % unit_bytes else ("bucket_bytes",)


def numbers_in_words(numbers: Sequence[int]) -> str:
    """Return numbers on one line."""
    return " ".join(map(str, numbers))


def compiled_facts(target: Target) -> tuple[str, ...]:
    """Return the facts that torch's compiler sets if they agree; files only set whether blocks compile."""
    facts = target.facts
    return ("elementwise_fused", "norm_fused") if facts.elementwise_fused == facts.norm_fused else ()


def sequences_in_the_script(target: Target) -> str:
    """Return how the user's script must make sequences."""
    seq_length = target.workload.seq_length
    if target.workload.lengths is None:
        return f"pack the data into sequences of {seq_length} tokens in your script"
    if pads_to_longest(target):
        return "pad every document only to the longest of its micro-batch in your script"
    if pads(target):
        return f"pad every document to {seq_length} tokens in your script"
    return (
        f"pack whole documents into sequences of {seq_length} tokens in your script, and pass "
        "their boundaries (cu_seqlens) to attention"
    )


def model_is_in_the_script(target: Target) -> str:
    """Return the size and facts of the plan's model, for launchers with files that name none."""
    model = target.model
    experts = f", {model.moe.num_experts} experts" if model.moe else ""
    facts = "".join(f"; {fact}" for fact in sorted(model_facts(model)))
    return (
        f"load the model that was planned, of {model.num_parameters()} parameters: "
        f"{model.num_layers} layers, hidden {model.hidden_size}, MLP {model.ffn_hidden_size}, "
        f"{model.num_attention_heads} heads, {model.num_kv_heads} key/value heads, "
        f"vocabulary {model.vocab_size}{experts}{facts}"
    )


# --------------------------------------------------------------------------------------------------
# The comment on top of every launch file: its plan, and the expected figures.


def header(
    target: Target,
    warnings: Iterable[str],
    product: str,
    *,
    packages: Sequence[Requirement] = (),
    shape: bool = False,
) -> str:
    """Return the lines of the comment; ``product`` is the launcher with versions, ``packages`` the others.

    ``shape`` adds the model's, and adapters, as JSON on a line, where no file of the launcher has a place.

    Names come from the request: unprintable characters are replaced, so that no line can end early.
    """
    config, prediction = target.config, target.plan.prediction
    times = (prediction.step_time_s, prediction.step_time_low_s, prediction.step_time_high_s)
    step, low, high = (f"{time_s:.3f}" for time_s in times)
    memory, limit = (
        f"{size / GIB:.1f} GiB" for size in (prediction.peak_memory_bytes, prediction.memory_limit_bytes)
    )
    lines = [
        f"{product}, plan {target.plan.plan_id} (rank {target.plan.rank}), by Meshwright",
        f"Model {target.model.title[:200]}, {target.workload.seq_length} tokens a sequence",
        *(_stated(target) if shape else ()),
        world_size(target),
        *([] if config.rank_order == RANK_ORDERS[0] else [f"Ranks are numbered along {config.rank_order}"]),
        f"Micro-batches: {config.num_microbatches} of {config.micro_batch_size}",
        f"Nodes: {nodes_in_words(target)}",
        f"Layers of each chunk: {' '.join(map(str, config.stage_layers))}",
        f"Predicted step: {step} s ({low} to {high})",
        f"Predicted memory: {memory} of {limit} on stage {prediction.heaviest_stage}",
        *([f"Needs: {', '.join(map(_named, packages))}"] if packages else []),
        *(f"Warning: {warning}" for warning in warnings),
    ]
    return "".join(f"# {printable(line)}\n" for line in lines)


def nodes_in_words(target: Target) -> str:
    """Return the nodes that the plan starts on, with their GPUs, by node group where stages are placed."""
    placed = target.placed_nodes or [(target.problem.cluster.groups[0], target.num_nodes)]
    each = target.gpus_per_node
    words = ", ".join(
        f"{nodes} of {group.gpus_per_node if target.config.stage_groups else each} × "
        f"{group.gpu.display_name[:200]}"
        for group, nodes in placed
    )
    idle = 0 if target.config.stage_groups else target.idle_gpus
    return f"{words}, {idle} idle on the last" if idle else words


def ranks_in_bash(target: Target) -> str:
    """Return how many ranks a node starts, in Bash: fewer on the last one if GPUs there are idle."""
    each, last = target.gpus_per_node, target.gpus_of_last_node
    return (
        str(each) if last == each else f"$((${{NODE_RANK:-0}} < {target.num_nodes - 1} ? {each} : {last}))"
    )


def world_size(target: Target) -> str:
    """Return the number of GPUs of the plan, as a product of its sizes."""
    config = target.config
    if config.stage_groups:
        sizes = " ".join(str(one.tensor_parallel_size) for one in config.stage_groups)
        return (
            f"World size {config.num_gpus}: stages of tp {sizes}, each * "
            f"cp {config.context_parallel_size} * dp {config.data_parallel_size}"
        )
    return (
        f"World size {config.num_gpus}: tp {config.tensor_parallel_size} * "
        f"cp {config.context_parallel_size} * pp {config.pipeline_parallel_size} * "
        f"dp {config.data_parallel_size}"
    )


def _stated(target: Target) -> Iterator[str]:
    """Yield the model's sizes, without their sources, and its adapters, as spelled in a request."""
    yield f"Model shape: {json.dumps(model_to_mapping(replace(target.model, source='', display_name='')))}"
    if target.model.tower is not None:
        tokens = target.workload.image_tokens
        sizes = {} if tokens is None else tokens.to_mapping()
        yield f"Images: {json.dumps({'images_per_sample': target.workload.images_per_sample} | sizes)}"
    if target.workload.sample_word != "sequence":
        said = {name: getattr(target.workload, name) for name in ("sample", "reference")}
        yield f"Samples: {json.dumps(said)}"
    if target.workload.lora_rank:
        names = ("lora_rank", "lora_targets", "base_precision", "trained_modules")
        yield f"Adapters: {json.dumps({name: getattr(target.workload, name) for name in names})}"


def printable(text: str) -> str:
    """Return the text on one line, with question marks for unprintable characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# --------------------------------------------------------------------------------------------------
# The Slurm script: one task per node starts ``launch.sh`` with the node's rank.
#
# Slurm keeps an order of hosts only with ``--distribution=arbitrary`` and ``SLURM_HOSTFILE``; a
# ``--nodelist`` is sorted (its manual, srun and sbatch). Nodes of one kind take the sorted order.


TORCHRUN_FILE = "launch.sh"
SLURM_FILE = "launch.sbatch"
HOSTS_FILE = "hosts.txt"


_ALIKE = """\
# Host order: Slurm's own. For another, set HOSTS_FILE to a file of hosts, one a line in node-rank order."""
_ORDERED = """\
# Host order: that of @HOSTS@, on which the predicted step depends (links between the nodes differ).
HOSTS_FILE="${HOSTS_FILE:-@HOSTS@}\""""
_MIXED = ': ${HOSTS_FILE:?"set it to a file of @NODES@ hosts, one a line, in the order of @SLURM@"}'


def slurm_script(head: str, target: Target, *, torch: bool = True) -> str:
    """Return the script that starts ``launch.sh`` on every node of a Slurm allocation."""
    values = {
        "ORDER": _host_order(target),
        "TORCHRUN": TORCHRUN_FILE,
        "SLURM": SLURM_FILE,
        "STARTER": "torchrun" if torch else "process",
        "PLAN": printable(target.plan.plan_id),
        "NODES": str(target.num_nodes),
        "GPUS": str(target.gpus_per_node),
        "NODELIST": f"#SBATCH --nodelist={','.join(target.host_names)}\n" if target.host_names else "",
    }
    return "#!/usr/bin/env bash\n" + head + filled(template("scripts/launch.sbatch"), values)


def _host_order(target: Target) -> str:
    """Return the order of hosts by node rank: that of the cluster's groups, if they differ."""
    cluster = target.problem.cluster
    if target.host_names:
        return _ORDERED.replace("@HOSTS@", HOSTS_FILE)
    if target.ordered_nodes:
        numbers = numbers_in_words(target.ordered_nodes)
        return f"# Host order: nodes of the cluster's list, by number from 0: {numbers}\n{_MIXED}"
    if cluster.is_homogeneous or target.num_nodes == 1:
        return _ALIKE
    lines, first = ["# Host order: the plan assumes these kinds of nodes at these node ranks."], 0
    for group in cluster.groups:
        last = min(first + group.num_nodes, target.num_nodes) - 1
        if last >= first:
            lines.append(f"#   {first} to {last}: {printable(group.gpu.display_name[:200])}")
        first = last + 1
    return "\n".join([*lines, _MIXED])


# --------------------------------------------------------------------------------------------------
# The script that starts one node: its requirements, its environment, its command.


ARGUMENTS_FILE = "plan_args.sh"


# --------------------------------------------------------------------------------------------------
# A guard of the rest of a command line. Names are compared without leading dashes (or Hydra's + and
# ~), in lower case, - for _, and without what makes an opposite of them; a name that begins another is its
# abbreviation, as Python's argparse takes it.


def plain_name(name: str) -> str:
    """Return a name of an argument in the form that the guard compares."""
    plain = name.partition("=")[0].lstrip("-+~").replace("_", "-").lower()
    return plain.removeprefix("no-").removeprefix("disable-")


def guard(names: Iterable[str], *, assignments: bool = False) -> str:
    """Return the Bash lines that refuse arguments of these names; ``assignments``: ``name=value``, too."""
    words = " ".join(sorted({plain_name(name) for name in names}))
    lines = textwrap.wrap(
        words, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    pattern = "@(--*|+*|~*|*=*)" if assignments else "--*"
    return filled(template("scripts/guard.sh"), {"NAMES": "\n".join(lines), "PATTERN": pattern})


_TORCHRUN = """\
exec torchrun --nnodes "${NUM_NODES}" --nproc-per-node "${GPUS_PER_NODE}" \\
    --rdzv-backend static --node-rank "${NODE_RANK}" \\
    --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" \\
    @PROGRAM@ "$@\""""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentVariable:
    """An environment variable that the run needs."""

    name: str
    value: str | None  # None: it must not be set
    reason: str
    is_expression: bool = False  # the value is Bash, already quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    """The command that starts one node's processes."""

    program: str  # program for torchrun, in Bash, or the whole command with ``command``
    needs: Sequence[tuple[str, str]] = ()  # variables that the user sets, with their meaning
    takes: Sequence[tuple[str, str]] = ()  # optional variables, with their meaning
    follows: str = ""  # required arguments after the command
    environment: Sequence[EnvironmentVariable] = ()
    has_arguments: bool = False  # ``PLAN_ARGS`` is read from its file
    decides: Sequence[str] = ()  # names of arguments that may not follow on the command line
    assignments: bool = False  # arguments may be ``name=value``
    command: bool = False  # ``program`` does not run under torchrun
    torch: bool = True  # the program is PyTorch's, and its allocator holds the memory
    starts_all: bool = False  # the script is run on one node, from which the launcher starts the others
    before: str = ""  # lines of Bash that the program needs
    packages: Sequence[Requirement] = ()  # packages that the plan needs and the script checks


def launch_script(head: str, target: Target, start: StartCommand) -> str:
    """Return the script of one node's processes; run it on every node with its own NODE_RANK."""
    command = start.program if start.command else _TORCHRUN.replace("@PROGRAM@", start.program)
    sourced = f'source "${{here}}/{ARGUMENTS_FILE}"  # PLAN_ARGS: every value that the plan decided\n'
    needs = [required(name, f"set it to {hint}") for name, hint in start.needs]
    values = {
        "SOURCE": sourced if start.has_arguments else "",
        "NODES": str(target.num_nodes),
        "GPUS": ranks_in_bash(target),
        "MASTER": "localhost" if target.num_nodes == 1 else next(iter(target.host_names), ""),
        "NEEDS": "\n".join(["# What the plan does not decide.", *needs, "", ""]) if needs else "",
        "PACKAGES": package_checks(start.packages),
        "GUARD": guard(start.decides, assignments=start.assignments) if start.decides else "",
        "ENVIRONMENT": environment_lines(
            (*start.environment, *common_environment(target, torch=start.torch))
        ),
        "COMMAND": f"{start.before}\n{command}" if start.before else command,
    }
    return "#!/usr/bin/env bash\n" + head + filled(template("scripts/launch.sh"), values)


_SPECIAL = re.compile(r'([\\"$`])')  # in double quotes


def required(name: str, message: str) -> str:
    """Return the line of Bash that stops with a message if a variable is not set.

    The message alone is in double quotes: in ``"${X:?it's …}"`` Bash takes the apostrophe for the beginning
    of a quoted text, which goes on to the next one, lines later.
    """
    return ": ${" + name + ':?"' + _SPECIAL.sub(r"\\\1", message) + '"}'


PACKAGE_CHECK = "CHECK_PACKAGES"  # the variable


def package_checks(packages: Sequence[Requirement]) -> str:
    """Return the lines of Bash that stop if a package is missing or too old; empty without any."""
    if not packages:
        return ""
    lines = []
    for one in packages:
        words = (f"{_named(one)} ({one.why})", one.check, one.package, _remedy(one))
        name, check, package, remedy = (shlex.quote(word) for word in words)
        lines.append(f"needs_package {name} \\\n    {check} \\\n    {package} {remedy}")
    return filled(template("scripts/packages.sh"), {"CHECKS": "\n".join(lines), "CHECK": PACKAGE_CHECK})


def _named(requirement: Requirement) -> str:
    return f"{requirement.name}{' or newer' if requirement.minimum else ''}"


def _remedy(requirement: Requirement) -> str:
    return f"{requirement.install}, or plan with {requirement.instead}"


def common_environment(target: Target, *, torch: bool = True) -> Iterator[EnvironmentVariable]:
    """Yield the variables for any program, or any of PyTorch's, unless the user has set them.

    Programs count the GPUs that they see. Of one process on several, transformers makes replicas
    (``nn.DataParallel``), JAX takes all, and ms-swift spreads the model or stops (utils/env.py ``is_mp``).
    """
    used, there = target.gpus_per_node, target.problem.cluster.groups[0].gpus_per_node
    if used < there and vendor_of(target.gpu) in _SEE_BY_NUMBER:
        numbers = ",".join(map(str, range(used)))
        yield EnvironmentVariable(
            name="CUDA_VISIBLE_DEVICES",
            value=f'"${{CUDA_VISIBLE_DEVICES:-{numbers}}}"',
            reason=f"The plan uses {used} of the {there} GPUs of a node; programs would count all of them.",
            is_expression=True,
        )
    if torch:
        yield EnvironmentVariable(
            name="PYTORCH_CUDA_ALLOC_CONF",
            # The older of two names: every torch reads it, before the newer one, which a user may have set.
            value='"${PYTORCH_CUDA_ALLOC_CONF:-${PYTORCH_ALLOC_CONF:-expandable_segments:True}}"',
            reason="The allocator's blocks grow in place, so that less memory is lost between them.",
            is_expression=True,
        )
    if target.workload.framework_options.get("launch_blocking"):
        yield EnvironmentVariable(
            name="CUDA_LAUNCH_BLOCKING",
            value="1",
            reason="The plan was priced with a CPU that waits for every kernel.",
        )


_SEE_BY_NUMBER = ("nvidia", "amd")  # ROCm reads the same variable


def environment_lines(variables: Sequence[EnvironmentVariable]) -> str:
    """Return each variable under its reason."""
    if not variables:
        return "# This plan needs no environment variable."
    lines = []
    for variable in variables:
        lines.append(f"# {variable.reason}")
        if variable.value is None:
            lines.append(f"unset {variable.name}")
        else:
            value = variable.value if variable.is_expression else shlex.quote(variable.value)
            lines.append(f"export {variable.name}={value}")
    return "\n".join(lines)


def arguments_file(head: str, parts: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return a Bash array ``PLAN_ARGS``: the arguments under each title, one per line."""
    lines = ["PLAN_ARGS=("]
    for title, arguments in parts:
        if arguments:
            lines.append(f"    # {title}")
            lines += [f"    {argument}" for argument in arguments]
    return "\n".join([head, *lines, ")", ""])


OwnFiles = Callable[[str], Mapping[str, str]]


def bundled(
    target: Target,
    *,
    product: str,
    start: StartCommand,
    warnings: Iterable[str],
    own: OwnFiles,
    shape: bool = False,
) -> ExportBundle:
    """Return ``own`` files with one header, which names the product and all warnings, and both scripts.

    Args:
        target: the plan and its problem; already checked against the launcher's rules.
        product: the launcher with its version.
        start: how a node starts its processes.
        warnings: approximations, and parts that are left to the user.
        own: from the header's text to the launcher's own files by name.
        shape: whether the header names the model's shape, which no file of the launcher does.
    """
    remarks = list(warnings)
    head = header(target, remarks, product, packages=start.packages, shape=shape)
    scripts = {
        TORCHRUN_FILE: launch_script(head, target, start),
        SLURM_FILE: slurm_script(head, target, torch=start.torch),
    }
    return with_readme(target, {**own(head), **scripts}, product=product, start=start, warnings=remarks)


def with_readme(
    target: Target, files: Mapping[str, str], *, product: str, start: StartCommand, warnings: Sequence[str]
) -> ExportBundle:
    """Return the files with a README, and the hosts in the plan's order where ``launch.sh`` starts one."""
    if target.host_names and not start.starts_all:
        files = {**files, HOSTS_FILE: "".join(f"{host}\n" for host in target.host_names)}
    elif target.ordered_nodes and not target.host_names:
        numbers = numbers_in_words(target.ordered_nodes)
        warnings = [*warnings, f"node ranks take the cluster's nodes in this order: {numbers}"]
    defaults = dict(_DEFAULT.findall(files[TORCHRUN_FILE]))  # of a run, which follows the dry start
    own = ((name, value) for name, value in defaults.items() if name not in _OURS)
    start = replace(start, takes=(*start.takes, *own))
    text = readme(target, product=product, start=start, files=files, warnings=warnings)
    return ExportBundle(files={**files, README_FILE: text}, warnings=list(warnings))


# --------------------------------------------------------------------------------------------------
# The README of the folder, for readers and for users who start the run.


README_FILE = "README.md"
CHOSEN, STATED = " (chosen by the search)", " (stated in the request)"
_DEFAULT = re.compile(r"\$\{([A-Z][A-Z_]+):-([^}$]+)\}")
_OURS = (
    PACKAGE_CHECK,
    "NODE_RANK",
    "MASTER_ADDR",
    "MOCK_DATA",
    "TRAIN_ITERS",
    "LR",
    "PYTORCH_ALLOC_CONF",
)
_ID = 8  # digits of a plan's id that suffice


def readme(
    target: Target, *, product: str, start: StartCommand, files: Iterable[str], warnings: Sequence[str]
) -> str:
    """Return the plan, its reasons, how to start it, and what to send back, as Markdown."""
    plan, config = target.plan, target.config
    nodes, gpus = target.num_nodes, target.gpus_per_node
    last = f", {target.gpus_of_last_node} on the last" if target.idle_gpus else ""
    model, cluster = target.problem.model.title, target.problem.cluster.title
    lines = [
        f"# Plan {printable(plan.plan_id)} for {product}",
        "",
        f"{printable(model)} on {printable(cluster)}. {world_size(target)}.",
        "",
        "## Plan",
        "",
        "| setting | value |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _rows(target)),
        "",
        "## Why this plan",
        "",
        *_reasons(target),
        "",
        *_packages(start),
        "## Start",
        "",
        *_steps(
            start,
            nodes,
            "" if target.config.stage_groups else f" ({gpus} GPUs{last})",
            named=bool(target.host_names),
        ),
        "",
        *_open_points(warnings),
        "## Report what you measured",
        "",
        "The log of a dry start or of a run shows how far off the prediction is, and corrects the next",
        f"plans for this cluster. It is what {TORCHRUN_FILE} prints on the first node, kept with",
        f"`2>&1 | tee train.log`; under Slurm it is `meshwright-{printable(plan.plan_id)}-JOB.log`:",
        "",
        "```sh",
        f"meshwright import train.log --plan {printable(plan.plan_id)[:_ID]} --into runs.csv",
        "meshwright validate runs.csv",
        "meshwright calibrate runs.csv --out ours.json",
        "```",
        "",
        f"A step of {plan.prediction.step_time_s:.3f} s on {config.num_gpus} GPUs is predicted.",
        "Send the log, the largest memory that a rank reserved, and what you changed.",
        "",
        "## Files",
        "",
        *(f"- `{name}`" for name in files),
        "",
        f"Launcher versions that have read such files: {_judged(target.problem.launcher)}.",
        "",
    ]
    return "\n".join(lines)


def _rows(target: Target) -> Iterator[tuple[str, str]]:
    config, prediction = target.config, target.plan.prediction
    for name, value in trained(target):
        yield f"`{name}`", f"{value}{CHOSEN}" if target.chose(name) else value
    for name, variable in VARIABLES.items():
        value = getattr(config, name)
        if value != variable.off or variable.in_tables:
            yield f"`{name}`", str(value).lower() if isinstance(value, bool) else str(value)
    yield "`stage_layers`", " ".join(map(str, config.stage_layers))
    low, high = prediction.step_time_low_s, prediction.step_time_high_s
    yield "step", f"{prediction.step_time_s:.3f} s ({low:.3f} to {high:.3f})"
    peak, limit = (size / GIB for size in (prediction.peak_memory_bytes, prediction.memory_limit_bytes))
    yield "memory", f"{peak:.1f} of {limit:.1f} GiB on stage {prediction.heaviest_stage}"
    for name, option in sorted(target.workload.framework_options.items()):
        word = str(option).lower() if isinstance(option, bool) else printable(str(option))[:80]
        yield f"`{name}`", word + (CHOSEN if target.chose(name) else STATED)


def _reasons(target: Target) -> list[str]:
    why = target.plan.why
    if why is None:
        return [f"It ranks {target.plan.rank} in its answer under the cost model."]
    return [
        f"- {printable(text.replace(NO_BREAK, ' '))}" for text in (time_sentence(why), limit_sentence(why))
    ]


def _packages(start: StartCommand) -> Iterator[str]:
    """Yield the packages that the plan needs, the reason, and the case that works without them."""
    if not start.packages:
        return
    yield "## Packages"
    yield ""
    yield f"These packages are needed too. `{TORCHRUN_FILE}` looks for them in `python3` before anything"
    yield f"starts; `{PACKAGE_CHECK}=0` skips that."
    yield ""
    for one in start.packages:
        yield f"- **{_named(one)}**: {one.why} ({one.source}). Get it: {_remedy(one)}."
    yield ""


def _steps(start: StartCommand, nodes: int, gpus: str, *, named: bool) -> Iterator[str]:
    if start.needs:
        yield "Set these variables, which the plan does not decide:"
        yield ""
        yield from (f"- `{name}`: {hint}" for name, hint in start.needs)
        yield ""
    if start.takes:
        listed = ", ".join(f"`{name}` ({value})" for name, value in start.takes)
        yield f"Optional variables, with their defaults: {listed}."
        yield ""
    if not start.starts_all:
        yield "Further arguments of the command line are passed to the launcher, if it takes any."
    yield "What no file states (warm-up and decay of the learning rate, weight decay, Adam's betas, the"
    yield "seed) keeps the launcher's default."
    yield ""
    each = "On the node" if nodes == 1 else f"On each of the {nodes} nodes, with its own NODE_RANK from 0"
    each += f" (the line of the host in {HOSTS_FILE})" if named else ""
    each = "On the first node, from which it starts the others" if start.starts_all else each
    yield f"{each}{gpus}:"
    yield ""
    yield "```sh"
    given, behind = "".join(f"{name}=… " for name, _ in start.needs), f" {start.follows}".rstrip()
    rank = "" if nodes == 1 or start.starts_all else f"NODE_RANK=0 {'' if named else 'MASTER_ADDR=host0 '}"
    yield f"{rank}{given}bash {TORCHRUN_FILE}{behind}"
    yield "```"
    if start.starts_all:
        return
    yield ""
    yield "Under Slurm, from this folder:"
    yield ""
    yield "```sh"
    yield f"{given}sbatch {SLURM_FILE}{behind}"
    yield "```"


def _open_points(warnings: Sequence[str]) -> Iterator[str]:
    if warnings:
        yield "## Check before you start"
        yield ""
        yield from (f"- {printable(text)}" for text in warnings)
        yield ""


def _judged(launcher: str) -> str:
    """Return the versions of the launcher that have read such files, with the day."""
    words = [f"{one.package} {one.version} on {one.date} ({one.by})" for one in judged_versions(launcher)]
    return "; ".join(words) or "none"
