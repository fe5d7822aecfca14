"""URLs of the example project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("accounts/", include("django.contrib.auth.urls")),
    path("api/", include("durableflow.api.urls")),
    # The home page and the pages of the example app.
    path("", include("project.demo.urls")),
]
