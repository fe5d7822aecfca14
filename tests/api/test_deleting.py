"""Deleting one instance over REST (cases LIF-13, SEC-10)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import models

from durableflow.models import HistoryEntry, WorkflowInstance
from shop.models import Order
from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
URL = f"{ORDERS}order-1/"
STATUSES = ("queued", "running", "waiting", "waiting_for_pause", "paused", "rolling_back")


@pytest.mark.parametrize("status", STATUSES)
def test_in_whatever_status_and_with_all_that_belongs_to_it(status, client_of, order, step_of, wait_of) -> None:
    """Nothing of it stays, its id is free, and a second click finds nothing."""
    row = order(status=status)
    step_of(row)
    wait_of(row)
    client = client_of("remover")
    assert client.get(URL).json()["available_actions"] == ["delete"]
    response = client.delete(URL)
    assert (response.status_code, response.content) == (204, b"")
    assert not any(snapshot())
    assert client.delete(URL).status_code == 404
    assert client_of("starter").post(ORDERS, {"instance_id": "order-1"}).status_code == 201


def test_who_has_deleted_it_is_logged(client_of, order, caplog, django_capture_on_commit_callbacks) -> None:
    """SEC-10: its history goes with it, so that the audit log says who, why and through which door."""
    order()
    caplog.set_level(logging.INFO, "durableflow.audit")
    with django_capture_on_commit_callbacks(execute=True):
        assert client_of("remover").delete(f"{URL}?reason=asked+to+forget").status_code == 204
    (told,) = [record for record in caplog.records if record.name == "durableflow.audit"]
    assert (told.actor, told.via, told.reason, told.instance_id) == ("remover", "api", "asked to forget", "order-1")


@pytest.mark.parametrize("query", ["reson=x", "force=true", "reason=%00", f"reason={'x' * 10_001}"])
def test_a_query_that_means_nothing_deletes_nothing(query, client_of, order) -> None:
    order()
    before = snapshot()
    response = client_of("remover").delete(f"{URL}?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert snapshot() == before


@pytest.mark.parametrize("how", [models.PROTECT, models.RESTRICT])
def test_what_a_project_protects_stays(how: Any, client_of, order, monkeypatch) -> None:
    """409 that names the table and not the rows; of several the others are deleted."""
    monkeypatch.setattr(Order._meta.get_field("checkout").remote_field, "on_delete", how)
    row = order()
    order("order-2")
    Order.objects.create(checkout=row)
    client = client_of("remover")
    response = client.delete(URL)
    assert (response.status_code, response.json()["code"]) == (409, "protected")
    assert response.json()["detail"] == "It is kept because others refer to it: order."
    told = client.post(f"{ORDERS}batch/delete/", {"instance_ids": ["order-1", "order-2"]}).json()
    assert told["deleted"] == ["order-2"]
    assert [(error["instance_id"], error["code"]) for error in told["errors"]] == [("order-1", "protected")]
    assert WorkflowInstance.objects.get().pk == row.pk and HistoryEntry.objects.count() == 1
