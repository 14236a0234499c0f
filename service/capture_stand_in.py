"""Stands in for ``torchrun``, ``python``, ``srun`` and their like: records the call and exits.

Run by the commands of a script under ``meshwright capture``, as a program of whatever name it has; it
starts alone, with nothing but the standard library. ``srun``, ``mpirun`` and ``uv run`` go on to what they
would start, so that a launcher within them is written down as well. Nothing is trained.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence

FOLDER = "MESHWRIGHT_CAPTURE_FOLDER"  # where calls are written
BEFORE = "MESHWRIGHT_CAPTURE_BEFORE"  # the calls that this one runs within, as JSON
STARTERS = ("torchrun", "deepspeed", "accelerate", "swift", "megatron", "llamafactory-cli", "axolotl")
PYTHONS = ("python", "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13")
WRAPPERS = ("srun", "mpirun", "mpiexec", "uv")
REMOTE = ("ssh", "pdsh", "scp", "sbatch", "scancel")
NAMES = (*STARTERS, *PYTHONS, *WRAPPERS, *REMOTE)
_MAX_FILE = 200_000  # characters of a configuration
_MAX_FILES = 8
_CONFIGURATIONS = (".json", ".yaml", ".yml", ".toml")
_PIECES = "tokenizer.model"
_MAX_TOKENIZER = 8_000_000
_RELEVANT = re.compile(
    r"(?:CUDA|NCCL|TORCH|NVTE|MASTER|WORLD|RANK|LOCAL_RANK|NNODES|NODE_RANK|NUM_NODES|NPROC|NGPU|GPUS|SLURM|OMPI|OMP|DS|"
    r"ACCELERATE|FSDP|PARALLELISM|USE_MCA|FORCE_TORCHRUN|UB|HSA|HIP|ROCR|XLA|PYTORCH|MEGATRON)(?:_\w+)?$"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE", re.IGNORECASE)
# Options that take the next word, by wrapper; others that begin with a dash take none.
_TAKES_ONE = {
    "srun": (
        "-N", "-n", "-c", "-p", "-A", "-w", "-x", "-t", "-J", "-o", "-e", "-i", "-G", "-D", "-q", "-r",
        "-m", "--jobid", "--nodes", "--ntasks", "--gres", "--partition", "--account", "--nodelist",
        "--exclude", "--time", "--job-name", "--output", "--error", "--ntasks-per-node",
        "--cpus-per-task", "--chdir",
        "--gpus-per-node", "--gpus", "--container-image", "--container-mounts", "--export", "--mpi",
        "--cpu-bind", "--gpus-per-task", "--relative", "--container-workdir", "--container-name", "--mem",
        "-C", "--constraint", "--container-env", "--distribution", "--gpu-bind", "--qos", "--reservation",
        "--mem-per-gpu", "--mem-per-cpu", "--mem-bind", "--ntasks-per-gpu", "--cpus-per-gpu", "--hint",
        "--tasks-per-node", "--ntasks-per-socket", "--threads-per-core", "--gres-flags", "--tres-per-task",
        "-d", "--dependency", "-L", "--licenses", "-M", "--clusters", "-W", "--wait", "--input",
        "--comment", "--open-mode", "--network", "--signal", "--switches", "--task-prolog", "--task-epilog",
        "--prolog", "--epilog", "--het-group", "--cpu-freq",
    ),
    "mpirun": (
        "-np", "--np", "-n", "--n", "-c", "-N", "-x", "-H", "--host", "-host", "-hosts", "--machinefile",
        "--rank-by", "-rank-by", "--npersocket", "-npersocket", "--wdir", "-wd", "--output-filename",
        "--hostfile", "-hostfile", "-machinefile", "--bind-to",
        "-bind-to", "--map-by", "-map-by", "-ppn", "--npernode", "-npernode", "-f", "-wdir", "--prefix",
        "-d", "--depth", "--ppn", "--cpu-bind", "--rankfile", "--tag", "--envall-except",
    ),
    "uv": ("--project", "--python", "-p", "--with", "--extra", "--group", "--directory", "--env-file"),
}  # fmt: skip
_TAKES_TWO = {"mpirun": ("-mca", "--mca", "-genv", "-env")}


def main(argv: Sequence[str]) -> int:
    """Write the call down; go on with what a wrapper starts; the exit code."""
    name, rest = os.path.basename(argv[0]), list(argv[1:])
    if name in PYTHONS and _is_asked(rest):
        return _real(name, rest)
    inner = _inner(name, rest)
    if name == "uv" and (inner is None or rest[:1] != ["run"]):
        return _real(name, rest)
    if inner is None or name in REMOTE:
        _write(name, rest)
        return 0
    before = [*json.loads(os.environ.get(BEFORE, "[]")), [name, *rest[: len(rest) - len(inner)]]]
    environment = {**os.environ, BEFORE: json.dumps(before)}
    if name == "srun":
        for variable in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
            environment.setdefault(variable, "0")
    environment["PATH"] = (
        os.path.dirname(os.path.abspath(argv[0])) + os.pathsep + environment.get("PATH", "")
    )
    try:
        os.execvpe(inner[0], inner, environment)
    except OSError as fault:
        sys.stderr.write(f"{inner[0]}: {fault.strerror}\n")
        return 127


def _is_asked(rest: Sequence[str]) -> bool:
    """Whether a script reads what this Python prints, of a command in its own words, or its version."""
    if rest[:1] in (["-V"], ["--version"], ["-VV"]):
        return True
    stat = os.fstat(1)
    return rest[:1] == ["-c"] and f"{stat.st_dev}:{stat.st_ino}" != os.environ.get(f"{FOLDER}_OUTPUT", "")


def _real(name: str, rest: Sequence[str]) -> int:
    own = os.path.dirname(os.path.abspath(sys.argv[0]))
    paths = [path for path in os.environ.get("PATH", "").split(os.pathsep) if os.path.abspath(path) != own]
    environment = {**os.environ, "PATH": os.pathsep.join(paths)}
    try:
        os.execvpe(name, [name, *rest], environment)
    except OSError:
        sys.stderr.write(f"{name}: not found\n")
        return 127


def _inner(name: str, rest: Sequence[str]) -> list[str] | None:
    """Return the command within a wrapper's; None if there is none, or it is not a wrapper."""
    if name not in WRAPPERS:
        return None
    kind = "mpirun" if name == "mpiexec" else name
    at = 1 if name == "uv" else 0
    while at < len(rest):
        word = rest[at]
        if word == "--":
            return list(rest[at + 1 :]) or None
        if not word.startswith("-"):
            return list(rest[at:])
        takes = 2 if word in _TAKES_TWO.get(kind, ()) else 1 if word in _TAKES_ONE[kind] else 0
        at += 1 + takes
    return None


def _write(name: str, rest: Sequence[str]) -> None:
    folder = os.environ.get(FOLDER, "")
    begun = {*json.loads(os.environ.get(f"{FOLDER}_ENVIRONMENT", "[]"))}
    environment = {
        key: value[:2_000]
        for key, value in sorted(os.environ.items())
        if (_RELEVANT.match(key) or key not in begun)
        and not _SECRET.search(key)
        and not key.startswith(("MESHWRIGHT_CAPTURE", "BASH", "SHELLOPTS", "_", "PWD", "OLDPWD", "SHLVL"))
    }
    call = {
        "program": name,
        "argv": [name, *rest],
        "before": json.loads(os.environ.get(BEFORE, "[]")),
        "directory": os.getcwd(),
        "environment": environment,
        "files": _files(rest),
    }
    try:
        place = sorted(os.listdir(folder))
        path = os.path.join(folder, f"{len(place):06d}-{os.getpid()}.json")
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(call, file)
        os.rename(f"{path}.part", path)
    except OSError as fault:
        sys.stderr.write(f"meshwright capture: {fault}\n")


def _files(words: Sequence[str]) -> dict[str, str]:
    """The configurations that the words name, tokenizers' tables, and the modules of ``--module NAME``."""
    found: dict[str, str] = {}
    named = [_path(piece) for word in words for piece in word.partition("=")[::2]]
    for path in [*named, *_modules(words)]:
        if not path or len(found) >= _MAX_FILES or not os.path.isfile(path):
            continue
        pieces = path.endswith(_PIECES)  # of SentencePiece: bytes, one a character
        most = _MAX_TOKENIZER if pieces or path.endswith("tokenizer.json") else _MAX_FILE
        try:
            with open(path, "rb") as file:
                data = file.read(most + 1)
            text = data.decode("latin-1" if pieces else "utf-8-sig")
        except (OSError, UnicodeDecodeError):
            continue
        if len(text) <= most:
            found[os.path.basename(path)] = text
    return found


def _path(piece: str) -> str:
    """Return the file that a word names, or the table in the folder that it names."""
    if piece.endswith((*_CONFIGURATIONS, _PIECES)):
        return piece
    return os.path.join(piece, "tokenizer.json") if os.path.isdir(piece) else ""


def _modules(words: Sequence[str]) -> list[str]:
    """Return where torchtitan would find the configuration of ``--module NAME``."""
    names = [words[at + 1].replace(".", os.sep) for at, word in enumerate(words[:-1]) if word == "--module"]
    folders = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    ends = (".py", os.path.join(os.sep, "config_registry.py"))
    return [os.path.join(folder, name) + end for name in names for folder in folders for end in ends]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
