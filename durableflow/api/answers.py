"""What answers say.

Values are plain JSON and masked (case SEC-09); times are ISO 8601 with all their digits (case SER-03).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from durableflow import timeline
from durableflow.api.bodies import AnyField, PriorityField
from durableflow.core.redact import shown
from durableflow.core.statuses import PendingStatus, RollbackStatus, Status, StepStatus, Trigger, Via


class Moment(serializers.DateTimeField):
    """A time in UTC with all its digits, whatever the project's ``DATETIME_FORMAT`` is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"format": "iso-8601", "default_timezone": UTC, "read_only": True, **options})


@extend_schema_field(OpenApiTypes.DOUBLE)
class Seconds(serializers.Field[Any, Any, Any, Any]):
    """A duration as seconds."""

    def to_representation(self, value: Any) -> float:
        """The seconds."""
        return float(value.total_seconds()) if hasattr(value, "total_seconds") else float(value)


def one_of(values: Iterable[str], **options: Any) -> serializers.CharField:
    """A text field with known values.

    They are listed one level below the field, where schema generators make no component of them: components are named
    after fields, and the several kinds of "status" here, and those of the project, would clash.
    """
    schema = {"anyOf": [{"type": "string", "enum": [str(value) for value in values]}]}
    field: type[serializers.CharField] = extend_schema_field(schema)(type("OneOf", (serializers.CharField,), {}))
    return field(**options)


class Shown(AnyField):
    """A stored value, plain and redacted."""

    def to_representation(self, value: Any) -> Any:
        """As people and programs may see it."""
        return shown(value)


class Answer(serializers.Serializer[Any]):
    """Base of all: read only."""


class ErrorAnswer(Answer):
    """Every error. ``fields``: what is wrong with which field, with code ``invalid``."""

    code = serializers.CharField()
    detail = serializers.CharField()
    fields = serializers.DictField(child=serializers.ListField(child=serializers.CharField()), required=False)  # type: ignore[assignment]


class StoredError(Answer):
    """An error of a step or an instance."""

    type = serializers.CharField()
    message = serializers.CharField()
    traceback = serializers.CharField()
    step = serializers.CharField()


class WorkflowAnswer(Answer):
    """A workflow whose instances the user may start or see."""

    name = serializers.CharField()
    description = serializers.CharField()
    can_start = serializers.BooleanField()
    url = serializers.URLField()
    instances_url = serializers.URLField()


class NamedInstance(Answer):
    """Base of what is told of an instance: which one it is."""

    workflow = serializers.CharField()
    instance_id = serializers.CharField()


class StartedAnswer(NamedInstance):
    """An instance that was started, or on which a verb was applied."""

    status = one_of(Status.values)
    url = serializers.URLField()


class InstanceRow(NamedInstance):
    """An instance in a list."""

    url = serializers.SerializerMethodField()
    status = one_of(Status.values)
    blocked = serializers.SerializerMethodField()
    hold = serializers.CharField()
    run_number = serializers.IntegerField()
    trigger = one_of(Trigger.values)
    priority = PriorityField()
    created_by = serializers.CharField(source="created_by_name")
    created = Moment()
    started = Moment(allow_null=True)
    finished = Moment(allow_null=True)
    wake_at = Moment(allow_null=True)

    def get_url(self, row: Any) -> str:
        """Where it is."""
        return str(self.context["view"].url("instance", row.workflow, row.instance_id))

    def get_blocked(self, row: Any) -> bool:
        """Whether a person is needed; the detail's ``reason`` says why."""
        return bool(row.blocked)


class WaitAnswer(Answer):
    """Something that an instance waits for. ``types``: of the events that answer it; empty for an approval. ``deadline``: of a
    paused instance, if it was resumed now."""

    pending_event = serializers.IntegerField()
    name = serializers.CharField()
    count = serializers.IntegerField()
    kind = serializers.CharField()
    types = serializers.ListField(child=serializers.CharField())
    title = serializers.CharField()
    deadline = Moment(allow_null=True)


class RollbackAnswer(Answer):
    """What came of an instance's rollback. ``failed``: labels of the steps that could not be undone."""

    outcome = one_of(["complete", "failed"])
    failed = serializers.ListField(child=serializers.CharField())


class RetentionAnswer(Answer):
    """For how many seconds an instance is kept after its end; null: as the workflow or the settings say."""

    success = Seconds(allow_null=True)
    error = Seconds(allow_null=True)


class ParentAnswer(NamedInstance):
    """The instance that has started this one. ``step``: the label of its step that did."""

    step = serializers.CharField()
    url = serializers.URLField()


class ChildAnswer(NamedInstance):
    """An instance that a step has started; of several the latest."""

    status = one_of(Status.values)
    url = serializers.URLField()


class InstanceAnswer(InstanceRow):
    """An instance. The view gives ``reason``, ``waiting_for``, ``error``, ``parent`` and ``actions`` through the context."""

    code_version = serializers.IntegerField()
    starts_at = Moment(allow_null=True)
    scheduled_for = Moment(allow_null=True)
    cron = serializers.CharField()
    deadline_at = serializers.SerializerMethodField()
    paused_at = Moment(allow_null=True, help_text="Since when its clock stands still.")
    retention = serializers.SerializerMethodField()
    parent = serializers.SerializerMethodField()  # type: ignore[assignment]
    params = Shown()
    output = Shown()
    progress = Shown()
    rollback = serializers.SerializerMethodField()
    reason = serializers.SerializerMethodField()
    error = serializers.SerializerMethodField()
    waiting_for = serializers.SerializerMethodField()
    available_actions = serializers.SerializerMethodField()
    steps_url = serializers.SerializerMethodField()
    history_url = serializers.SerializerMethodField()

    def get_blocked(self, row: Any) -> bool:
        """Whether a person is needed; ``reason`` says why."""
        return bool(row.blocked)

    @extend_schema_field(Moment(allow_null=True))
    def get_deadline_at(self, row: Any) -> Any:
        """When it has to have ended; while it is paused, if it was resumed now."""
        at = timeline.deadline_of(row)
        return None if at is None else Moment().to_representation(at)

    def get_reason(self, row: Any) -> str:
        """Why it is in its status, as a sentence."""
        return str(self.context["reason"])

    @extend_schema_field(ParentAnswer(allow_null=True))
    def get_parent(self, row: Any) -> Any:
        """What has started it; null as well where the user may not see that."""
        parent = self.context["parent"]
        if parent is None:
            return None
        url = self.context["view"].url("instance", parent.workflow, parent.instance_id)
        named = {"workflow": parent.workflow, "instance_id": parent.instance_id}
        return ParentAnswer({**named, "step": parent.step, "url": url}).data

    @extend_schema_field(StoredError(allow_null=True))
    def get_error(self, row: Any) -> Any:
        """What ended it."""
        return shown(self.context["error"])

    @extend_schema_field(RetentionAnswer)
    def get_retention(self, row: Any) -> Any:
        """Its own, as its start said."""
        return RetentionAnswer({"success": row.retention_success, "error": row.retention_error}).data

    @extend_schema_field(RollbackAnswer(allow_null=True))
    def get_rollback(self, row: Any) -> Any:
        """What came of its rollback; null if there was none, or while it goes on."""
        return shown(row.rollback)

    @extend_schema_field(WaitAnswer(many=True))
    def get_waiting_for(self, row: Any) -> Any:
        """Its open waits."""
        return WaitAnswer(self.context["waiting_for"], many=True).data

    @extend_schema_field({"type": "array", "items": {"type": "string"}})
    def get_available_actions(self, row: Any) -> list[str]:
        """The verbs that the user may apply now."""
        return sorted(self.context["actions"])

    def get_steps_url(self, row: Any) -> str:
        """Where its steps are."""
        return str(self.context["view"].url("steps", row.workflow, row.instance_id))

    def get_history_url(self, row: Any) -> str:
        """Where its history is."""
        return str(self.context["view"].url("history", row.workflow, row.instance_id))


class AttemptAnswer(Answer):
    """One try of a step's body."""

    number = serializers.IntegerField()
    status = one_of(["complete", "failed", "lost", "running"])
    started = Moment(allow_null=True)
    finished = Moment(allow_null=True)
    error = StoredError(allow_null=True)
    retry_delay = Seconds(allow_null=True)


class StepWaitAnswer(Answer):
    """The wait of a step: who or what answers it, and the answer."""

    pending_event = serializers.IntegerField()
    status = one_of(PendingStatus.values)
    types = serializers.ListField(child=serializers.CharField())
    title = serializers.CharField()
    deadline = Moment(allow_null=True)
    users = serializers.ListField(child=serializers.CharField())
    groups = serializers.ListField(child=serializers.CharField())
    permission = serializers.CharField()
    approved = serializers.BooleanField(allow_null=True)
    comment = serializers.CharField()
    decided_by = serializers.CharField()
    decided_at = Moment(allow_null=True)


class StepRollbackAnswer(Answer):
    """How far a step's rollback handler is."""

    status = one_of(RollbackStatus.values)
    attempts = serializers.IntegerField()
    error = StoredError(allow_null=True)
    next_attempt_at = Moment(allow_null=True)


class StepAnswer(Answer):
    """One durable call. ``attempts``: how many tries were begun; ``tries``: what is known of each."""

    id = serializers.IntegerField()
    label = serializers.CharField()  # type: ignore[assignment]
    scope = serializers.CharField()
    kind = serializers.CharField()
    name = serializers.CharField()
    count = serializers.IntegerField()
    status = one_of(StepStatus.values)
    sensitive = serializers.BooleanField()
    run_number = serializers.IntegerField()
    attempts = serializers.IntegerField()
    tries = AttemptAnswer(many=True)
    started = Moment(allow_null=True)
    finished = Moment(allow_null=True)
    duration = Seconds(allow_null=True)
    error = StoredError(allow_null=True)
    next_attempt_at = Moment(allow_null=True)
    wake_at = Moment(allow_null=True)
    wait = StepWaitAnswer(allow_null=True)
    rollback = StepRollbackAnswer(allow_null=True)
    child = serializers.SerializerMethodField()
    output_url = serializers.SerializerMethodField()

    @extend_schema_field(ChildAnswer(allow_null=True))
    def get_child(self, row: Any) -> Any:
        """The instance that it has started; null as well where the user may not see that one."""
        child = next(iter(self.context["children"].get(row.id, ())), None)
        if child is None:
            return None
        url = self.context["view"].url("instance", child.workflow, child.instance_id)
        named = {"workflow": child.workflow, "instance_id": child.instance_id}
        return ChildAnswer({**named, "status": child.status, "url": url}).data

    @extend_schema_field(OpenApiTypes.URI)
    def get_output_url(self, row: Any) -> str:
        """Where its output is; outputs may be large."""
        context = self.context
        return str(context["view"].url("step-output", context["workflow"], context["instance_id"], row.id))


class OutputAnswer(Answer):
    """A step's output; null as well while there is none (see ``status``)."""

    id = serializers.IntegerField()
    label = serializers.CharField()  # type: ignore[assignment]
    status = one_of(StepStatus.values)
    sensitive = serializers.BooleanField()
    output = AnyField()


class HistoryEntryAnswer(Answer):
    """One thing that happened. Entries that were stored as one have the same ``id``."""

    id = serializers.IntegerField()
    run_number = serializers.IntegerField()
    type = serializers.CharField()
    step = serializers.CharField()
    kind = serializers.CharField()
    data = AnyField()  # type: ignore[assignment]
    actor = serializers.CharField()
    via = one_of(Via.values)
    reason = serializers.CharField()
    at = Moment()


class HistoryAnswer(Answer):
    """Some history.

    ``cursor``: pass it as ``after`` to go on from here, now or when more has happened; ``next``: where the rest is;
    ``ended``: the instance has ended and this is the last page, so that nothing follows unless it is retried or restarted.
    """

    results = HistoryEntryAnswer(many=True)
    cursor = serializers.IntegerField()
    next = serializers.URLField(allow_null=True)
    ended = serializers.BooleanField()


class SentAnswer(Answer):
    """An event in the inbox.

    ``waiting_for``: the types that an open wait takes now; an event of another type is kept for a later wait.
    """

    id = serializers.IntegerField()
    duplicate = serializers.BooleanField()
    status = one_of(Status.values)
    waiting_for = serializers.ListField(child=serializers.CharField())
