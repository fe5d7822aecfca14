"""``GET health/`` (case OPS-14)."""

from __future__ import annotations

from datetime import timedelta
from unittest import mock

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from durableflow.health import probes
from durableflow.models import Heartbeat

pytestmark = pytest.mark.django_db
URL = "/api/health/"
DETAILS = {"reasons", "oldest_due", "workers", "last_seen", "last_claim", "blocked", "holds", "processes"}


@pytest.fixture
def cluster() -> Heartbeat:
    """A live one."""
    now = timezone.now()
    return Heartbeat.objects.create(
        key=1, kind="cluster", host="app-1", pid="4711", workers=2, busy=1, started=now, seen=now, last_claim=now
    )


def test_ok(client_of, cluster) -> None:
    """One word for whoever asks, who executes for those who may view all instances."""
    for role in ("anonymous", "stranger", "creator", "operator"):
        response = client_of(role).get(URL)
        assert (response.status_code, response.json()["status"]) == (200, "ok")
        assert set(response.json()) >= DETAILS if role == "operator" else set(response.json()) == {"status"}
        assert "no-store" in response["Cache-Control"]
    found = client_of("viewer").get(URL).json()
    assert (found["workers"], found["busy"], found["processes"][0]["host"]) == (2, 1, "app-1")


def test_a_warning_is_no_reason_to_take_a_server_out(client_of, cluster, order) -> None:
    """200; a blocked instance is for people."""
    order(status="paused", blocked="CodecError: unreadable")
    response = client_of("viewer").get(URL)
    assert (response.status_code, response.json()["status"]) == (200, "warning")
    assert response.json()["blocked_latest"] == [
        {"workflow": "api-order", "instance_id": "order-1", "reason": "CodecError: unreadable"}
    ]


def test_no_cluster(client_of, order) -> None:
    """OPS-14: due work and nobody there is 503, for a probe without login too, and names nothing to it."""
    for name in ("order-1", "order-2", "order-3"):
        order(name, status="queued", wake_at=timezone.now() - timedelta(seconds=90))
    response = client_of("anonymous").get(URL)
    assert (response.status_code, response.json()) == (503, {"status": "critical"})
    assert client_of("anonymous").head(URL).status_code == 503
    found = client_of("viewer").get(URL).json()
    assert (found["oldest_due"]["instance_id"], found["last_seen"], found["overdue"]) == ("order-1", None, 3)
    assert 90 <= found["oldest_due"]["seconds"]


def test_a_database_that_is_away(client_of, monkeypatch) -> None:
    """503, not a server error."""
    monkeypatch.setattr(probes, "heartbeats", mock.Mock(side_effect=OperationalError("gone")))
    response = client_of("anonymous").get(URL)
    assert (response.status_code, response.json()) == (503, {"status": "critical"})
    assert "does not answer: gone" in client_of("viewer").get(URL).json()["reasons"][0]["text"]


def test_a_database_that_is_away_and_somebody_who_has_logged_in(client_of) -> None:
    """503 too: who it is cannot be told then."""
    client = client_of("viewer")
    away = mock.Mock(side_effect=OperationalError("gone"))
    with mock.patch.object(connection, "cursor", away), mock.patch.object(connection, "ensure_connection", away):
        response = client.get(URL)
    assert (response.status_code, response.json()) == (503, {"status": "critical"})


def test_the_schema_tells_what_comes(client_of, cluster, order) -> None:
    """Every field that is sent is described, and the other way round."""
    import json

    order(hold="limit")
    schema = json.loads(
        client_of("viewer").get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"}).content
    )
    operation = schema["paths"][URL]["get"]
    assert set(operation["responses"]) == {"200", "503"}
    name = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    sent = client_of("viewer").get(URL).json()
    assert set(schema["components"]["schemas"][name]["properties"]) == set(sent)
    assert sent["holds"] == {"limit": 1}
