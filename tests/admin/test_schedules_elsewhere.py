"""Schedules in another admin site, and where a site shows only some of the models."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone

from durableflow.admin import WorkflowScheduleAdmin
from durableflow.models import WorkflowSchedule
from tests.admin.acting import text_of
from tests.admin.rows import make_instance
from tests.admin.test_schedules import make_schedule

pytestmark = pytest.mark.django_db


def test_all_links_stay_within_the_site(login, superuser) -> None:
    """From the schedule to its instances and back, and through its verbs."""
    row = make_schedule()
    instance = make_instance(workflow="admin-report", instance_id="night-1", schedule=row, scheduled_for=timezone.now())
    client = login(superuser)
    for name, args in (("workflowschedule_change", [row.pk]), ("workflowinstance_change", [instance.pk])):
        page = text_of(client.get(reverse(f"operations:durableflow_{name}", args=args)))
        assert "/operations/durableflow/workflowschedule/" in page and '"/admin/durableflow/' not in page
    run = reverse("operations:durableflow_workflowschedule_run_now", args=[row.pk])
    assert client.get(run).status_code == 200
    answer = client.post(run, {})
    assert answer["Location"] == reverse("operations:durableflow_workflowschedule_change", args=[row.pk])


def test_a_site_without_instances_links_to_none(superuser) -> None:
    """A link that leads nowhere is not offered."""
    shown = WorkflowScheduleAdmin(WorkflowSchedule, admin.AdminSite(name="only-schedules"))
    request = RequestFactory().get("/")
    request.user = superuser
    assert shown.instances_url(request, make_schedule()) == ""
