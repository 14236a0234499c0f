"""Paths, queries and forms that mean the pages no good, of who signed in and of who did not.

No answer may be a 5xx, every one carries a policy, and a form is taken from whoever signed in here and from
this server's own pages only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, islice, product
from urllib.parse import quote, urlencode

import httpx

from meshwright.service.web import questions
from meshwright.service.web.routes import keys
from tests.served.access_cases import with_ids
from tests.served.routes import Served, served_routes

SEGMENTS = (
    "none", "%00", "..%2f..%2fetc%2fpasswd", "%ff%fe", "%ed%a0%80", "a%0d%0aSet-Cookie:%20x=y", "x" * 300,
    "%F0%9F%92%A5", "'%3B%20DROP%20TABLE%20jobs%3B%20--", "-1", "0", "%2e%2e", "%25", "a%20b", "{job_id}",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\ud800", "\uffff", "NaN", "-Infinity", "1e999", "-1", "0", "0.5", "9" * 400, "1" * 5000,
    str(2**63), "true", "null", "[]", "{}", '{"a": {"b": NaN}}', "[" * 200 + "]" * 200, '{"a": 1, "a": 2}',
    "x" * 70_000, "../../etc/passwd", "'; DROP TABLE jobs; --", "<script>alert(1)</script>", "{{7*7}}",
    "a\r\nSet-Cookie: x=y", "\u202e", "8,16,x", ",,,", "llama-3.1-8b", "8",
)  # fmt: skip
QUERIES = ("page_token", "state", "launcher", "first", "second", "version", "next")
BAD = ("5xx", "no policy", "let in")  # kinds of answers that there must be none of
FORM = "application/x-www-form-urlencoded"
BODIES = (
    b"", b"&&&==&", b"a=%", b"a=%zz", b"a=%00", b"a=%ed%a0%80", b"\xff\xfe", b"=" * 70_000, b"a=b&" * 500,
    b"a=" + b"x" * (9 * 2**20), b'{"a": 1}', b"document=" + b"%5B" * 50_000,
    b"name=..%2f..&document=%7B%22groups%22%3A%5B%5D%7D", b"document=%7B%22groups%22%3A1%7D&name=a",
)  # fmt: skip
FIELDS = tuple(dict.fromkeys(one.name for one in chain(questions.QUESTION, questions.OWN, keys.FIELDS)))
RIGHT = {"model": "gpt-3-350m", "cluster": "dgx-h100", "num_nodes": "1", "global_batch_size": "16"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request; ``body``: of a form."""

    method: str
    address: str
    body: bytes | None = None
    media_type: str = FORM


@dataclass(kw_only=True)
class Pages:
    """The pages of one server, and who signed in there."""

    url: str
    token: str  # of an administrator's key
    ids: Mapping[str, Sequence[str]]  # by path parameter, of what is there
    found: Counter[str] = field(default_factory=Counter)

    def fuzz(self, every: int) -> Counter[str]:
        """Send every ``every``-th case; how many answers of each kind."""
        here = {"Accept": "text/html", "Origin": self.url}
        with httpx.Client(base_url=self.url, headers=here, timeout=300) as insider:
            insider.post("/sign-in", data={"key": self.token})
            if not insider.cookies:
                raise RuntimeError("the key did not sign in")
            for case in islice(self._cases(), 0, None, every):
                self._note(case, _sent(insider, case))
            self._refuse_others(insider, every)
        return self.found

    def _cases(self) -> Iterator[Case]:
        """Every page with every name in its path, every query, and every form."""
        routes = [one for one in served_routes() if one.is_page and one.path != "/sign-out"]
        for route in routes:
            for address in self._addresses(route):
                if route.method == "GET":
                    yield Case(method="GET", address=address)
                    continue
                yield from (Case(method="POST", address=address, body=body) for body in BODIES)
                yield Case(method="POST", address=address, body=b"{}", media_type="application/json")
        for name, text in product(FIELDS, TEXTS):
            typed = urlencode({**RIGHT, name: text}, errors="surrogatepass").encode()
            yield from (
                Case(method="POST", address=path, body=typed) for path in ("/jobs", "/own", "/keys")
            )
        for path, name, text in product(("/", "/jobs", "/compare", "/keys", "/models/x"), QUERIES, TEXTS):
            given = quote(text[:3000], errors="surrogatepass")
            yield Case(method="GET", address=f"{path}?{name}={given}")

    def _addresses(self, route: Served) -> list[str]:
        """A path with what is there in it, and with what no id looks like."""
        path = route.path.replace(":path", "")
        if "{" not in path:
            return [path]
        launchers = cycle(("megatron-lm", "torchtitan", "none", "%00"))
        known = [
            with_ids(
                path,
                {
                    **dict.fromkeys(("name", "profile_id", "key_id"), name),
                    "job_id": name,
                    "plan_id": name,
                    "launcher": next(launchers),
                },
            )
            for name in chain(*self.ids.values())
        ]
        strange = [
            with_ids(
                path, dict.fromkeys(("job_id", "plan_id", "name", "launcher", "profile_id", "key_id"), one)
            )
            for one in SEGMENTS
        ]
        return known + strange

    def _refuse_others(self, insider: httpx.Client, every: int) -> None:
        """Forms of who did not sign in, of who says that he did, and of another site's page."""
        session = dict(insider.cookies)
        forged = dict.fromkeys(session, f"ms_{'a' * 43}")
        own, foreign = {"Origin": self.url}, {"Origin": "http://elsewhere.example"}
        kinds: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
            ({}, own),
            (forged, own),
            (session, foreign),
            (session, {"Origin": "null"}),
            (session, {}),
        )
        posts = [case for case in islice(self._cases(), 0, None, every) if case.method == "POST"]
        some = [case for case in posts[:: max(1, len(posts) // 60)] if case.address != "/sign-in"]
        for cookies, headers in kinds:
            sent = {**headers, "Accept": "text/html"}
            with httpx.Client(base_url=self.url, cookies=cookies, headers=sent, timeout=300) as outsider:
                for case in some:
                    answer = _sent(outsider, case)
                    self._note(case, answer)
                    to_sign_in = answer.headers.get("location", "").startswith("/sign-in")
                    if not answer.is_client_error and not to_sign_in:
                        print(f"POST {case.address[:80]}: let in with {answer.status_code}")
                        self.found["let in"] += 1

    def _note(self, case: Case, answer: httpx.Response) -> None:
        """Count an answer; the bad kinds are told."""
        kind = "refused" if answer.is_client_error else "accepted"
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            kind = "5xx"
        elif "frame-ancestors 'none'" not in answer.headers.get("content-security-policy", ""):
            kind = "no policy"
        if kind in {"5xx", "no policy"}:
            body = (case.body or b"")[:200]
            print(f"{case.method} {case.address[:200]} {body!r}: {answer.status_code} {kind}")
        self.found[kind] += 1


def _sent(client: httpx.Client, case: Case) -> httpx.Response:
    headers = {} if case.body is None else {"Content-Type": case.media_type}
    return client.request(case.method, case.address, content=case.body, headers=headers)
