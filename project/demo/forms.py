"""Forms of the pages."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

LARGEST_FILE = 10 * 1024 * 1024
LARGEST_PICTURE = 40_000_000
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


class UploadForm(forms.Form):
    """One picture. What it is is read from its bytes, never from its name or from what the browser says."""

    picture = forms.ImageField(
        max_length=200,
        help_text="PNG, JPEG, GIF or WebP, at most 10 MB.",
        widget=forms.ClearableFileInput(attrs={"accept": "image/png,image/jpeg,image/gif,image/webp"}),
    )

    def clean_picture(self) -> Any:
        """The upload, if it is of a known format and neither the file nor the picture in it is too large."""
        upload = self.cleaned_data["picture"]
        if upload.size > LARGEST_FILE:
            raise ValidationError("The file is larger than 10 MB.", code="too_large")
        if upload.image.format not in FORMATS:
            raise ValidationError("Choose a PNG, JPEG, GIF or WebP picture.", code="format")
        if upload.image.width * upload.image.height > LARGEST_PICTURE:
            raise ValidationError("The picture has more than 40 million pixels.", code="too_large")
        return upload
