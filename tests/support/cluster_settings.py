"""The test settings for a cluster in a process of its own; the environment changes what a test must.

``TEST_DURABLEFLOW`` and ``TEST_Q_CLUSTER``: JSON objects, laid over the settings of those names; ``tests.support.hooks``
changes the rest.
"""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DURABLEFLOW as _DURABLEFLOW
from tests.settings import INSTALLED_APPS as _INSTALLED_APPS
from tests.settings import Q_CLUSTER as _Q_CLUSTER

DURABLEFLOW = {**_DURABLEFLOW, **json.loads(os.environ.get("TEST_DURABLEFLOW", "{}"))}
Q_CLUSTER = {**_Q_CLUSTER, **json.loads(os.environ.get("TEST_Q_CLUSTER", "{}"))}
INSTALLED_APPS = [*_INSTALLED_APPS, "tests.support.hooks.HooksConfig"]
