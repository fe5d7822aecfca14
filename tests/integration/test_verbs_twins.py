"""The a-twins of verbs (api.md: every row verb has one)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied

from durableflow import InstanceAlreadyExists, InvalidTransition, Step, Workflow, WorkflowEvent, drain
from durableflow.models import WorkflowInstance
from tests.conftest import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)
OPERATE = "durableflow.operate_workflowinstance"


def test_the_async_twins_do_the_same(user_factory: UserFactory) -> None:
    """api.md: every verb has an a-twin."""
    ada = user_factory("ada", permissions=[OPERATE, "durableflow.decide_pendingevent"])

    class Twin(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            if event.params == "fail":
                raise ValueError("no")
            return [step.wait_for_approval("ok", title="Ok?").by, step.wait_for_event("x", type="x").payload]

    async def begin() -> list[WorkflowInstance]:
        row = await Twin.acreate("go", instance_id="a", created_by=ada)
        with pytest.raises(InstanceAlreadyExists):
            await Twin.acreate("go", instance_id="a")
        again, created = await Twin.aget_or_create("go", instance_id="a")
        assert (again.pk, created) == (row.pk, False)
        assert (await Twin.aget("a")).pk == row.pk
        return [row, await Twin.acreate("fail"), await Twin.acreate("go"), await Twin.acreate("go")]

    row, failing, stopped, blocked = async_to_sync(begin)()
    drain()
    WorkflowInstance.objects.filter(pk=blocked.pk).update(status="paused", blocked="x", wake_at=None)

    async def go_on() -> None:
        pending = await row.pending_events.aget()
        decision = await pending.aapprove(by=ada, comment="fine")
        assert (decision.by, decision.comment) == ("ada", "fine")
        sent = await row.asend_event("x", 7, by=ada)
        assert sent.sent_by_name == "ada"
        await failing.aretry(by=ada, reason="again")
        await stopped.aterminate(by=ada)
        await blocked.aresume(by=ada)
        await blocked.apause(by=ada)
        await blocked.aresume(by=ada)
        with pytest.raises(InvalidTransition):
            await stopped.aterminate()
        with pytest.raises(PermissionDenied):
            await row.aterminate(by=AnonymousUser())

    async_to_sync(go_on)()
    drain()
    assert async_to_sync(row.aresult)(timeout=1) == ["ada", 7]
    statuses = [WorkflowInstance.objects.get(pk=one.pk).status for one in (failing, stopped, blocked)]
    assert statuses == ["errored", "terminated", "waiting"]

    async def refuse() -> None:
        await (await blocked.pending_events.aget()).areject(by=ada)

    async_to_sync(refuse)()
    assert blocked.pending_events.get().approved is False


def test_the_async_twins_of_repair() -> None:
    """``arestart`` and ``acomplete_step``."""

    class Repaired(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return [step.do("a", lambda: 1 // 0, retries=0), event.run_number]

    row = Repaired.create()
    drain()

    async def repair() -> None:
        await row.arestart(reason="again")
        await sync_to_async(drain)()
        await row.arefresh_from_db()
        await row.acomplete_step(await row.steps.aget(run_number=2), 7)

    async_to_sync(repair)()
    drain()
    assert row.result() == [7, 2]


def test_awaiting_a_result_lets_others_go_on() -> None:
    """Also their synchronous code, which Django runs in one and the same thread: else the end could never come."""

    class Listens(Workflow[Any, Any]):
        def run(self, event: WorkflowEvent[Any], step: Step) -> Any:
            return step.wait_for_event("x", type="x").payload

    row = Listens.create()

    async def both() -> Any:
        waiting = asyncio.ensure_future(row.aresult(timeout=60))
        await asyncio.sleep(0)
        await (await Listens.aget(row.instance_id)).asend_event("x", 7)
        await sync_to_async(drain)()
        return await waiting

    assert async_to_sync(both)() == 7
    other = Listens.create()
    with pytest.raises(TimeoutError):
        async_to_sync(other.aresult)(timeout=0.02)
