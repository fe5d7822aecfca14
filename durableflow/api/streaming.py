"""The history of an instance as it happens: server-sent events (reference 12).

On ASGI alone. A stream is a task in the event loop: between two entries it holds no thread and no database connection.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Final

from django.core.handlers.asgi import ASGIRequest
from django.db import models, transaction
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.decorators import method_decorator
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import exceptions, status
from rest_framework.request import Request

from durableflow import timeline
from durableflow.api.answers import HistoryEntryAnswer
from durableflow.api.base import ApiView, StrictJsonRenderer
from durableflow.api.bodies import HistoryPlace
from durableflow.api.docs import documented, responses
from durableflow.api.threads import in_own_thread, leave_request_thread
from durableflow.models import HistoryEntry, WorkflowInstance
from durableflow.models.creation import database
from durableflow.models.following import Follower

EVENT_STREAM: Final = "text/event-stream"
HEARTBEAT = 15.0
"""Seconds after which a quiet stream gives a sign of life, so that proxies keep it open."""
CHECK_EVERY = 60.0
"""Seconds after which the right to see the instance is looked at again."""
_ID: Final = re.compile(r"[0-9]{1,18}")

LAST_EVENT_ID: Final = OpenApiParameter(
    "Last-Event-ID",
    str,
    OpenApiParameter.HEADER,
    description="The id of the last event that was seen; goes before `after`. Browsers send it when they reconnect.",
)
EVENTS: Final = OpenApiResponse(
    OpenApiTypes.STR,
    "Server-sent events. `id`: of the stored entry; `event`: its type; `data`: the entry as in the list. Entries that were "
    "stored as one come together, and only the last of them has the id: a connection that is cut between them gets all of them "
    "again. At the end comes an `end` event with the status (null: the instance is gone, or may no longer be seen).",
)


class NoStreaming(exceptions.APIException):
    """The project is not served by an ASGI server."""

    status_code = status.HTTP_501_NOT_IMPLEMENTED
    default_code = "no_streaming"
    default_detail = "Streams need an ASGI server. Ask for history/?after=ID&wait=20 again and again instead."


@method_decorator(transaction.non_atomic_requests, name="dispatch")
class HistoryStreamView(ApiView):
    """The history of an instance, live."""

    query_class = HistoryPlace

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """Browsers accept nothing but events here; errors are JSON all the same."""
        return StrictJsonRenderer(), StrictJsonRenderer.media_type

    @documented(
        operation_id="stream_history",
        tags=["instances"],
        parameters=[HistoryPlace, LAST_EVENT_ID],
        responses={
            **{(200, EVENT_STREAM): EVENTS},
            204: OpenApiResponse(
                description="The instance has ended, and `Last-Event-ID` was its end: do not reconnect."
            ),
            **{code: answer for code, answer in responses(200, None, 400, 404, 501).items() if code != 200},
        },
    )
    def get(self, request: Request, workflow: str, instance_id: str) -> HttpResponseBase:
        """What happened, oldest first, and then what happens, until the instance has ended."""
        query = self.query(HistoryPlace)
        row = self.instance(workflow, instance_id)
        again = last_event_id(request)
        if not isinstance(request._request, ASGIRequest):
            raise NoStreaming
        follower = Follower(row, query["after"] if again is None else again, query["types"])
        if again is not None and row.is_finished and not row.history.filter(id__gt=again).exists():
            return HttpResponse(status=204)
        if request.method == "HEAD":
            return HttpResponse(content_type=EVENT_STREAM)
        stream = StreamingHttpResponse(Stream(request.user, row, follower).chunks(), content_type=EVENT_STREAM)
        stream["Cache-Control"] = "no-cache"
        stream["X-Accel-Buffering"] = "no"
        return stream


def last_event_id(request: Request) -> int | None:
    """The header of a client that reconnects, None without one. Raises ValidationError."""
    text = request.headers.get("Last-Event-ID", "").strip()
    if not text:
        return None
    if not _ID.fullmatch(text):
        raise exceptions.ValidationError({"Last-Event-ID": ["The id of an event of this stream is expected."]})
    return int(text)


class Stream:
    """One stream to one user."""

    def __init__(self, user: Any, row: WorkflowInstance, follower: Follower) -> None:
        self._user = user
        self._row = row
        self._follower = follower

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events as they go over the line."""
        await leave_request_thread()
        yield b": the history of a workflow instance\n\n"
        check_at = time.monotonic() + CHECK_EVERY
        async with aclosing(self._follower.abatches(every=HEARTBEAT, run=in_own_thread)) as batches:
            async for found in batches:
                if time.monotonic() >= check_at:
                    check_at = time.monotonic() + CHECK_EVERY
                    if not await in_own_thread(self._may):
                        yield _end(None)
                        return
                if found.entries:
                    yield await in_own_thread(lambda entries=found.entries: self._events(entries))  # type: ignore[misc]
                if found.ended:
                    yield _end(found.status)
                elif not found.entries:
                    yield b":\n\n"

    def _may(self) -> bool:
        """Whether the user is still active and may still see the instance, by what the database says now."""
        user = self._user
        if isinstance(user, models.Model):
            # Not ``type()``: the request's user may be a lazy object.
            user = user.__class__._default_manager.filter(pk=user.pk).first()
        if user is None or not user.is_active:
            return False
        rows: Any = WorkflowInstance.objects.using(database()).visible_to(user)
        return bool(rows.filter(pk=self._row.pk).exists())

    def _events(self, entries: Iterable[HistoryEntry]) -> bytes:
        """Those entries. Of several views of one entry only the last has its id."""
        renderer = StrictJsonRenderer()
        parts: list[bytes] = []
        for views in timeline.told(self._row, entries, self._follower.types):
            for view in views:
                place = f"id: {view.id}\n" if view is views[-1] else ""
                parts.append(f"{place}event: {view.type}\ndata: ".encode())
                parts += [renderer.render(HistoryEntryAnswer(view).data), b"\n\n"]
        return b"".join(parts)


def _end(status: str | None) -> bytes:
    return f"event: end\ndata: {json.dumps({'status': status})}\n\n".encode()
