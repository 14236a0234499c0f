"""``meshwright here``: this machine, and the nodes like it, as a cluster file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def here(
    *,
    out: Annotated[Path | None, typer.Option(help="Cluster file to write [default: stdout].")] = None,
    hostfile: Annotated[
        Path | None, typer.Option(help="File with a host on each line, as DeepSpeed and MPI read it.")
    ] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of nodes [default: of the hostfile, job, Slurm or Kubernetes, or 1]"
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Cluster, launchers and notes as JSON, alone on stdout.")
    ] = False,
) -> None:
    """Find this machine's GPUs, links, hosts, memory and drives, and write them as a cluster file.

    It asks nvidia-smi, rocm-smi, torch, ibstat, lsblk, Slurm, Kubernetes and torchrun's environment, where
    they are there. On a login node it lists what the scheduler has. Plan with it: --cluster here.
    """
    import yaml  # noqa: PLC0415 - help reads no file

    from meshwright.profiles.documents import with_version  # noqa: PLC0415 - the same
    from meshwright.profiles.inline import cluster_from_mapping  # noqa: PLC0415 - the same
    from meshwright.service.cli.terminal import (  # noqa: PLC0415 - the same
        INFEASIBLE,
        print_json,
        say_error,
        say_warnings,
        write_file,
    )
    from meshwright.service.here import look, this_machine, why_none  # noqa: PLC0415 - the same

    machine = this_machine()
    found = look(machine, hostfile=hostfile, num_nodes=num_nodes)
    if found is None:
        say_error(why_none(machine))
        sys.stderr.write("tip: meshwright fits qwen3-8b --gpus 8xH100\n")
        raise typer.Exit(INFEASIBLE)
    cluster = cluster_from_mapping(found.cluster)
    if json_output:
        print_json({"cluster": found.cluster, "launchers": found.launchers, "notes": found.notes})
        return
    sys.stderr.writelines(f"{line}\n" for line in found.seen)
    if found.launchers:
        releases = ", ".join(f"{name} {release}" for name, release in found.launchers.items())
        sys.stderr.write(f"installed: {releases}\n")
    say_warnings([*found.notes, *cluster.warnings])
    text = yaml.safe_dump(with_version(found.cluster), sort_keys=False, allow_unicode=True)
    if out is None:
        sys.stdout.write(text)
        sys.stderr.write("use it with: meshwright plan MODEL --cluster here\n")
    else:
        write_file(out, text, "--out")
        sys.stderr.write(f"wrote {out}. Use it with: meshwright plan MODEL --cluster {out}\n")
