"""The help of a long command: common options first, every default stated, nothing heavy loaded."""

import re
import subprocess
import sys

from typer.testing import CliRunner

from meshwright.profiles.sequences import BATCHINGS
from meshwright.service.cli.main import app
from meshwright.service.cli.options import DEFAULTS, GROUPS
from meshwright.service.requests.schema import SearchRequest, WorkloadRequest


def shown(*words: str) -> str:
    return " ".join(CliRunner().invoke(app, ["plan", *words]).output.split())


def test_the_thirteen_common_options_come_first_and_the_others_when_asked() -> None:
    short, whole = shown("--help"), shown("--help-all")
    assert len(GROUPS["Common options"]) == 13
    assert len(set(re.findall(r" (--[a-z][a-z-]+)", short.partition("Help:")[0]))) == 13
    assert "--deadline-days" not in short
    for title in GROUPS:
        assert f"{title}: " in whole


def test_every_option_shows_its_default_and_the_defaults_are_those_of_the_schema() -> None:
    assert set(DEFAULTS) == {name for names in GROUPS.values() for name in names}
    fields = SearchRequest.model_fields | WorkloadRequest.model_fields
    for name in (
        "top_k",
        "time_limit_s",
        "seed",
        "objective",
        "gpus",
        "reserve_nodes",
        "certify",
        "optimizer",
        "lora_rank",
        "base_precision",
    ):
        assert str(fields[name].default).removesuffix(".0") == DEFAULTS[name]
    assert str(fields["max_out_of_memory_probability"].default) == DEFAULTS["max_oom_probability"]
    assert ", ".join(BATCHINGS) in shown("--help-all").replace(" or ", ", ")


def test_help_loads_no_solver() -> None:
    code = (
        "import sys; from meshwright.service.cli.main import app; "
        "app(['plan', '--help'], standalone_mode=False); "
        "print(*(set(sys.modules) & {'numpy', 'jinja2', 'ortools', 'sqlalchemy'}), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == ""


def test_a_search_from_options_loads_no_reader_exporter_page_or_calibration() -> None:
    asked = (
        "plan --model llama-3.2-1b --gpus 1xh100 --global-batch-size 8 --seq-length 1024 --certify none "
        "--top-k 1 --allow none"
    )
    unwanted = (
        "meshwright.launchers.reading.",
        "meshwright.launchers.megatron",
        "meshwright.service.library",
        "meshwright.service.report.page",
        "meshwright.service.requests.profiles",
        "jinja2",
        "ortools",
    )
    code = (
        "import sys; from meshwright.service.cli.main import app; "
        f"app({asked.split()!r}, standalone_mode=False); "
        f"print(*(name for name in sys.modules if name.startswith({unwanted!r})), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.split() == []
