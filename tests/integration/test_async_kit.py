"""The testing kit runs an ``async def run``: in the test's own connection and transaction, with its clock (design 10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection
from django.test import TestCase

from durableflow import AsyncStep, Retries, Workflow, WorkflowEvent, get_step_context
from durableflow.models import WorkflowInstance
from durableflow.testing import Harness, WorkflowTestMixin

S = WorkflowInstance.Status


class Order(Workflow[Any, Any]):
    """Two bodies, a sleep and an approval at once."""

    async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
        async def charge() -> str:
            await Group.objects.acreate(name=f"charged {get_step_context().attempt}")
            return get_step_context().idempotency_key

        async def approve() -> bool:
            return bool(await step.wait_for_approval("ok", title="Well?"))

        key, _none, approved = await asyncio.gather(
            step.do("charge", charge, retries=Retries(limit=2, delay="1 hour")),
            step.sleep("cool down", "2 days"),
            approve(),
        )
        count = await step.do("count", Group.objects.count)
        return [key, approved, count]


@pytest.mark.django_db
def test_a_clock_that_jumps_and_a_person_who_decides(workflows: Harness) -> None:
    order = workflows.run(Order)
    assert order.status == S.WAITING, (order.error, order.blocked)
    workflows.approve(order)
    assert order.status == S.WAITING
    workflows.advance("2 days")
    assert order.status == S.COMPLETE, (order.error, order.blocked)
    assert order.output[1:] == [True, 1]


@pytest.mark.django_db
def test_mocked_results_and_errors(workflows: Harness) -> None:
    workflows.mock_error("charge", ConnectionError("away"), times=1)
    workflows.mock_result("charge", "mocked")
    order = workflows.run(Order)
    workflows.approve(order)
    workflows.advance("2 days")
    assert order.output == ["mocked", True, 0]
    assert workflows.attempts("charge") == 2


@pytest.mark.django_db
def test_a_crash_before_the_checkpoint_of_an_async_body(workflows: Harness) -> None:
    workflows.crash_before_checkpoint("charge")
    order = workflows.run(Order)
    workflows.approve(order)
    workflows.advance("2 days")
    assert order.status == S.COMPLETE, (order.error, order.blocked)
    assert workflows.attempts("charge") == 2
    assert order.output[2] == 2


class InATestCase(WorkflowTestMixin, TestCase):
    """One transaction around the whole test."""

    def test_all_runs_in_the_tests_transaction(self) -> None:
        mine = connection.connection

        class Sample(Workflow[Any, Any]):
            async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
                async def body() -> bool:
                    await Group.objects.acreate(name="made")
                    return await sync_to_async(lambda: connection.connection is mine)()

                return await asyncio.gather(
                    step.do("one", body), step.do("plain", lambda: connection.connection is mine)
                )

        self.assertEqual(self.workflows.run(Sample).output, [True, True])
        self.assertEqual(Group.objects.count(), 1)

    def test_an_integrity_error_in_a_body_spoils_nothing(self) -> None:
        """A worker has no open transaction, so it spoils nothing there either."""

        class Sample(Workflow[Any, Any]):
            async def run(self, event: WorkflowEvent[Any], step: AsyncStep) -> Any:
                async def body(name: str) -> str:
                    await Group.objects.acreate(name=name)
                    await asyncio.sleep(0.001)
                    try:
                        await Group.objects.acreate(name=name)
                    except IntegrityError:
                        return f"{name} twice"
                    return name

                return await asyncio.gather(*(step.do(name, body, name) for name in ("a", "b", "c")))

        self.assertEqual(self.workflows.run(Sample).output, ["a twice", "b twice", "c twice"])
        self.assertEqual(Group.objects.count(), 3)
