"""Endpoints of one instance: acting on it. Right and state are the verbs' to check, under the row's lock (design 9)."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from durableflow import timeline
from durableflow.api.answers import SentAnswer, StartedAnswer
from durableflow.api.base import ApiView
from durableflow.api.bodies import EventBody, ReasonBody, TerminateBody
from durableflow.api.docs import IDEMPOTENCY_KEY, documented, responses
from durableflow.core.statuses import Via
from durableflow.models import WorkflowInstance


class VerbView(ApiView):
    """A verb. ``body_class``: what its request may say; the verb takes the same."""

    verb: ClassVar[str]
    body_class: ClassVar[type[ReasonBody]] = ReasonBody

    def apply(self, workflow: str, instance_id: str) -> Response:
        """Apply it as the request's user, with what the body says."""
        options = self.body(self.body_class)
        row = self.instance(workflow, instance_id)
        getattr(row, self.verb)(by=self.request.user, via=Via.API, **options)
        return self.applied(row)

    def applied(self, row: WorkflowInstance) -> Response:
        """What the instance is now."""
        answer: dict[str, Any] = {name: getattr(row, name) for name in ("workflow", "instance_id", "status")}
        answer["url"] = self.url("instance", row.workflow, row.instance_id)
        return Response(StartedAnswer(answer).data)


class RetryView(VerbView):
    """Run the failed step again."""

    verb = "retry"

    @documented(
        operation_id="retry_instance",
        tags=["instances"],
        request=ReasonBody,
        responses=responses(200, StartedAnswer, 400, 404, 409),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Of an errored instance: the step that ended it runs again, everything else is kept."""
        return self.apply(workflow, instance_id)


class PauseView(VerbView):
    """Let an instance stand still."""

    verb = "pause"

    @documented(
        operation_id="pause_instance",
        tags=["instances"],
        request=ReasonBody,
        responses=responses(200, StartedAnswer, 400, 404, 409),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """At once, or, while bodies of its steps run, when they have ended and are stored (``waiting_for_pause``)."""
        return self.apply(workflow, instance_id)


class ResumeView(VerbView):
    """Let a paused instance go on."""

    verb = "resume"

    @documented(
        operation_id="resume_instance",
        tags=["instances"],
        request=ReasonBody,
        responses=responses(200, StartedAnswer, 400, 404, 409),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Its timers and deadlines have what they had left. A blocked instance tries again, usually after its code was
        repaired."""
        return self.apply(workflow, instance_id)


class TerminateView(VerbView):
    """End an instance."""

    verb = "terminate"
    body_class = TerminateBody

    @documented(
        operation_id="terminate_instance",
        tags=["instances"],
        request=TerminateBody,
        responses=responses(200, StartedAnswer, 400, 404, 409),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Now and for good; its open waits are cancelled. With ``rollback`` what it did is undone first."""
        return self.apply(workflow, instance_id)


class EventsView(ApiView):
    """The inbox of an instance."""

    @documented(
        operation_id="send_event",
        tags=["instances"],
        request=EventBody,
        parameters=[IDEMPOTENCY_KEY],
        responses=responses(202, SentAnswer, 400, 404, 409, 413),
    )
    def post(self, request: Request, workflow: str, instance_id: str) -> Response:
        """Send an event.

        The same ``Idempotency-Key`` with the same event gives the first one's id; with another it is a 409.
        """
        body = self.body(EventBody)
        key = self.idempotency_key()
        row = self.instance(workflow, instance_id)
        sent = row.send_event(body["type"], body["payload"], dedupe_key=key, by=request.user, via=Via.API)
        row.refresh_from_db(fields=["status", "run_number"])
        answer = {
            "id": sent.pk,
            "duplicate": sent.duplicate,
            "status": row.status,
            "waiting_for": timeline.waited_types(row),
        }
        return Response(SentAnswer(answer).data, status=202)
