"""Fixtures and skips that all test folders share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from hypothesis import HealthCheck, settings

from durableflow import drain
from durableflow.core import hearing
from durableflow.engine import chores, declaring, heartbeat

UserFactory = Callable[..., User]

# How long an example takes, and how long it takes to make one, tells of the machine alone.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what the database in use cannot show."""
    for item in items:
        for vendor in ("sqlite", "postgresql"):
            if item.get_closest_marker(f"{vendor}_only") and connection.vendor != vendor:
                item.add_marker(pytest.mark.skip(reason=f"needs {vendor}, this run is on {connection.vendor}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """A database to which a thread is connected cannot be deleted: the one that hears for those who follow ends soon after the
    last of them has gone."""
    end = time.monotonic() + 10
    while nextitem is None and time.monotonic() < end:
        if not any(thread.name == hearing.THREAD for thread in threading.enumerate()):
            return
        time.sleep(0.02)


@pytest.fixture(autouse=True, scope="session")
def _nobody_lingers() -> None:
    """It need not wait for the next one."""
    hearing.LINGER = 0.0


@pytest.fixture(autouse=True, scope="session")
def _silent_drains() -> None:
    """A drain of a test tells nobody that it is alive: it would be one statement more each ten seconds, in whichever
    test runs then."""
    heartbeat.silence()
    declaring.silence()  # nor does it make rows of the schedules that some workflow has
    chores.silence()  # nor does it purge


@pytest.fixture(autouse=True, scope="session")
def _patient_drains() -> None:
    """``drain()`` of a test executes all that is due, also where the process stands still for longer than its usual second."""
    drain.__defaults__ = (60.0,)


@pytest.fixture
def user_factory(db: None) -> UserFactory:
    """``user_factory("ada", groups=["managers"], permissions=["durableflow.decide_pendingevent"], is_staff=True)``.

    Groups are made where they are missing; a permission that does not exist is an error. The password is the name.
    """

    def make(username: str, *, groups: Iterable[str] = (), permissions: Iterable[str] = (), **fields: Any) -> User:
        user = get_user_model().objects.create_user(
            username, email=f"{username}@example.com", password=username, **fields
        )
        user.groups.set([Group.objects.get_or_create(name=name)[0] for name in groups])
        for permission in permissions:
            app, codename = permission.split(".")
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        return user

    return make


@pytest.fixture
def customer(user_factory: UserFactory) -> User:
    """Somebody who only starts things: not staff, no permission."""
    return user_factory("customer")


@pytest.fixture
def manager(user_factory: UserFactory) -> User:
    """Staff in the group ``managers``, without a permission of their own."""
    return user_factory("manager", groups=["managers"], is_staff=True)


@pytest.fixture
def staff(user_factory: UserFactory) -> User:
    """Staff in the group ``agents``, without a permission of their own."""
    return user_factory("staff", groups=["agents"], is_staff=True)


@pytest.fixture
def superuser(user_factory: UserFactory) -> User:
    """May do everything that a rule about rows does not bar."""
    return user_factory("superuser", is_staff=True, is_superuser=True)
