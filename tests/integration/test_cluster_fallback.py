"""The minute fallback: a row of django-q2's schedule, kept where nothing better executes workflows."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django_q import scheduler as q_scheduler
from django_q.models import OrmQ, Schedule
from django_q.signing import SignedPackage

from durableflow.cluster import fallback, tasks

pytestmark = pytest.mark.django_db
OURS = {"broker_class": "durableflow.cluster.Broker"}
STOCK = {"orm": "default"}


def keep() -> None:
    fallback.keep_schedule(using="default")


def names() -> list[str]:
    return list(Schedule.objects.values_list("name", flat=True))


def test_it_is_there_with_a_stock_broker_and_gone_with_ours(settings: Any) -> None:
    settings.Q_CLUSTER = STOCK
    keep()
    keep()
    [row] = Schedule.objects.all()
    assert (row.name, row.func) == (fallback.NAME, "durableflow.cluster.tasks.run_due")
    assert (row.schedule_type, row.minutes, row.repeats) == (Schedule.MINUTES, 1, -1)
    settings.Q_CLUSTER = OURS
    keep()
    keep()
    assert names() == []


def test_migrate_keeps_it(settings: Any) -> None:
    settings.Q_CLUSTER = STOCK
    call_command("migrate", verbosity=0, skip_checks=True)
    assert names() == [fallback.NAME]
    settings.Q_CLUSTER = OURS
    call_command("migrate", verbosity=0, skip_checks=True)
    assert names() == []


def test_a_cluster_of_our_own_beside_another_needs_none(settings: Any) -> None:
    settings.Q_CLUSTER = {**STOCK, "ALT_CLUSTERS": {"flows": OURS}}
    settings.DURABLEFLOW = {"CLUSTER": "flows"}
    keep()
    assert names() == []


def test_a_scheduler_that_is_told_by_dispatch_keeps_it(settings: Any) -> None:
    settings.Q_CLUSTER, settings.DURABLEFLOW = STOCK, {"DISPATCH": "gc.collect"}
    keep()
    assert names() == [fallback.NAME]


def test_what_the_project_changed_stays_and_doubles_go(settings: Any) -> None:
    settings.Q_CLUSTER = STOCK
    first = Schedule.objects.create(name=fallback.NAME, func="old.place", schedule_type="I", minutes=5, repeats=0)
    Schedule.objects.create(name=fallback.NAME, func="old.place", schedule_type="I", minutes=7)
    Schedule.objects.create(name="other", func="gc.collect")
    keep()
    first.refresh_from_db()
    assert (first.func, first.minutes, first.repeats) == (fallback.FUNC, 5, 0)
    assert sorted(names()) == sorted([fallback.NAME, "other"])


@pytest.mark.parametrize("missing", ["app", "table", "database"])
def test_it_needs_django_q2_and_its_table_in_that_database(
    settings: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    settings.Q_CLUSTER = STOCK
    if missing == "app":
        monkeypatch.setattr("durableflow.cluster.mode.installed", lambda: False)
    elif missing == "table":
        monkeypatch.setattr(connection.introspection, "table_names", lambda: [])
    else:
        monkeypatch.setattr("durableflow.cluster.fallback.router.db_for_write", lambda model: "other")
    keep()
    assert names() == []


@pytest.mark.django_db(transaction=True)  # the scheduler closes connections
def test_what_it_enqueues_has_no_time_limit_and_leaves_no_result(settings: Any) -> None:
    """django-q2's own limit would interrupt a step, and a failed run must not be delivered for ever."""
    settings.Q_CLUSTER = STOCK
    keep()
    Schedule.objects.update(next_run="2000-01-01T00:00:00Z")
    q_scheduler.scheduler()
    package = SignedPackage.loads(OrmQ.objects.get().payload)
    assert package["func"] == fallback.FUNC == f"{tasks.__name__}.{tasks.run_due.__name__}"
    assert (package["timeout"], package["save"], package["ack_failure"]) == (-1, False, True)
    assert package["args"] == () and package["kwargs"] == {}
    assert ast.literal_eval(Schedule.objects.get().kwargs)
