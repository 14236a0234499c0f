"""From a question to launch files, as somebody does it who never saw the page before."""

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.questions import CONFIG, SCRIPT, await_answer, fill_in, search
from tests.processes.servers import RunningServer


def test_from_a_question_to_launch_files(page: Page, server: RunningServer) -> None:
    fill_in(page, server.url)
    search(page)
    await_answer(page)
    expect(page.locator(".answer .certainty")).to_contain_text("under our model")
    expect(page.locator("figure.course svg .incumbent")).to_be_attached()

    page.get_by_label("First").select_option(index=0)
    page.get_by_label("Second").select_option(index=2)
    expect(page.locator("[data-name=second]")).to_contain_text("#3")
    page.get_by_role("button", name="MFU").click()
    expect(page.locator("table.ranking th[aria-sort]")).to_have_count(1)

    page.get_by_role("link", name="Plan 2 in full").click()
    expect(page.get_by_role("heading", name="Plan 2: ")).to_be_visible()
    expect(page.get_by_text("The pipeline, to scale")).to_be_visible()
    page.get_by_role("link", name="Compare with the best").click()
    expect(page.get_by_role("heading", name="Two plans, side by side")).to_be_visible()
    page.go_back()

    page.get_by_role("link", name="Launch files", exact=True).click()
    page.get_by_label("Launcher").select_option("megatron-bridge")
    page.wait_for_url("**launcher=megatron-bridge*")
    name = page.locator(".launch h2").first.inner_text()
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download", exact=True).first.click()
    assert saved.value.suggested_filename == name
    assert Path(saved.value.path()).read_text() == page.locator(".launch pre").first.inner_text()


def test_a_mistake_is_told_beside_its_field_and_mended_there(page: Page, server: RunningServer) -> None:
    fill_in(page, server.url, batch="64 sequences", model="lama-3.1-8b")
    page.get_by_role("button", name="Search", exact=True).click()
    batch, model = page.get_by_label("Batch", exact=True), page.get_by_label("Model", exact=True)
    expect(batch).to_have_attribute("aria-invalid", "true")
    expect(batch).to_have_value("64 sequences")
    expect(page.locator("#fault-batch")).to_be_visible()
    expect(page.locator(".faults")).to_be_focused()
    batch.fill("64")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#fault-model")).to_contain_text("Did you mean llama-3.1-8b")
    expect(batch).not_to_have_attribute("aria-invalid", "true")
    model.fill("llama-3.1-8b")
    search(page)


def test_names_are_completed_from_the_catalog(page: Page, server: RunningServer) -> None:
    page.goto(server.url)
    names = page.locator("#models option").evaluate_all("all => all.map(one => one.value)")
    assert {"llama-3.1-70b", "deepseek-v3"} <= set(names)
    page.goto(f"{server.url}/models")
    page.get_by_label("Find").fill("deepseek-v3.2")
    expect(page.locator("#names tbody tr:visible")).to_have_count(1)


def test_a_config_json_is_chosen_and_one_is_dropped(
    page: Page, server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    fill_in(page, server.url)
    page.get_by_text("Your own model").click()
    page.get_by_label("Choose a file").first.set_input_files(tmp_path / "config.json")
    expect(page.locator("#config")).to_have_value(CONFIG)
    page.locator("#config").fill("")
    dropped = page.evaluate_handle(
        "text => { const held = new DataTransfer();"
        " held.items.add(new File([text], 'config.json')); return held; }",
        CONFIG,
    )
    page.locator("[data-drop=config]").dispatch_event("drop", {"dataTransfer": dropped})
    expect(page.locator("#config")).to_have_value(CONFIG)
    search(page)
    expect(page.locator("h1")).to_contain_text("custom")


def test_a_launch_file_is_priced_and_searched_against(
    page: Page, server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "pretrain.sh").write_text(SCRIPT)
    page.goto(f"{server.url}/own")
    page.get_by_label("Choose a file").set_input_files(tmp_path / "pretrain.sh")
    expect(page.get_by_label("Its name")).to_have_value("pretrain.sh")
    page.get_by_role("button", name="Price it").click()
    expect(page.locator("#priced-title")).to_contain_text("tensor 2")
    page.get_by_role("button", name="Search for something better").click()
    page.wait_for_url("**/jobs/*")
    await_answer(page)
    expect(page.locator("#ranking")).to_contain_text("Your configuration (tp 2")


def test_everything_can_be_done_with_the_keyboard(page: Page, server: RunningServer) -> None:
    page.goto(server.url)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    fill_in(page, server.url)
    page.get_by_label("Sequence length").press("Enter")
    page.wait_for_url("**/jobs/*")
    await_answer(page)
    page.get_by_role("link", name="Plan 1 in full").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Plan 1: ")).to_be_visible()


def test_an_unknown_id_is_told_on_a_page(page: Page, server: RunningServer) -> None:
    answer = page.goto(f"{server.url}/jobs/none")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("heading", name="Nothing here")).to_be_visible()
    page.get_by_role("link", name="Go to the first page").click()
    expect(page.get_by_role("button", name="Search", exact=True)).to_be_visible()
