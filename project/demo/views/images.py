"""Pages about pictures: the list with its upload form, and the files behind the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin, PermissionRequiredMixin
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.fields.files import FieldFile
from django.http import FileResponse, Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.decorators import method_decorator
from django.views.decorators.cache import cache_control
from django.views.generic import FormView, ListView, View

from project.demo.forms import UploadForm
from project.demo.models import Image
from project.demo.services import images
from project.demo.views.users import user_of
from project.demo.workflows import ImageTagging

if TYPE_CHECKING:  # generic for the type checker alone
    Images = ListView[Image]
    UploadFormView = FormView[UploadForm]
else:
    Images, UploadFormView = ListView, FormView


class ImageList(LoginRequiredMixin, Images):
    """All pictures with the state of their workflow, newest first, and the upload form for who may start one."""

    template_name = "demo/images.html"
    paginate_by = 24

    def get_queryset(self) -> QuerySet[Image]:
        """Without the big columns of the instances."""
        return Image.objects.with_state()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """With an empty upload form."""
        return super().get_context_data(form=UploadForm(), **kwargs)


class Upload(LoginRequiredMixin, PermissionRequiredMixin, UploadFormView):
    """Take a picture and start its workflow: both are committed, or neither."""

    permission_required = "durableflow.start_workflowinstance"
    form_class = UploadForm
    template_name = "demo/upload.html"

    def form_valid(self, form: UploadForm) -> HttpResponse:
        """Row and workflow in one transaction. The file of a transaction that fails is left behind without a row."""
        user = user_of(self.request)
        with transaction.atomic():
            image = images.add_image(form.cleaned_data["picture"], by=user)
            image.instance = ImageTagging.create(
                {"image_id": image.pk}, instance_id=f"image-{image.pk}", created_by=user
            )
            image.save(update_fields=["instance"])
        messages.success(self.request, f"{image.original_name} is uploaded and waits for an approval.")
        return redirect("demo:images")


@method_decorator(cache_control(private=True, max_age=3600), name="dispatch")
class ImageFile(LoginRequiredMixin, View):
    """The bytes of a stored file: ``field`` says which."""

    field = "file"

    def get(self, request: Any, pk: int) -> FileResponse:
        """As a picture, whatever the file's name says: the format was read from the bytes."""
        image = get_object_or_404(Image.objects.only(self.field, "format"), pk=pk)
        stored: FieldFile = getattr(image, self.field)
        if not stored or not stored.storage.exists(str(stored)):
            raise Http404("This file does not exist.")
        kind = "jpeg" if self.field == "thumbnail" else image.format.lower()
        return FileResponse(stored.open("rb"), content_type=f"image/{kind}" if kind else "application/octet-stream")
