"""Sounds, videos, point clouds and HTML: read back by other programs, or refused at once."""

import io
import math
import wave

import numpy as np
import PIL.Image
import pytest
import torch

from sacristan.observers import Audio, Html, MediaError, PointCloud, Video
from sacristan.observers.media.arrays import Snapshot
from sacristan.observers.media.point_clouds import ply_bytes, read_header, read_points

RNG = np.random.default_rng(0)


@pytest.fixture
def far(monkeypatch):
    """Take tensors for those of a GPU, whose values are not known before the file is made."""
    made = Snapshot.__init__

    def init(self, values):
        made(self, values)
        self.on_device, self._values = True, values

    monkeypatch.setattr(Snapshot, "__init__", init)


# Audio


def sound(content):
    assert (content.suffix, content.content_type) == (".wav", "audio/wav")
    with wave.open(io.BytesIO(content.data)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert file.getsampwidth() == 2
        return samples.reshape(-1, file.getnchannels()).tolist(), file.getframerate()


def test_audio_is_a_wav_file_with_the_channels_where_numpy_and_torch_have_them():
    content = Audio(np.array([0.0, 0.5, -1.0, 1.0]), 16_000, "four").encode()
    assert sound(content) == ([[0], [16384], [-32767], [32767]], 16_000)
    assert content.meta == {"sample_rate": 16_000, "channels": 1, "num_samples": 4, "caption": "four"}
    both = np.array([[1, 2, 3], [4, 5, 6]], np.int16)
    assert sound(Audio(both, 8000).encode())[0] == both.tolist()
    assert sound(Audio(torch.from_numpy(both), 8000.0).encode())[0] == both.T.tolist()
    long = RNG.integers(-(2**15), 2**15, (2, 100), np.int16)
    assert sound(Audio(long, 8000).encode())[0] == sound(Audio(torch.from_numpy(long.T), 8000).encode())[0]
    assert sound(Audio(torch.tensor([0.25], dtype=torch.bfloat16), 1).encode()) == ([[8192]], 1)


def test_audio_of_a_gpu_that_is_too_loud_is_cut_off_and_told(far):
    content = Audio(torch.tensor([0.0, 3.0, -2.0, math.nan]), 100).encode()
    assert sound(content)[0] == [[0], [32767], [-32767], [0]]
    assert content.meta["cut_off_from"] == ["nan", "nan"]
    assert "cut_off_from" not in Audio(torch.tensor([1.00005]), 100).encode().meta


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [
        (np.zeros((9, 9)), 1, r"shape \(9, 9\), expected \(T,\), \(T, C\) or \(C, T\)"),
        (np.zeros((4, 2, 9)), 1, "sounds of a batch one by one"),
        ([], 1, r"shape \(0,\), .* T of at least 1"),
        (np.zeros(3, np.int32), 1, "type int32, expected int16, or floats from -1 to 1"),
        ("cat.wav", 1, "cat.wav cannot be read as a WAV file"),
        ([0.0, 2.0], 1, r"floats from 0 to 2, expected -1 to 1; divide them by abs\(x\).max\(\)"),
        ([0.0, math.nan], 1, "floats from nan to nan"),
        ([0.0], 44.1, "got sample_rate=44.1, expected a whole number of samples a second from 1 to 768000"),
        ([0.0], 0, "got sample_rate=0"),
        ([0.0], math.inf, "got sample_rate=inf"),
        ([0.0], "16k", "got sample_rate='16k'"),
    ],
)
def test_audio_that_cannot_be_played_is_refused_at_once(samples, rate, message):
    with pytest.raises(MediaError, match=message):
        Audio(samples, rate)


# Video


def frames_of(content):
    assert (content.suffix, content.content_type) == (".png", "image/png")
    image = PIL.Image.open(io.BytesIO(content.data))
    frames, times = [], []
    for number in range(image.n_frames):
        image.seek(number)
        frames.append(np.array(image.convert(image.mode)))
        times.append(image.info["duration"])
    return np.array(frames), times


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_video_is_read_back_by_pillow_bit_for_bit(channels):
    frames = np.repeat(RNG.integers(1, 256, (1, 5, 7, channels), dtype=np.uint8), 6, axis=0)
    frames[..., 3:] = 255  # Pillow lays what is seen through over the frame before
    frames[2, 1:3, 2:6, :1] += 100
    frames[3, 4, 6] = 9
    frames[3, 0, 0] = 7
    frames[5] = frames[0]
    content = Video(frames, 12.5, "six").encode()
    found, times = frames_of(content)
    assert np.array_equal(found.reshape(frames.shape), frames)
    assert times == [80.0] * 6
    assert content.meta == {
        "width": 7,
        "height": 5,
        "channels": channels,
        "num_frames": 6,
        "fps": 12.5,
        "caption": "six",
    }
    assert content.data == Video(frames, 12.5).encode().data


def test_video_has_its_channels_where_numpy_and_torch_have_them():
    array = RNG.integers(0, 256, (2, 3, 5, 4), dtype=np.uint8)
    array[..., 3] = 255
    assert np.array_equal(frames_of(Video(array, 1).encode())[0], array)
    tensor = torch.from_numpy(array[:, :, :, :3].copy())
    assert np.array_equal(frames_of(Video(tensor, 1).encode())[0], np.moveaxis(tensor.numpy(), 1, -1))
    grey = [[[0.0, 0.5]], [[1.0, 0.0]]]
    assert frames_of(Video(grey, 1).encode())[0].tolist() == [[[0, 128]], [[255, 0]]]
    assert frames_of(Video(np.array(grey) > 0.6, 1).encode())[0].tolist() == [[[0, 0]], [[255, 0]]]


def test_video_of_a_gpu_that_is_out_of_range_is_cut_off_and_told(far):
    content = Video(torch.tensor([[[0.0, 2.0]], [[-1.0, 1.0]]]), 5).encode()
    assert frames_of(content)[0].tolist() == [[[0, 255]], [[0, 255]]]
    assert content.meta["cut_off_from"] == ["-1.0", "2.0"]


MP4 = b"\0\0\0\x18ftypisom" + bytes(20)
WEBM = b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm" + bytes(20)


def test_video_that_was_encoded_elsewhere_is_kept_as_it_is(tmp_path):
    (tmp_path / "a.mp4").write_bytes(MP4)
    assert Video.from_file(tmp_path / "a.mp4", "mine").caption == "mine"
    content = Video.from_file(tmp_path / "a.mp4", "mine").encode()
    assert (content.data, content.suffix, content.content_type) == (MP4, ".mp4", "video/mp4")
    assert content.meta == {"caption": "mine"}
    assert Video.from_file(str(tmp_path / "a.mp4")).encode().meta == {}
    content = Video.from_file(bytearray(WEBM)).encode()
    assert (content.data, content.suffix, content.content_type) == (WEBM, ".webm", "video/webm")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Video(np.zeros((5, 7)), 1), r"shape \(5, 7\), expected \(T, H, W\)"),
        (lambda: Video(np.zeros((2, 2, 2, 3, 5, 7)), 1), "videos of a batch one by one"),
        (lambda: Video(np.zeros((2, 2, 5, 7)), 1), "with C of 1, 3 or 4"),
        (lambda: Video(np.zeros((0, 5, 7)), 1), r"shape \(0, 5, 7\)"),
        (lambda: Video(np.zeros((2, 5, 0)), 1), r"shape \(2, 5, 0\)"),
        (lambda: Video(np.zeros((2, 5, 7), int), 1), "Video: got values of type int64, expected uint8"),
        (lambda: Video(np.full((2, 5, 7), 255.0), 1), "Video: got floats from 255 to 255, expected 0 to 1"),
        (lambda: Video(np.zeros((2, 5, 7)), 0), "got fps=0, expected frames a second from 0.01 to 90"),
        (lambda: Video(np.zeros((2, 5, 7)), 120), r"got fps=120, .*leave out frames"),
        (lambda: Video(np.zeros((2, 5, 7)), math.nan), "got fps=nan"),
        (lambda: Video(np.zeros((2, 5, 7)), None), "got fps=None"),
        (lambda: Video.from_file(b"RIFF....AVI LIST"), r"begin with b'RIFF....AVI ', expected an MP4 or WebM file"),
        (lambda: Video.from_file("missing.mp4"), r"missing.mp4 cannot be read \(No such file"),
        (lambda: Video.from_file("a\0.mp4"), "cannot be read"),
        (lambda: Video.from_file(5), "got a int, expected the path or the bytes"),
    ],
)
def test_video_that_cannot_be_shown_is_refused_at_once(make, message):
    with pytest.raises(MediaError, match=message):
        make()


# Point clouds


def test_point_cloud_is_a_ply_file_of_32_bits():
    points = RNG.normal(size=(5, 3))
    colors = RNG.integers(0, 256, (5, 3), dtype=np.uint8)
    content = PointCloud(points, colors, "five").encode()
    assert (content.suffix, content.content_type) == (".ply", "model/ply")
    assert content.meta == {"num_points": 5, "has_colors": True, "caption": "five"}
    assert content.data.startswith(
        b"ply\nformat binary_little_endian 1.0\nelement vertex 5\nproperty float x\nproperty float y\n"
        b"property float z\nproperty uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n"
    )
    found = read_points(io.BytesIO(content.data))
    assert np.array_equal(found[0], points.astype(np.float32))
    assert np.array_equal(found[1], colors)
    plain = PointCloud(torch.ones(2, 3, dtype=torch.bfloat16)).encode()
    assert plain.meta == {"num_points": 2, "has_colors": False}
    assert read_points(io.BytesIO(plain.data))[1] is None
    floats = PointCloud([[1, 2, 3]], torch.tensor([[0.0, 0.5, 1.0]])).encode()
    assert read_points(io.BytesIO(floats.data))[1].tolist() == [[0, 128, 255]]


@pytest.mark.parametrize("num_points", [1, 9, 10])
@pytest.mark.parametrize("stride", [1, 2, 7, 100])
def test_points_are_read_by_a_stride_across_pieces(monkeypatch, num_points, stride):
    monkeypatch.setattr("sacristan.observers.media.point_clouds._PIECE_POINTS", 4)
    points = np.arange(3 * num_points, dtype=np.float32).reshape(-1, 3)
    colors = points.astype(np.uint8)
    found = read_points(io.BytesIO(ply_bytes(points, colors)), stride)
    assert np.array_equal(found[0], points[::stride])
    assert np.array_equal(found[1], colors[::stride])


def test_point_cloud_of_a_gpu_leaves_out_what_is_not_finite_and_tells(far):
    points = torch.tensor([[1.0, 2, 3], [math.nan, 0, 0], [4, math.inf, 0]])
    content = PointCloud(points, torch.tensor([[0.0, 0.0, 2.0]] * 3)).encode()
    assert read_points(io.BytesIO(content.data))[0].tolist() == [[1, 2, 3]]
    assert (content.meta["left_out"], content.meta["cut_off_from"]) == (2, ["0.0", "2.0"])


@pytest.mark.parametrize(
    ("points", "colors", "message"),
    [
        (np.zeros((3, 5)), None, r"points of shape \(3, 5\) and type float64, expected numbers of shape \(N, 3\)"),
        (np.zeros((0, 3)), None, "N of at least 1"),
        (np.zeros((2, 3), complex), None, "type complex128"),
        ([[0, math.nan, 0], [0, 0, 0]], None, "in 1 of 2 points, expected finite ones; leave those out"),
        ([[0, 1e300, 0]], None, "numbers beyond 32 bits in 1 of 1"),
        ([[0, 0, 0]], [[0, 0]], r"colors of shape \(1, 2\) for points of shape \(1, 3\)"),
        ([[0, 0, 0]], [[0, 0, 2]], "colors: got values of type int64, expected uint8"),
        ([[0, 0, 0]], [[0, 0, 2.0]], "colors: got floats from 0 to 2"),
    ],
)
def test_point_cloud_that_cannot_be_shown_is_refused_at_once(points, colors, message):
    with pytest.raises(MediaError, match=message):
        PointCloud(points, colors)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begin with b'', expected a PLY file"),
        (b"ply\nformat ascii 1.0\nelement vertex x\n" + bytes(99), "expected a PLY file"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1\n", "of another form"),
        (b"ply\n\nelement vertex " + b"9" * 900 + b"\n\n", "expected a PLY file"),
        (ply_bytes(np.zeros((5, 3)))[:-1], "with 4 points, expected 5, as its header says"),
        (
            ply_bytes(np.zeros((1, 3))).replace(b"vertex 1", b"vertex 999999999999"),
            "with 1 points, expected 999999999999",
        ),
    ],
)
def test_damaged_points_are_refused_before_any_is_read(data, message):
    with pytest.raises(ValueError, match=message):
        read_header(io.BytesIO(data))


# HTML, and what holds for all


def test_html_is_kept_as_utf8():
    content = Html("<p>grüße\ud800</p>").encode()
    assert content.data.decode() == "<p>grüße?</p>"
    assert (content.suffix, content.content_type, content.meta) == (".html", "text/html; charset=utf-8", {})


@pytest.mark.parametrize(("text", "got"), [(b"<p>", "a bytes"), ("", "an empty text"), (" \n", "an empty text")])
def test_html_that_is_none_is_refused(text, got):
    with pytest.raises(MediaError, match=f"Html: got {got}, expected HTML as a str"):
        Html(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Audio(np.zeros(60), 1),
        lambda: Video(np.zeros((10, 2, 6)), 1),
        lambda: Video.from_file(MP4 + bytes(99)),
        lambda: Video.from_file(__file__),
        lambda: PointCloud(np.zeros((7, 3))),
        lambda: Html("x" * 101),
    ],
)
def test_file_that_would_be_too_large_is_refused(make, monkeypatch):
    monkeypatch.setattr("sacristan.observers.media.kinds.MAX_BYTES", 100)
    monkeypatch.setattr("sacristan.observers.media.audio_and_video._MAX_FRAME_BYTES", 100)
    with pytest.raises(MediaError, match=r"got \d+ MiB, expected 0 MiB at most; log a part of it, or keep the file by"):
        make()


def test_media_are_those_of_the_moment_they_were_made():
    samples, frames, points = np.zeros(3), torch.zeros(2, 4, 4), np.zeros((2, 3))
    made = [Audio(samples, 1), Video(frames, 1), PointCloud(points, points)]
    before = [media.encode() for media in made]
    for array in (samples, frames, points):
        array += 1
    assert [media.encode() for media in made] == before
