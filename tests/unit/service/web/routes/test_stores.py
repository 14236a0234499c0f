"""Models, clusters and profiles as pages; and the files that all pages load."""

import gzip
import json
import re
import tracemalloc

import pytest
from fastapi.testclient import TestClient

from meshwright.service.db.database import Database
from meshwright.service.web.assets import SCRIPTS, STYLES, address_of, asset
from tests.served.answered_jobs import add_answered_job
from tests.served.reports import Page, small_answer
from tests.unit.service.web.test_questions import CONFIG, LAUNCH_FILE, OWN, TYPED, fault_beside

CHIP = {"memory_gib": 96, "hbm_gb_per_s": 3300, "peak_tflops": {"bf16": 900}}
CLUSTER = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]}
HUNDRED_KB = 100_000


@pytest.mark.parametrize(("kind", "document"), [("model", CONFIG), ("cluster", CLUSTER)])
def test_a_definition_is_kept_shown_by_version_and_deleted(
    browser: TestClient, kind: str, document: dict[str, object]
) -> None:
    typed = {"name": "our-own", "document": json.dumps(document)}
    assert browser.post(f"/{kind}s", data=typed).headers["location"] == f"/{kind}s/our-own"
    changed = {**document, "num_hidden_layers": 24} if kind == "model" else {
        "groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 3}]
    }  # fmt: skip
    browser.post(f"/{kind}s", data={**typed, "document": json.dumps(changed)})
    newest, first = browser.get(f"/{kind}s/our-own").text, browser.get(f"/{kind}s/our-own?version=1").text
    assert newest != first
    assert "version 2" in newest
    assert "our-own" in browser.get(f"/{kind}s").text
    assert 'value="our-own"' in browser.get("/").text  # the form completes it
    assert browser.post(f"/{kind}s/our-own/delete").status_code == 303
    assert browser.get(f"/{kind}s/our-own").status_code == 404


def test_a_gpu_type_is_kept_and_listed(browser: TestClient) -> None:
    typed = {"name": "our-chip", "document": json.dumps(CHIP)}
    assert browser.post("/gpus", data=typed).headers["location"] == "/gpus/our-chip"
    listed = browser.get("/gpus").text
    assert "<h1>GPU types</h1>" in listed
    assert "our-chip" in listed
    assert "79.6 GiB, 989.4 TFLOP/s in 16 bits" in listed
    assert browser.post("/gpus/our-chip/delete").status_code == 303
    wrong = {**typed, "document": json.dumps({**CHIP, "peak_tflops": {"bf16": 10**6}})}
    assert "beyond what 3300 GB/s can feed" in fault_beside(
        browser.post("/gpus", data=wrong).text, "document"
    )


def test_a_stored_model_can_be_asked_about(browser: TestClient) -> None:
    browser.post("/models", data={"name": "our-own", "document": json.dumps(CONFIG)})
    assert browser.post("/jobs", data={**TYPED, "model": "our-own"}).status_code == 303


def test_a_document_with_faults_is_not_kept(browser: TestClient) -> None:
    wrong = {"name": "our-own", "document": json.dumps({**CONFIG, "hidden_size": "x"})}
    answer = browser.post("/models", data=wrong)
    assert answer.status_code == 422
    assert "hidden_size" in fault_beside(answer.text, "document")
    answer = browser.post("/models", data={"name": "Not a name!", "document": json.dumps(CONFIG)})
    assert "is not usable" in fault_beside(answer.text, "name")
    answer = browser.post("/clusters", data={"name": "our-own", "document": ""})
    assert "is required" in fault_beside(answer.text, "document")
    answer = browser.post("/profiles", data={"document": json.dumps({"format": "nothing"})})
    assert answer.status_code == 422
    assert fault_beside(answer.text, "document")


def test_the_catalog_says_what_everything_is(browser: TestClient) -> None:
    assert "70.6 B parameters" in browser.get("/models").text
    assert "8 H100 SXM 80 GB per node" in browser.get("/clusters").text
    assert "Llama 3.1 70B" in browser.get("/models/llama-3.1-70b").text


def test_no_page_holds_a_style_or_a_script_of_its_own(browser: TestClient, database: Database) -> None:
    add_answered_job(database, "answered", *small_answer())
    (plan, other, _) = small_answer()[1].plans
    plans = (f"/plans/{plan.plan_id}", f"/plans/{plan.plan_id}/export")
    compared = f"/compare?first={plan.plan_id}&second={other.plan_id}"
    catalogs = ("/models", "/models/llama-3.1-8b", "/clusters", "/clusters/dgx-h100", "/profiles", "/keys")
    addresses = ("/", "/own", "/jobs", "/jobs/answered", "/nowhere", compared, *plans, *catalogs)
    pages = [browser.get(address).text for address in addresses]
    pages.append(browser.post("/own", data={**OWN, "launch_text": LAUNCH_FILE}).text)
    for text in pages:
        page = Page(text)
        names = {name for _, attributes in page.elements for name in attributes}
        assert not {name for name in names if name == "style" or name.startswith(("on", "hx-on"))}
        assert page.all("style") == []
        assert all("src" in one or one["type"] == "application/json" for one in page.all("script"))
        assert len(page.all("h1")) == 1
        assert page.all("title")


def test_files_keep_for_a_year_under_the_address_of_their_content(browser: TestClient) -> None:
    for name in (*STYLES, *SCRIPTS):
        answer = browser.get(address_of(name))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        tag = answer.headers["etag"]
        assert browser.get(address_of(name), headers={"if-none-match": tag}).status_code == 304
    old = browser.get("/static/0000000000000000/pages.css")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")
    assert browser.get("/static/0000000000000000/..%2f..%2fapp.py").status_code == 404


def test_names_that_are_no_files_take_no_memory() -> None:
    asset("pages.css")
    tracemalloc.start()
    assert [asset(f"{number}.css") for number in range(1000)] == [None] * 1000
    assert tracemalloc.get_traced_memory()[0] < 20_000  # a remembered name takes 100 bytes and more
    tracemalloc.stop()


def test_a_page_with_everything_that_it_loads_is_under_100_kb(browser: TestClient) -> None:
    first = browser.get("/")
    loaded = re.findall(r'(?:href|src)="(/static/[^"]+)"', first.text)
    assert len(loaded) == len(STYLES) + len(SCRIPTS)
    with browser.stream("GET", loaded[0], headers={"accept-encoding": "gzip"}) as answer:
        assert gzip.decompress(b"".join(answer.iter_raw()))
    sizes = [int(browser.get(one).headers["content-length"]) for one in loaded]  # as sent: packed
    assert sum(sizes) + len(first.content) < HUNDRED_KB
