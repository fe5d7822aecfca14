"""Half a character (a lone surrogate) in a request is a 400 everywhere: no database and no answer can hold it (case SER-04)."""

from __future__ import annotations

import pytest

from tests.api.conftest import ORDERS, snapshot

pytestmark = pytest.mark.django_db
HALF = "\\ud800"
START = [
    '{"%s": 1}', '{"params": "%s"}', '{"params": {"%s": 1}}', '{"instance_id": "%s"}', '{"priority": "%s"}', '{"start_at": "%s"}',
    '{"retention": {"%s": 1}}', '{"retention": {"success": "%s"}}',
]  # fmt: skip
BATCH = [
    '{"instances": [{"%s": 1}]}', '{"instances": ["%s"]}', '{"count": "%s"}', '{"instances": [{"params": {"%s": 1}}]}',
]  # fmt: skip
RESTART = [
    '{"reason": "%s"}', '{"from_step": {"name": "%s"}}', '{"from_step": {"name": "x", "scope": "%s"}}',
    '{"from_step": {"name": "x", "kind": "%s"}}', '{"from_step": {"%s": "x"}}',
]  # fmt: skip
BULK = [
    '{"action": "%s", "filter": {}}', '{"action": "retry", "filter": {"search": "%s"}}', '{"action": "retry", "filter": {"%s": "a"}}',
    '{"action": "retry", "filter": {"status": "%s"}}', '{"action": "retry", "filter": {"created_after": "%s"}}',
]  # fmt: skip
SCHEDULE = [
    f'{{"workflow": "api-order", "name": "n", "cron": "0 0 * * *", "{name}": "%s"}}'
    for name in ("workflow", "name", "cron", "timezone", "catch_up", "overlap", "params", "%s")
]
CASES = [
    *(("starter", ORDERS, body) for body in START),
    *(("starter", f"{ORDERS}batch/", body) for body in BATCH),
    *(("operator", f"{ORDERS}order-1/restart/", body) for body in RESTART),
    *(("operator", f"{ORDERS}bulk/", body) for body in BULK),
    *(("planner", "/api/schedules/", body) for body in SCHEDULE),
]


@pytest.mark.parametrize(("role", "url", "body"), CASES)
def test_it_is_refused(role, url, body, client_of, order) -> None:
    order()
    before = snapshot()
    text = body.replace("%s", HALF)
    response = client_of(role).generic("POST", url, text, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert snapshot() == before
