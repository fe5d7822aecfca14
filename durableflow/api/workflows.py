"""Endpoints: the workflows, and the instances of one."""

from __future__ import annotations

import inspect
from typing import Any

from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.answers import InstanceRow, StartedAnswer, WorkflowAnswer
from durableflow.api.base import NO_WORKFLOW, ApiView
from durableflow.api.bodies import StartBody
from durableflow.api.docs import IDEMPOTENCY_KEY, documented, responses
from durableflow.api.filtering import QueryFilter
from durableflow.api.filters import InstanceFilter
from durableflow.api.paging import NewestFirst, Whole
from durableflow.api.starting import digest, start, startable
from durableflow.core import registry
from durableflow.core.statuses import Status
from durableflow.models.permissions import START, VIEW, holds


class WorkflowsView(ApiView):
    """The workflows whose instances the user may start or see."""

    pagination_class: Any = Whole
    serializer_class = WorkflowAnswer

    def names(self) -> list[str]:
        """Their names: all that are registered, or those of the user's own instances."""
        if holds(self.request.user, START) or holds(self.request.user, VIEW):
            return registry.names()
        return sorted(
            set(map(present_name, self.visible_instances().order_by().values_list("workflow", flat=True).distinct()))
        )

    def item(self, name: str) -> dict[str, Any]:
        """One of them."""
        cls = registry.find(name)
        return {
            "name": name,
            "description": description_of(cls),
            "can_start": cls is not None and holds(self.request.user, START),
            "url": self.url("workflow", name),
            "instances_url": self.url("instances", name),
        }

    @documented(operation_id="list_workflows", tags=["workflows"], responses=responses(200, WorkflowAnswer(many=True)))
    def get(self, request: Request) -> Response:
        """All of them on one page, by name."""
        page = self.paginate_queryset([self.item(name) for name in self.names()])
        return self.get_paginated_response(WorkflowAnswer(page, many=True).data)


class WorkflowView(WorkflowsView):
    """One workflow."""

    pagination_class: Any = None

    @documented(operation_id="retrieve_workflow", tags=["workflows"], responses=responses(200, WorkflowAnswer, 404))
    def get(self, request: Request, workflow: str) -> Response:  # type: ignore[override]
        """Its name, what it does, and whether the user may start it."""
        name = present_name(workflow)
        if name not in self.names():
            raise NotFound(NO_WORKFLOW)
        return Response(WorkflowAnswer(self.item(name)).data)


class InstancesView(ApiView):
    """The instances of one workflow: those that the user may see."""

    pagination_class: Any = NewestFirst
    filter_backends: Any = (QueryFilter,)
    filterset_class = InstanceFilter
    serializer_class = InstanceRow

    def get_queryset(self) -> Any:
        """Without the big columns."""
        return self.visible_instances(self.kwargs.get("workflow"))

    @documented(
        operation_id="list_instances", tags=["instances"], responses=responses(200, InstanceRow(many=True), 400, 404)
    )
    def get(self, request: Request, workflow: str) -> Response:
        """Newest first, page by page."""
        rows = self.get_queryset()
        if registry.find(workflow) is None and not rows.exists():
            raise NotFound(NO_WORKFLOW)
        page = self.paginate_queryset(self.filter_queryset(rows))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)

    @documented(
        operation_id="start_instance",
        tags=["instances"],
        request=StartBody,
        parameters=[IDEMPOTENCY_KEY],
        filters=False,
        responses={200: StartedAnswer, **responses(201, StartedAnswer, 400, 404, 409, 413, 422)},
    )
    def post(self, request: Request, workflow: str) -> Response:
        """Start one.

        With an ``Idempotency-Key`` that the user has used for this workflow, the first answer comes again (200).
        """
        cls = startable(workflow, request.user)
        key = self.idempotency_key()
        body = self.body(StartBody)
        row, created = start(cls, request.user, body, key, digest(request.data) if key else "")
        url = self.url("instance", row.workflow, row.instance_id)
        # The first answer is given again, whatever has become of the instance: every instance starts queued.
        answer = {"workflow": row.workflow, "instance_id": row.instance_id, "status": Status.QUEUED, "url": url}
        return Response(StartedAnswer(answer).data, status=201 if created else 200, headers={"Location": url})


def present_name(workflow: str) -> str:
    """The name that a workflow has now, where ``workflow`` is one that it had before."""
    cls = registry.find(workflow)
    return workflow if cls is None else str(cls.workflow_name())


def description_of(cls: Any) -> str:
    """The first paragraph of the class's own docstring, in one line."""
    text = inspect.cleandoc(vars(cls).get("__doc__") or "") if cls is not None else ""
    return " ".join(text.split("\n\n")[0].split())
