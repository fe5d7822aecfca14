"""The example project's settings with the benchmarks' workflows."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks"]
DURABLEFLOW = {}
LOGGING = {"version": 1, "disable_existing_loggers": False}
