"""The REST API (Django REST framework): ``path("api/", include("durableflow.api.urls"))``. See docs/rest.md."""
