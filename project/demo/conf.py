"""Settings of the example app, read at call time: a Django setting, else the environment, else a default."""

from __future__ import annotations

import os

from django.conf import settings
from django.utils.crypto import salted_hmac


def base_url() -> str:
    """``BASE_URL``: where the web server of this project answers, without a slash at the end."""
    return str(settings.BASE_URL).rstrip("/")


def bank_failures() -> int:
    """``DEMO_BANK_FAILURES``: how many calls the bank refuses (503) for each new idempotency key. Default 1."""
    return int(_read("DEMO_BANK_FAILURES", "1"))


def bank_delay() -> float:
    """``DEMO_BANK_DELAY``: seconds the bank takes to answer, to look at a worker in the middle of a step. Default 0."""
    return float(_read("DEMO_BANK_DELAY", "0"))


def bank_token() -> str:
    """The secret that the shop shows to the bank. Both live in one project, so it derives from the ``SECRET_KEY``."""
    return salted_hmac("project.demo.bank", "shop", algorithm="sha256").hexdigest()


def _read(name: str, default: str) -> str:
    return str(getattr(settings, name, os.environ.get(name, default)))
