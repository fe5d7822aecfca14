"""URLs of the example project."""

from __future__ import annotations

from importlib.util import find_spec

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("accounts/", include("django.contrib.auth.urls")),
]
if find_spec("durableflow.api"):
    urlpatterns += [path("api/", include("durableflow.api.urls"))]
# The home page and the pages of the example app.
urlpatterns += [path("", include("project.demo.urls"))]
