"""docs/rest.md: its requests work as they stand there, and it knows every address."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from durableflow.api import urls
from durableflow.models import WorkflowSchedule
from tests.api.flows import ApiPayment

pytestmark = pytest.mark.django_db
DOCS = Path(__file__).parents[2] / "docs" / "rest.md"
OURS = {"workflows/checkout/": "workflows/api-order/", "workflows/settlement/": "workflows/api-payment/"}


def requests() -> list[tuple[str, str, Any, dict[str, str]]]:
    """Method, path, body and headers of each curl command."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", DOCS.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ curl"):
                words = shlex.split(line.removeprefix("$ "))
                values = dict(itertools.pairwise(words))
                body = json.loads(values["-d"]) if "-d" in values else None
                method = values.get("-X", "GET" if body is None else "POST")
                headers = dict(word.split(": ", 1) for word in words if re.match(r"[\w-]+: ", word))
                headers.pop("Content-Type", None)
                found.append((method, words[-1], body, headers))
    return found


def test_the_examples_work(client_of, order, wait_of, step_of, people) -> None:
    """In their order, as one session: each answers what it is said to answer, or at least no error."""
    row = order("order-0")
    wait = wait_of(row, form="tests.api.flows.RefundForm")
    ApiPayment.create(instance_id="order-7", created_by=people("creator"))
    client: APIClient = client_of("superuser")
    seen = requests()
    assert len(seen) > 8
    for method, url, given, headers in seen:
        body = given
        path = url.replace("$API/", "/api/").replace("pending-events/7/", f"pending-events/{wait.pk}/")
        for theirs, ours in OURS.items():
            path = path.replace(theirs, ours)
        if path == "/api/schedules/":
            body = {**body, "workflow": "api-order"}
        if path.endswith("/restart/"):
            step_of(type(row).objects.get(instance_id="order-42"), body["from_step"]["name"])
        response = getattr(client, method.lower())(path, body, headers=headers)
        expected = {200, 503} if path == "/api/health/" else {200, 201, 202}  # no cluster runs here
        assert response.status_code in expected, (method, url, response.content)
    assert WorkflowSchedule.objects.get().name == "weekly"


def test_every_address_is_told() -> None:
    """The endpoints have the last word of each route: one that is added has to be written about."""
    told = DOCS.read_text().partition("## Endpoints")[2].partition("## Rights")[0]
    for pattern in urls.urlpatterns:
        route = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(pattern.pattern)).replace("step_id", "id").replace("pk", "id")
        last = route.rstrip("/").split("/")[-1]
        assert f"{last}/" in told, route
