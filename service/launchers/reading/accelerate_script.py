"""What the command beside accelerate's YAML says: the training script's batch, and machine 0's address."""

from __future__ import annotations

from collections.abc import Iterator

from profiles.documents import shown
from profiles.errors import InvalidProblemError
from service.launchers.reading.commands import script_of
from service.launchers.reading.fields import Fields
from service.launchers.reading.known import Known
from service.launchers.reading.shell import Word

MICRO_BATCH = "per_device_train_batch_size"  # names of transformers' TrainingArguments
ACCUMULATION = "gradient_accumulation_steps"
CHECKPOINTING = "gradient_checkpointing"
NO_LENGTH = "no field of it holds the sequence: --seq-length"
_ADDRESS = "main_process_ip"
_ARGUMENTS = (MICRO_BATCH, ACCUMULATION, CHECKPOINTING, _ADDRESS)
_OWN_MULTINODE = "deepspeed_config.deepspeed_multinode_launcher"
_MAX_DIGITS = 7

# Names of the file's own level that change no cost.
IRRELEVANT = (
    "compute_environment", "debug", "downcast", "enable_cpu_affinity", "machine_rank", "main_", "rdzv_",
    "same_network", "tpu_", "use_cpu", "gpu_ids", "dynamo",
)  # fmt: skip

Arguments = dict[str, Word]


def arguments(known: Known) -> Arguments:
    """Arguments that decide the run, from the scripts beside the file; the last of equal ones counts."""
    found: Arguments = {}
    for source in known.source.scripts():
        for words in script_of(source, known.told).commands:
            found |= dict(_given(words))
    return found


def _given(words: tuple[Word, ...]) -> Iterator[tuple[str, Word]]:
    """Names and values of one command."""
    for at, word in enumerate(words):
        name, equals, value = word.text.removeprefix("--").replace("-", "_").partition("=")
        following = words[at + 1].text if at + 1 < len(words) else ""
        if word.text.startswith("--") and name in _ARGUMENTS:
            text = value if equals else "true" if following[:2] == "--" else following
            yield name, Word(text, word.line)


def number(given: Arguments, name: str) -> int | None:
    """A whole number of the command; None where it is not given.

    Raises:
        InvalidProblemError: it is none.
    """
    word = given.get(name)
    if word is None or word.unknown:
        return None
    if word.text.isascii() and word.text.isdecimal() and len(word.text) <= _MAX_DIGITS and int(word.text):
        return int(word.text)
    raise InvalidProblemError.of(
        f"--{name}",
        f'line {word.line}: "{shown(word.text)}" is no whole number in range',
        allowed=f"1 to {10**_MAX_DIGITS - 1}",
    )


def recomputes(given: Arguments, known: Known) -> bool:
    """Whether the training script recomputes every layer."""
    word = given.get(CHECKPOINTING)
    said = word.text if word is not None else known.word("recompute_granularity", "")
    return said.lower() in ("true", "full", "1")


def require_address(fields: Fields, known: Known, given: Arguments) -> None:
    """Refuse several machines that do not know where machine 0 is; accelerate would not notice.

    What was exported is started by its own script, which says it.
    """
    machines = fields.integer("num_machines", 1)
    elsewhere = fields.word(_OWN_MULTINODE, "standard") != "standard"
    exported = known.header.plan_id is not None and not _starts_here(known)
    if machines == 1 or fields.has(_ADDRESS) or _ADDRESS in given or elsewhere or exported:
        return
    fields.fault(
        "num_machines",
        f"{machines}, but no {_ADDRESS}: every machine would wait for others at its own address",
        allowed=f"{_ADDRESS} in the file, or --{_ADDRESS} of the command, given beside it",
        nearest=_ADDRESS,
    )


def _starts_here(known: Known) -> bool:
    """Whether a script beside the file is what runs ``accelerate launch``."""
    return any(
        word.text == "accelerate"
        for source in known.source.scripts()
        for words in script_of(source, known.told).commands
        for word in words
    )


def require_same_machines(fields: Fields, known: Known) -> None:
    """Refuse a file for another number of machines than the scripts beside it start."""
    machines, started = fields.optional("num_machines"), known.world.num_nodes
    if machines and started and machines != started:
        fields.fault(
            "num_machines", f"{machines}, but the script starts {started} nodes", nearest=str(started)
        )
