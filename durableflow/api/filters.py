"""Filters of the lists (django-filter)."""

from __future__ import annotations

from typing import Any

import django_filters  # type: ignore[import-untyped]
from django import forms
from django.db.models import Q, QuerySet

from durableflow.api.filtering import MomentFilter, TrueOrFalseFilter
from durableflow.core import registry
from durableflow.core.statuses import PendingStatus, Status, StepStatus
from durableflow.models import PendingEvent, StepRecord, WorkflowInstance


class CommaSeparated(forms.SelectMultiple):
    """Several values: ``?status=queued,running`` as well as ``?status=queued&status=running``."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        """The single values."""
        given = data.getlist(name) if hasattr(data, "getlist") else [data[name]] if name in data else []
        return [part for value in given for part in str(value).split(",") if part]


class InstanceFilter(django_filters.FilterSet):  # type: ignore[misc]
    """Instances by status, time of creation and the start of their id."""

    status = django_filters.MultipleChoiceFilter(
        choices=Status.choices, widget=CommaSeparated, help_text="One or several statuses."
    )
    created_after = MomentFilter(field_name="created", lookup_expr="gte", help_text="Created at this moment or later.")
    created_before = MomentFilter(field_name="created", lookup_expr="lt", help_text="Created before this moment.")
    search = django_filters.CharFilter(
        field_name="instance_id", lookup_expr="startswith", help_text="How the id starts."
    )

    class Meta:
        model = WorkflowInstance
        fields = ()


class StepFilter(django_filters.FilterSet):  # type: ignore[misc]
    """Steps by status."""

    status = django_filters.MultipleChoiceFilter(
        choices=StepStatus.choices, widget=CommaSeparated, distinct=False, help_text="One or several statuses."
    )

    class Meta:
        model = StepRecord
        fields = ()


class PendingEventFilter(django_filters.FilterSet):  # type: ignore[misc]
    """Pending events by what they are now, by workflow, and whether they wait on the user."""

    status = django_filters.MultipleChoiceFilter(
        choices=PendingStatus.choices,
        widget=CommaSeparated,
        method="filter_status",
        help_text="One or several statuses.",
    )
    workflow = django_filters.CharFilter(method="filter_workflow", help_text="Of one workflow.")
    mine = TrueOrFalseFilter(method="filter_mine", help_text="Only open ones that the user may decide.")

    class Meta:
        model = PendingEvent
        fields = ()

    def filter_status(self, queryset: QuerySet[Any], name: str, value: list[str]) -> QuerySet[Any]:
        """A wait past its deadline has timed out, even if no worker was up to say so (design 8)."""
        if not value:
            return queryset
        rows: Any = queryset
        wanted = Q()
        for status in value:
            if status == PendingStatus.OPEN:
                wanted |= rows.open_q()
            elif status == PendingStatus.TIMED_OUT:
                wanted |= Q(status=status) | rows.late_q()
            else:
                wanted |= Q(status=status)
        return queryset.filter(wanted)

    def filter_workflow(self, queryset: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        """Also those that are stored under another name of the same workflow."""
        cls = registry.find(value)
        return queryset.filter(instance__workflow__in=(value,) if cls is None else cls.options.names)

    def filter_mine(self, queryset: QuerySet[Any], name: str, value: bool) -> QuerySet[Any]:
        """``mine=false`` is no filter."""
        if not value or self.request is None:
            return queryset
        rows: Any = queryset
        return rows.decidable_by(self.request.user)  # type: ignore[no-any-return]
