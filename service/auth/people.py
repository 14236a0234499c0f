"""Sign-in by OpenID Connect: the authorization code flow with PKCE, by Authlib and joserfc.

A person becomes a key without a token: sessions, owners of jobs, quotas, the audit trail and revocation are
those of keys. Issuer and subject give its id and its hash, so that it is the same each time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import update

from meshwright.service.auth.keys import MAX_TITLE, SCOPES, TENANT
from meshwright.service.auth.provider import TIMEOUT_S, Provider
from meshwright.service.db import key_records
from meshwright.service.db.database import Database
from meshwright.service.db.tables import api_keys
from meshwright.service.errors import ForbiddenError, UnauthorizedError
from meshwright.service.settings import Settings

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One sign-in that has begun; the browser holds it until it comes back."""

    state: str
    nonce: str
    verifier: str  # of PKCE

    @classmethod
    def new(cls) -> Attempt:
        """Return an attempt that cannot be guessed."""
        return cls(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
        )


class People:
    """The sign-in of people at one provider; safe to share between threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._provider = Provider(str(settings.oidc_issuer))

    @property
    def is_on(self) -> bool:
        """Return whether a provider is set."""
        return self._settings.oidc_issuer is not None

    def address(self, attempt: Attempt, redirect_uri: str) -> str:
        """Return the provider's page that a browser is sent to.

        Raises:
            BusyError: the provider does not answer, or many sign in at once.
        """
        with self._provider.turn(), self._client(redirect_uri) as client:
            address, _ = client.create_authorization_url(
                self._provider.metadata()["authorization_endpoint"],
                state=attempt.state, nonce=attempt.nonce, code_verifier=attempt.verifier,
            )  # fmt: skip
        return str(address)

    def signed_in(self, attempt: Attempt, code: str, redirect_uri: str) -> str:
        """Return the id of the key of whoever has come back with ``code``.

        Raises:
            BusyError: the provider does not answer, or many sign in at once.
            UnauthorizedError: it does not confirm the code, or its token is not valid.
            ForbiddenError: the person was revoked here, or is of no tenant.
        """
        from authlib.integrations.base_client import OAuthError  # noqa: PLC0415 - 0.2 s of a server's start

        with self._provider.turn():
            endpoint = self._provider.metadata()["token_endpoint"]

            def confirm(client: Any) -> str:  # noqa: ANN401 - Authlib is loaded by the first sign-in
                token = client.fetch_token(endpoint, code=code, code_verifier=attempt.verifier)
                return str(token.get("id_token", ""))

            try:
                id_token = self._provider.asked(self._client(redirect_uri), confirm, OAuthError)
            except OAuthError:
                raise UnauthorizedError("the sign-in provider does not confirm this sign-in") from None
            claims = self._claims(id_token, attempt)
        return self._key_of(claims)

    def _claims(self, id_token: str, attempt: Attempt) -> Mapping[str, Any]:
        from joserfc import jwt  # noqa: PLC0415 - with cryptography, .1 s of a server's start
        from joserfc.errors import JoseError  # noqa: PLC0415 - the same
        from joserfc.jwk import KeySet  # noqa: PLC0415 - the same

        keys = self._provider.document(self._provider.metadata()["jwks_uri"])
        wanted = jwt.JWTClaimsRegistry(
            leeway=60,
            iss={"essential": True, "value": str(self._settings.oidc_issuer)},
            aud={"essential": True, "value": self._settings.oidc_client_id},
            nonce={"essential": True, "value": attempt.nonce},
            exp={"essential": True},
            sub={"essential": True},
        )
        try:
            token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=ALGORITHMS)  # type: ignore[arg-type]
            wanted.validate(token.claims)
        except (JoseError, ValueError, TypeError, KeyError):
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

    def _client(self, redirect_uri: str) -> Any:  # noqa: ANN401 - Authlib is loaded by the first sign-in
        from authlib.integrations.httpx_client import OAuth2Client  # noqa: PLC0415 - 0.2 s of a server's start

        secret = self._settings.oidc_client_secret
        return OAuth2Client(
            self._settings.oidc_client_id,
            secret.get_secret_value() if secret else None,
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
            scope=self._settings.oidc_scopes,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
        )


def _names(listed: str) -> set[str]:
    return {name.strip() for name in listed.split(",")} - {""}
