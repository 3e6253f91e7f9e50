import numpy as np
import pytest
from PIL import Image

from data.pictures import picture, truncate
from repopt.data.decoding import BrokenImageError, _plain_header, centre_crop, decode_into, read_rgb

PLAIN = {
    "default": {},
    "fine": {"quality": 95, "subsampling": 0},
    "progressive": {"progressive": True},
    "optimized": {"optimize": True},
    "restarts": {"restart_marker_blocks": 2},
    "comment": {"comment": b"a picture"},
}
UNUSUAL = {"exif": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}, "profile": {"icc_profile": b"a profile"}}


def saved(path, mode="RGB", size=(37, 21), **options):
    picture(path, size=size, mode=mode)
    Image.open(path).save(path, **options)
    return path


def opened(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [*PLAIN, *UNUSUAL])
def test_the_short_way_into_a_jpeg_gives_pillows_pixels(tmp_path, mode, options):
    path = saved(tmp_path / "a.jpg", mode, **{**PLAIN, **UNUSUAL}[options])
    assert (_plain_header(path.read_bytes()) is None) == (options in UNUSUAL or mode == "CMYK")
    assert np.array_equal(np.asarray(read_rgb(path)), opened(path))


@pytest.mark.parametrize("options", [{}, {"transparency": 5}])
def test_of_greys_of_16_bits_the_upper_8_are_kept(tmp_path, options):
    greys = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(greys).save(tmp_path / "a.png", **options)
    assert np.array_equal(np.asarray(read_rgb(tmp_path / "a.png")), np.stack([greys >> 8] * 3, -1))


def outcome(read, path):
    """The bytes of an image, or what is wrong with it."""
    try:
        return np.asarray(read(path)).tobytes()
    except BrokenImageError as error:
        return error.reason
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_an_image_cut_short_anywhere_is_what_pillow_says_it_is(tmp_path, name):
    whole, path = saved(tmp_path / name).read_bytes(), tmp_path / f"cut{name}"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert outcome(read_rgb, path) == outcome(opened, path)


def test_damaged_bytes_of_a_jpeg_give_what_pillow_gives(tmp_path):
    whole, path = saved(tmp_path / "a.jpg").read_bytes(), tmp_path / "b.jpg"
    for place in range(whole.index(b"\xff\xda"), len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert outcome(read_rgb, path) == outcome(opened, path)


def test_images_are_written_as_planes_side_by_side(tmp_path):
    paths = [picture(tmp_path / f"{number}.jpg", seed=number) for number in range(3)]
    truncate(paths[1])
    pixels = memoryview(bytearray(4 * 3 * 8 * 8))
    broken = decode_into(pixels, paths, 8, 1)
    assert list(broken) == [2]
    made = np.asarray(pixels).reshape(4, 3, 8, 8)
    for place, path in ((1, paths[0]), (3, paths[2])):
        assert np.array_equal(made[place], np.asarray(centre_crop(read_rgb(path), 8)).transpose(2, 0, 1))
    assert not made[[0, 2]].any()


def test_pillows_limit_to_the_pixels_of_an_image_holds(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.jpg")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(BrokenImageError, match="decompression bomb"):  # a warning, and so an error in tests
        read_rgb(path)
