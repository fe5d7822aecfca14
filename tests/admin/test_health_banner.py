"""The banner on pages of the admin when due work is not executed (case OPS-14)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from durableflow.health import probes
from durableflow.models import Heartbeat
from tests.admin.rows import S, make_blocked, make_instance, make_wait

pytestmark = pytest.mark.django_db
BANNER = "df-banner"
LIST = "admin:durableflow_workflowinstance_changelist"


def cluster(**fields: Any) -> None:
    now = timezone.now()
    Heartbeat.objects.create(**{"key": 1, "kind": "cluster", "workers": 2, "started": now, "seen": now, **fields})


def late(**fields: Any) -> Any:
    """An instance that nobody takes."""
    due = timezone.now() - timedelta(minutes=5)
    return make_instance(status=S.QUEUED, wake_at=due, instance_id="late-1", **fields)


@pytest.fixture
def pages(viewer: Any) -> list[str]:
    """One of each kind."""
    instance = make_instance()
    wait = make_wait(instance)
    return [
        reverse("admin:app_list", args=["durableflow"]),
        reverse(LIST),
        reverse("admin:durableflow_workflowinstance_change", args=[instance.pk]),
        reverse("admin:durableflow_pendingevent_changelist") + "?show=all",
        reverse("admin:durableflow_pendingevent_change", args=[wait.pk]),
    ]


def test_every_page_of_ours_tells(login, viewer, pages) -> None:
    """OPS-14: since when, when a worker was last seen, and what to do."""
    instance = late()
    cluster(seen=timezone.now() - timedelta(minutes=7))
    for page in pages:
        text = login(viewer).get(page).content.decode()
        assert text.count(f'class="{BANNER} df-banner-critical" role="status"') == 1, page
        assert "Workflows are not being executed." in text
        assert "checkout/late-1 has been due for 5 min" in text
        assert "The last one was seen 7 min" in text
        assert "manage.py durableflow_cluster" in text
        assert f'href="{reverse("admin:durableflow_workflowinstance_change", args=[instance.pk])}">Show that' in text


def test_no_banner_where_all_is_well(login, viewer, pages) -> None:
    """A blocked instance is in its list, and no reason to tell that workflows are not executed."""
    cluster()
    make_blocked()
    for page in pages:
        assert BANNER not in login(viewer).get(page).content.decode()


def test_no_worker_and_nothing_due(login, viewer) -> None:
    """A warning: it will be trouble soon."""
    text = login(viewer).get(reverse(LIST)).content.decode()
    assert "df-banner-warning" in text
    assert "No worker is ready for workflows." in text and "not being executed" not in text
    assert "Nothing is due now" in text


def test_workers_that_are_late(login, viewer) -> None:
    """Somebody is there, and takes nothing."""
    cluster()
    late()
    text = login(viewer).get(reverse(LIST)).content.decode()
    assert "Workflows are late." in text
    assert "manage.py durableflow health" in text


def test_a_scheduler_is_told_as_such(login, viewer) -> None:
    """Where no cluster is used, nobody is told to start one."""
    late()
    cluster(kind="drain", seen=timezone.now() - timedelta(hours=1))
    text = login(viewer).get(reverse(LIST)).content.decode()
    assert "scheduler that calls durableflow.drain()" in text
    assert "durableflow_cluster" not in text


def test_it_names_nothing_to_those_who_may_not_see_it(login, requester, decider) -> None:
    """SEC-02: it names an instance, so it is for who may view all of them."""
    make_instance(created_by=requester)
    late()
    for user in (requester, decider):
        for page in (
            reverse("admin:durableflow_pendingevent_changelist"),
            reverse("admin:app_list", args=["durableflow"]),
        ):
            response = login(user).get(page)
            assert response.status_code == 200
            assert BANNER not in response.content.decode()


def test_a_hostile_id_is_text(login, viewer) -> None:
    """SEC-07: rows changed by SQL may hold anything."""
    row = late()
    type(row).objects.filter(pk=row.pk).update(workflow="<img src=x onerror=alert(1)>")
    assert "<img src=x" not in login(viewer).get(reverse(LIST)).content.decode()


@pytest.mark.parametrize("error", [OperationalError("gone"), RuntimeError("a mistake")])
def test_a_page_never_fails_for_it(login, viewer, monkeypatch, error) -> None:
    """Neither for the database nor for a mistake of ours."""
    monkeypatch.setattr(probes, "oldest_due", mock.Mock(side_effect=error))
    response = login(viewer).get(reverse(LIST))
    assert response.status_code == 200
    assert BANNER not in response.content.decode()


def test_it_costs_two_queries(login, viewer) -> None:
    """One for who executes, one for what is due."""
    cluster()
    client = login(viewer)
    with CaptureQueriesContext(connection) as queries:
        client.get(reverse("admin:app_list", args=["durableflow"]))
    asked = [query["sql"] for query in queries if "heartbeat" in query["sql"] or "claim_class" in query["sql"]]
    assert len([sql for sql in asked if "SAVEPOINT" not in sql]) == 2


def test_links_stay_in_the_admin_site(login, superuser) -> None:
    """Whatever the site is called."""
    instance = late()
    text = login(superuser).get(reverse("operations:durableflow_workflowinstance_changelist")).content.decode()
    assert f'href="/operations/durableflow/workflowinstance/{instance.pk}/change/">Show that' in text
