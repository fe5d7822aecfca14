"""Results of sensitive steps that a person gives are shown nowhere (case SEC-09: one unmasked sibling defeats the mask)."""

from __future__ import annotations

import io

import pytest
from django.core.management import call_command

from tests.api.conftest import ORDERS

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "tok_by_hand_5f1c"
URL = f"{ORDERS}order-1/"


def test_a_result_by_hand_of_a_sensitive_step(order, step_of, client_of, caplog) -> None:
    """SEC-09: neither in the answer, nor in any other, nor on the command line or in the log; the workflow gets it."""
    row = order(status="waiting")
    step = step_of(row, "token", sensitive=True, status="pending", finished=None)
    client = client_of("superuser")
    told = [client.post(f"{URL}steps/{step.pk}/complete/", {"output": {"token": SECRET}, "reason": "by phone"})]
    assert told[0].status_code == 200
    paths = ("", "steps/", f"steps/{step.pk}/output/", "history/")
    told += [client.get(f"{URL}{path}") for path in paths]
    texts = [answer.content.decode() for answer in told]
    for command in ("show", "tail"):
        out = io.StringIO()
        extra = ["--no-follow"] if command == "tail" else []
        call_command("durableflow", command, "api-order", "order-1", "--json", *extra, stdout=out)
        texts.append(out.getvalue())
    assert "by phone" in texts[4] and "[REDACTED]" in texts[3]
    assert SECRET not in "".join(texts) + caplog.text
    step.refresh_from_db()
    assert step.raw_output == {"token": SECRET}
