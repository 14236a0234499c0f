"""A small OpenID Connect provider on a thread: discovery, keys, the code flow with PKCE."""

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT, SECRET = "meshwright", "a secret"


@dataclass
class Provider:
    """What the provider answers; tests change the person and the claims."""

    url: str = ""
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "ada", "email": "ada@example.org"})
    key: RSAKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "one"}))
    signing_key: RSAKey | None = None  # None: its own
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)  # paths
    token_answer: tuple[int, bytes] | None = None  # None: as it is meant

    def authorized(self, query: dict[str, str]) -> str:
        """Return the address that a browser is sent back to, as after a password."""
        assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        asked = self.codes.pop(form.get("code", ""), None)
        secret = base64.b64encode(f"{CLIENT}:{SECRET.replace(' ', '+')}".encode()).decode()
        plain = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        hashed = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(hashed).decode().rstrip("=")
        known = authorization in {f"Basic {secret}", f"Basic {plain}"}
        if asked is None or asked["code_challenge"] != challenge or not known:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
        key = self.signing_key or self.key
        id_token = jwt.encode({"alg": "RS256", "kid": str(key.kid)}, {**usual, **self.claims}, key)
        return 200, {"access_token": "none", "token_type": "Bearer", "id_token": id_token}


@contextmanager
def a_provider() -> Iterator[Provider]:
    """A provider that listens on this machine."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked[urlsplit(self.path).path] += 1
            path, query = urlsplit(self.path).path, dict(parse_qsl(urlsplit(self.path).query))
            if path == "/authorize":
                self.send_response(303)
                self.send_header("Location", provider.authorized(query))
                self.end_headers()
                return
            documents = {
                "/.well-known/openid-configuration": {
                    "issuer": provider.url,
                    "authorization_endpoint": f"{provider.url}/authorize",
                    "token_endpoint": f"{provider.url}/token",
                    "jwks_uri": f"{provider.url}/keys",
                },
                "/keys": KeySet([provider.key]).as_dict(private=False),
            }
            self._answer(200, documents[path])

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            provider.asked[self.path] += 1
            if provider.token_answer is not None:
                self._send(*provider.token_answer)
                return
            self._answer(*provider.token(dict(parse_qsl(body)), self.headers.get("Authorization", "")))

        def _answer(self, status: int, document: Any) -> None:  # noqa: ANN401 - JSON
            self._send(status, json.dumps(document).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
