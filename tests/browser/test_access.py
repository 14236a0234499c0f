"""With keys: signing in, making a key, signing out; and the form where no script runs."""

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.browser.chromium import a_page
from tests.browser.questions import await_answer, fill_in
from tests.processes.servers import RunningServer, serving
from tests.served.access_cases import token_of


def test_one_signs_in_makes_a_key_and_leaves(page: Page, tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'keys.db'}")
    migrations.upgrade(database)
    token = token_of(database, "ours")
    with serving({"database_url": str(database.url), "workers": "0"}) as server:
        page.goto(f"{server.url}/keys")
        page.get_by_label("Key", exact=True).fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_visible()
        assert page.evaluate("document.cookie") == ""
        page.get_by_label("Name").fill("a colleague")
        page.get_by_role("button", name="Make key").click()
        secret = page.locator("#secret").inner_text()
        assert secret.startswith("mw_")
        page.goto(f"{server.url}/keys")
        assert secret not in page.content()
        row = page.get_by_role("row").filter(has_text="a colleague")
        row.get_by_text("Revoke", exact=True).click()
        row.get_by_role("button", name="Revoke for good").click()
        expect(page.get_by_role("row").filter(has_text="a colleague")).to_contain_text("revoked")
        page.get_by_role("button", name="Sign out").click()
        page.goto(f"{server.url}/jobs")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    database.close()


def test_without_scripts_one_asks_and_reads_the_answer(chrome: Browser, server: RunningServer) -> None:
    with a_page(chrome, scripts=False) as page:
        fill_in(page, server.url, batch="128")
        page.get_by_role("button", name="Search", exact=True).click()
        page.wait_for_url("**/jobs/*")
        server.finished_job(page.url.rpartition("/")[2])
        page.reload()
        await_answer(page)
        page.get_by_role("link", name="Open plan").click()
        page.get_by_role("link", name="Launch files", exact=True).click()
        expect(page.locator(".launch pre").first).to_be_visible()
