"""What the API shows of the points of a sweep while they are searched."""

from __future__ import annotations

from pydantic import BaseModel

from service.api.schemas import JobView, job_fields
from service.db.records import JobSummary


class ChildView(JobView):
    """One point of a sweep: a job like any other."""

    point: int
    values: dict[str, bool | int | str]  # of every axis
    reused: bool  # it was answered before


class ChildPage(BaseModel):
    """Points of a sweep, in order."""

    children: list[ChildView]
    next_page_token: str | None = None


def child_view(child: JobSummary) -> ChildView:
    """One record as a point."""
    point = child.point or {}
    return ChildView(
        **job_fields(child),
        point=child.position or 0,
        values=point.get("values", {}),
        reused=point.get("reused_from") is not None,
    )
