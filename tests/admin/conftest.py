"""People and clients of the admin's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.conftest import UserFactory

Login = Callable[..., Client]


@pytest.fixture(autouse=True)
def _urls(settings) -> None:
    """These tests use URLs of their own."""
    settings.ROOT_URLCONF = "tests.admin.urls"


@pytest.fixture
def login() -> Login:
    """``login(user)``: a client in which that user is logged in; with ``csrf=True`` it checks tokens like a browser's site."""

    def make(user: User | None, *, csrf: bool = False) -> Client:
        client = Client(enforce_csrf_checks=csrf)
        if user is not None:
            client.force_login(user)
        return client

    return make


@pytest.fixture
def viewer(user_factory: UserFactory) -> User:
    """Staff who may look at everything."""
    return user_factory(
        "viewer",
        is_staff=True,
        permissions=["durableflow.view_workflowinstance", "durableflow.view_pendingevent"],
    )


@pytest.fixture
def operator(user_factory: UserFactory) -> User:
    """Staff who may look at and operate all instances."""
    return user_factory(
        "operator",
        is_staff=True,
        permissions=["durableflow.view_workflowinstance", "durableflow.operate_workflowinstance"],
    )


@pytest.fixture
def decider(user_factory: UserFactory) -> User:
    """Staff who may decide, and nothing else."""
    return user_factory("decider", is_staff=True, permissions=["durableflow.decide_pendingevent"])


@pytest.fixture
def requester(user_factory: UserFactory) -> User:
    """Staff without a right, who started an instance."""
    return user_factory("requester", is_staff=True)


@pytest.fixture
def bare(user_factory: UserFactory) -> User:
    """Staff without any right."""
    return user_factory("bare", is_staff=True)
