"""Endpoints: pending events, and deciding them (design 8)."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.base import ApiView
from durableflow.api.bodies import DecideBody
from durableflow.api.docs import ROW_ID, documented, responses
from durableflow.api.errors import handle
from durableflow.api.filtering import QueryFilter
from durableflow.api.filters import PendingEventFilter
from durableflow.api.paging import NewestFirst
from durableflow.api.pending_answers import DecisionAnswer, PendingEventAnswer, PendingEventRow
from durableflow.core.exceptions import StaleDecision
from durableflow.core.statuses import Via
from durableflow.models import PendingEvent
from durableflow.models.permissions import VIEW, holds


class PendingEventsView(ApiView):
    """The pending events that the user may see or decide."""

    pagination_class: Any = NewestFirst
    filter_backends: Any = (QueryFilter,)
    filterset_class: Any = PendingEventFilter
    serializer_class = PendingEventRow

    def get_queryset(self) -> Any:
        """Without their contexts."""
        return self.visible_pending_events().defer("context", "data")

    def context(self, rows: list[PendingEvent]) -> dict[str, Any]:
        """What answers ask of the view: which of ``rows`` wait on the user, which instances the user may see."""
        user = self.request.user
        sees_all = holds(user, VIEW)
        mine = PendingEvent.objects.using(rows[0]._state.db).decidable_by(user) if rows else None
        ids = set() if mine is None else set(mine.filter(pk__in=[row.pk for row in rows]).values_list("pk", flat=True))
        return {
            "view": self,
            "mine": ids,
            "may_view": lambda instance: sees_all or instance.created_by_id == user.pk,
        }

    @documented(
        operation_id="list_pending_events",
        tags=["pending events"],
        responses=responses(200, PendingEventRow(many=True), 400, 404),
    )
    def get(self, request: Request) -> Response:
        """Newest first, page by page. ``?mine=true``: those that wait on the user."""
        page: Any = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response(PendingEventRow(page, many=True, context=self.context(page)).data)


class PendingEventView(PendingEventsView):
    """One pending event."""

    pagination_class: Any = None
    filter_backends: Any = ()
    filterset_class: Any = None

    @documented(
        operation_id="retrieve_pending_event",
        tags=["pending events"],
        parameters=[ROW_ID],
        responses=responses(200, PendingEventAnswer, 404),
    )
    def get(self, request: Request, pk: int) -> Response:  # type: ignore[override]
        """With its context, the fields of its form, and the decision."""
        row = self.pending_event(pk)
        return Response(PendingEventAnswer(row, context=self.context([row])).data)


class DecideView(ApiView):
    """Deciding one pending event."""

    @documented(
        operation_id="decide_pending_event",
        tags=["pending events"],
        parameters=[ROW_ID],
        request=DecideBody,
        responses=responses(200, DecisionAnswer, 400, 404, 409, 413),
    )
    def post(self, request: Request, pk: int) -> Response:
        """The first answer wins; a later one learns who decided and when (409)."""
        body = self.body(DecideBody)
        row = self.pending_event(pk)
        decision = row.decide(
            body["approved"], by=request.user, data=body["data"], comment=body["comment"], via=Via.API
        )
        return Response(DecisionAnswer(decision).data)

    def handle_exception(self, exc: Exception) -> Response:
        """A stale answer also says which wait of the instance is open now, if the user may see it."""
        if not isinstance(exc, StaleDecision):
            return super().handle_exception(exc)
        response = handle(exc, None)
        assert response is not None  # noqa: S101 - handle knows StaleDecision
        response.exception = True
        response.data["current"] = self._current()
        return response

    def _current(self) -> str | None:
        row = self.pending_event(self.kwargs["pk"])
        waits = self.visible_pending_events().open().approvals().filter(instance=row.instance_id)
        found = waits.exclude(pk=row.pk).first()
        return None if found is None else self.url("pending-event", found.pk)
