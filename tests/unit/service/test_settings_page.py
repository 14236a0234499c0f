"""docs/settings.md lists every setting there is, as `python -m meshwright.service.settings` prints it."""

from pathlib import Path

from meshwright.service.settings import Settings, as_markdown

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), (
        "python -m meshwright.service.settings > docs/settings.md"
    )


def test_every_setting_says_what_it_is_for() -> None:
    silent = [name for name, field in Settings.model_fields.items() if not field.description]
    assert silent == []
