"""Who executes workflows here, read off the settings alone: no query, and no import of django-q2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string

from durableflow.core.conf import get_settings

BROKER: Final = "durableflow.cluster.Broker"
_HOME: Final = "durableflow.cluster.broker.Broker"


class Kind(StrEnum):
    """The ways in which due work finds a process; the first that applies counts."""

    CLUSTER = "cluster"
    """A django-q2 cluster with our broker."""
    DISPATCH = "dispatch"
    """The project's own scheduler, told by ``DURABLEFLOW["DISPATCH"]``."""
    FALLBACK = "fallback"
    """A django-q2 cluster with another broker, each minute."""
    NOTHING = "nothing"


@dataclass(frozen=True)
class Mode:
    """``entry``: the ALT_CLUSTERS entry of a cluster of ours, '' for the project's only cluster. ``config``: that
    cluster's settings."""

    kind: Kind
    entry: str
    config: Mapping[str, Any]


def installed() -> bool:
    """Whether django-q2 is one of the project's apps."""
    return apps.is_installed("django_q")


def base_config() -> Mapping[str, Any]:
    """``settings.Q_CLUSTER``, or an empty one."""
    found = getattr(settings, "Q_CLUSTER", None)
    return found if isinstance(found, Mapping) else {}


def alternatives() -> Mapping[str, Any]:
    """``Q_CLUSTER["ALT_CLUSTERS"]``, or an empty one."""
    found = base_config().get("ALT_CLUSTERS")
    return found if isinstance(found, Mapping) else {}


def entry() -> str:
    """The ALT_CLUSTERS entry that ``DURABLEFLOW["CLUSTER"]`` names; '' where it names the only cluster, or none."""
    name = get_settings().CLUSTER or ""
    return "" if name in (base_config().get("name"), base_config().get("cluster_name")) else name


def cluster_config() -> Mapping[str, Any]:
    """The django-q2 settings of the cluster that shall execute workflows, merged as django-q2 merges an ALT_CLUSTERS
    entry."""
    own = alternatives().get(entry())
    return {**base_config(), **own} if isinstance(own, Mapping) else base_config()


def is_ours(config: Mapping[str, Any]) -> bool:
    """Whether a cluster of these settings uses our broker, or a subclass of it."""
    path = config.get("broker_class")
    if path in (BROKER, _HOME):
        return True
    if not isinstance(path, str) or path.startswith("django_q."):
        return False
    try:
        found = import_string(path)
    except ImportError:
        return False
    return any(f"{cls.__module__}.{cls.__qualname__}" == _HOME for cls in getattr(found, "__mro__", ()))


def current() -> Mode:
    """Who executes workflows with the settings in force. Raises ImproperlyConfigured for a wrong ``DURABLEFLOW``
    dict."""
    config = cluster_config()
    if installed() and is_ours(config):
        kind = Kind.CLUSTER
    elif get_settings().DISPATCH:
        kind = Kind.DISPATCH
    else:
        kind = Kind.FALLBACK if installed() else Kind.NOTHING
    return Mode(kind, entry(), config)
