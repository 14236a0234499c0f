"""What the API answers with about keys and the audit trail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel

from service.api.schemas import moment
from service.db.key_records import AuditRecord, KeyRecord


class KeyView(BaseModel):
    """One key, without its secret."""

    id: str
    scope: Literal["read", "submit", "admin"]
    title: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    usable: bool


class NewKeyView(KeyView):
    """One key with the token that stands for it; nobody can ever tell it again."""

    token: str | None  # null in the answer to a repeated request: revoke the key and make another


class KeyPage(BaseModel):
    """Keys, newest first."""

    keys: list[KeyView]
    next_page_token: str | None = None


class AuditView(BaseModel):
    """One act of an administrator."""

    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


class AuditPage(BaseModel):
    """The audit trail, newest first."""

    acts: list[AuditView]
    next_page_token: str | None = None


def key_fields(record: KeyRecord) -> dict[str, Any]:
    """The fields of ``KeyView`` for one record."""
    return {
        "id": record.id,
        "scope": record.scope,
        "title": record.title,
        "created_at": moment(record.created_at_s),
        "expires_at": moment(record.expires_at_s),
        "revoked_at": moment(record.revoked_at_s),
        "usable": record.usable,
    }


def audit_view(record: AuditRecord) -> AuditView:
    """One row of the audit trail as the API shows it."""
    return AuditView(
        at=datetime.fromtimestamp(record.at_s, UTC),
        actor=record.actor,
        action=record.action,
        subject=record.subject,
        details=dict(record.details),
    )
