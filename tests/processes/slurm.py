"""A stand-in for Slurm's ``srun`` and ``scontrol``: an allocation whose nodes are all this machine.

It does what Slurm 22.05 was seen to do. A node in the file ``failed`` beside the programs has left the job,
but not its environment. squeue also lists another task of the job's array, on nodes of its own. A step has
a number and a part of the allocation's hosts. Its tasks have sessions of their own; they outlive an srun
that is killed, and end with one that is asked to end. Until they are gone the next step waits. The exit
code is the tasks' highest, 128 and more for signals.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

_SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] || { echo "requeued $2"; exit; }
IFS=,
for host in $3; do echo "$host"; done
"""

_SQUEUE = """#!/bin/sh
held="$(echo "$SLURM_JOB_NODELIST" | tr , '\\n' | grep -vxFf "$(dirname "$0")/failed")"
named="$(echo "$held" | paste -sd,)"
case "$*" in
*"%A %D %N") echo "7000 2 n8,n9"; echo "$SLURM_JOB_ID $(echo "$held" | wc -l) $named" ;;
*"%A %N") echo "7000 n8,n9"; echo "$SLURM_JOB_ID $named" ;;
esac
"""

_SRUN = r"""#!%s -IS
import fcntl, os, signal, subprocess, sys, time

words, given = sys.argv[1:], {"--ntasks-per-node": "1"}
while words and words[0].startswith("-"):
    name, _, value = words.pop(0).partition("=")
    if name in ("-N", "-n"):
        value = words.pop(0)
    given[{"-N": "--nodes", "-n": "--ntasks"}.get(name, name)] = value
hosts = os.environ["SLURM_JOB_NODELIST"].split(",")
if given.get("--distribution") == "arbitrary":
    hosts = open(os.environ["SLURM_HOSTFILE"]).read().split()
failed = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "failed")).read().split()
if set(given.get("--nodelist", "").split(",")) & set(failed):
    sys.exit("srun: error: Unable to create step for job 7001: Requested nodes are not available")
hosts = [host for host in hosts if host not in failed]
asked = given.get("--gpus", os.environ.get("SLURM_GPUS"))
if asked and int(asked) > int(given.get("--nodes", len(hosts))) * int(
    os.environ.get("SLURM_GPUS_PER_NODE", "0").rpartition(":")[2]
):
    sys.exit("srun: error: Unable to create step for job 7001: More processors requested than permitted")
if "--nodelist" in given:
    hosts = [host for host in hosts if host in given["--nodelist"].split(",")]
hosts = hosts[: int(given.get("--nodes", os.environ["SLURM_NNODES"]))]
each = int(given["--ntasks-per-node"])
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "steps")
os.makedirs(folder, exist_ok=True)
busy = os.open(os.path.join(folder, "busy"), os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the tasks inherit it
except OSError:
    sys.stderr.write("srun: Job step creation temporarily disabled, retrying (Requested nodes are busy)\n")
    fcntl.flock(busy, fcntl.LOCK_EX)
step = str(len(os.listdir(folder)) - 1)
tasks = []
for rank, host in enumerate(host for host in hosts for _ in range(each)):
    # No variable of ours tells tasks from others: on a real cluster they run on other machines.
    own = {name: value for name, value in os.environ.items() if name != "MESHWRIGHT_SAVE_DIR"}
    own |= {
        "SLURM_STEP_ID": step, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // each),
        "SLURM_NNODES": str(len(hosts)), "SLURM_STEP_NUM_NODES": str(len(hosts)),
        "SLURM_STEP_NODELIST": ",".join(hosts), "SLURMD_NODENAME": host,
        "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{len(hosts)})",
    }
    tasks.append(subprocess.Popen(words, env=own, start_new_session=True, pass_fds=[busy]))


def end(number, whose=tasks):
    for one in whose:
        if one.poll() is None:
            os.killpg(one.pid, number)


def asked(*_):
    sys.stderr.write("srun: forcing job termination\n")
    end(signal.SIGKILL)


signal.signal(signal.SIGTERM, asked)
signal.signal(signal.SIGUSR1, lambda *_: end(signal.SIGUSR1))
open(os.path.join(folder, step), "w").close()  # whoever sees it can ask this srun to end
os.close(busy)
while any(one.poll() is None for one in tasks):
    if given.get("--kill-on-bad-exit") == "1" and any(one.returncode for one in tasks):
        end(signal.SIGTERM)
    time.sleep(0.02)
sys.exit(max(one.returncode if one.returncode >= 0 else 128 - one.returncode for one in tasks))
"""


def allocation(
    programs: Path, num_nodes: int, gpus_per_node: int = 2, *, hosts: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of a Slurm allocation's first shell, whose programs are written into a folder.

    ``hosts``: names of its nodes that something listens to; n1, n2, … unless stated.
    """
    hosts = hosts or [f"n{number}" for number in range(1, num_nodes + 1)]
    (programs / "failed").write_text("")
    for name, text in {"srun": _SRUN % sys.executable, "scontrol": _SCONTROL, "squeue": _SQUEUE}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        "SLURM_JOB_ID": "7001", "SLURM_JOB_NUM_NODES": str(num_nodes), "SLURM_NNODES": str(num_nodes),
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "SLURM_GPUS_PER_NODE": f"h100:{gpus_per_node}",
    }  # fmt: skip
