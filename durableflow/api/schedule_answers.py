"""What answers about schedules say."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from durableflow.api.answers import Answer, Moment, Shown, one_of
from durableflow.models import SkippedSlots, WorkflowSchedule

SKIPS: Final = 20
SLOTS: Final = 5


class ScheduleRow(Answer):
    """A schedule in a list. ``next_slot``: when it fires next, null while it is paused or cannot fire; ``problem``: why not.
    ``declared``: it comes from the workflow's code, so that it can only be paused, resumed and run here."""

    id = serializers.IntegerField()
    url = serializers.SerializerMethodField()
    workflow = serializers.CharField()
    name = serializers.CharField()
    cron = serializers.CharField()
    timezone = serializers.CharField()
    enabled = serializers.BooleanField()
    declared = serializers.BooleanField()
    catch_up = serializers.CharField()
    overlap = one_of(WorkflowSchedule.Overlap.values)
    next_slot = Moment(allow_null=True)
    problem = serializers.CharField()

    def get_url(self, row: WorkflowSchedule) -> str:
        """Where it is."""
        return str(self.context["view"].url("schedule", row.pk))


class SkippedAnswer(Answer):
    """``number`` slots in a row that started nothing, from ``slot`` to ``last``."""

    slot = Moment()
    last = Moment()
    number = serializers.IntegerField()
    reason = one_of(SkippedSlots.Reason.values)
    detail = serializers.CharField()
    at = Moment()


class ScheduleAnswer(ScheduleRow):
    """A schedule. ``upcoming``: its next slots; ``skipped``: the latest that were skipped; ``buffered_slot``: one that waits for the
    end of an instance."""

    params = Shown()
    buffered_slot = Moment(allow_null=True)
    upcoming = serializers.SerializerMethodField()
    skipped = serializers.SerializerMethodField()

    @extend_schema_field({"type": "array", "items": {"type": "string", "format": "date-time"}})
    def get_upcoming(self, row: WorkflowSchedule) -> list[Any]:
        """Its next slots; none while it is paused or cannot fire."""
        moment = Moment()
        return [moment.to_representation(slot) for slot in row.upcoming(SLOTS)]

    @extend_schema_field(SkippedAnswer(many=True))
    def get_skipped(self, row: WorkflowSchedule) -> Any:
        """The latest first."""
        return SkippedAnswer(row.skipped.order_by("-id")[:SKIPS], many=True).data
