"""Samplers: which samples an epoch has, by weight, class or length, and the same when it is resumed in the middle."""

import numpy as np
import pytest
import torch

from sacristan.configs import Map
from sacristan.ingredients import ConfigError, DataError, Source
from sacristan.ingredients.data import check_config, ingredient, load
from sacristan.ingredients.datasets.batches import make_batches
from sacristan.ingredients.datasets.epochs import by_length, drawn, shuffled
from sacristan.ingredients.datasets.preparation import prepare

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")
HERE = __name__


class Pairs:
    """A dataset of pairs of numbers, with weights of its own."""

    def __init__(self, count=40):
        self.importance = np.arange(count)

    def __len__(self):
        return len(self.importance)

    def __getitem__(self, index):
        return np.full(2, index, np.float32), index % 2


def sentences():
    return [
        {"words": torch.arange(1, 2 + index % 9), "label": index % 2, "weight": float(index > 20)}
        for index in range(60)
    ]


def unweighted():
    return [{"words": torch.ones(2), "label": 0} for _ in range(8)]


def pairs():
    return Pairs()


def made(name=f"{HERE}:sentences", num_workers=0, **changes):
    config = {**DEFAULTS, "name": name, "batch_size": 4, "num_workers": num_workers, "collate": None, **changes}
    return make_batches(load(Map(config), 0), config, 0, CPU)


def test_weighted_draws_in_proportion_and_anew_each_epoch():
    order = drawn(np.array([0.0, 1.0, 3.0]), 4000, 0)
    counts = torch.bincount(order(1), minlength=3).tolist()
    assert counts[0] == 0
    assert abs(counts[2] / counts[1] - 3) < 0.3
    assert torch.equal(order(1), order(1))
    assert not torch.equal(order(1), order(2))
    assert not torch.equal(order(1), drawn(np.array([0.0, 1.0, 3.0]), 4000, 1)(1))


def test_balanced_draws_each_class_as_often():
    source = Source(np.zeros((1000, 2), np.float32), np.array([0] * 900 + [1] * 100))
    config = {**DEFAULTS, "sampler": "balanced"}
    data = make_batches(prepare(source, config, 0), config, 0, CPU)
    share = torch.cat([targets for _, targets in data.train.epoch(1)]).float().mean()
    assert abs(share - 0.5) < 0.06
    whole = torch.cat([targets for _, targets in data.val.epoch(1)])
    assert whole.float().mean() == 0.1


def test_by_length_makes_batches_of_alike_lengths_of_every_sample_once():
    lengths = np.random.default_rng(0).integers(1, 100, 801)
    order = by_length(lengths, len(lengths), 8, 0)
    found = order(3)
    assert sorted(found.tolist()) == list(range(801))
    spread = [int(np.ptp(lengths[batch.numpy()])) for batch in found.split(8)]
    assert np.mean(spread) < 5
    assert len(found.split(8)[-1]) == 1
    firsts = [lengths[batch.numpy()].mean() for batch in found.split(8)]
    assert firsts != sorted(firsts, reverse=True)
    assert not torch.equal(found, order(4))


def test_epoch_of_a_number_of_samples_takes_rounds_of_all():
    assert torch.equal(shuffled(10, 4, 0, 1), shuffled(10, 10, 0, 1)[:4])
    rounds = shuffled(10, 25, 0, 1)
    assert [sorted(part.tolist()) for part in rounds.split(10)][:2] == [list(range(10))] * 2
    assert not torch.equal(rounds[:10], rounds[10:20])
    data = made(epoch_samples=10, collate="list")
    assert (len(data.train), data.train.last_batch_size, data.train.num_samples) == (3, 2, 42)
    assert [len(batch["label"]) for batch in data.train.epoch(1, 1)] == [4, 2]


@pytest.mark.parametrize(
    "num_workers", [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "changes",
    [
        {"sampler": "weighted", "weights": "weight", "collate": "list"},
        {"sampler": "balanced", "collate": "list"},
        {"sampler": "by_length", "collate": "pad"},
        {"epoch_samples": 50, "collate": "pad"},
        {"name": f"{HERE}:pairs", "sampler": "weighted", "weights": "importance"},
    ],
)
def test_epoch_resumed_in_the_middle_has_the_same_samples_with_any_workers(changes, num_workers):
    def labels(batches):
        return [str(batch) for batch in batches]

    expected = labels(made(**changes).train.epoch(2))
    assert labels(made(**changes, num_workers=num_workers).train.epoch(2, 5)) == expected[5:]
    assert len(expected) > 6


def test_weights_of_a_csv_are_a_column_and_no_input(tmp_path):
    rows = [f"{n},{n % 2 * 5},{n % 2},{'ab'[n % 2]}" for n in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,importance,class", *rows]))
    given = {"name": "csv", "path": str(tmp_path / "table.csv")}
    data = made(**given, sampler="weighted", weights="importance")
    assert (data.input_shape, data.preparation.features) == ((2,), ("x", "y"))
    assert {label for _, targets in data.train.epoch(1) for label in targets.tolist()} == {1}
    with pytest.raises(DataError, match=r"data.weights: .* has no column 'importanc'; did you mean 'importance'\?"):
        made(**given, sampler="weighted", weights="importanc")
    with pytest.raises(DataError, match=r"data.weights: the column 'class' of .* holds text, expected numbers"):
        made(**given, sampler="weighted", weights="class", target="x")


def test_weights_of_an_npz_are_an_array(tmp_path):
    x, y = np.ones((40, 2)), np.arange(40) % 2
    np.savez(tmp_path / "one.npz", x=x, y=y, w=y)
    np.savez(tmp_path / "parts.npz", x_train=x, y_train=y, x_test=x, y_test=y, w=y)
    np.savez(tmp_path / "short.npz", x=x, y=y, w=y[1:])
    for name in ("one", "parts"):
        data = made("npz", path=str(tmp_path / f"{name}.npz"), sampler="weighted", weights="w")
        assert {label for _, targets in data.train.epoch(1) for label in targets.tolist()} == {1}
    with pytest.raises(DataError, match=r"data.weights=w: got an array of shape \(39,\) .*, expected 40 numbers"):
        made("npz", path=str(tmp_path / "short.npz"), sampler="weighted", weights="w")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "weighted", "weights": "wait"}, "data.weights=wait: .* has no such weights"),
        (
            {"name": f"{HERE}:unweighted", "sampler": "weighted", "weights": "label"},
            "data.weights=label: .* or all are 0",
        ),
        ({"name": "diabetes", "sampler": "balanced"}, "data.sampler=balanced: the samples have no class each"),
        ({"name": "digits", "sampler": "by_length"}, "data.sampler=by_length: the samples have no lengths"),
    ],
)
def test_sampler_without_what_it_needs_is_refused(changes, message):
    with pytest.raises(DataError, match=message):
        made(**changes)


@pytest.mark.parametrize(("sampler", "weights"), [("weighted", None), (None, "w"), ("balanced", "w")])
def test_sampler_and_weights_belong_together(sampler, weights):
    config = {**DEFAULTS, "sampler": sampler, "weights": weights}
    with pytest.raises(
        DataError, match=rf"data.sampler: got {sampler} with data.weights={weights}, expected data.samp"
    ):
        ingredient.checks[0](Map(config))


class Chunks(torch.utils.data.Sampler):
    """Rows of a batch that go on where those of the batch before have ended, as truncated backpropagation wants."""

    def __init__(self, samples, batch_size, shuffle=False):
        self.samples, self.batch_size, self.shuffle = samples, batch_size, shuffle

    def __iter__(self):
        rows = torch.arange(len(self.samples) // self.batch_size * self.batch_size).view(self.batch_size, -1)
        if self.shuffle:
            rows = rows[torch.randperm(self.batch_size)]
        return iter(rows.T.flatten().tolist())


def beyond(samples):
    return range(len(samples) + 1)


def fewer_each_time(samples, given=[]):
    given.append(None)
    return range(len(samples) - len(given))


def halves(samples):
    return [0.5] * len(samples)


def positions(batches, epoch=1, start=0):
    return [batch[0][:, 0].int().tolist() for batch in batches.epoch(epoch, start)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_sequential_order_is_that_of_the_data(num_workers):
    changes = {"sampler": "sequential", "split_seed": 1, "epoch_samples": 30, "normalize": "none"}
    data = made(f"{HERE}:pairs", num_workers, **changes)
    found = [place for batch in positions(data.train) for place in batch]
    assert len(found) == 30
    rounds = found[: data.train.num_samples], found[data.train.num_samples :]
    assert rounds[0] == sorted(rounds[0])
    assert rounds[1] == rounds[0][: len(rounds[1])]
    assert positions(data.train, 2) == positions(data.train, 1)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_sampler_of_ones_own_gives_consecutive_chunks_and_resumes_in_the_middle(num_workers, shuffle):
    options = {"batch_size": 4, "shuffle": shuffle}
    changes = {"sampler": f"{HERE}:Chunks", "sampler_options": options, "val_fraction": 0.0, "test_fraction": 0.0}
    changes |= {"normalize": "none"}
    data = made(f"{HERE}:pairs", num_workers, **changes)
    found = torch.tensor(positions(data.train))
    assert found.shape == (10, 4)
    assert (found.diff(dim=0) == 1).all()
    assert sorted(found.flatten().tolist()) == list(range(40))
    assert positions(data.train, 1, 3) == found[3:].tolist()
    assert (positions(data.train, 2) != found.tolist()) == shuffle
    torch.rand(5)
    assert positions(made(f"{HERE}:pairs", **changes).train, 2) == positions(data.train, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "sequentail"}, "data.sampler: got 'sequentail', which is unknown; did you mean sequential?"),
        ({"sampler": f"{HERE}:Chunkz"}, "has no 'Chunkz'; did you mean 'Chunks'"),
        (
            {"sampler": f"{HERE}:Chunks", "sampler_options": {"size": 4}},
            "data.sampler_options.size: Chunks takes no option 'size'",
        ),
        ({"sampler": f"{HERE}:beyond"}, r"yields positions 0 to \d+, but the training part has 0 to \d+"),
        ({"sampler": f"{HERE}:halves"}, "yields 0.5, expected positions of samples, one whole number each"),
    ],
)
def test_sampler_of_ones_own_that_cannot_be_is_refused(changes, message):
    with pytest.raises((DataError, ConfigError), match=message):
        made(f"{HERE}:pairs", **changes)


def test_sampler_with_another_number_of_samples_in_each_epoch_is_refused():
    data = made(f"{HERE}:pairs", sampler=f"{HERE}:fewer_each_time")
    with pytest.raises(DataError, match=r"yields \d+ positions in epoch 2, but \d+ in epoch 1; yield the same number"):
        list(data.train.epoch(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": f"{HERE}:Chunks", "epoch_samples": 5}, "data.epoch_samples: got 5 with data.sampler=.*itself"),
        ({"sampler_options": {"a": 1}}, "data.sampler_options: got {'a': 1}, but data.sampler=None takes none"),
    ],
)
def test_settings_beside_a_sampler_of_ones_own_are_checked(changes, message):
    with pytest.raises((DataError, ConfigError), match=message):
        check_config(
            Map(
                {
                    **DEFAULTS,
                    "name": f"{HERE}:pairs",
                    **changes,
                    "sampler_options": changes.get("sampler_options", {"batch_size": 4}),
                }
            )
        )
