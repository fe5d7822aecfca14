"""Routes of the REST API: ``path("api/", include("durableflow.api.urls"))`` (api.md, "REST")."""

from __future__ import annotations

from typing import Any

from django.urls import path, register_converter

from durableflow.api.batch import BatchDeleteView, BatchView
from durableflow.api.bulk import BulkView
from durableflow.api.health import HealthView
from durableflow.api.instances import HistoryView, InstanceView, StepOutputView, StepsView
from durableflow.api.openapi import SUFFIX, SchemaView
from durableflow.api.pending_events import DecideView, PendingEventsView, PendingEventView
from durableflow.api.repairing import CompleteStepView, RestartView
from durableflow.api.schedules import (
    PauseScheduleView,
    ResumeScheduleView,
    RunScheduleView,
    SchedulesView,
    ScheduleView,
)
from durableflow.api.streaming import HistoryStreamView
from durableflow.api.verbs import EventsView, PauseView, ResumeView, RetryView, TerminateView
from durableflow.api.workflows import InstancesView, WorkflowsView, WorkflowView
from durableflow.pages.views import DecideLinkView

app_name = "durableflow-api"


class RowKey:
    """The number of a row. What is none stands for no row: the answer is a 404 of ours, as for one that does not exist."""

    regex = "[^/]+"

    def to_python(self, value: str) -> int:
        """The number; 0 is nobody's."""
        return int(value) if value.isascii() and value.isdecimal() and len(value) < LONGEST else 0

    def to_url(self, value: Any) -> str:
        """As text."""
        return str(value)


LONGEST = 20
register_converter(RowKey, "durableflow_row")

INSTANCES = "workflows/<str:workflow>/instances/"
INSTANCE = f"{INSTANCES}<str:instance_id>/"

routes = [
    path("workflows/", WorkflowsView.as_view(), name="workflows"),
    path("workflows/<str:workflow>/", WorkflowView.as_view(), name="workflow"),
    path(INSTANCES, InstancesView.as_view(), name="instances"),
    # An instance may have these names too: what is not a POST is about that one (case SEC-14).
    path(f"{INSTANCES}batch/", BatchView.as_view(), {"instance_id": "batch"}, name="batch"),
    path(f"{INSTANCES}batch/delete/", BatchDeleteView.as_view(), name="batch-delete"),
    path(f"{INSTANCES}bulk/", BulkView.as_view(), {"instance_id": "bulk"}, name="bulk"),
    path(INSTANCE, InstanceView.as_view(), name="instance"),
    path(f"{INSTANCE}steps/", StepsView.as_view(), name="steps"),
    path(f"{INSTANCE}steps/<durableflow_row:step_id>/output/", StepOutputView.as_view(), name="step-output"),
    path(f"{INSTANCE}steps/<durableflow_row:step_id>/complete/", CompleteStepView.as_view(), name="complete-step"),
    path(f"{INSTANCE}history/", HistoryView.as_view(), name="history"),
    path(f"{INSTANCE}history/stream/", HistoryStreamView.as_view(), name="history-stream"),
    path(f"{INSTANCE}retry/", RetryView.as_view(), name="retry"),
    path(f"{INSTANCE}pause/", PauseView.as_view(), name="pause"),
    path(f"{INSTANCE}resume/", ResumeView.as_view(), name="resume"),
    path(f"{INSTANCE}restart/", RestartView.as_view(), name="restart"),
    path(f"{INSTANCE}terminate/", TerminateView.as_view(), name="terminate"),
    path(f"{INSTANCE}events/", EventsView.as_view(), name="events"),
    path("schedules/", SchedulesView.as_view(), name="schedules"),
    path("schedules/<durableflow_row:pk>/", ScheduleView.as_view(), name="schedule"),
    path("schedules/<durableflow_row:pk>/pause/", PauseScheduleView.as_view(), name="pause-schedule"),
    path("schedules/<durableflow_row:pk>/resume/", ResumeScheduleView.as_view(), name="resume-schedule"),
    path("schedules/<durableflow_row:pk>/run/", RunScheduleView.as_view(), name="run-schedule"),
    path("pending-events/", PendingEventsView.as_view(), name="pending-events"),
    path("pending-events/<durableflow_row:pk>/", PendingEventView.as_view(), name="pending-event"),
    path("pending-events/<durableflow_row:pk>/decide/", DecideView.as_view(), name="decide-pending-event"),
    path("health/", HealthView.as_view(), name="health"),
]
urlpatterns = [
    *routes,
    path(SUFFIX, SchemaView.as_view(routes=routes), name="schema"),
    path("decide/<str:token>/", DecideLinkView.as_view(), name="decide"),
]
