"""The example project's settings with the benchmarks' workflows."""

from __future__ import annotations

import os

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

DEBUG = False
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks"]
DURABLEFLOW = {"THREADS": int(os.environ.get("BENCH_THREADS", "1"))}
LOGGING = {"version": 1, "disable_existing_loggers": False}
