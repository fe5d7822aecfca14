"""Settings of a Django project with nothing but django-q2, with its ORM broker or with its Redis broker."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, urlsplit

_url = urlsplit(os.environ["PEER_URL"])
SECRET_KEY = "for measurements alone"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_q"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.removeprefix("/"),
        "USER": _url.username or "",
        "PASSWORD": _url.password or "",
        "HOST": _url.hostname or parse_qs(_url.query).get("host", [""])[0],
        "PORT": str(_url.port or ""),
        "CONN_MAX_AGE": 600,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
POLL_SECONDS = 0.02
Q_CLUSTER = {
    "name": "bench",
    "workers": 2,
    "timeout": 60,
    "retry": 120,
    "save_limit": 0,  # keep all results: they are what is measured
    "log_level": "ERROR",
    "scheduler": False,
    # Many small tasks: let the pusher keep the queue filled.
    "bulk": 10,
    "queue_limit": 50,
}
if os.environ.get("PEER_REDIS"):
    Q_CLUSTER["redis"] = os.environ["PEER_REDIS"]
else:
    Q_CLUSTER |= {"orm": "default", "poll": POLL_SECONDS}
