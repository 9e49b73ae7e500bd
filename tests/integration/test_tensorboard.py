"""`TensorBoardObserver` with real runs, read back by TensorBoard itself."""

import json
import math
import subprocess
import sys
from datetime import UTC
from pathlib import Path

import numpy as np
import pytest
import torch
from sacred.observers import RunObserver
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator
from tensorboard.plugins.hparams.metadata import (
    SESSION_END_INFO_TAG,
    SESSION_START_INFO_TAG,
    parse_session_end_info_plugin_data,
    parse_session_start_info_plugin_data,
)
from tensorboard.plugins.mesh.metadata import parse_plugin_metadata as parse_mesh
from tensorboard.util import tensor_util

from sacristan.configs.packages import install_command
from sacristan.experiments import Experiment
from sacristan.observers import (
    Audio,
    Figure,
    FileObserver,
    Histogram,
    Html,
    Image,
    Media,
    MongoObserver,
    PointCloud,
    Table,
    TensorBoardObserver,
    Text,
    Video,
)
from sacristan.observers.record.media_files import Content

ROOT = Path(__file__).parents[2]


def record(main, *observers, config=None, **options):
    ex = Experiment("recorded", base_dir=Path(__file__).parent)
    ex.observers.extend(observers)
    if config:
        ex.add_config(config)
    ex.main(main)
    return ex.run(options={"--capture": "sys"}, **options)


def read(folder):
    [path] = Path(folder).glob("*tfevents*")
    return read_path(path)


def read_path(path):
    guide = dict.fromkeys(("scalars", "images", "tensors", "histograms", "audio"), 0)
    return EventAccumulator(str(path), guide).Reload()


class Times(RunObserver):
    """Keeps when points were logged."""

    def __init__(self):
        self.by_name = {}

    def log_metrics(self, metrics_by_name, info):
        for name, new in metrics_by_name.items():
            seconds = [at.replace(tzinfo=UTC).timestamp() for at in new["timestamps"]]
            self.by_name.setdefault(name, []).extend(seconds)


def test_all_points_come_back_with_their_steps_and_wall_times(tmp_path):
    values = [0.5, math.nan, math.inf, -math.inf, 1e300, 3]

    def main(_run):
        for step, value in enumerate(values):
            _run.log_scalar("loss", value, step * 10)
        _run.log({"torch": torch.tensor(2.5)})
        _run.log_scalar("epoch", 1.0, 2.75)
        for step in range(20_000):
            _run.log_scalar("many", step, step)
        return 0.25

    times = Times()
    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver(), times)
    found = read(tmp_path / "runs" / "1" / "tensorboard")
    points = found.Scalars("loss")
    assert [p.step for p in points] == [0, 10, 20, 30, 40, 50]
    assert np.array_equal([p.value for p in points], [0.5, math.nan, math.inf, -math.inf, math.inf, 3], equal_nan=True)
    for name in ("loss", "many"):
        assert [p.wall_time for p in found.Scalars(name)] == times.by_name[name]
    assert found.Scalars("torch")[0].value == 2.5
    assert found.Scalars("epoch")[0].step == 2
    assert [p.step for p in found.Scalars("many")] == list(range(20_000))
    assert (found.Scalars("result")[0].value, found.Scalars("result")[0].step) == (0.25, 19_999)


def strings(found, tag):
    return [tensor_util.make_ndarray(event.tensor_proto).tolist() for event in found.Tensors(tag)]


def test_media_of_all_kinds_come_back(tmp_path):
    figure_module = pytest.importorskip("matplotlib.figure")
    image = Image(np.zeros((4, 6, 3), np.uint8))

    def main(_run):
        _run.log({"image": image, "both": 1.0, "figure": Figure(figure_module.Figure(figsize=(1, 1), dpi=30))}, 5)
        _run.log_media("values", Histogram([1.0, 2.0, 2.5, 4.0, math.nan], bins=3), 1)
        _run.log_media("values", Histogram([math.nan]), 2)
        _run.log_media("text", Text("# grüße"), 3)
        _run.log_media("both", Text("the name of a metric"))
        rows = [["a|b\nc", image, math.nan], [None, Image([[1.0]]), 2]]
        _run.log_media("cases", Table(["label", "image", "p"], rows), 7)

    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver())
    found = read(tmp_path / "runs" / "1" / "tensorboard")
    [shown] = found.Images("image")
    assert (shown.step, shown.width, shown.height) == (5, 6, 4)
    assert shown.encoded_image_string == image.encode().data
    assert found.Images("figure")[0].width == 30
    first, second = found.Histograms("values")
    made = first.histogram_value
    assert (made.min, made.max, made.num, made.sum) == (1, 4, 4, 9.5)
    assert (made.bucket_limit, made.bucket) == ([1, 2, 3, 4], [0, 1, 2, 1])
    assert second.histogram_value.num == 0
    assert strings(found, "text") == [["# grüße".encode()]]
    assert strings(found, "both/text") == [[b"the name of a metric"]]
    assert found.Scalars("both")[0].value == 1
    [[markdown]] = strings(found, "cases")
    assert markdown.decode().split("\n") == [
        "| label | image | p |",
        "| --- | --- | --- |",
        "| a\\|b c | cases/image, image 1 | nan |",
        "|  | cases/image, image 2 | 2 |",
    ]
    [images] = strings(found, "cases/image")
    assert images[:2] == [b"6", b"4"]
    assert images[2] == image.encode().data
    assert len(images) == 4
    assert found.PluginTagToContent("images").keys() == {"cases/image"}
    assert found.PluginTagToContent("text").keys() == {"text", "both/text", "cases"}


class Unknown(Media):
    kind = "hologram"

    def encode(self):
        return Content(b"\0", ".bin", "application/octet-stream", {})


class Mislabelled(Media):
    kind = "spectrogram"

    def __init__(self, content_type):
        self._content_type = content_type

    def encode(self):
        return Content(b"no such file", ".bin", self._content_type, {})


@pytest.mark.parametrize("content_type", ["image/png", "audio/wav"])
def test_medium_that_is_not_what_its_content_type_says_is_left_out_and_named(tmp_path, caplog, content_type):
    def main(_run):
        _run.log_media("odd", Mislabelled(content_type), 1)
        _run.log_media("note", Text("fine"), 1)

    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver())
    tags = read(tmp_path / "runs" / "1" / "tensorboard").Tags()
    assert "note" in tags["tensors"]
    assert tags["images"] == tags["audio"] == []
    assert f"odd: TensorBoard cannot show this spectrogram as {content_type}" in caplog.text


def test_sounds_videos_and_points_come_back_and_other_kinds_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("sacristan.observers.tensorboard.run_events._MAX_POINTS", 3)
    points, colors = np.arange(15).reshape(5, 3), np.arange(15, dtype=np.uint8).reshape(5, 3)
    sound, video = Audio(np.zeros((4, 2)), 100), Video(np.zeros((2, 4, 6)), 5)

    def main(_run):
        _run.log({"sound": sound, "video": video, "points": PointCloud(points, colors)}, 1)
        _run.log_media("points", PointCloud(points[:2]), 2)
        _run.log({"file": Video.from_file(b"\0\0\0\x18ftypisom"), "html": Html("<p>"), "odd": Unknown()}, 1)

    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver())
    found = read(tmp_path / "runs" / "1" / "tensorboard")
    [heard] = found.Audio("sound")
    assert (heard.encoded_audio_string, heard.content_type) == (sound.encode().data, "audio/wav")
    assert (heard.sample_rate, heard.length_frames) == (100, 4)
    [shown] = found.Images("video")
    assert (shown.width, shown.height, shown.encoded_image_string) == (6, 4, video.encode().data)
    first, second = (tensor_util.make_ndarray(event.tensor_proto) for event in found.Tensors("points_VERTEX"))
    assert np.array_equal(first, points[None, ::2].astype(np.float32))
    assert second.shape == (1, 2, 3)
    [colored] = (tensor_util.make_ndarray(event.tensor_proto) for event in found.Tensors("points_COLOR"))
    assert np.array_equal(colored, colors[None, ::2])
    data = {tag: parse_mesh(content) for tag, content in found.PluginTagToContent("mesh").items()}
    assert {tag: (one.name, list(one.shape), one.components) for tag, one in data.items()} == {
        "points_VERTEX": ("points", [1, 3, 3], 10),
        "points_COLOR": ("points", [1, 3, 3], 10),
    }
    tags = found.Tags()
    shown = {*tags["images"], *tags["audio"], *tags["tensors"]}
    assert {tag for tag in shown if not tag.startswith("_hparams_")} == {"sound", "video", *data}


def test_hyper_parameters_are_those_of_the_config_and_say_how_it_ended(tmp_path):
    config = {"lr": 0.5, "flag": True, "none": None, "sizes": [1, 2], "model": {"name": "mlp", "deep": {"width": 3}}}

    def main(_run, flag):
        _run.log_scalar("val/loss", 0.5)
        if not flag:
            raise RuntimeError("broken on purpose")
        return 1

    store = FileObserver(tmp_path / "runs")
    record(main, store, TensorBoardObserver(), config=config)
    with pytest.raises(RuntimeError, match="on purpose"):
        record(main, store, TensorBoardObserver(), config={**config, "flag": False})
    for number, status in ((1, 1), (2, 2)):
        content = read(tmp_path / "runs" / str(number) / "tensorboard").PluginTagToContent("hparams")
        start = parse_session_start_info_plugin_data(content[SESSION_START_INFO_TAG])
        assert {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()} == {
            "lr": 0.5,
            "flag": number == 1,
            "none": "None",
            "sizes": "[1, 2]",
            "model.name": "mlp",
            "model.deep.width": 3,
            "seed": start.hparams["seed"].number_value,
        }
        assert parse_session_end_info_plugin_data(content[SESSION_END_INFO_TAG]).status == status


def test_table_of_hyper_parameters_has_a_row_with_metrics_for_each_run(tmp_path):
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    def main(_run, lr):
        for step in range(3):
            _run.log_scalar("val/loss", lr * step, step)

    for lr in (0.5, 2.0):
        record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver(), config={"lr": lr})
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "runs"))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(tmp_path / "runs"))
    context = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    metadata = context.hparams_metadata(RequestContext(), "")
    experiment = context.experiment_from_metadata(
        RequestContext(), "", True, metadata, context.hparams_from_data_provider(RequestContext(), "", limit=100)
    )
    assert {info.name for info in experiment.hparam_infos} >= {"lr"}
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=10,
        allowed_statuses=[api_pb2.STATUS_SUCCESS],
        col_params=[api_pb2.ColParams(metric=info.name) for info in experiment.metric_infos],
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", request)
    rows = {
        group.hparams["lr"].number_value: {
            v.name.tag: v.value for v in group.metric_values if not v.name.tag.startswith("system/")
        }
        for group in handler.run().session_groups
    }
    assert rows == {0.5: {"val/loss": 1.0}, 2.0: {"val/loss": 4.0}}


def test_folder_is_that_of_the_run_or_the_one_that_was_asked_for(tmp_path, monkeypatch, mongo_url, database):
    monkeypatch.chdir(tmp_path)

    def main(_run):
        _run.log_scalar("x", 1)

    run = record(main, TensorBoardObserver(tmp_path / "events"), FileObserver("runs"))
    assert len(read(tmp_path / "events" / run.meta_info["uid"]).Scalars("x")) == 1
    assert not (tmp_path / "runs" / "1" / "tensorboard").exists()
    # The spool of a MongoObserver is removed when all is delivered.
    run = record(main, TensorBoardObserver(), MongoObserver(mongo_url, db_name=database.name, failure_dir="spool"))
    assert len(read(tmp_path / "my_runs" / "_tensorboard" / run.meta_info["uid"]).Scalars("x")) == 1
    assert database.runs.count_documents({"uid": run.meta_info["uid"]}) == 1


def train(seed, graph, *observers):
    """Train a model with dropout and batch normalisation; return its weights, buffers and losses."""

    def main(_run):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        losses = []
        for step in range(6):
            loss = model(torch.randn(16, 4)).square().mean()
            loss.backward()
            if graph and step in (0, 3):
                _run.log_graph(model, torch.zeros(2, 4))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, [value.tolist() for value in model.state_dict().values()]

    return record(main, *observers).result


def test_graph_is_drawn_and_training_is_the_same_bit_for_bit(tmp_path):
    plain = train(1, False)
    assert train(1, True, FileObserver(tmp_path / "runs"), TensorBoardObserver()) == plain
    assert train(1, True) == plain
    graph = read(tmp_path / "runs" / "1" / "tensorboard").Graph()
    assert any("Dropout" in node.name or "Linear" in node.name for node in graph.node)


def test_model_that_cannot_be_traced_is_told_of_and_the_run_goes_on(tmp_path, caplog):
    class Odd(torch.nn.Module):
        def forward(self, inputs):
            raise ValueError("no such way forward")

    def main(_run):
        _run.log_graph(Odd(), torch.zeros(1))
        _run.log_scalar("x", 1)
        return 1

    assert record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver()).result == 1
    assert "the graph of Odd cannot be drawn: ValueError: no such way forward" in caplog.text
    assert len(read(tmp_path / "runs" / "1" / "tensorboard").Scalars("x")) == 1


@pytest.mark.slow
def test_killed_run_leaves_events_that_can_be_read(tmp_path, start, wait_for):
    body = """
import numpy as np
from sacristan.observers import Image, TensorBoardObserver
ex.observers.extend([FileObserver("runs"), TensorBoardObserver()])
@ex.automain
def main(_run):
    step = 0
    while True:
        _run.log({"loss": step, "image": Image(np.zeros((8, 8), np.uint8))}, step)
        step += 1; time.sleep(0.001)
"""
    recorded = start(tmp_path, body, "-b", "0.1")
    folder = tmp_path / "runs" / "1" / "tensorboard"
    wait_for(lambda: folder.exists() and sum(path.stat().st_size for path in folder.iterdir()) > 100_000, "events")
    recorded.process.kill()
    recorded.process.wait()
    found = read(folder)
    steps = [p.step for p in found.Scalars("loss")]
    assert steps == list(range(len(steps)))
    assert len(steps) > 100
    assert len(found.Images("image")) > 100
    assert found.PluginTagToContent("hparams")


def test_folder_that_is_a_file_is_survived_and_said_once(tmp_path, caplog):
    (tmp_path / "events").write_text("in the way")

    def main(_run):
        _run.log({"x": 1.0, "y": Text("y")})
        return 1

    observer = TensorBoardObserver(tmp_path / "events")
    run = record(main, FileObserver(tmp_path / "runs"), observer)
    assert run.result == 1
    assert caplog.text.count("cannot be written") == 1
    assert observer.num_errors == 0
    assert json.loads((tmp_path / "runs" / "1" / "run.json").read_text())["status"] == "COMPLETED"


def test_flag_attaches_it_to_any_experiment_of_the_lab(tmp_path, start):
    body = "ex.observers.append(FileObserver('runs'))\n@ex.automain\ndef main(_run): _run.log_scalar('x', 1.0)\n"
    start(tmp_path, body, "--tensorboard").finish()
    assert len(read(tmp_path / "runs" / "1" / "tensorboard").Scalars("x")) == 1
    assert json.loads((tmp_path / "runs" / "1" / "run.json").read_text())["meta"]["options"]["--tensorboard"] is True


WITHOUT = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {missing!r} else find(name, *rest)
"""


@pytest.mark.parametrize("missing", ["tensorboard", "google_crc32c"])
def test_missing_extra_is_named_before_the_run_starts(tmp_path, start, missing):
    body = WITHOUT.format(missing=missing) + "@ex.automain\ndef main(): print('ran')\n"
    recorded = start(tmp_path, body, "--tensorboard")
    assert recorded.process.wait(60) == 1
    assert f"needs the package {missing!r}" in recorded.err.read_text()
    assert f"install it with: {install_command('tensorboard')}" in recorded.err.read_text()
    assert recorded.out.read_text() == ""


@pytest.mark.slow
def test_print_config_with_the_flag_loads_neither_torch_nor_tensorboard(tmp_path):
    code = (
        "import sys, runpy, atexit\n"
        "atexit.register(lambda: print('loaded', [m for m in ('torch', 'tensorboard') if m in sys.modules]))\n"
        f"sys.argv = ['exp.py', 'print_config', '--tensorboard']\n"
        f"runpy.run_path({str(ROOT / 'exp.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded []", done.stdout + done.stderr


def test_rewound_run_shows_what_is_in_its_record(tmp_path):
    folder = tmp_path / "runs" / "1"
    watching = []

    def main(_run):
        if folder.joinpath("state.json").exists():
            _run.log_graph(torch.nn.Linear(2, 2), torch.zeros(1, 2))
            # As a TensorBoard that is looking on while the run goes on.
            watching.extend(kind(str(folder / "tensorboard")) for kind in (EventAccumulator, PluginEventAccumulator))
            assert len(watching[0].Reload().Scalars("late")) == len(watching[1].Reload().Tensors("late")) == 1
            _run.rewind(json.loads(folder.joinpath("state.json").read_text()))
        for step in range(10):
            if step == 4 and not watching:
                folder.joinpath("state.json").write_text(json.dumps(_run.position()))
            _run.log({"loss": step + 100 * bool(watching), "image": Image(np.full((4, 4, 3), step, np.uint8))})
            if step == 0:
                _run.log_media("loss/text", Text("hello"))
            if step == 9 and not watching:
                _run.log({"late": 1.0, "loss/table": Table(["a"], [[Image(np.zeros((2, 3), np.uint8))]])})

    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver())
    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver(), meta_info={"resume": str(folder)})
    found = read_path(folder / "tensorboard")
    assert [(p.step, p.value) for p in found.Scalars("loss")] == [
        *((step, step) for step in range(4)),
        *((step + 4, step + 100) for step in range(10)),
    ]
    assert [image.step for image in found.Images("image")] == list(range(14))
    assert "late" not in found.Tags()["scalars"]
    assert found.Tags()["graph"]
    assert [p.step for p in found.Tensors("loss/text")] == [0, 1]
    assert [path.suffix for path in (folder / "tensorboard").iterdir() if path.suffix == ".tmp"] == []
    shown = [(p.step, p.value) for p in found.Scalars("loss")]
    assert [(p.step, p.value) for p in watching[0].Reload().Scalars("loss")] == shown
    tensors = watching[1].Reload().Tensors("loss")
    assert [(p.step, tensor_util.make_ndarray(p.tensor_proto).item()) for p in tensors] == shown
    assert watching[0].Scalars("late") == watching[1].Tensors("late") == []


def test_table_that_stays_is_written_again_with_its_images(tmp_path):
    def main(_run):
        _run.log_media("cases", Table(["image"], [[Image(np.zeros((2, 3), np.uint8))]]))
        position = _run.position()
        _run.log_scalar("loss", 1.0)
        before.extend(read_all(tmp_path, _run))
        _run.rewind(position)

    def read_all(tmp_path, run):
        run.flush()
        found = read(tmp_path / "runs" / "1" / "tensorboard")
        return [
            tensor_util.make_ndarray(found.Tensors("cases/image")[0].tensor_proto).tolist(),
            found.Tags()["scalars"],
        ]

    before: list = []
    record(main, FileObserver(tmp_path / "runs"), TensorBoardObserver())
    found = read_path(tmp_path / "runs" / "1" / "tensorboard")
    assert tensor_util.make_ndarray(found.Tensors("cases/image")[0].tensor_proto).tolist() == before[0]
    assert "loss" in before[1]
    assert "loss" not in found.Tags()["scalars"]
