"""URLs of the example app: mounted at the root, for the home page is its own."""

from __future__ import annotations

from django.urls import path
from django.views.generic import TemplateView

from project.demo.views import bank, carts, images

app_name = "demo"
urlpatterns = [
    path("", TemplateView.as_view(template_name="demo/home.html"), name="home"),
    path("demo/images/", images.ImageList.as_view(), name="images"),
    path("demo/images/upload/", images.Upload.as_view(), name="upload"),
    path("demo/images/<int:pk>/file/", images.ImageFile.as_view(), name="picture"),
    path("demo/images/<int:pk>/thumbnail/", images.ImageFile.as_view(field="thumbnail"), name="thumbnail"),
    path("demo/carts/", carts.CartList.as_view(), name="carts"),
    path("demo/carts/new/", carts.new_cart, name="new-cart"),
    path("demo/carts/<int:pk>/check-out/", carts.check_out, name="check-out"),
    path("demo/bank/charges/", bank.charges, name="charges"),
]
