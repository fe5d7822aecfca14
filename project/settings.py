"""Settings of the example project: it runs as it is, on SQLite; the environment changes what a deployment must.

``DATABASE_URL`` (project/database.py), ``SECRET_KEY``, ``DEBUG`` (1 or 0), ``ALLOWED_HOSTS`` (separated by commas),
``BASE_URL`` (where people reach the project; decision links start with it), ``VAR_DIR`` (where it writes).
"""

from __future__ import annotations

import os
from pathlib import Path

import django

from project import database
from project.secret import secret_key

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("VAR_DIR") or BASE_DIR / "var")
VAR_DIR.mkdir(parents=True, exist_ok=True)

DEBUG = os.environ.get("DEBUG", "1") == "1"
SECRET_KEY = os.environ.get("SECRET_KEY") or secret_key(VAR_DIR / "secret_key")
BASE_URL = os.environ.get("BASE_URL", "http://127.0.0.1:8000")
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "django_filters",
    "drf_spectacular",
    "django_q",
    "durableflow",
    "project.demo",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
ASGI_APPLICATION = "project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": (
        database.from_url(os.environ["DATABASE_URL"])
        if os.environ.get("DATABASE_URL")
        else database.sqlite(VAR_DIR / "db.sqlite3")
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
MEDIA_URL = "media/"
MEDIA_ROOT = VAR_DIR / "media"

# Mails become files here; a deployment puts its SMTP server in place of this.
MAIL_DIR = VAR_DIR / "mail"
if django.VERSION >= (6, 1):
    MAILERS = {
        "default": {"BACKEND": "django.core.mail.backends.filebased.EmailBackend", "OPTIONS": {"file_path": MAIL_DIR}},
    }
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = MAIL_DIR
DEFAULT_FROM_EMAIL = "shop@example.com"

SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CSRF_TRUSTED_ORIGINS = [BASE_URL]
# Cookies travel over TLS alone wherever the project is reached by it.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BASE_URL.startswith("https://")

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.SessionAuthentication",
        "rest_framework.authentication.TokenAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "durableflow example project",
    "DESCRIPTION": "Start, watch, decide and repair durable workflows.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
}

Q_CLUSTER = {
    "name": "durableflow",
    "broker_class": "durableflow.cluster.Broker",
    "workers": 2,
    "timeout": 60,
    "retry": 120,
    "save_limit": -1,
}
DURABLEFLOW: dict[str, object] = {"BASE_URL": BASE_URL}

LOGGING: dict[str, object] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        "durableflow": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "INFO")},
    },
}
