"""Filters of the lists (design 10)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from durableflow.admin.search import workflow_names
from durableflow.core import clock
from durableflow.core.statuses import PendingStatus, Status, StepKind
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance, WorkflowSchedule
from durableflow.timeline import members_scope

MANY: Final = 10_000
NAMING: Final = (
    "scope",
    "name",
    "count",
    "kind",
    "run_number",
    "remaining",
    "instance__workflow",
    "instance__instance_id",
)
"""What names a step and its instance."""


class WorkflowFilter(admin.SimpleListFilter):
    """By workflow; also one that no running code knows any more."""

    title = _("workflow")
    parameter_name = "workflow"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """The names that the user's rows have."""
        return [(name, name) for name in workflow_names(request.user)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """The rows of one workflow."""
        return queryset.filter(workflow=self.value()) if self.value() else None


class CreatedFilter(admin.SimpleListFilter):
    """By when the row was made."""

    title = _("created")
    parameter_name = "created"
    column = "created"
    spans = {
        "hour": (_("Past hour"), timedelta(hours=1)),
        "day": (_("Past 24 hours"), timedelta(days=1)),
        "week": (_("Past 7 days"), timedelta(days=7)),
        "month": (_("Past 30 days"), timedelta(days=30)),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The spans."""
        return [(key, label) for key, (label, _span) in self.spans.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """The rows made within the span."""
        span = self.spans.get(self.value() or "")
        return queryset.filter(**{f"{self.column}__gte": clock.host_now() - span[1]}) if span else None


class AttentionFilter(admin.SimpleListFilter):
    """What a person has to look at: decisions of one's own, failures, what could not be undone, blocked and overdue
    instances."""

    title = _("attention")
    parameter_name = "attention"
    options = {"mine": _("Waiting on me"), "needed": _("Needs attention")}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Two questions."""
        return list(self.options.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """Their rows."""
        if self.value() == "mine":
            waiting: QuerySet[Any] = queryset.waiting_for(request.user)  # type: ignore[attr-defined]
            return waiting
        return queryset.filter(pk__in=needs_attention(queryset.db)) if self.value() == "needed" else None


class ParentFilter(admin.SimpleListFilter):
    """Whether another workflow has started it: one parent can put hundreds of children on top of the list."""

    title = _("parent")
    parameter_name = "parent"
    options = {"without": _("Without child workflows"), "only": _("Child workflows only")}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The two kinds."""
        return list(self.options.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """The rows of one kind."""
        if self.value() not in self.options:
            return None
        return queryset.filter(parent_step__isnull=self.value() == "without")


class ChildrenFilter(admin.SimpleListFilter):
    """The children of one step; of a join all of its children. It is offered only where a link has asked for it."""

    title = _("child workflows")
    parameter_name = "children_of"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        self.user = request.user
        super().__init__(request, params, model, model_admin)

    @cached_property
    def step(self) -> StepRecord | None:
        """The step that is asked for, if the user may see its instance."""
        asked = self.value() or ""
        if not (asked.isdecimal() and asked.isascii() and len(asked) < 19):
            return None
        seen = WorkflowInstance.objects.visible_to(self.user)
        steps = StepRecord.objects.filter(pk=int(asked), kind=StepKind.CHILD, instance__in=seen.values("pk"))
        return steps.select_related("instance").only(*NAMING).first()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The one step."""
        if self.value() is None:
            return []
        step = self.step
        name = _("unknown") if step is None else f"{step.instance.label}, {step.label}"
        return [(str(self.value()), name)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """Its children; nothing, where the step is not for the user."""
        if self.value() is None:
            return None
        step = self.step
        if step is None:
            return queryset.none()
        if step.remaining is None:
            return queryset.filter(parent_step=step.pk)
        own = step.instance.steps.filter(run_number=step.run_number, kind=StepKind.CHILD, name=step.name)
        return queryset.filter(parent_step__in=own.filter(scope=members_scope(step)).order_by().values("pk"))


class ScheduleFilter(admin.SimpleListFilter):
    """The instances of one schedule. It is offered only where a link has asked for it."""

    title = _("schedule")
    parameter_name = "of_schedule"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        self.shows = any(request.user.has_perm(f"durableflow.{verb}_workflowschedule") for verb in ("view", "change"))
        super().__init__(request, params, model, model_admin)

    @property
    def key(self) -> int:
        """The schedule that is asked for; 0: none can be."""
        asked = self.value() or ""
        return int(asked) if asked.isdecimal() and asked.isascii() and len(asked) < 19 else 0

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The one schedule, by its name for who may see schedules."""
        if self.value() is None:
            return []
        row = WorkflowSchedule.objects.filter(pk=self.key).first() if self.shows else None
        return [(str(self.value()), str(row) if row is not None else _("one schedule"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any] | None:
        """Its instances."""
        return None if self.value() is None else queryset.filter(schedule=self.key)


def needs_attention(using: str) -> QuerySet[Any]:
    """Keys of the instances that need attention.

    A union, because each arm has an index and SQLite would read the whole table for an OR.
    """
    first, *others = (arm.values("pk") for arm in troubled(WorkflowInstance.objects.using(using).order_by()))
    return first.union(*others)


def troubled(rows: Any) -> list[QuerySet[Any]]:
    """Of ``rows`` the failed, the blocked, those of which something could not be undone, and (due for more than a minute without a
    worker) the overdue ones."""
    return [rows.filter(status=Status.ERRORED), rows.exclude(blocked=""), rows.not_undone(), rows.overdue()]


def newest(rows: QuerySet[Any], attention: str, user: Any, most: int) -> list[int]:
    """The keys of the newest ``most`` of ``rows`` to which a choice of ``AttentionFilter`` applies, the newest first."""
    if attention == "mine":
        waits: Any = PendingEvent.objects.using(rows.db).decidable_by(user)
        if rows.query.where:
            waits = waits.filter(Exists(rows.order_by().filter(pk=OuterRef("instance_id"))))
        return list(waits.order_by("-instance_id").values_list("instance_id", flat=True).distinct()[:most])
    *others, overdue = (arm.values_list("pk", flat=True) for arm in troubled(rows.order_by("-pk")))
    found = {pk for arm in others for pk in arm[:most]}
    # The index of due rows has no order by key: the few are all read. If they are many, reading the table from its newest
    # row on meets enough of them soon.
    late = list(overdue.order_by()[: MANY + 1])
    found.update(late if len(late) <= MANY else overdue[:most])
    return sorted(found, reverse=True)[:most]


class InboxFilter(admin.SimpleListFilter):
    """Which pending events: by default those that wait on the user."""

    title = _("state")
    parameter_name = "show"
    options = {
        "mine": _("Waiting on me"),
        "open": _("All open"),
        "decided": _("Answered"),
        "all": _("All"),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The options."""
        return list(self.options.items())

    @property
    def chosen(self) -> str:
        """The option in force."""
        value = self.value()
        return value if value in self.options else "mine"

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """The options alone: none of them is "no filter"."""
        for key, label in self.options.items():
            yield {
                "selected": self.chosen == key,
                "query_string": changelist.get_query_string({self.parameter_name: key}),
                "display": label,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the chosen option."""
        rows: Any = queryset
        if self.chosen == "mine":
            return rows.decidable_by(request.user)  # type: ignore[no-any-return]
        if self.chosen == "open":
            return rows.open()  # type: ignore[no-any-return]
        return rows.filter(status=PendingStatus.RECEIVED) if self.chosen == "decided" else queryset


class OpenedFilter(CreatedFilter):
    """By when the wait opened."""

    title = _("opened")
    parameter_name = "opened"
    column = "opened"
