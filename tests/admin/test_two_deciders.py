"""Two people at once (EVT-10), on both databases, with real transactions."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.urls import reverse

from durableflow.models import PendingEvent, SentEvent
from tests.admin.rows import make_instance, make_wait

ROUNDS = 20


def at_once(*calls):
    """Run the calls in threads that start together; their results in order."""
    barrier = threading.Barrier(len(calls))
    results: list[object] = [None] * len(calls)

    def run(position, call) -> None:
        try:
            barrier.wait(60)
            results[position] = call()
        except BaseException as error:
            results[position] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("same_person", [False, True], ids=["two people", "double click"])
def test_one_decision_wins(login, superuser, decider, same_person) -> None:
    """EVT-10: approve and reject at once, and the same person twice: one is stored, the other is told who decided."""
    second = superuser if same_person else decider
    clients = [login(superuser), login(second)]
    for _ in range(ROUNDS):
        wait = make_wait(make_instance())
        address = reverse("admin:durableflow_pendingevent_decide", args=[wait.pk])
        answers = ({"decision": "approve"}, {"decision": "reject", "comment": "no"})
        responses = at_once(
            *(partial(client.post, address, answer) for client, answer in zip(clients, answers, strict=True))
        )
        assert sorted(response.status_code for response in responses) == [302, 409], responses
        winner = 0 if responses[0].status_code == 302 else 1
        wait.refresh_from_db()
        assert wait.approved is (winner == 0)
        assert f"by <strong>{wait.decided_by_name}</strong>" in responses[1 - winner].content.decode()
        assert SentEvent.objects.filter(pending_event=wait).count() == 1
        assert LogEntry.objects.filter(object_id=str(wait.pk)).count() == 1
    assert PendingEvent.objects.filter(status="received").count() == ROUNDS
