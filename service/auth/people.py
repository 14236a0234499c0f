"""Sign-in by OpenID Connect: the authorization code flow with PKCE; joserfc reads the tokens.

A person becomes a key without a token: sessions, owners of jobs, quotas, the audit trail and revocation are
those of keys. Issuer and subject give its id and its hash, so that it is the same each time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from sqlalchemy import update

from meshwright.service.auth.keys import MAX_TITLE, SCOPES, TENANT
from meshwright.service.auth.provider import Provider
from meshwright.service.db import key_records
from meshwright.service.db.database import Database
from meshwright.service.db.tables import api_keys
from meshwright.service.errors import ForbiddenError, UnauthorizedError
from meshwright.service.settings import Settings

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
ATTEMPT_S = 600  # from the provider's page and back
YOUNG_KEYS_S = 60.0  # keys of the provider that are older may lack the one that a token is signed with
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One sign-in that has begun, and where it leads; the browser holds it until it comes back."""

    state: str
    nonce: str
    verifier: str  # of PKCE
    back: str
    begun_at_s: int

    @classmethod
    def new(cls, back: str) -> Attempt:
        """Return an attempt that cannot be guessed."""
        return cls(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            back=back,
            begun_at_s=int(time.time()),
        )


class People:
    """The sign-in of people at one provider; safe to share between threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._provider = Provider(str(settings.oidc_issuer))
        self._secret = b""  # signs attempts: any process of this service may get one back
        self._used: dict[str, float] = {}  # states of attempts that have cost the provider a request
        self._using = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Return whether a provider is set."""
        return self._settings.oidc_issuer is not None

    def address(self, attempt: Attempt) -> str:
        """Return the provider's page that a browser is sent to.

        Raises:
            BusyError: the provider does not answer, or many sign in at once.
        """
        with self._provider.turn():
            page = self._provider.metadata()["authorization_endpoint"]
        hashed = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": str(self._settings.oidc_redirect_url),
            "scope": self._settings.oidc_scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": base64.urlsafe_b64encode(hashed).decode().rstrip("="),  # RFC 7636
            "code_challenge_method": "S256",
        }
        return f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(query)}"

    def sealed(self, attempt: Attempt) -> str:
        """Return an attempt as its browser holds it, so that nobody can make one up."""
        held = base64.urlsafe_b64encode(json.dumps(asdict(attempt)).encode()).decode()
        return f"{held}.{self._seal_of(held)}"

    def opened(self, sealed: str, state: str) -> Attempt:
        """Return the attempt that a browser holds and the provider names by its ``state``.

        Raises:
            UnauthorizedError: it did not begin here, is another one, or took over ``ATTEMPT_S``.
        """
        held, _, seal = sealed.partition(".")
        if hmac.compare_digest(seal.encode(), self._seal_of(held).encode()):
            attempt = Attempt(**json.loads(base64.urlsafe_b64decode(held)))
            young = abs(time.time() - attempt.begun_at_s) <= ATTEMPT_S
            if young and hmac.compare_digest(state.encode(), attempt.state.encode()):
                return attempt
        raise UnauthorizedError("this sign-in did not start here, or took too long. Start again")

    def _seal_of(self, held: str) -> str:
        if not self._secret:
            with self._database.write() as connection:
                self._secret = key_records.secret_of(connection, "sign-in").encode()
        return hmac.new(self._secret, held.encode(), hashlib.sha256).hexdigest()

    def signed_in(self, attempt: Attempt, code: str) -> str:
        """Return the id of the key of whoever has come back with ``code``.

        An attempt costs the provider one request; a second and a third where its keys or addresses are old.

        Raises:
            BusyError: the provider does not answer, or many sign in at once.
            UnauthorizedError: it does not confirm the code, or its token is not valid, or it was used.
            ForbiddenError: the person was revoked here, or is of no tenant.
        """
        secret, client_id = self._settings.oidc_client_secret, self._settings.oidc_client_id
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": str(self._settings.oidc_redirect_url),
            "code_verifier": attempt.verifier,
            "client_id": client_id,
        }
        with self._provider.turn():
            self._use(attempt)
            basic = (client_id, secret.get_secret_value()) if secret else None
            claims = self._claims(self._provider.token(form, secret=basic), attempt)
        return self._key_of(claims)

    def _use(self, attempt: Attempt) -> None:
        """Let an attempt cost the provider a request, once."""
        now_s = time.monotonic()
        with self._using:
            for state in [one for one, until_s in self._used.items() if until_s < now_s]:
                del self._used[state]
            if attempt.state in self._used:
                raise UnauthorizedError("this sign-in was used before. Start again")
            self._used[attempt.state] = now_s + 2 * ATTEMPT_S

    def _claims(self, id_token: str, attempt: Attempt) -> Mapping[str, Any]:
        """Return the claims of a valid token; keys that may be older than it are asked for anew."""
        try:
            return self._read(id_token, attempt, self._provider.keys())
        except UnauthorizedError:
            return self._read(id_token, attempt, self._provider.keys(max_age_s=YOUNG_KEYS_S))

    def _read(self, id_token: str, attempt: Attempt, keys: Mapping[str, Any]) -> Mapping[str, Any]:
        from joserfc import jwt  # noqa: PLC0415 - with cryptography, .1 s of a server's start
        from joserfc.errors import JoseError  # noqa: PLC0415 - the same
        from joserfc.jwk import KeySet  # noqa: PLC0415 - the same

        client_id = self._settings.oidc_client_id
        wanted = jwt.JWTClaimsRegistry(
            leeway=60,
            iss={"essential": True, "value": str(self._settings.oidc_issuer)},
            aud={"essential": True, "value": client_id},
            nonce={"essential": True, "value": attempt.nonce},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=ALGORITHMS)  # type: ignore[arg-type]
            wanted.validate(token.claims)
            _require_party(token.claims, client_id)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UnauthorizedError("the sign-in provider's token is not valid") from None
        return token.claims

    def _key_of(self, claims: Mapping[str, Any]) -> str:
        """Return the key of a person, made at the first sign-in, with the tenant and scope of today."""
        digest = hashlib.sha256(f"oidc\n{claims['iss']}\n{claims['sub']}".encode()).hexdigest()
        key_id = digest[:12]
        title = str(claims.get("email") or claims.get("name") or claims["sub"])
        rights = {
            "tenant": self._tenant_of(claims),
            "scope": self._scope_of(claims),
            "title": _CONTROL.sub("", title)[:MAX_TITLE],
        }
        with self._database.write() as connection:
            found = key_records.find_key(connection, key_id)
            if found is None:
                key_records.insert_key(
                    connection, id=key_id, secret_sha256=digest, expires_in_s=None, **rights
                )
            elif found[1] != digest or found[0].revoked_at_s is not None:
                raise ForbiddenError("your access to this service was revoked")
            else:
                connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(**rights))
            key_records.note(
                connection, rights["tenant"], actor=key_id, action="person.sign-in", subject=key_id,
                scope=rights["scope"], title=rights["title"],
            )  # fmt: skip
        return key_id

    def _tenant_of(self, claims: Mapping[str, Any]) -> str:
        name = self._settings.oidc_tenant_claim
        tenant = self._settings.oidc_tenant if name is None else claims.get(name)
        if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
            raise ForbiddenError(f"the sign-in provider gives you no tenant (claim {name})")
        return tenant

    def _scope_of(self, claims: Mapping[str, Any]) -> str:
        given = claims.get(self._settings.oidc_groups_claim, [])
        groups = (
            {given} if isinstance(given, str) else set(map(str, given if isinstance(given, list) else ()))
        )
        if groups & _names(self._settings.oidc_admin_groups):
            return SCOPES[2]
        submitters = _names(self._settings.oidc_submit_groups)
        return SCOPES[1] if not submitters or groups & submitters else SCOPES[0]


def _require_party(claims: Mapping[str, Any], client_id: str) -> None:
    """Refuse a token for another client (OpenID Connect Core 1.0, section 3.1.3.7, steps 4 and 5)."""
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (several or "azp" in claims) and claims.get("azp") != client_id:
        raise ValueError("azp")
    if not isinstance(claims["sub"], str):
        raise TypeError("sub")


def _names(listed: str) -> set[str]:
    return {name.strip() for name in listed.split(",")} - {""}
