"""The pages beside the API, as `meshwright serve` puts them together."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.settings import Settings
from meshwright.service.web.install import install

ORIGIN = "http://localhost"
BROWSER = {"accept": "text/html", "origin": ORIGIN}


@pytest.fixture
def browser(database: Database) -> Iterator[TestClient]:
    """A browser: asks for pages, says where its forms come from, follows nothing by itself."""
    app = create_app(Settings(database_url=str(database.url)))
    install(app)
    with TestClient(
        app, base_url=ORIGIN, headers=BROWSER, follow_redirects=False, raise_server_exceptions=False
    ) as client:
        yield client
