"""A payment provider that honours idempotency keys."""

from __future__ import annotations

calls: list[str] = []
"""The key of each call, for tests."""


def charge(total: int, *, idempotency_key: str) -> str:
    calls.append(idempotency_key)
    return f"charge-{idempotency_key[:8]}-{total}"
