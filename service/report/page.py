"""A report as one HTML file: markup, style, script and data together; nothing is fetched.

Its content security policy allows this style and this script by their hashes and nothing else; every name
from outside passes through Jinja's escaping.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from meshwright.profiles.figures import NO_BREAK
from meshwright.service.report.document import Document, PredictionDocument
from meshwright.service.report.fleet import FleetReport
from meshwright.service.report.formatting import COLUMNS, MEMORY_TERMS, TIME_TERMS, with_ties, words
from meshwright.service.report.post_training import RolesReport

HTML = Path(__file__).parent / "html"
# Those of one configuration and of a fleet have no script.
_TEMPLATES = {
    Document: "report.html", PredictionDocument: "prediction.html", FleetReport: "fleet_report.html",
    RolesReport: "roles_report.html",
}  # fmt: skip
_SHORT = re.compile(r"\b(?:tp|pp|vpp|cp|ep|dp|zero|mbs)(?=[ \N{NO-BREAK SPACE}]\d)|\bMFU\b")


def render_page(document: Document | PredictionDocument | FleetReport | RolesReport) -> str:
    """Return the whole file; the same document always gives the same bytes."""
    terms = COLUMNS | {words(name): meaning for name, meaning in (TIME_TERMS | MEMORY_TERMS).items()}
    return (
        environment()
        .get_template(_TEMPLATES[type(document)])
        .render(
            document=document,
            css=_trusted("report.css"),
            script=_trusted("report.js"),
            policy=content_security_policy(),
            glossary=[(name, meaning) for name, meaning in terms.items() if name != "#"],
        )
    )


@cache
def content_security_policy() -> str:
    """Return the policy by which the page loads only its own style and script, by hash."""
    files = (_trusted(name).encode() for name in ("report.css", "report.js"))
    # as CSP level 3, section 2.3.1 writes hashes
    style, script = (f"sha256-{base64.b64encode(hashlib.sha256(file).digest()).decode()}" for file in files)
    parts = [
        "default-src 'none'",
        f"style-src '{style}'",
        f"script-src '{script}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(parts)


@cache
def environment() -> Environment:
    """Return the templates; a name that a document lacks is an error, never an empty string."""
    made = Environment(
        loader=FileSystemLoader(HTML),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["groupby_order"] = lambda rows, name: [
        (key, list(some)) for key, some in groupby(rows, attrgetter(name))
    ]
    made.filters["tied"] = _unbroken
    made.filters["explained"] = _explained
    return made


def _unbroken(text: str) -> str:
    """Tie figures to their units, and dots to what they follow, so that no line begins with one."""
    return with_ties(text).replace(" · ", f"{NO_BREAK}· ")


def _explained(text: str) -> Markup:
    escaped = str(escape(_unbroken(text)))
    hint = '<abbr title="{}">{}</abbr>'.format
    return Markup(_SHORT.sub(lambda found: hint(escape(COLUMNS[found[0]]), found[0]), escaped))  # noqa: S704 - escaped above


@cache
def _trusted(name: str) -> Markup:
    return Markup((HTML / name).read_text(encoding="utf-8"))  # noqa: S704 - our own file
