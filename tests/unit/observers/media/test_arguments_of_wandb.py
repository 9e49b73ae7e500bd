"""Media made with the arguments that scripts give to W&B's classes of the same names."""

from __future__ import annotations

import json
import wave

import numpy as np
import pytest

from sacristan.observers import Audio, Histogram, Html, Image, MediaError, Table, Video


def test_image_takes_integers_a_file_and_a_mode(tmp_path):
    pixels = np.arange(48).reshape(4, 4, 3)
    made = Image(pixels, caption="c").encode()
    assert made.meta == {"width": 4, "height": 4, "channels": 3, "caption": "c"}
    (tmp_path / "a.png").write_bytes(made.data)
    pytest.importorskip("PIL")
    assert Image(tmp_path / "a.png").encode().data == made.data
    assert Image(str(tmp_path / "a.png"), mode="L").encode().meta["channels"] == 1


def test_image_takes_a_figure():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = pyplot.figure(figsize=(2, 1), dpi=50)
    try:
        assert Image(figure).encode().meta == {"width": 100, "height": 50, "channels": 4}
        assert Image(pyplot).encode().meta["width"] == 100
    finally:
        pyplot.close(figure)


def test_image_warns_once_of_what_is_not_kept(caplog):
    for _ in range(2):
        Image(np.zeros((2, 2)), boxes={"predictions": {}})
    assert [record.getMessage() for record in caplog.records] == ["Image: boxes is not kept"]
    with pytest.raises(TypeError, match="got an unexpected argument 'captoin'"):
        Image(np.zeros((2, 2)), captoin="c")


def test_histogram_takes_counts_and_number_of_bins():
    counts, edges = np.histogram([1, 2, 2, 3], bins=3)
    expected = Histogram.from_counts(counts, edges).encode().data
    assert Histogram(np_histogram=(counts, edges)).encode().data == expected
    assert Histogram(None, (counts, edges)).encode().data == expected
    assert json.loads(Histogram([1, 2], num_bins=5).encode().data)["counts"] == [1, 0, 0, 0, 1]
    with pytest.raises(MediaError, match="expected either values, or counts and edges"):
        Histogram()


def test_table_takes_data_frames_and_grows():
    table = Table(columns=["a", "b"], data=[[1, "x"]])
    table.add_data(2, ["y", 3])
    logged = table.as_logged()
    table.add_column("c", [True, None])
    assert (table.get_column("b"), table.data[1]) == (["x", '["y", 3]'], [2, '["y", 3]', None])
    assert json.loads(logged.encode().data) == {"columns": ["a", "b"], "rows": [[1, "x"], [2, '["y", 3]']]}
    with pytest.raises(MediaError, match="got a row of 1 cells, expected 3, one for each of a, b, c"):
        table.add_data(1)
    with pytest.raises(MediaError, match="got a column 'c' of 2 cells"):
        table.add_column("c", [1, 2])
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    for made in (Table(dataframe=frame), Table(data=frame)):
        assert json.loads(made.encode().data) == {"columns": ["a", "b"], "rows": [[1, "x"], [2, "y"]]}


def test_audio_takes_a_file(tmp_path):
    samples = np.arange(100, dtype=np.int16)
    written = Audio(samples, 8000).encode().data
    (tmp_path / "a.wav").write_bytes(written)
    assert Audio(str(tmp_path / "a.wav")).encode().data == written
    with wave.open(str(tmp_path / "b.wav"), "wb") as file:
        file.setparams((1, 1, 8000, 2, "NONE", ""))
        file.writeframes(b"ab")
    with pytest.raises(MediaError, match="has 8 bits a sample, expected 16"):
        Audio(tmp_path / "b.wav")


def test_video_takes_batches_and_both_orders_of_arguments():
    frames = np.zeros((2, 3, 3, 4, 4), np.uint8)
    assert Video(frames, fps=8).encode().meta["num_frames"] == 6
    meta = Video(frames[0], "caption", 8).encode().meta
    assert (meta["caption"], meta["fps"]) == ("caption", 8.0)
    assert Video(frames[0], 8, "caption").encode().meta == meta
    assert Video(frames[0]).encode().meta["fps"] == 4.0


def test_html_takes_a_file(tmp_path):
    (tmp_path / "a.html").write_text("<b>page</b>")
    for source in (str(tmp_path / "a.html"), tmp_path / "a.html", (tmp_path / "a.html").open()):
        assert Html(source).encode().data == b"<b>page</b>"
        if hasattr(source, "close"):
            source.close()
    assert Html("a.html", data_is_not_path=True).encode().data == b"a.html"
    with pytest.raises(MediaError, match=r"none\.html cannot be read"):
        Html("none.html")
