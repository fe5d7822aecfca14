"""Wrong arguments of create() and get() are told by name, and nothing is stored."""

from __future__ import annotations

from typing import Any

import pytest

from durableflow import Priority, Step, Workflow, WorkflowEvent
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness

pytestmark = pytest.mark.django_db


@pytest.fixture
def plain(workflows: Harness) -> type[Workflow[None, None]]:
    class Plain(Workflow[None, None]):
        def run(self, event: WorkflowEvent[None], step: Step) -> None: ...

    return Plain


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"priority": "high"}, ValueError, r"priority must be Priority\.HIGH.*'high'"),
        ({"priority": 7}, ValueError, r"priority must be Priority\.HIGH.*7"),
        ({"retention": "3 days"}, TypeError, r"retention must be a Retention\(.*'3 days'"),
        ({"created_by": "ada"}, TypeError, "created_by must be a user.*'ada'"),
    ],
)
def test_wrong_arguments(plain: Any, arguments: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        plain.create(**arguments)
    assert not WorkflowInstance.objects.exists()


def test_a_priority_may_be_its_number(plain: Any) -> None:
    assert plain.create(priority=0).priority is Priority.HIGH


def test_an_unknown_id_is_named(plain: Any) -> None:
    with pytest.raises(WorkflowInstance.DoesNotExist, match="The workflow 'plain' has no instance 'order-1'"):
        plain.get("order-1")
