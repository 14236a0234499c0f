"""A relative of a launcher states only its difference: its program, and its words for arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from meshwright.launchers import flags
from meshwright.launchers.flags import flag_names, flags_of
from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.documents import document_of
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import launcher_names
from meshwright.launchers.table import launchers, tables_of
from meshwright.launchers.target import Target
from meshwright.launchers.trl.export import TrlFiles
from meshwright.launchers.trl.read import reader_of
from meshwright.profiles.errors import InvalidProblemError, ProfileError
from tests.launchers.plans import CASES

PLAN = CASES["trl"]["llama-3.1-70b-fsdp"]
LENGTH, MICRO, COUNT = "max_length", "per_device_train_batch_size", "gradient_accumulation_steps"
TABLES = ("trl", "transformers")
TRL_READER = reader_of("trl")
Renamed = Callable[[Iterable[str]], None]


class OpenR1Files(TrlFiles):
    product = "open-r1"
    file = "recipe.yaml"
    command = '    src/open_r1/KIND.py --config "${here}/recipe.yaml" "$@"'

    def own(self, target: Target) -> dict[str, object]:
        return {**super().own(target), "benchmarks": []}


def source_of(files: Mapping[str, str], name: str = "trl_sft.yaml") -> Source:
    return Source(name=name, text=files[name], files=files)


def trained(found: LaunchFile) -> tuple[object, ...]:
    """Return all that a price depends on."""
    return found.model, found.workload, found.configuration, found.num_nodes, found.gpus_per_node


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Renamed:
    """Return what gives TRL's row a table in which some of its arguments are called ``ours_NAME``."""

    def rename(names: Iterable[str]) -> None:
        of = {name: next(one for one in TABLES if name in flags_of(one)) for name in names}
        rows = {f"ours_{name}": {"as": table, "renames": name} for name, table in of.items()}
        own = with_table(monkeypatch, tmp_path, rows)
        monkeypatch.setitem(launchers(), "trl", replace(launchers()["trl"], tables=(own, *TABLES)))

    return rename


def with_table(monkeypatch: pytest.MonkeyPatch, folder: Path, rows: Mapping[str, object]) -> str:
    """Return the name of a new table of arguments."""
    number = len(list(folder.iterdir()))
    path, own, known = folder / f"{number}.yaml", f"{folder}-{number}", flags.table_path
    path.write_text(yaml.safe_dump(dict(rows)), "utf-8")
    monkeypatch.setattr(flags, "table_path", lambda name: path if name == own else known(name))
    return own


@pytest.fixture
def as_open_r1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Return what gives TRL's row the programs and an argument of open-r1."""
    own = with_table(monkeypatch, tmp_path, {"benchmarks": {"type": "list[str]", "harmless": "evaluation"}})
    programs = {"src/open_r1/sft.py": "sft", "src/open_r1/dpo.py": "dpo"}
    row = replace(launchers()["trl"], tables=(own, *TABLES), programs=programs, commands=())
    return partial(monkeypatch.setitem, launchers(), "trl", row)


def test_a_relative_of_trl_writes_its_arguments_and_starts_its_own_program() -> None:
    ours, theirs = (files.export(PLAN).files for files in (OpenR1Files(), TrlFiles()))
    assert yaml.safe_load(ours["recipe.yaml"]) == {
        **yaml.safe_load(theirs["trl_sft.yaml"]),
        "benchmarks": [],
    }
    assert 'src/open_r1/sft.py --config "${here}/recipe.yaml"' in ours["launch.sh"]
    assert "trl" not in ours["launch.sh"].lower()


def test_a_relative_of_trl_reads_files_with_its_names_or_started_by_its_program(
    as_open_r1: Callable[[], None],
) -> None:
    source = source_of(OpenR1Files().export(PLAN).files, "recipe.yaml")
    unnamed = replace(source, text=source.text.replace("benchmarks: []", ""))
    assert TRL_READER.read(source, Overrides()).configuration == PLAN.config
    assert TRL_READER.recognises(replace(unnamed, files={}))
    as_open_r1()
    assert TRL_READER.read(source, Overrides()).configuration == PLAN.config
    assert TRL_READER.recognises(source)
    assert TRL_READER.recognises(unnamed)  # by launch.sh
    assert TRL_READER.recognises(replace(source, files={}))
    assert not TRL_READER.recognises(replace(unnamed, files={}))


def test_a_relatives_program_decides_which_training_its_file_is_of(
    as_open_r1: Callable[[], None],
) -> None:
    as_open_r1()
    files = dict(OpenR1Files().export(PLAN).files)
    files["launch.sh"] = files["launch.sh"].replace("open_r1/sft.py", "open_r1/dpo.py")
    found = TRL_READER.read(source_of(files, "recipe.yaml"), Overrides())
    assert (PLAN.workload.sample, found.workload.sample) == ("sequence", "pair")


@pytest.mark.parametrize("case", sorted(CASES["trl"]))
def test_a_relative_with_other_words_is_read_at_its_relations_price(ours: Renamed, case: str) -> None:
    plan = CASES["trl"][case]
    theirs = TrlFiles().export(plan)
    before = TRL_READER.read(source_of(theirs.files), Overrides())
    names = [*yaml.safe_load(theirs.files["trl_sft.yaml"])]
    assert {LENGTH, MICRO, COUNT, "bf16", "optim", "gradient_checkpointing"} <= {*names}
    for renamed in ([one] for one in [*names, "model_name_or_path"]):
        ours(renamed)
        files = TrlFiles().export(plan).files
        said = yaml.safe_load(files["trl_sft.yaml"])
        assert [name for name in renamed if name in said] == []
        assert trained(TRL_READER.read(source_of(files), Overrides())) == trained(before), renamed
    ours(names)
    files = TrlFiles().export(plan).files
    assert all(name.startswith("ours_") for name in yaml.safe_load(files["trl_sft.yaml"]))
    assert TRL_READER.recognises(source_of(files))
    assert trained(TRL_READER.read(source_of(files), Overrides())) == trained(before)
    guarded = {f"ours-{name.replace('_', '-')}" for name in (LENGTH, MICRO)}  # no command may set them
    assert guarded <= {*files["launch.sh"].split()}


def test_a_command_overrides_a_file_by_the_relatives_words(ours: Renamed) -> None:
    ours([LENGTH, MICRO])
    files = dict(TrlFiles().export(PLAN).files)
    before = TRL_READER.read(source_of(files), Overrides())
    files["launch.sh"] = files["launch.sh"].replace(
        '"${LR}"', f'"${{LR}}" --ours_{LENGTH} 512 --ours_{MICRO} 3'
    )
    found = TRL_READER.read(source_of(files), Overrides())
    assert (found.workload.seq_length, found.configuration.micro_batch_size) == (512, 3)
    assert before.workload.seq_length != 512


def test_a_relatives_default_is_its_own_and_named_by_its_own_word(ours: Renamed) -> None:
    ours([LENGTH, MICRO])
    files = TrlFiles().export(PLAN).files
    text = "\n".join(line for line in files["trl_sft.yaml"].splitlines() if f"ours_{LENGTH}" not in line)
    found = TRL_READER.read(source_of({**files, "trl_sft.yaml": text}), Overrides())
    assert found.workload.seq_length == 1024  # TRL's default, which a relative may state otherwise
    assert f"ours_{LENGTH} is not given: 1024 is TRL's default" in found.notes


@pytest.mark.parametrize("name", [LENGTH, MICRO])
def test_a_relations_word_is_unknown_to_a_relative_that_has_another(ours: Renamed, name: str) -> None:
    ours([LENGTH, MICRO])
    files = TrlFiles().export(PLAN).files
    text = files["trl_sft.yaml"]
    line = 1 + next(at for at, one in enumerate(text.splitlines()) if one.startswith(f"ours_{name}:"))
    alone = text.replace(f"ours_{name}:", f"{name}:")
    both = f"{text}{name}: 4096\n"
    for said, at in ((alone, line), (both, both.count("\n"))):
        with pytest.raises(InvalidProblemError) as refused:
            TRL_READER.read(source_of({**files, "trl_sft.yaml": said}), Overrides())
        (fault,) = refused.value.errors
        assert (fault.pointer, fault.nearest) == (name, f"ours_{name}")
        assert fault.message == f"line {at}: is unknown"
    ignored = TRL_READER.read(source_of({**files, "trl_sft.yaml": both}), Overrides(ignored=(name,)))
    assert trained(ignored) == trained(TRL_READER.read(source_of(files), Overrides()))


def test_a_name_that_a_relative_lacks_is_refused_with_any_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = with_table(monkeypatch, tmp_path, {"packing": {"refused": "it has no such argument"}})
    for value in ("true", "false", "null"):
        fields = Fields(
            "a.yaml", document_of(Source(name="a.yaml", text=f"packing: {value}")), programs=(own, "trl")
        )
        fields.refuse_unpriced()
        assert [one.pointer for one in fields.faults] == ["packing"], value


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"as": "trl", "renames": "max_lenth"}, "the table of trl has no argument max_lenth"),
        ({"as": "trl"}, "the table of trl has no argument tokens"),
        ({"as": "tlr"}, "no program tlr has a table: accelerate, "),
    ],
)
def test_a_row_that_names_a_wrong_table_or_argument_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: dict[str, str], says: str
) -> None:
    with pytest.raises(ProfileError, match=f"^tokens: {says}"):
        flags_of(with_table(monkeypatch, tmp_path, {"tokens": row}))


def test_the_guard_of_a_relatives_own_command_knows_accelerates_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind ``accelerate launch … sft.py`` they are no options; ``trl sft`` takes both kinds."""
    monkeypatch.setattr(OpenR1Files, "program", lambda *_: 'exec open-r1 sft "$@"')
    own, theirs = (files.export(PLAN).files["launch.sh"].split() for files in (OpenR1Files(), TrlFiles()))
    assert [("num-processes" in guarded, "use-fsdp" in guarded) for guarded in (own, theirs)] == [
        (True, True), (False, False),
    ]  # fmt: skip


def test_a_command_without_a_yaml_says_that_accelerate_is_priced() -> None:
    words = f"--model_name_or_path Qwen/Qwen3-8B --{LENGTH} 512 --{MICRO} 1 --num_processes 2 --use_fsdp"
    found = read_launch_files(Source(name="a.sh", text=f"trl sft {words}"), Overrides())
    assert found.launcher == "accelerate"
    assert "TRL is priced for accelerate, which starts its processes" in found.notes


def test_a_number_that_no_file_and_no_table_states_must_be_given() -> None:
    fields = Fields("file", {}, programs=("transformers",))
    fields.integer("sequence_tokens")
    assert [(one.pointer, one.message) for one in fields.faults] == [("sequence_tokens", "is not given")]


def test_every_launcher_with_limits_has_a_row_and_tables() -> None:
    assert {*launcher_names()} - {"none", "any"} <= {*launchers()}
    for name in launchers():
        assert [flags_of(table) for table in tables_of(name)] != []


def test_a_relatives_word_is_none_of_its_relations() -> None:
    for name in launchers():
        own, *others = tables_of(name)
        renamed = [word for word, row in flags_of(own).items() if row.renames]
        assert [word for word in renamed if word in flag_names(*others)] == []
