"""The shop's side of a payment: one HTTP call to the bank, safe to repeat because it carries an idempotency key."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from django.urls import reverse

from durableflow import get_step_context
from project.demo import conf
from project.demo.services.carts import CheckedOutCart

SECONDS_TO_ANSWER = 20.0


class PaymentRefused(Exception):
    """The bank looked at the request and said no. The same request will not do better."""


class BankUnavailable(Exception):
    """The bank did not answer, or asked to come back later."""


def charge(cart: CheckedOutCart) -> str:
    """Charge a cart and return the bank's reference.

    The idempotency key is the step's, the same in every attempt, so the bank charges once however often this runs.
    Raises ``BankUnavailable`` (worth another attempt) or ``PaymentRefused`` (not).
    """
    answer = _post({"cart": cart["cart_id"], "amount": str(cart["total"])}, key=get_step_context().idempotency_key)
    return str(answer["reference"])


def _post(body: dict[str, Any], *, key: str) -> dict[str, Any]:
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {conf.bank_token()}",
        "Idempotency-Key": key,
    }
    url = conf.base_url() + reverse("demo:charges")
    request = Request(url, json.dumps(body).encode(), headers)  # noqa: S310  the address is the project's own
    try:
        with urlopen(request, timeout=SECONDS_TO_ANSWER) as response:  # noqa: S310
            return dict(json.load(response))
    except HTTPError as error:
        with error:
            detail = error.read(500).decode(errors="replace")
        kind = BankUnavailable if error.code >= 500 or error.code == 429 else PaymentRefused
        raise kind(f"The bank answered {error.code}: {detail}") from None
    except (URLError, OSError) as error:
        raise BankUnavailable(f"The bank at {url} cannot be reached: {error}") from error
