"""What the example app reads from a picture's pixels."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from project.demo import tags
from project.demo.runner.flow import SAMPLES


@pytest.mark.parametrize(
    ("sample", "colours", "brightness", "orientation"),
    [
        ("sunset.jpg", ["orange", "blue", "yellow"], "medium", "landscape"),
        ("forest.png", ["black", "green"], "dark", "portrait"),
        ("flower.png", ["white", "pink", "yellow"], "bright", "square"),
    ],
)
def test_samples(sample: str, colours: list[str], brightness: str, orientation: str) -> None:
    with Image.open(SAMPLES / sample) as picture:
        found = tags.tags_of(picture)
    assert [colour["name"] for colour in found["colours"]] == colours
    assert (found["brightness"], found["orientation"]) == (brightness, orientation)


def test_samples_are_small_files() -> None:
    assert {path.name for path in SAMPLES.iterdir() if path.stat().st_size < 30_000} == {
        "sunset.jpg",
        "forest.png",
        "flower.png",
    }


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((0, 0, 0), "black"),
        ((255, 255, 255), "white"),
        ((128, 128, 128), "grey"),
        ((255, 0, 0), "red"),
        ((255, 0, 10), "red"),
        ((255, 140, 0), "orange"),
        ((101, 67, 33), "brown"),
        ((255, 230, 0), "yellow"),
        ((0, 128, 0), "green"),
        ((0, 128, 128), "teal"),
        ((0, 0, 255), "blue"),
        ((128, 0, 200), "purple"),
        ((255, 105, 180), "pink"),
    ],
)
def test_colour_names(rgb: tuple[int, int, int], name: str) -> None:
    assert tags.colour_name(*rgb) == name


def test_shares_are_of_the_whole_picture_and_specks_are_left_out() -> None:
    picture = Image.new("RGB", (100, 100), "red")
    picture.paste("blue", (0, 0, 100, 25))
    picture.putpixel((50, 50), (0, 255, 0))
    assert tags.dominant_colours(picture) == [{"name": "red", "share": 0.75}, {"name": "blue", "share": 0.25}]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((100, 100), "square"), ((100, 98), "square"), ((100, 97), "landscape"), ((97, 100), "portrait")],
)
def test_orientation_allows_two_percent(size: tuple[int, int], expected: str) -> None:
    assert tags.orientation(*size) == expected


@pytest.mark.parametrize(("level", "expected"), [(84, "dark"), (86, "medium"), (169, "medium"), (171, "bright")])
def test_brightness_is_thirds(level: int, expected: str) -> None:
    assert tags.brightness(Image.new("RGB", (4, 4), (level, level, level))) == expected


def test_transparent_pixels_count_as_white() -> None:
    assert tags.tags_of(Image.new("RGBA", (40, 40), (255, 0, 0, 0)))["colours"] == [{"name": "white", "share": 1.0}]


def test_a_camera_turned_on_its_side_takes_portraits(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    picture = Image.new("RGB", (200, 100), "blue")
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    picture.save(path, exif=exif)
    with Image.open(path) as stored:
        assert tags.tags_of(stored)["orientation"] == "portrait"
        assert tags.thumbnail(stored).size == (100, 200)


def test_thumbnails_fit_and_never_grow() -> None:
    assert tags.thumbnail(Image.new("RGB", (1200, 600))).size == (240, 120)
    assert tags.thumbnail(Image.new("P", (20, 10))).size == (20, 10)
