"""Samples of any structure: read as they are, split, joined to batches, the same with any number of workers."""

import collections

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from sacristan.configs import Map
from sacristan.ingredients import ConfigError, DataError, LoaderBatches, Padded, Source
from sacristan.ingredients.data import ingredient, load
from sacristan.ingredients.datasets.batches import StructureBatches, make_batches
from sacristan.ingredients.datasets.collating import IGNORED, tensors_of
from sacristan.ingredients.datasets.factories import from_factory
from sacristan.ingredients.datasets.preparation import prepare, prepare_alike
from sacristan.ingredients.datasets.sources import describe
from sacristan.ingredients.datasets.structured import array_structure

DEFAULTS = ingredient.configurations[0]()
CPU = torch.device("cpu")
HERE = __name__
Both = collections.namedtuple("Both", ["image", "text"])


class Made(Dataset):
    """Samples that a function makes of their numbers."""

    def __init__(self, make, count=20, **known):
        self.make, self.count = make, count
        for name, value in known.items():
            setattr(self, name, value)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return self.make(index)


def triple(index):
    return np.full(2, index, np.float32), index, f"sample {index}"


def of_names(index):
    return {"id": index, "image": torch.full((1, 2, 2), float(index)), "both": Both(np.float64(index), {"of": index})}


def sentence(index):
    return torch.arange(1, 2 + index % 5), index % 2


def tagged(index):
    return list(range(1 + index % 4)), np.arange(1 + index % 4)


def boxes(index):
    return torch.zeros(3, 4 + index, 5), {"boxes": torch.rand(index % 3, 4), "labels": torch.ones(index % 3).long()}


def noisy(index):
    return {"noise": torch.rand(1) + np.random.rand(), "index": index}


def whole(make="triple", **options):
    return Made(globals()[make], **options)


def parts():
    return {"train": Made(triple, 8), "validation": Made(triple, 4), "test": Made(triple, 2)}


def train_and_val():
    return Made(sentence, 8), Made(sentence, 4)


def with_collate():
    return Made(triple), only_numbers


def only_numbers(samples):
    return torch.tensor([number for _, number, _ in samples])


def masked(samples, share=0.5):
    return torch.stack([torch.rand(2).lt(share) for _ in samples])


def inputs_of_two_kinds(count=20):
    inputs = {"image": np.zeros((count, 1, 2, 2)), "text": (np.arange(count), np.ones((count, 3), np.float32))}
    return inputs, np.arange(count) % 2


def named_arrays():
    return {"state": np.arange(20), "action": np.ones((20, 2)), "reward": torch.zeros(20)}


def parts_of_arrays():
    return {"train": inputs_of_two_kinds(8), "test": inputs_of_two_kinds(4)}


def pairs_of_arrays():
    return np.ones((20, 3)), np.arange(20) % 2


def prepared(factory, **changes):
    return load(Map({**DEFAULTS, "name": f"{HERE}:{factory}", **changes}), 0)


def made(factory="whole", num_workers=0, **changes):
    config = {**DEFAULTS, "name": f"{HERE}:{factory}", "batch_size": 4, "num_workers": num_workers, **changes}
    return make_batches(load(Map(config), 0), config, 0, CPU)


def same(one, other):
    return type(one) is type(other) and all(map(torch.equal, tensors_of(one), tensors_of(other)))


# what is read


def test_samples_of_any_structure_are_custom_and_split_like_others():
    data = made()
    assert (data.task, data.input_shape, data.num_targets, data.classes) == ("custom", (2,), 0, ())
    assert (data.train.num_samples, data.val.num_samples, data.test.num_samples) == (14, 3, 3)
    numbers = torch.cat([batch[1] for part in (data.train, data.val, data.test) for batch in part.epoch(1)])
    assert sorted(numbers.tolist()) == list(range(20))


def test_parts_and_pairs_of_datasets_keep_their_parts():
    assert [len(index) for index in prepared("parts").indices.values()] == [8, 4, 2]
    by_hand = prepared("train_and_val", collate="pad", test_fraction=0.25)
    assert [len(index) for index in by_hand.indices.values()] == [6, 4, 2]


def test_labels_of_samples_stratify_their_split():
    done = prepared("whole", collate="pad", options={"make": "sentence", "count": 40}, val_fraction=0.1)
    assert done.preparation.classes == ("0", "1")
    assert np.bincount(done.targets[done.indices["val"]]).tolist() == [2, 2]


def test_labels_of_dicts_stand_under_the_target():
    done = prepared("whole", options={"make": "of_names"}, target="id")
    assert sorted(done.targets.tolist()) == list(range(20))
    assert prepared("whole", options={"make": "of_names"}).preparation.class_counts == ()


def test_dataset_with_a_fingerprint_is_not_read():
    def broken(index):
        raise AssertionError

    config = {**DEFAULTS, "name": "x"}
    known = {"targets": [0, 1] * 10, "lengths": range(20), "classes": ("no", "yes")}
    sources = [from_factory(Made(broken, fingerprint=text, **known), "x", task="custom") for text in ("a", "a", "b")]
    assert sources[0].digest == sources[1].digest != sources[2].digest
    done = prepare(sources[0], config, 0)
    assert (done.preparation.classes, done.lengths.tolist()) == (("no", "yes"), list(range(20)))


def test_fingerprint_is_that_of_the_content():
    def fingerprint(make):
        return prepared("whole", options={"make": make}, collate="list").fingerprint

    assert fingerprint("of_names") == fingerprint("of_names")
    assert len({fingerprint(make) for make in ("triple", "of_names", "sentence", "tagged", "boxes")}) == 5


def test_samples_stay_as_they_are_where_the_task_is_custom():
    data = made("pairs_of_arrays", task="custom")
    inputs, targets = next(data.train.epoch())
    assert (data.task, inputs.unique().tolist(), targets.dtype) == ("custom", [1.0], torch.int64)


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_task_custom_of_arrays_is_refused(name):
    with pytest.raises(DataError, match=rf"data.task=custom: data.name={name} gives inputs and targets"):
        load(Map({**DEFAULTS, "name": name, "task": "custom"}), 0)


def test_model_of_samples_is_tested_on_the_part_that_was_kept():
    trained = prepared("whole")
    source = Source(Made(triple), None, digest=trained.fingerprint, is_structured=True, item_shape=(2,))
    alike = prepare_alike(source, trained.preparation, {**DEFAULTS, "name": "x", "path": None}, 5)
    assert alike.indices["test"].tolist() == trained.indices["test"].tolist()
    pairs = Source(np.ones((4, 2), np.float32), np.arange(4))
    with pytest.raises(DataError, match="got inputs and targets, expected samples of any structure as the checkpoint"):
        prepare_alike(pairs, trained.preparation, {**DEFAULTS, "name": "x", "path": None}, 5)


def test_stats_of_samples_are_their_counts_and_classes():
    rows = describe(prepared("whole", collate="pad", options={"make": "sentence", "count": 40}))["splits"]
    assert [rows["train"][name] for name in ("count", "classes", "missing")] == [28, [14, 14], 0]
    assert "classes" not in describe(prepared("whole", options={"make": "of_names"}))["splits"]["train"]


# arrays in memory


def test_arrays_of_several_inputs_are_cut_in_memory():
    data = made("inputs_of_two_kinds")
    assert isinstance(data.train, StructureBatches)
    inputs, targets = next(data.train.epoch(1, 1))
    expected = data.train.order(1)[4:8]
    assert inputs["image"].dtype == torch.float32
    assert targets.tolist() == [inputs["text"][0][place] % 2 for place in range(4)]
    whole = torch.cat([batch[0]["text"][0] for batch in data.train.epoch(0)])
    assert torch.equal(inputs["text"][0], data.train.samples[0]["text"][0][expected])
    assert len(whole.unique()) == 14


def test_dict_of_arrays_is_a_structure():
    data = made("named_arrays")
    assert {name: tuple(part.shape) for name, part in next(data.train.epoch()).items()} == {
        "state": (4,),
        "action": (4, 2),
        "reward": (4,),
    }


def test_structure_is_of_arrays_alone():
    two = array_structure([np.zeros((5, 2)), {"a": (np.zeros(5, np.int64),)}], "where")
    assert (len(two), two.nbytes) == (5, 5 * 2 * 4 + 5 * 8)
    assert two[1:3][0].shape == (2, 2)
    with pytest.raises(DataError, match=r"where: got arrays of \[4, 5\] rows"):
        array_structure((np.zeros(5), np.zeros(4)), "where")
    for other in ([1, 2, 3], (1, 2), [np.zeros(3), "text"], (np.zeros(3), [0, 1, 0]), [], {}, np.zeros(3), "text"):
        assert array_structure(other, "where") is None


def test_pair_of_lists_is_no_structure_but_inputs_and_targets():
    lists = [[1.0, 2.0], [3.0, 4.0]], [0, 1]
    assert from_factory(lists, "data.name").inputs.tolist() == lists[0]
    with pytest.raises(DataError, match=r"got a tuple, expected .* tuple of arrays \(not of lists\), a dataset with"):
        from_factory(lists, "data.name", task="custom")


def test_parts_of_arrays_are_joined_and_kept_apart():
    done = prepared("parts_of_arrays", val_fraction=0.25)
    assert [len(index) for index in done.indices.values()] == [6, 2, 4]
    assert len(done.inputs) == 12


def test_limit_takes_some_rows_of_all_arrays():
    assert made("named_arrays", limit=10).train.num_samples == 7


# joining


def test_stacked_batch_has_the_structure_of_the_samples():
    vector, number, text = next(made().val.epoch())
    assert (vector.shape, number.dtype, text) == ((3, 2), torch.int64, [f"sample {n}" for n in number.tolist()])
    batch = next(made(options={"make": "of_names"}).train.epoch())
    assert isinstance(batch["both"], Both)
    assert (batch["both"].image.dtype, batch["both"].text["of"].tolist()) == (torch.float32, batch["id"].tolist())


def test_padded_batch_has_lengths_and_mask():
    text, labels = next(made(options={"make": "sentence"}, collate="pad").train.epoch())
    assert isinstance(text, Padded)
    assert text.values.shape == (4, int(text.lengths.max()))
    assert torch.equal(text.mask.sum(1), text.lengths)
    assert torch.equal(text.values > 0, text.mask)
    assert labels.shape == (4,)


def test_padded_targets_are_filled_up_with_what_losses_ignore():
    words, tags = next(made(options={"make": "tagged"}, collate="pad", collate_options={"value": 9}).train.epoch())
    assert torch.equal(tags == IGNORED, ~words.mask)
    assert set(words.values[~words.mask].tolist()) == {9}


def test_padded_fields_are_those_that_are_named():
    options = {"make": "of_names"}
    batch = next(made(options=options, collate="pad", collate_options={"fields": ["other"]}).train.epoch())
    assert batch["image"].shape == (4, 1, 2, 2)
    batch = next(made(options=options, collate="pad", collate_options={"fields": ["image"]}).train.epoch())
    assert isinstance(batch["image"], Padded)


def test_lists_are_kept_for_detection():
    images, targets = next(made(options={"make": "boxes"}, collate="list").train.epoch())
    assert [type(part) for part in (images, targets)] == [list, list]
    assert len({image.shape for image in images}) == 4
    assert targets[0].keys() == {"boxes", "labels"}


def test_function_of_the_user_makes_the_batch():
    assert next(made("with_collate").val.epoch()).shape == (3,)
    batch = next(made(collate=f"{HERE}:masked", collate_options={"share": 1.0}).train.epoch())
    assert batch.all()


@pytest.mark.parametrize(
    ("collate", "options", "error", "message"),
    [
        ("padd", {}, DataError, r"data.collate: got 'padd', which is unknown; did you mean pad\?"),
        (f"{HERE}:HERE", {}, DataError, f"data.collate: {HERE}:HERE is a str, expected a function"),
        ("pad", {"valu": 1}, ConfigError, r"data.collate_options.valu: .*; did you mean 'value'\?"),
        (None, {"value": 1}, DataError, r"data.collate_options: got {'value': 1}, but data.collate=None takes none"),
    ],
)
def test_collate_that_cannot_be_is_refused(collate, options, error, message):
    with pytest.raises(error, match=message):
        ingredient.checks[0](Map({**DEFAULTS, "collate": collate, "collate_options": options}))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_that_do_not_stack_are_refused_with_the_remedy(num_workers):
    data = made(task="custom", options={"make": "sentence"}, num_workers=num_workers)
    with pytest.raises(DataError, match=r"^data.collate: 4 samples cannot be joined .*; pad .* data.collate=pad"):
        next(data.train.epoch())


def test_augment_of_structures_is_refused():
    with pytest.raises(DataError, match=r"data.augment: got .* on data of the task custom"):
        made(augment={**DEFAULTS["augment"], "flip": True})


# workers and restarts


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"options": {"make": "noisy"}},
        {"options": {"make": "sentence"}, "collate": "pad"},
        {"collate": f"{HERE}:masked"},
    ],
)
def test_epoch_taken_up_in_the_middle_has_the_same_batches_with_any_workers(changes, num_workers):
    expected = list(made(**changes).train.epoch(2))
    found = list(made(**changes, num_workers=num_workers).train.epoch(2, 1))
    assert isinstance(made(**changes).train, LoaderBatches)
    assert len(expected) == 4
    assert all(map(same, found, expected[1:]))
    assert len(found) == 3


def test_arrays_taken_up_in_the_middle_have_the_same_batches():
    train = made("inputs_of_two_kinds").train
    expected = list(train.epoch(2))
    assert all(map(same, train.epoch(2, 2), expected[2:]))
    assert list(train.epoch(2, 4)) == []


# dense targets


def masks(count=20, dtype=np.uint8):
    return np.random.default_rng(0).normal(size=(count, 3, 4, 5)), (np.arange(count * 20) % 3).reshape(-1, 4, 5)


def test_dense_targets_are_a_segmentation(tmp_path):
    inputs, targets = masks()
    targets[0, 0] = 255
    np.savez(tmp_path / "masks.npz", x=inputs, y=targets.astype(np.uint8))
    config = {**DEFAULTS, "name": "npz", "path": str(tmp_path / "masks.npz"), "batch_size": 4}
    done = load(Map(config), 0)
    data = make_batches(done, config, 0, CPU)
    assert (data.task, data.num_targets, data.classes) == ("segmentation", 3, ("0", "1", "2"))
    assert (done.targets[0, 0] == IGNORED).all()
    inputs, targets = next(data.train.epoch())
    assert (inputs.shape, targets.shape, targets.dtype) == ((4, 3, 4, 5), (4, 4, 5), torch.int64)
    assert describe(done)["splits"]["train"]["classes"] == list(data.class_counts)
    assert sum(data.class_counts) == int((done.targets[done.indices["train"]] >= 0).sum())


def test_dense_targets_beyond_the_classes_are_refused():
    with pytest.raises(DataError, match=r"data.num_classes: label out of range: got 2, expected 0 to 1, or 255 for no"):
        prepare(Source(*masks()), {**DEFAULTS, "num_classes": 2}, 0)


def test_model_of_dense_targets_is_tested_on_others():
    inputs, targets = masks()
    trained = prepare(Source(inputs.astype(np.float32), targets), DEFAULTS, 0)
    other = Source(inputs.astype(np.float32) + 1, targets)
    config = {**DEFAULTS, "path": None}
    assert np.array_equal(prepare_alike(other, trained.preparation, config, 0).targets, targets)
    unknown = Source(inputs.astype(np.float32) + 1, None)
    assert prepare_alike(unknown, trained.preparation, config, 0, needs_targets=False).targets.shape == (20, 4, 5)
