"""Peers are asked in processes of their own, and one that cannot be asked is a line."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.against import calculon, galvatron, sailor
from benchmarks.against.layouts import configuration_of, row_of
from benchmarks.against.ours import judged, profile_of, searched
from benchmarks.against.process import SCRIPTS, Budget, Run, UnavailableError, ask
from benchmarks.against.row import Comparison, Row, counted, ratio_remark, seconds
from benchmarks.bench_peers import BEGIN, DOCUMENT, END, PEERS, compared, written
from benchmarks.peers import simumax_search
from meshwright.profiles.units import GB
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.check import violations
from meshwright.solver.configuration import configuration_from_json
from tests.processes.pace import pace

MIXED = {
    "pp_deg": 2, "tp_sizes_enc": "2,2,2,2", "dp_types_enc": "1,1,1,0", "checkpoint": "1,1,1,0",
    "pp_division": "2,2", "chunks": 4,
}  # fmt: skip


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_process_is_asked_in_json_and_its_cpu_time_is_counted() -> None:
    code = (
        "import json, sys, time\n"
        "asked = json.load(sys.stdin)\n"
        "while time.process_time() < 0.3: pass\n"
        "print('noise'); print(json.dumps({'twice': 2 * asked['n']}))"
    )
    run = ask("it", python(code), {"n": 21}, Budget(limit_s=30.0))
    assert run.answer == {"twice": 42}
    assert 0.3 <= run.cpu_s < 2.0 * pace()


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("raise SystemExit('no such model')", "it did not run: no such model"),
        ("print('hello')", "it did not run: its last line is no JSON"),
        ("pass", "it did not run: its last line is no JSON"),
    ],
)
def test_a_peer_that_fails_is_told_in_its_last_words(code: str, line: str) -> None:
    with pytest.raises(UnavailableError, match=line):
        ask("it", python(code), {}, Budget(limit_s=30.0))


def test_a_peer_that_is_not_installed_is_a_line() -> None:
    with pytest.raises(UnavailableError, match="it did not start"):
        ask("it", ["no-such-program-anywhere"], {}, Budget(limit_s=30.0))


def is_gone(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_peer_that_takes_too_long_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="not done when time was up"):
        ask("it", python(code), {}, Budget(limit_s=2.0))
    assert time.monotonic() - began < 50.0
    while not is_gone(pid.read_text()):  # a killed process may be seen for a moment
        assert time.monotonic() - began < 50.0
        time.sleep(0.02)
    with pytest.raises(UnavailableError, match="time is up"):
        ask("it", python("pass"), {}, Budget(limit_s=0.0))


def test_calculon_without_a_checkout_is_a_line_and_so_is_an_empty_one(tmp_path: Path) -> None:
    assert "give --calculon PATH" in "\n".join(compared("calculon", Budget(limit_s=1.0), None))
    assert "has no bin/calculon" in "\n".join(compared("calculon", Budget(limit_s=1.0), tmp_path))
    assert set(PEERS) == {
        "galvatron", "galvatron-checkout", "calculon", "sailor", "sailor-mixed", "simumax", "llm-analysis",
        "aiconfigurator",
    }  # fmt: skip


def test_simumax_without_a_checkout_is_reported_in_one_line() -> None:
    assert "--simumax PATH" in "\n".join(compared("simumax", Budget(limit_s=1.0), None))


def test_simumax_states_stages_that_are_alike_but_for_the_ends() -> None:
    request = {"seq_length": 4096, "gpus": 64}
    config = configuration_of({"tensor": 2, "pipeline": 4, "data": 8, "micro_batch": 1, "batch": 64,
                               "recompute": "full", "zero": 1}, 80)  # fmt: skip
    even = simumax_search.stated(request, config)
    assert even is not None
    # all 20 layers of a stage; 64 sequences / 8 replicas = 8 micro-batches
    assert (even["recompute_layer_num"], even["micro_batch_num"]) == (20, 8)
    uneven = simumax_search.stated(request, {**config, "stage_layers": [19, 21, 21, 19]})
    assert uneven is not None
    assert uneven["num_layers_in_first_pipeline_stage"] == 19
    assert simumax_search.stated(request, {**config, "stage_layers": [20, 21, 20, 19]}) is None
    assert simumax_search.stated(request, {**config, "context_parallel_size": 2}) is None


def test_the_strategy_that_simumax_found_is_read_from_its_words() -> None:
    best = {"parallelism": "bf16.dense0.seq4096.mbs2.mbc32.gbs256 tp4.sp4.cp1.ep1.pp8.dp2.etp1.edp8",
            "recompute_status": "No Recompute"}  # fmt: skip
    layout = simumax_search.layout_of(best, 256)
    assert (layout["tensor"], layout["pipeline"], layout["data"], layout["micro_batch"]) == (4, 8, 2, 2)
    assert layout["recompute"] == "none"
    assert [simumax_search.seconds_of(text) for text in ("10.9 s", "250", "7 us")] == [10.9, 0.25, 7e-6]


def test_a_table_holds_medians_and_the_page_keeps_what_stands_around_it() -> None:
    runs = [Run(answer={}, cpu_s=cpu) for cpu in (3.0, 1.0, 100.0)]
    row = Row.of("it", counted(12345, "rows"), runs)
    assert row.cells() == ("it", "12 345 rows", "3.00 s", "–", "–")
    lines = Comparison(question="What?", rows=(row,), remarks=("so",)).lines()
    assert lines[0] == "**What?**"
    assert lines[-2:] == ["* so", ""]
    begin, end = BEGIN.format("it"), END.format("it")
    assert written(f"a\n{begin}\nold\n{end}\nb", "it", "new") == f"a\n{begin}\nnew\n{end}\nb"
    for name in PEERS:
        assert "only this" in written(DOCUMENT.read_text(), name, "only this")


def test_times_show_three_digits_and_ratios_whether_they_are_reached() -> None:
    assert [seconds(value) for value in (0.0123, 1.5, 250.4)] == ["12.3 ms", "1.50 s", "250 s"]
    assert ratio_remark("it", 43.0, 1.0, 10.0) == "CPU time: 43.0 × less than it (target 10 ×: reached)"
    assert ratio_remark("it", 9.0, 1.0, 10.0).endswith("missed)")


def test_galvatrons_answer_is_read_with_the_stage_of_most_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galvatron, "BATCH", 16)
    plan = galvatron.plan_of_theirs(MIXED)
    # 8 GPUs / (2 x 2) = 2 replicas; 16 sequences / (2 x 4 micro-batches) = 2
    assert (plan["dp"], plan["micro_batch"], plan["stage_layers"]) == (2, 2, [2, 2])
    config = galvatron.configuration_of(MIXED)
    assert (config["zero_stage"], config["recompute_granularity"], config["recompute_layers"]) == (
        3,
        "full",
        4,  # every layer of a stage of two, so that all of the model's do
    )
    assert not galvatron.mixes_layers(MIXED)
    assert galvatron.mixes_layers({**MIXED, "tp_sizes_enc": "2,2,1,1"})
    assert galvatron.mixes_layers({**MIXED, "use_sp": "0,0,1,0"})
    assert not galvatron.mixes_layers({**MIXED, "tp_sizes_enc": "1,1,1,1", "use_sp": "1,1,1,1"})


def test_a_checkout_of_galvatron_is_compared_where_one_is_given() -> None:
    with pytest.raises(UnavailableError, match="--galvatron-checkout PATH"):
        galvatron.compare_checkout(Budget(limit_s=1.0), None)


def test_our_plan_recomputes_the_first_layers_of_each_stage_in_galvatrons_words() -> None:
    config = configuration_of({"tensor": 2, "pipeline": 2, "data": 2, "micro_batch": 1, "batch": 16,
                               "recompute": "full", "zero": 1}, 32)  # fmt: skip
    plan = galvatron.plan_of_ours({**config, "recompute_layers": 3, "stage_layers": [17, 15]})
    assert [at for at, again in enumerate(plan["recomputed"]) if again] == [0, 1, 2, 17, 18, 19]
    assert plan["sharded"] == [0] * 32


def test_a_plain_layout_and_our_configuration_are_one_there_and_back() -> None:
    row = {"tensor": 8, "pipeline": 4, "interleaving": 3, "data": 2, "micro_batch": 1, "batch": 16,
           "recompute": "selective", "zero": 1}  # fmt: skip
    config = configuration_of(row, 24)
    assert config["stage_layers"] == (2,) * 12
    assert config["num_microbatches"] == 8
    assert row_of(config, 16) == row
    execution = {
        "tensor_par": 8, "pipeline_par": 4, "pipeline_interleaving": 3, "data_par": 2, "microbatch_size": 1,
        "batch_size": 16, "activation_recompute": "attn_only", "optimizer_sharding": True,
    }  # fmt: skip
    assert calculon.layout_of(execution) == row


STAND_IN = """
class Llm:
    class Error(Exception): pass
    class Application:
        def __init__(self, cfg): self.layers = cfg["num_blocks"]
    class Execution:
        def __init__(self, cfg): self.cfg = cfg
        from_json = classmethod(lambda cls, cfg: cls(cfg))
    def __init__(self, app, log): self.app = app
    def compile(self, system, execution):
        self.cfg = execution.cfg
        assert self.app.layers % self.cfg["pipeline_par"] == 0
        if self.cfg["tensor_par_net"] != 0: raise Llm.Error
    def run(self, system): pass
    def get_stats_json(self, layers):
        return {"sample_rate": 4.0 if self.cfg["data_par_overlap"] else 2.0}
"""
STAND_IN_COMMAND = """
import json, sys
assert sys.argv[1] == "llm-optimal-execution" and sys.argv[3:6] == ["512", "512", "float16"], sys.argv
host_gib = json.load(open(sys.argv[6]))["mem2"]["GiB"]
print("INFO Total executions:", 476 if host_gib else 68)
best = {"execution": {"batch_size": 512}, "stats": {"sample_rate": 16.0}}
open(sys.argv[7], "w").write(json.dumps({"0": best}))
"""


def test_calculon_runs_where_the_packages_are_installed_that_its_files_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """calculon/io.py imports numpy, llm/all_executions.py pandas, llm/optimal_execution.py psutil."""
    installed: list[str] = []

    def recorded(_name: str, requirements: Sequence[str], **_: object) -> Path:
        installed.extend(requirements)
        raise UnavailableError("recorded")

    monkeypatch.setattr(calculon, "environment", recorded)
    for name in ("bin/calculon", "calculon/llm/llm.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UnavailableError, match="recorded"):
        calculon.compare(Budget(limit_s=1.0), tmp_path)
    assert {"numpy", "pandas", "psutil"} <= set(installed)


def test_a_checkout_of_calculon_is_asked_for_its_best_and_for_the_price_of_ours(tmp_path: Path) -> None:
    # a stand-in with the interface of its llm.py and optimal_execution.py: the real one is in no index
    for name, text in {
        "bin/calculon": STAND_IN_COMMAND,
        "calculon/__init__.py": "",
        "calculon/llm/__init__.py": STAND_IN,
        "calculon/system.py": "class System:\n    num_networks = 2\n    def __init__(self, cfg): pass\n",
        "systems/a100_80g.json": '{"mem2": {"GiB": 512}}',
        "models/turing-530B.json": '{"num_blocks": 105}',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    script = [sys.executable, str(SCRIPTS / "calculon_search.py"), str(tmp_path)]
    request = {**calculon.REQUEST, "model": "turing-530B.json", "gpus": 512, "batch": 512}
    found = ask("it", script, request, Budget(limit_s=30.0)).answer
    # 512 sequences at 16 a second; a search without the host's memory
    assert (found["step_s"], found["executions"], found["executions_with_offload"]) == (32.0, 68, 476)
    layout = {
        "tensor": 8,
        "pipeline": 7,
        "data": 2,
        "micro_batch": 1,
        "batch": 16,
        "recompute": "full",
        "zero": 1,
    }
    even = configuration_of(layout, 105)
    uneven = configuration_of({**layout, "pipeline": 8}, 105)
    steps = calculon.steps_s(script, request, [even, uneven], Budget(limit_s=30.0), batch=512)
    assert steps == [512 / 4.0, None]


def test_ours_searches_and_judges_on_galvatrons_profile() -> None:
    problem = parse_problem(galvatron.problem_of(galvatron.SPACE, 154.2 * GB))  # what its package says
    layers = {"file": str(galvatron.COMPUTATION), "gpu": galvatron.GPU, "memory": str(galvatron.MEMORY)}
    profile = profile_of(problem, layers)
    shipped = profile_of(problem, None)
    # 514.6 MiB a sequence and layer were measured; the formulas say about half of that
    assert 1.5 < profile.constants.activation / shipped.constants.activation < 2.5
    found = searched(problem, profile)
    config = json.loads(json.dumps(found["plans"][0]["config"]))
    (verdict,) = judged(problem, profile, [config])["judged"]
    assert verdict == {"step_time_s": found["plans"][0]["step_time_s"], "fits": True}
    assert list(violations(problem, profile, configuration_from_json(config))) == []


def test_sailor_without_a_checkout_is_a_line_and_its_plans_count_embedding_and_head(
    tmp_path: Path,
) -> None:
    assert "give --sailor PATH" in "\n".join(compared("sailor", Budget(limit_s=1.0), None))
    for name in ("sailor", "sailor-mixed"):
        line = "\n".join(compared(name, Budget(limit_s=1.0), tmp_path))
        assert "the checkout has no sailor/Planner/sailor_planner/cpp_src" in line
    config = {
        "stage_layers": [13, 11],
        "tensor_parallel_size": 2,
        "data_parallel_size": 3,
        "micro_batch_size": 4,
    }
    plan = sailor.plan_for_it(config)
    (pipeline,) = plan["pipeline_list"]
    assert pipeline["layers_per_stage"] == [list(range(14)), list(range(14, 26))]
    assert (pipeline["dp"], plan["mbs"]) == ([3, 3], 4)


def test_sailor_prices_stages_on_both_gpu_types_where_it_timed_their_layers(tmp_path: Path) -> None:
    config = {
        "stage_layers": [6, 18], "data_parallel_size": 2, "micro_batch_size": 4, "replicas": [],
        "stage_groups": [
            {"group": "v100-sxm-16gb", "tensor_parallel_size": 4},
            {"group": "a100-sxm-40gb", "tensor_parallel_size": 1},
        ],
    }  # fmt: skip
    (pipeline,) = sailor.plan_for_it(config)["pipeline_list"]
    zone = sailor.ZONE
    assert pipeline["tmp_per_stage"] == [
        [([("V100-16", 4, zone)], 4)] * 2,
        [([("A100-40", 1, zone)], 1)] * 2,
    ]
    times = tmp_path / "sailor/Planner/simulations/profiles_tmp.json"
    times.parent.mkdir(parents=True)
    for timed, verdict in (("4", True), ("2", False)):
        layers = {"V100-16": {"4": {timed: [1.0]}}, "A100-40": {"4": {"1": [1.0]}}}
        times.write_text(json.dumps({sailor.MODEL: layers}))
        assert sailor.is_timed(tmp_path, config) is verdict
    assert not sailor.is_timed(tmp_path, {**config, "replicas": [config, config]})
