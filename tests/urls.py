"""URLs of the tests: those of the example project."""

from __future__ import annotations

from django.urls import include, path

urlpatterns = [path("", include("project.urls"))]
