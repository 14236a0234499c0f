"""What a client hears that does not speak HTTP: a problem document, as for every other mistake.

No route, and no middleware, ever sees such a request; uvicorn itself would answer with plain text.
"""

from __future__ import annotations

from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api.problems import MEDIA_TYPE, ProblemView, type_of

_VIEW = ProblemView(
    type=type_of("bad_request"),
    title=HTTPStatus.BAD_REQUEST.phrase,
    status=HTTPStatus.BAD_REQUEST,
    detail="this is no HTTP/1.1 request",
)
_BODY = _VIEW.model_dump_json(exclude_none=True).encode()
_HEAD = h11.Response(
    status_code=HTTPStatus.BAD_REQUEST,
    reason=HTTPStatus.BAD_REQUEST.phrase.encode(),
    headers=[
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(_BODY)).encode()),
        (b"connection", b"close"),
    ],
)


class ProblemProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1, with a problem document for what is none."""

    def send_400_response(self, msg: str) -> None:
        """Answer, unless an answer is under way, and hang up; ``msg`` is uvicorn's own and says no more."""
        del msg
        try:
            for event in (_HEAD, h11.Data(data=_BODY), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass
        self.transport.close()
