"""The settings of the clusters and of the driver."""

from __future__ import annotations

from tests.support.cluster_settings import *  # noqa: F403
from tests.support.cluster_settings import INSTALLED_APPS  # type: ignore[attr-defined]

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]
