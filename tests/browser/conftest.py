"""Tests in a real browser: only where Playwright is installed and MESHWRIGHT_TEST_BROWSER=1 asks for them.

The browser is the system's Chromium, by its path (CHROMIUM, or /usr/bin/chromium); none is downloaded.
"""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.browser.slow_service import Slow, slow_service
from tests.processes.servers import RunningServer, serving

_WANTED = os.environ.get("MESHWRIGHT_TEST_BROWSER") == "1"
if not _WANTED or importlib.util.find_spec("playwright") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from playwright.sync_api import Browser, Page

    from tests.browser.chromium import a_page, chromium

    @pytest.fixture(scope="session")
    def chrome() -> Iterator[Browser]:
        """One browser for all tests."""
        with chromium() as started:
            yield started

    @pytest.fixture
    def page(chrome: Browser) -> Iterator[Page]:
        """A fresh page; what its scripts complain about fails the test."""
        with a_page(chrome) as made:
            yield made

    @pytest.fixture
    def phone(chrome: Browser) -> Iterator[Page]:
        """The same at the width of a phone."""
        with a_page(chrome, width=375, height=740) as made:
            yield made


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def database(folder: Path) -> Iterator[Database]:
    """The records of ``server``, to put some there directly."""
    made = Database(f"sqlite:///{folder / 'meshwright.db'}")
    migrations.upgrade(made)
    yield made
    made.close()


@pytest.fixture(scope="session")
def server(database: Database) -> Iterator[RunningServer]:
    """A whole service with one worker."""
    with serving({"database_url": str(database.url)}) as started:
        yield replace(started, url=started.url.replace("127.0.0.1", "localhost"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    """A service whose searches go on until they are stopped."""
    with slow_service(tmp_path_factory.mktemp("slow")) as started:
        yield started
