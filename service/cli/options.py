"""The options that describe a problem, shared by every command that takes one.

``read_request`` is both the list of options (its signature) and what becomes of them (its result: a raw
request, the file first, options over it). Help must come at once: nothing here loads the solver.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from meshwright.profiles.optimizers import OPTIMIZERS

# --------------------------------------------------------------------------------------------------
# What a shell offers for the value of an option: names of the catalog.


def _names_from(where: str, *more: str) -> Callable[[str], list[str]]:
    """Return the completion by a function of ``meshwright.profiles``, which is loaded when it is asked."""

    def beginning(incomplete: str) -> list[str]:
        module, _, function = where.partition(":")
        names = getattr(import_module(f"meshwright.profiles.{module}"), function)()
        return [name for name in dict.fromkeys((*names, *more)) if name.startswith(incomplete)]

    return beginning


complete_model = _names_from("library:model_names")
complete_cluster = _names_from("library:cluster_names")
complete_gpu = _names_from("library:gpu_names")
complete_stack = _names_from("frameworks:framework_names")
complete_launcher = _names_from("capabilities:launcher_names", "any", "none")


Request = dict[str, object]
PROFILE_HELP = (
    "Calibration (calibrate --out), or measured profile (profile, import); one for each GPU type."
)
SWEEP_HELP = "Search every combination: num_nodes=8,16; global_batch_size, cluster, tp, …"
_STACKS = "An older software stack to price the launcher as: megatron-lm-2021, fsdp1, …"
SET_HELP = (
    "Value of the run that is priced: part of its configuration (tp=8), or what launch files leave open "
    "(vocab_size=128256). Where a search chooses the configuration, --pin states its parts."
)
FROM_ARGS_HELP = "Launch file to read (repeat for files it refers to), or a folder."
VAR_HELP = "Value of a shell variable, before the script's own (1=…: its first argument)."
IGNORE_HELP = "Ignore this flag of the launch file."
RUN_HELP = "Which of several runs that the launch file starts, from 1; its refusal lists them."
_SIZES = "Fix a size: tensor_parallel_size, pipeline_parallel_size, … or tp, pp, …."


def read_request(  # noqa: PLR0913 - the signature is the list of options
    problem: Annotated[
        Path | None, typer.Argument(help="Problem file (JSON or YAML); options override it.")
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Catalog name, Hugging Face id, or config.json (./PATH).",
            autocompletion=complete_model,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Catalog name, or a cluster file.", autocompletion=complete_cluster),
    ] = None,
    num_nodes: Annotated[
        str | None,
        typer.Option(
            metavar="N|N,N|LOW:HIGH",
            help="Number of nodes; a list or range lets the search choose.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="GPU type, instead of --cluster.", autocompletion=complete_gpu),
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of one node, with --gpu.")] = None,
    global_batch_size: Annotated[
        str | None, typer.Option(metavar="N|N,N|LOW:HIGH", help="Sequences per optimizer step.")
    ] = None,
    seq_length: Annotated[int | None, typer.Option(help="Tokens per sequence.")] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|pN=N,…",
            help="Document lengths: percentiles (p50=900,p100=8192) or a file.",
        ),
    ] = None,
    batching: Annotated[
        str | None,
        typer.Option(help="How documents become sequences: packing, padding or padding_to_longest."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, mxfp8, nvfp4 or fp32.")] = None,
    optimizer: Annotated[str | None, typer.Option(help=f"{', '.join(OPTIMIZERS)}.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="LoRA rank; 0 trains the full model.")] = None,
    lora_target: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Modules that LoRA adapts, e.g. q_proj."),
    ] = None,
    base_precision: Annotated[
        str | None,
        typer.Option(
            help="Storage type of the frozen weights: bf16, fp32, int8, nf4 or nf4-double (QLoRA)."
        ),
    ] = None,
    trained_module: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Modules trained in full next to LoRA: embed_tokens, lm_head, norm.",
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="megatron-lm, torchtitan, …, any or none.",
            autocompletion=complete_launcher,
        ),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(help=_STACKS, autocompletion=complete_stack),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Number of plans to rank.")] = None,
    diverse: Annotated[
        bool | None,
        typer.Option(
            help="The best plan of each mesh first, or layouts that differ in ZeRO stage and micro-batch "
            "alone as well."
        ),
    ] = None,
    time_limit_s: Annotated[float | None, typer.Option(help="Seconds the search may take.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; the same seed gives the same answer.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="step_time, tokens_per_s_per_gpu, gpu_hours_per_token or energy_per_token."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="all|fewest", help="Use all GPUs, or the fewest that fit a plan."),
    ] = None,
    reserve_nodes: Annotated[int | None, typer.Option(help="Number of nodes kept spare.")] = None,
    total_tokens: Annotated[
        float | None, typer.Option(help="Tokens in the whole training run, e.g. 15e12.")
    ] = None,
    deadline_days: Annotated[
        float | None, typer.Option(help="Finish --total-tokens within this many days.")
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(help="Price of one GPU-hour, to report cost.")
    ] = None,
    pareto: Annotated[
        bool | None,
        typer.Option("--pareto", help="Also report the Pareto front of step time and memory."),
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="File of your configuration, to rank it.")] = None,
    certify: Annotated[
        str | None,
        typer.Option(help="Judge that proves plans: none, cp-sat (the best plan) or cp-sat-all."),
    ] = None,
    max_oom_probability: Annotated[
        float | None,
        typer.Option(help="Highest acceptable probability of running out of memory."),
    ] = None,
    pin: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=_SIZES)] = None,
    bound: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW:HIGH", help="Lower and upper bound, inclusive: mbs=1:4."),
    ] = None,
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="NAME=V[,V]", help="Values to avoid: tp=8.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Search offload, fp8, an optimizer or a switch too; switches: all, also those that need a "
            "package; none: no switch.",
        ),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPRESSION", help="Must hold: 'tp * cp <= 8'."),
    ] = None,
) -> Request:
    """The raw request of a problem file with the options that override it."""
    given = SimpleNamespace(**locals())
    from meshwright.service.cli.problem_options import request_of  # noqa: PLC0415 - help loads no solver

    return request_of(given)


# What lists plans next to the best one; commands that show no ranking leave it out.
OF_A_RANKING = frozenset({"top_k", "diverse", "pareto", "baseline"})
# What only a search can apply.
OF_A_SEARCH = OF_A_RANKING | {
    "time_limit_s", "seed", "objective", "gpus", "total_tokens", "deadline_days", "gpu_hour_price",
    "certify", "pin", "bound", "forbid", "allow", "constraint",
}  # fmt: skip


# The groups of a long command's help, the common options first: the others are behind --help-all.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Common options": (
        "model", "cluster", "num_nodes", "gpu", "global_batch_size", "seq_length", "precision", "launcher",
        "save_dir", "json_output",
    ),
    "Model and data": (
        "lengths", "batching", "optimizer", "lora_rank", "lora_target", "base_precision", "trained_module",
    ),
    "Cluster and software": ("gpus_per_node", "gpus", "reserve_nodes", "stack", "profile"),
    "Search": (
        "objective", "top_k", "diverse", "pareto", "baseline", "sweep", "time_limit_s", "seed", "certify",
        "max_oom_probability",
    ),
    "Sizes": ("pin", "bound", "forbid", "allow", "constraint"),
    "Whole run": ("total_tokens", "deadline_days", "gpu_hour_price"),
    "From a launch file": ("from_capture", "assign", "variable", "ignored", "run"),
    "Output": ("csv_output", "force", "measure_next"),
}  # fmt: skip


DEFAULTS: Mapping[str, str] = {
    "model": "required", "cluster": "required, or --gpu", "num_nodes": "1", "gpu": "none",
    "global_batch_size": "required", "seq_length": "required", "precision": "bf16",
    "launcher": "the first that can express the model", "save_dir": "nothing is written",
    "json_output": "a table", "lengths": "full sequences", "batching": "packing", "optimizer": "adamw",
    "lora_rank": "0", "lora_target": "attention's", "base_precision": "bf16", "trained_module": "none",
    "gpus_per_node": "as its usual node", "gpus": "all", "reserve_nodes": "0", "stack": "the current one",
    "profile": "the catalog's", "objective": "step_time", "top_k": "10", "diverse": "--diverse",
    "pareto": "off", "baseline": "none", "sweep": "none", "time_limit_s": "30", "seed": "0",
    "certify": "cp-sat", "max_oom_probability": "0.01", "pin": "none", "bound": "none", "forbid": "none",
    "allow": "the switches that a stock launcher runs", "constraint": "none", "total_tokens": "none",
    "deadline_days": "none", "gpu_hour_price": "none", "from_capture": "none", "assign": "none",
    "variable": "none", "ignored": "none", "run": "the only one", "csv_output": "a table",
    "force": "refuse", "measure_next": "0",
}  # fmt: skip


class GroupedCommand(TyperCommand):
    """A command with help in groups and every default: the common options, or all for ``--help-all``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - Typer's own types
        """Write the options by group."""
        found = ((str(one.name), one.get_help_record(ctx)) for one in self.get_params(ctx))
        records = {name: record for name, record in found if record is not None}
        known = {name for names in GROUPS.values() for name in names}
        groups = dict(GROUPS) if ctx.meta.get(_ALL) else dict([next(iter(GROUPS.items()))])
        groups["Help"] = tuple(name for name in records if name not in known)
        for title, names in groups.items():
            with formatter.section(title):
                formatter.write_dl(
                    [_with_default(name, *records[name]) for name in names if name in records]
                )


def _with_default(name: str, option: str, words: str) -> tuple[str, str]:
    default = DEFAULTS.get(name)
    if default is None:
        return option, words
    shown = default if default.startswith("required") else f"default: {default}"
    return option, f"{words.partition('  [default')[0].removesuffix('.')} [{shown}]."


_ALL = "meshwright.help_all"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option and exit."),
]


def with_request(command: Callable[..., None], *, left_out: Collection[str] = ()) -> Callable[..., None]:
    """Give ``command`` the options of ``read_request`` as well, but for those ``left_out``.

    The first parameter of ``command`` is ``request``. The result also holds the names of these options.
    """
    every = inspect.signature(read_request, eval_str=True).parameters
    shared = {name: one for name, one in every.items() if name not in left_out}
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*shared.values(), *own)]

    @functools.wraps(command)
    def run(**given: object) -> None:
        request = read_request(**{name: given.pop(name) for name in shared})  # type: ignore[arg-type]
        command(request, **given)

    del run.__wrapped__  # Typer would look through it and see the parameters of ``command`` alone
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.of_the_problem = frozenset(shared)  # type: ignore[attr-defined]
    return run
