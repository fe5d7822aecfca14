"""Endpoints: schedules (design 9; cases SCH-09, SEC-08)."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from durableflow.api.answers import StartedAnswer
from durableflow.api.base import ApiView
from durableflow.api.bodies import ReasonBody
from durableflow.api.docs import IDEMPOTENCY_KEY, ROW_ID, documented, responses
from durableflow.api.filtering import QueryFilter
from durableflow.api.paging import NewestFirst
from durableflow.api.schedule_answers import ScheduleAnswer, ScheduleRow
from durableflow.api.schedule_bodies import ScheduleBody, ScheduleEdit
from durableflow.api.schedule_filters import ScheduleFilter
from durableflow.api.starting import run_schedule
from durableflow.core.statuses import Status, Via
from durableflow.core.transactions import write_transaction
from durableflow.models import WorkflowSchedule
from durableflow.models.creation import database
from durableflow.models.permissions import holds, require
from durableflow.models.schedule_verbs import declares

VIEW: Final = "view_workflowschedule"
ADD: Final = "add_workflowschedule"
CHANGE: Final = "change_workflowschedule"
DELETE: Final = "delete_workflowschedule"
PARAMS: Final = "params: "
TAKEN: Final = {"unique", "unique_together"}
"""Codes of Django's errors."""


class Declared(exceptions.APIException):
    """A schedule of the code cannot be edited: the next deploy would undo it."""

    status_code = 409
    default_code = "declared"
    default_detail = "It is declared in the workflow's code and changed there. It can be paused here."


class CannotRun(exceptions.APIException):
    """What the schedule holds can start nothing, whatever the request says."""

    status_code = 409
    default_code = "cannot_run"


class NameTaken(exceptions.APIException):
    """Another schedule has the name, or somebody was quicker."""

    status_code = 409
    default_code = "already_exists"
    default_detail = "The workflow already has a schedule of this name."


def check(row: WorkflowSchedule) -> None:
    """Its own rules. A mistake in its params, which no form has, is one of the body's ``params`` here. Raises ValidationError, and
    NameTaken where nothing else is wrong."""
    try:
        row.full_clean()
    except ValidationError as error:
        if {single.code for texts in error.error_dict.values() for single in texts} <= TAKEN:
            raise NameTaken from error
        fields = dict(error.message_dict)
        general = fields.pop(NON_FIELD_ERRORS, [])
        params = [text.removeprefix(PARAMS) for text in general if text.startswith(PARAMS)]
        fields |= {"params": params} if params else {}
        general = [text for text in general if not text.startswith(PARAMS)]
        raise ValidationError(fields | ({NON_FIELD_ERRORS: general} if general else {})) from error


class SchedulesBase(ApiView):
    """What all of them share: who may see a schedule sees all of them."""

    def rows(self) -> Any:
        """All of them. Raises PermissionDenied."""
        require(self.request.user, VIEW, None, "see schedules")
        return WorkflowSchedule.objects.using(database())

    def row(self, pk: int, *, lock: bool = False) -> WorkflowSchedule:
        """One of them. Raises NotFound: also for who may not see any."""
        rows = WorkflowSchedule.objects.using(database())
        found: WorkflowSchedule | None = (rows.select_for_update() if lock else rows).filter(pk=pk).first()
        if found is None or not holds(self.request.user, VIEW, found):
            raise exceptions.NotFound("There is no such schedule.")
        return found

    def answer(self, row: WorkflowSchedule, status: int = 200) -> Response:
        """All about one."""
        return Response(ScheduleAnswer(row, context={"view": self}).data, status=status)


class SchedulesView(SchedulesBase):
    """All schedules."""

    pagination_class: Any = NewestFirst
    filter_backends: Any = (QueryFilter,)
    filterset_class = ScheduleFilter
    serializer_class = ScheduleRow
    queryset = WorkflowSchedule.objects.none()  # tells the schema what is filtered

    @documented(
        operation_id="list_schedules", tags=["schedules"], responses=responses(200, ScheduleRow(many=True), 400, 404)
    )
    def get(self, request: Request) -> Response:
        """Newest first, page by page."""
        page = self.paginate_queryset(self.filter_queryset(self.rows().defer("params")))
        return self.get_paginated_response(ScheduleRow(page, many=True, context={"view": self}).data)

    @documented(
        operation_id="create_schedule",
        tags=["schedules"],
        request=ScheduleBody,
        filters=False,
        responses=responses(201, ScheduleAnswer, 400, 409, 413),
    )
    def post(self, request: Request) -> Response:
        """Make one; its first slot is after now."""
        require(request.user, ADD, None, "add a schedule")
        row = WorkflowSchedule(**self.body(ScheduleBody))
        check(row)
        try:
            with write_transaction(database()):
                row.save(using=database(), force_insert=True)
                row.told("create", request.user, "", Via.API, database())
        except IntegrityError as error:
            raise NameTaken from error
        response = self.answer(row, 201)
        response["Location"] = self.url("schedule", row.pk)
        return response


class ScheduleView(SchedulesBase):
    """One schedule."""

    @documented(
        operation_id="retrieve_schedule",
        tags=["schedules"],
        parameters=[ROW_ID],
        responses=responses(200, ScheduleAnswer, 404),
    )
    def get(self, request: Request, pk: int) -> Response:
        """With its next slots, and those that were skipped."""
        return self.answer(self.row(pk))

    @documented(
        operation_id="edit_schedule",
        tags=["schedules"],
        parameters=[ROW_ID],
        request=ScheduleEdit,
        responses=responses(200, ScheduleAnswer, 400, 404, 409, 413),
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Change what the body says; the next slot is found anew, after now. Of a declared one only ``enabled``."""
        changes = self.body(ScheduleEdit)
        with write_transaction(database()):
            row = self.row(pk, lock=True)
            require(request.user, CHANGE, row, f"change the schedule {row}")
            if row.declared and set(changes) - {"enabled"}:
                raise Declared
            for name, value in changes.items():
                setattr(row, name, value)
            check(row)
            row.save()
            row.told("edit", request.user, "", Via.API, database())
        return self.answer(row)

    @documented(
        operation_id="delete_schedule",
        tags=["schedules"],
        parameters=[ROW_ID],
        responses=responses(204, None, 404, 409),
    )
    def delete(self, request: Request, pk: int) -> Response:
        """Its instances stay. One that belongs to the code cannot be deleted: pause it."""
        with write_transaction(database()):
            row = self.row(pk, lock=True)
            require(request.user, DELETE, row, f"delete the schedule {row}")
            if declares(row):
                raise Declared
            row.told("delete", request.user, "", Via.API, database())
            row.delete()
        return Response(status=204)


class ScheduleVerbView(SchedulesBase):
    """A verb of a schedule."""

    verb: ClassVar[str]

    def apply(self, pk: int) -> Any:
        """Apply it as the request's user; what it gives."""
        body = self.body(ReasonBody)
        row = self.row(pk)
        return row, getattr(row, self.verb)(by=self.request.user, via=Via.API, **body)


class PauseScheduleView(ScheduleVerbView):
    """Let a schedule stand still."""

    verb = "pause"

    @documented(
        operation_id="pause_schedule",
        tags=["schedules"],
        parameters=[ROW_ID],
        request=ReasonBody,
        responses=responses(200, ScheduleAnswer, 400, 404, 409),
    )
    def post(self, request: Request, pk: int) -> Response:
        """Its slots start nothing until it is resumed; instances that run go on."""
        row, _ = self.apply(pk)
        return self.answer(row)


class ResumeScheduleView(ScheduleVerbView):
    """Let a paused schedule go on."""

    verb = "resume"

    @documented(
        operation_id="resume_schedule",
        tags=["schedules"],
        parameters=[ROW_ID],
        request=ReasonBody,
        responses=responses(200, ScheduleAnswer, 400, 404, 409),
    )
    def post(self, request: Request, pk: int) -> Response:
        """From its next slot on; those of the pause are not made up for."""
        row, _ = self.apply(pk)
        return self.answer(row)


class RunScheduleView(SchedulesBase):
    """Start what a schedule would start."""

    @documented(
        operation_id="run_schedule",
        tags=["schedules"],
        request=ReasonBody,
        parameters=[ROW_ID, IDEMPOTENCY_KEY],
        responses={200: StartedAnswer, **responses(201, StartedAnswer, 400, 404, 409, 413, 422)},
    )
    def post(self, request: Request, pk: int) -> Response:
        """Now, beside its slots, whatever its overlap says; also while it is paused.

        With an ``Idempotency-Key`` that the user has used for this schedule, the first answer comes again (200). Without one
        each request starts an instance.
        """
        body, key = self.body(ReasonBody), self.idempotency_key()
        row = self.row(pk)
        try:
            made, created = run_schedule(row, request.user, body["reason"], key)
        except ValueError as error:  # its workflow or its params, which no request could set so
            raise CannotRun(str(error)) from error
        url = self.url("instance", made.workflow, made.instance_id)
        # As at every start, the first answer is given again.
        answer = {"workflow": made.workflow, "instance_id": made.instance_id, "status": Status.QUEUED, "url": url}
        return Response(StartedAnswer(answer).data, status=201 if created else 200, headers={"Location": url})
