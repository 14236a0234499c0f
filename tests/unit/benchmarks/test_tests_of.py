from pathlib import Path

from benchmarks.tests_of import by_module, module_of_its_name


def test_the_module_of_a_files_name_comes_first_and_then_who_executes_most_lines() -> None:
    few, many = "tests/unit/solver/test_few.py::test_a", "tests/golden/test_many.py::test_b[1]"
    contexts = {1: [""], 2: [f"{many}|run"], 3: [f"{many}|setup", f"{few}|run"], 4: [f"{many}|run"]}
    own = "tests/unit/solver/test_few.py"
    first, second = by_module(contexts, own)
    assert (first.module, first.tests, first.lines) == (own, (few,), 1)
    assert (second.module, second.lines) == ("tests/golden/test_many.py", 3)
    assert [one.module for one in by_module(contexts, "tests/unit/none.py")] == [second.module, own]
    assert first.shown(own=True, names=False) == f"    1 tests     1 lines  {own}  (of its name)"
    assert second.shown(own=False, names=True) == many


def test_the_mirror_of_a_file_is_a_unit_test_of_its_path() -> None:
    assert module_of_its_name(Path("solver/cost/price.py")) == "tests/unit/solver/cost/test_price.py"
    of_client = module_of_its_name(Path("client/meshwright_client/nodes.py"))
    assert of_client == "tests/unit/client/test_nodes.py"
