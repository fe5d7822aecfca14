"""The django-q2 binding: the only part that knows django-q2 (design 4, "django-q2").

``Q_CLUSTER["broker_class"] = "durableflow.cluster.Broker"`` is all that a project names. It is resolved when it is
used, so that this package can be imported before the app registry is ready, and in projects that do not list
``django_q`` in INSTALLED_APPS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durableflow.cluster.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    if name != "Broker":
        raise AttributeError(f"module 'durableflow.cluster' has no attribute {name!r}")
    return import_module("durableflow.cluster.broker").Broker
