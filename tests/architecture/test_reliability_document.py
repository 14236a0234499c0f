"""Every fault that the service promises something about has tests, and the document names them."""

from tests.reliability import DOCUMENT, FAULTS, ROOT, faults_table


def test_every_test_that_the_table_names_is_there() -> None:
    assert len(FAULTS) == 24
    for fault in FAULTS:
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert test == "chaos" or f"def {name}(" in (ROOT / "tests" / file).read_text(), test


def test_the_document_shows_the_table_as_it_is() -> None:
    assert faults_table() in DOCUMENT.read_text(encoding="utf-8")
