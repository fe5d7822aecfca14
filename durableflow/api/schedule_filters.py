"""Filters of the list of schedules."""

from __future__ import annotations

from typing import Any

import django_filters  # type: ignore[import-untyped]
from django.db.models import QuerySet

from durableflow.api.filtering import TrueOrFalseFilter
from durableflow.core import registry
from durableflow.models import WorkflowSchedule


class ScheduleFilter(django_filters.FilterSet):  # type: ignore[misc]
    """Schedules by workflow, and whether they are enabled."""

    workflow = django_filters.CharFilter(method="filter_workflow", help_text="Of one workflow.")
    enabled = TrueOrFalseFilter(help_text="Whether they fire: not paused.")

    class Meta:
        model = WorkflowSchedule
        fields = ()

    def filter_workflow(self, queryset: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        """Also those that are stored under another name of the same workflow."""
        cls = registry.find(value)
        return queryset.filter(workflow__in=(value,) if cls is None else cls.options.names)
