"""The steps of the image tagging workflow, and how an upload becomes a row and a workflow."""

from __future__ import annotations

import hashlib
import io
from pathlib import PurePath
from typing import TypedDict

from django.contrib.auth.models import User
from django.core.files import File
from django.urls import reverse
from PIL import Image as Pillow

from durableflow import get_step_context
from durableflow.models import WorkflowInstance
from project.demo import conf
from project.demo.models import Image
from project.demo.services.files import store
from project.demo.tags import Tags, tags_of, thumbnail


class Metadata(TypedDict):
    """What is known of a picture before anybody looked at it; ``picture`` is its address."""

    name: str
    width: int
    height: int
    format: str
    size: int
    sha256: str
    picture: str


class Tagged(TypedDict):
    """The tags of a picture and the stored name of its thumbnail."""

    tags: Tags
    thumbnail: str


def add_image(file: File[bytes], *, by: User) -> Image:
    """Store an uploaded picture and make its row. Its workflow is the caller's business."""
    return Image.objects.create(file=file, original_name=PurePath(file.name or "picture").name[:200], uploaded_by=by)


def save_metadata(image_id: int) -> Metadata:
    """Measure the stored file, save what was found on its row and link the row to the workflow that runs this step.

    Raises ``Image.DoesNotExist`` for an unknown picture and ``PIL.UnidentifiedImageError`` for a file that is none.
    """
    image = Image.objects.get(pk=image_id)
    content = _content(image)
    with Pillow.open(io.BytesIO(content)) as picture:
        image.width, image.height = picture.size
        image.format = picture.format or ""
    image.size, image.sha256 = len(content), hashlib.sha256(content).hexdigest()
    if image.instance is None:
        image.instance = _running_instance()
    image.save(update_fields=["width", "height", "format", "size", "sha256", "instance"])
    return {
        "name": image.original_name,
        "width": image.width,
        "height": image.height,
        "format": image.format,
        "size": image.size,
        "sha256": image.sha256,
        "picture": conf.base_url() + reverse("demo:picture", args=[image.pk]),
    }


def compute_tags(image_id: int) -> Tagged:
    """Compute the tags from the pixels and store a thumbnail under a name that derives from the picture."""
    image = Image.objects.get(pk=image_id)
    with Pillow.open(io.BytesIO(_content(image))) as picture:
        tags = tags_of(picture)
        small = io.BytesIO()
        thumbnail(picture).save(small, "JPEG", quality=80)
    return {"tags": tags, "thumbnail": store(f"thumbnails/{image.pk}-{image.sha256[:16]}.jpg", small.getvalue())}


def store_tags(image_id: int, tagged: Tagged, title: str) -> None:
    """Save the tags, the thumbnail and the title that the approver gave."""
    Image.objects.filter(pk=image_id).update(tags=tagged["tags"], thumbnail=tagged["thumbnail"], title=title)


def _content(image: Image) -> bytes:
    with image.file.open("rb") as stored:
        return bytes(stored.read())


def _running_instance() -> WorkflowInstance:
    context = get_step_context()
    return WorkflowInstance.objects.get(workflow=context.workflow, instance_id=context.instance_id)
