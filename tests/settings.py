"""The example project's settings, made fast and repeatable for tests.

``DATABASE_URL`` chooses the database: PostgreSQL (its test database is made beside the one named), or, without it, an
SQLite file of this run. A file, not memory: threads and other processes of a
test share it (``tests.support.database``).
"""

from __future__ import annotations

import os
import sys

from project.settings import *  # noqa: F403
from project.settings import BASE_DIR, DATABASES, INSTALLED_APPS, REST_FRAMEWORK, VAR_DIR

SECRET_KEY = "for tests alone"
DEBUG = False
# The programs of the documentation import each other as ``shop``.
sys.path.append(str(BASE_DIR / "tests" / "acceptance"))
INSTALLED_APPS = [*INSTALLED_APPS, "tests", "shop"]
ROOT_URLCONF = "tests.urls"
ALLOWED_HOSTS = ["*"]
CSRF_TRUSTED_ORIGINS = ["http://testserver"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DURABLEFLOW = {"BASE_URL": "http://testserver"}
# The schema of the REST API does not depend on it: DRF's own default describes nothing.
REST_FRAMEWORK = {key: value for key, value in REST_FRAMEWORK.items() if key != "DEFAULT_SCHEMA_CLASS"}
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# Nothing on the console: pytest captures records whatever the handlers are.
LOGGING = {"version": 1, "disable_existing_loggers": False}

_default = DATABASES["default"]
if _default["ENGINE"].endswith("sqlite3") and not os.environ.get("DATABASE_URL"):
    # One name per run, the same in each of its pytest-xdist workers (pytest-django then adds the worker's name):
    # two runs in one checkout do not meet.
    _run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    (VAR_DIR / "tests").mkdir(exist_ok=True)
    _default["NAME"] = str(BASE_DIR / "var" / "tests" / f"{_run}.sqlite3")
    _default["TEST"] = {"NAME": _default["NAME"]}
