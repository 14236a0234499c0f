"""Reader of nanotron's YAML (huggingface/nanotron, April 2026, src/nanotron/config/*.py)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.launchers.dialect import rows_of, stated
from meshwright.launchers.export import bucket_option
from meshwright.launchers.flags import flag_names
from meshwright.launchers.nanotron.export import BUCKET_UNIT_BYTES, KERNELS, SHAPE
from meshwright.launchers.reading.base import LaunchFile, Overrides, Reader, Source
from meshwright.launchers.reading.commands import commands_beside, holds_file, program_of
from meshwright.launchers.reading.documents import document_of, names_held
from meshwright.launchers.reading.fields import Fields, passing
from meshwright.launchers.reading.known import known_of
from meshwright.launchers.rules import near_divisors
from meshwright.profiles.documents import shown
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Workload
from meshwright.solver.splits import nanotron_split

_OWN = (
    "parallelism.dp",
    "parallelism.tp",
    "tokens.micro_batch_size",
    "tokens.batch_accumulation_per_replica",
)


def _read(source: Source, overrides: Overrides) -> LaunchFile:
    fields = Fields(source.name, document_of(source), overrides, ("nanotron",))
    known = known_of(source, overrides)
    model = _padded(fields, _model(fields, overrides))
    configuration = _configuration(fields, model)
    fields.expect("tokens.sequence_length")
    seq_length = fields.integer("tokens.sequence_length", 1)
    if fields.word("model.dtype", "bfloat16") != "bfloat16":
        fields.fault("model.dtype", "is not supported", allowed="bfloat16", nearest="bfloat16")
    if fields.word("optimizer.optimizer_factory.name", "adamW").lower() != "adamw":
        fields.fault("optimizer.optimizer_factory.name", "is not supported", allowed="adamW")
    workload = Workload(
        global_batch_size=configuration.global_batch_size,
        seq_length=seq_length,
        precision="bf16",
        optimizer="adamw",
        framework_options=bucket_option(
            fields.optional("model.ddp_bucket_cap_mb"), "nanotron", configuration, BUCKET_UNIT_BYTES
        ),
    )
    _refuse_others(fields, overrides)
    _refuse_options(fields, known.source, overrides)
    fields.stop()
    return known.launch_file(fields, "nanotron", model, workload, configuration)


NANOTRON_READER = Reader(
    name="nanotron", recognises=lambda source: names_held(source, _OWN) > 1, read=_read
)


def _refuse_others(fields: Fields, overrides: Overrides) -> None:
    """Refuse sections of forks, as nanotron's own parser does (``get_config_from_dict`` is strict)."""
    known = {name.partition(".")[0] for name in flag_names("nanotron")}
    for section in fields.sections():
        if section not in known and not overrides.ignores(section):
            fields.fault(
                section,
                "is not a section of nanotron (a fork's effect is unknown)",
                allowed=passing(section),
            )


def _refuse_options(fields: Fields, source: Source, overrides: Overrides) -> None:
    """Record a fault for each option of the command that ``run_train.py`` does not have."""
    for _, words in commands_beside(source, overrides):
        command = program_of(words)
        named = command is not None and any(holds_file(word, source.name) for word in command.words)
        for word in command.words if command is not None and named else ():
            option = word.text.partition("=")[0].replace("_", "-")
            known = option == "--" or _OPTION.startswith(option) or overrides.ignores(option)
            if option.startswith("--") and not known:
                fields.fault(
                    shown(option),
                    f"line {word.line} of the command: is not an option of nanotron's run_train.py",
                    allowed=f"{_OPTION}, or {passing(shown(option))}",
                )


_OPTION = "--config-file"


def _configuration(fields: Fields, model: ModelSpec) -> Configuration:
    for name in ("dp", "pp", "tp"):
        fields.expect(f"parallelism.{name}")
    plan = stated(fields, "nanotron", "plan")
    pp, ranks = plan["pipeline_parallel_size"], plan["data_parallel_size"] * plan["context_parallel_size"]
    zero = plan["zero_stage"] if ranks > 1 else 0  # one rank shares no states
    if not fields.flag("optimizer.accumulate_grad_in_fp32", default=True):
        fields.note("accumulate_grad_in_fp32 is false: the prediction assumes fp32 accumulation")
    elif zero:
        fields.note(
            "zero_stage 1 with accumulate_grad_in_fp32 raises NotImplementedError in nanotron, April "
            "2026 (optim/gradient_accumulator.py:355, trainer.py:645); it is predicted as older "
            "versions ran it"
        )
    if pp > 1 and not fields.has("parallelism.pp_engine"):
        fields.note("pp_engine is not given: afab, all forward passes first, is nanotron's default")
    fields.stop()
    split = _split(fields, model, pp, plan["tensor_parallel_size"])
    return Configuration(
        **plan
        | {
            "sequence_parallel": plan["sequence_parallel"] and plan["tensor_parallel_size"] > 1,
            "zero_stage": zero,
            "zero_shard_size": ranks if zero else 1,
            "pipeline_schedule": plan["pipeline_schedule"] if pp > 1 else "none",
            "recompute_layers": sum(split) if plan["recompute_granularity"] == "full" else 0,
            "stage_layers": split,
        }
    )


def _padded(fields: Fields, model: ModelSpec) -> ModelSpec:
    """Return the model with nanotron's vocabulary (helpers.py:52 ``_vocab_size_with_padding``).

    A multiple of ``make_vocab_size_divisible_by`` times the tensor-parallel size; if the former is 1, as
    in exported files, every launcher's price pads it alike and the model's own size is kept.
    """
    divisor = fields.integer("model.make_vocab_size_divisible_by", 1, low=1)
    multiple = divisor * fields.integer("parallelism.tp", 1)
    padded = model.padded_vocabulary(multiple)
    if divisor == 1 or padded == model.vocab_size:
        return model
    fields.note(f"the vocabulary of {model.vocab_size} is padded to {padded} (a multiple of {multiple})")
    return replace(model, vocab_size=padded)


def _split(fields: Fields, model: ModelSpec, pp: int, tp: int) -> tuple[int, ...]:
    """Return nanotron's split; refuse a stage without layers, or an output head before the last stage."""

    def fills(stages: int) -> bool:
        split, head = nanotron_split(model, stages, tp)
        return min(split) > 0 and head == stages - 1

    if not (pp <= model.num_layers and fills(pp)):
        fields.fault(
            "parallelism.pp",
            f"{pp} stages for {model.num_layers} layers: nanotron would leave a stage without a layer, or "
            "put the output head on another stage than the last",
            nearest=str(max(filter(fills, range(1, min(pp, model.num_layers + 1))))),
        )
        fields.stop()
    return nanotron_split(model, pp, tp)[0]


def _model(fields: Fields, overrides: Overrides) -> ModelSpec:
    """Return the supplied model, else that of a Llama or Qwen2 configuration, by the rows of their fields.

    Raises:
        InvalidProblemError: a size is missing, or the shape is not priced.
    """
    fields.refuse_unpriced()
    fields.stop()
    if overrides.model is not None:
        fields.take(*(name for name, *_ in rows_of("nanotron", "model")))
        fields.note(f"the model is {overrides.model.title}, not model.model_config")
        return overrides.model
    _refuse_layers(fields)
    for name in _SIZES:
        fields.expect(SHAPE + name, "is not given; add it, or name the model with --model")
    fields.stop()
    shape = stated(fields, "nanotron", "model", SHAPE, without=("activation",))
    fields.stop()
    shape["rotary_base"] = max(int(shape["rotary_base"]), 1)
    model = model_from_shape({key: value for key, value in shape.items() if value}, name="launch file")
    every = model.no_rotary_every
    if every and model.num_layers % every:  # Qwen2Config asserts it
        fields.fault(
            SHAPE + "no_rope_layer",
            f"{every} does not divide {model.num_layers} layers",
            allowed=f"divisors of {model.num_layers}",
            nearest=near_divisors(every, model.num_layers),
        )
    return model


_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def _refuse_layers(fields: Fields) -> None:
    """Record a fault for each model key that neither LlamaConfig nor Qwen2Config has."""
    table = flag_names("nanotron")
    for name in (SHAPE + name for name in fields.names_in(SHAPE[:-1])):
        if table.row(name) is None and fields.peek(name) not in (None, False):
            fields.fault(
                name,
                "is none of LlamaConfig's and Qwen2Config's, and a fork builds other layers by it",
                allowed=passing(name),
            )
    if fields.word(SHAPE + "hidden_act", "silu") != "silu":
        fields.fault(SHAPE + "hidden_act", "is not supported", allowed="silu")
    kernel = fields.word(SHAPE + "_attn_implementation", KERNELS[0])
    if kernel not in KERNELS:
        fields.note(f"_attn_implementation {shown(kernel)} is predicted as {KERNELS[0]}")
