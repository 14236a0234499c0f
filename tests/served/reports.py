"""Whole reports of small answers, and pages read as a browser would."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

from meshwright.profiles.profile import default_profile
from meshwright.service.report.page import render_page
from meshwright.service.reporting import ReportOptions, report_of
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_model, a_problem

VOID = frozenset({"meta", "input", "br", "hr", "link", "img"})


@cache
def small_answer(top_k: int = 3) -> tuple[Problem, Answer]:
    """A small model on two nodes of the catalog, really searched."""
    model = a_model(num_layers=8, hidden_size=4096, num_attention_heads=32, ffn_hidden_size=14336)
    cluster = a_cluster(num_nodes=2)
    made = a_problem(model=model, cluster=cluster, batch=64, top_k=top_k, certify="none")
    problem = parse_problem(problem_to_mapping(made))  # as it is read back: with the catalog's GPU
    return problem, ask(problem, default_profile(problem.cluster, problem.launcher))


def page_of(answer: Answer, problem: Problem, **asked: object) -> str:
    """The page of an answer; other keywords are ``ReportOptions``'s."""
    wish = replace(ReportOptions(what_if="none"), **asked)  # type: ignore[arg-type]
    return render_page(report_of(answer, problem, default_profile(problem.cluster, problem.launcher), wish))


class Page(HTMLParser):
    """The elements of a page; unbalanced markup is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        """What is written, white space folded."""
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        """The attributes of every such element."""
        return [attributes for name, attributes in self.elements if name == tag]
