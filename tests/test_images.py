"""Encoded images become pixels, or an error that names the column."""

import io
import pickle
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.arrays import Converter, Image

RNG = np.random.default_rng(0)
SHAPES = {"L": (5, 7), "RGB": (5, 7, 3), "RGBA": (5, 7, 4)}


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def pixels(mode: str = "RGB", height: int = 5, width: int = 7) -> np.ndarray:
    return RNG.integers(0, 256, (height, width, *SHAPES[mode][2:]), dtype=np.uint8)


def decoded(rows: list[bytes | None], image: Any, kind: pa.DataType | None = None, **options: Any) -> Any:
    batch = pa.record_batch([pa.array([b"junk", *rows], kind or pa.binary())], names=["image"]).slice(1)
    converter = Converter(batch.schema, decode={"image": image}, **options)
    found = converter(batch)["image"]
    spec = converter.spec["image"]
    assert (found.dtype, found.shape[1:]) == (spec.dtype, spec.shape[1:])
    assert spec.content in (None, np.ndarray)
    for split, each in zip(converter.split(batch, 0, 1), found, strict=True):
        assert (split["image"][0] == each).all()
    return found


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.binary())], ids=str)
@pytest.mark.parametrize("mode", SHAPES)
def test_png_is_exact(mode: str, kind: pa.DataType) -> None:
    wanted = [pixels(mode), pixels(mode, 3, 2), pixels(mode)]
    found = decoded([encoded(x) for x in wanted], mode, kind)
    assert found.dtype == object
    for array, each in zip(found, wanted, strict=True):
        assert array.dtype == np.uint8
        assert array.flags.writeable
        np.testing.assert_array_equal(array, each)
    same = decoded([encoded(x) for x in wanted[::2]], Image(mode=mode, size=(5, 7)), kind)
    assert same.shape == (2, *SHAPES[mode])
    np.testing.assert_array_equal(same, np.stack(wanted[::2]))


def test_jpeg_is_what_pillow_makes_of_it() -> None:
    data = encoded(pixels("RGB", 16, 24), "JPEG", quality=90)
    with PIL.Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(decoded([data], "RGB")[0], np.array(image))
        grey, small = image.convert("L"), image.resize((6, 4), PIL.Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decoded([data], "L")[0], np.array(grey))
    np.testing.assert_array_equal(decoded([data], Image(size=(4, 6)))[0], np.array(small))


def test_images_of_other_modes_and_sizes() -> None:
    rows = [encoded(pixels("L")), encoded(pixels("RGBA", 9, 9)), encoded(pixels("L") > 100)]
    palette = io.BytesIO()
    PIL.Image.fromarray(pixels()).convert("P").save(palette, "PNG")
    found = decoded([*rows, palette.getvalue()], Image(mode="RGB", size=(8, 6)))
    assert found.shape == (4, 8, 6, 3)
    assert decoded([], Image(mode="RGB", size=(8, 6))).shape == (0, 8, 6, 3)
    assert decoded([], "RGB").shape == (0,)


def test_nulls() -> None:
    rows = [encoded(pixels("L")), None]
    for image in ("L", Image(mode="L", size=(5, 7))):
        with pytest.raises(ca.ConversionError, match=r"column 'image' has 1 nulls.*'mask'"):
            decoded(rows, image)
        found = decoded(rows, image, nulls="mask")
        assert not found[1].any()
        assert found[1].shape == ((5, 7) if isinstance(image, Image) else (0, 0))


def png16(colours: int) -> bytes:
    """A PNG of one pixel with 16 bits a channel."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colours]

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    header = (1).to_bytes(4, "big") * 2 + bytes([16, colours, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" + b"\x12\x34" * channels))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("colours", [0, 2, 4, 6])
@pytest.mark.parametrize("mode", SHAPES)
def test_16_bits_do_not_fit(colours: int, mode: str) -> None:
    with pytest.raises(
        ca.ConversionError, match=r"column 'image' has an image of .* do not fit into uint8.*transform="
    ):
        decoded([png16(colours)], mode)


def test_16_bit_tiff_does_not_fit() -> None:
    file = io.BytesIO()
    PIL.Image.fromarray(np.full((3, 3), 2.5, dtype=np.float32)).save(file, "TIFF")
    with pytest.raises(ca.ConversionError, match="do not fit into uint8"):
        decoded([file.getvalue()], "L")


@pytest.mark.parametrize("side", [11, 40])
def test_pillows_limit_is_an_error(monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """Above it, where Pillow warns only, as well as above twice of it, where Pillow raises."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 100)
    data = encoded(pixels("RGB", side, side))
    assert len(decoded([encoded(pixels("RGB", 10, 10))], "RGB")) == 1
    for action in ("error", "ignore", "default"):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter(action)
            with pytest.raises(
                ca.ConversionError, match=r"column 'image'.*(more than Pillow's limit of 100|exceeds limit)"
            ):
                decoded([data], "RGB")


@settings(max_examples=150)
@given(st.sampled_from(["PNG", "JPEG"]), st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_broken_bytes_raise_or_give_pixels(kind: str, place: int, value: int, cut: bool) -> None:
    data = bytearray(WHOLE[kind])
    place %= len(data)
    data[place] = value
    broken = bytes(data[:place] if cut else data)
    try:
        found = decoded([broken], Image(size=(8, 8)))
    except ca.ConversionError:
        return
    assert found.shape == (1, 8, 8, 3)


WHOLE = {kind: encoded(pixels("RGB", 8, 8), kind) for kind in ("PNG", "JPEG")}


@pytest.mark.parametrize("data", [b"", b"no image", WHOLE["PNG"][:40], WHOLE["JPEG"][:40]])
def test_no_images(data: bytes) -> None:
    with pytest.raises(ca.ConversionError, match=r"column 'image' has an image that cannot be decoded: .*; filter"):
        decoded([data], "RGB")


def test_images_of_files(tmp_path: Path) -> None:
    wanted = [pixels() for _ in range(20)]
    pq.write_table(
        pa.table({"image": [encoded(x) for x in wanted], "n": range(20)}), tmp_path / "a.parquet", row_group_size=6
    )
    loader = ca.Loader(ca.Reader(tmp_path, batch_size=3), decode={"image": Image(size=(5, 7))})
    for batch in loader:
        assert batch["image"].dtype == np.uint8
        np.testing.assert_array_equal(batch["image"], np.stack([wanted[n] for n in batch["n"]]))
    assert pickle.loads(pickle.dumps(loader)).spec == loader.spec
