"""Train a small GPT on text, byte by byte, and generate text.

sacristan language_model with configs/language_model.yaml
sacristan language_model with fast text.path=my_novel.txt
sacristan language_model generate with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt
sacristan language_model generate with ... sample.prompt='The "for" statement' sample.temperature=0.5

The text is the language reference that comes with Python, or your own files. The result is bits per character of the
test part, as an ideal compressor with this model would need. The perplexity is that of bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from sacristan.configs import Map
from sacristan.experiments import supervised
from sacristan.experiments.experiment import Experiment
from sacristan.experiments.running import LabRun
from sacristan.ingredients import (
    ConfigError,
    Ingredient,
    ModelError,
    amp,
    checkpoint,
    device,
    optimizer,
    probe,
    scheduler,
    sweep,
    training,
)
from sacristan.ingredients.data import refuse_other_data
from sacristan.observers import Text

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sacristan.experiments.training import Task
    from sacristan.ingredients import Data
    from sacristan.ingredients.datasets.splitting import Split
    from sacristan.ingredients.models.networks import GPT

__all__ = ["ex", "gpt", "text"]

text = Ingredient("text")
gpt = Ingredient("gpt")
parts = (device, optimizer, scheduler, amp, training, checkpoint, probe, sweep)
ex = Experiment("language_model", ingredients=[text, gpt, *(part.ingredient for part in parts)])
ex.alias(lr="optimizer.lr", epochs="training.epochs", resume="checkpoint.resume")


@text.config
def text_config() -> None:
    # a UTF-8 file, or a folder with *.txt; None for the language reference that comes with Python (pydoc_data)
    path: str | None = None
    # bytes in a sequence, which limits how far the model sees
    context = 128
    # sequences in a batch (a micro-batch, where amp.accumulate is above 1)
    batch_size = 32
    # share of the text, before the test part, for validation
    val_fraction = 0.05
    # share of the text, at its end, for the final test
    test_fraction = 0.05
    # let a run that starts from another run's state use another text or a new split
    new_split = False


@gpt.config
def gpt_config() -> None:
    # width of a token
    width = 96
    # decoder layers
    depth = 3
    # attention heads; must divide the width
    heads = 3
    # width of the hidden layer, as a multiple of the width of a token
    mlp_ratio = 4.0
    # probability of zeroing a feature
    dropout = 0.0


@ex.config
def config(optimizer: Any, training: Any, checkpoint: Any) -> None:
    # learning rate; the same setting as optimizer.lr
    lr = optimizer["lr"]
    # passes over the training data; the same setting as training.epochs
    epochs = training["epochs"]
    # auto resumes the unfinished run with this config, if there is one; the same setting as checkpoint.resume
    resume = checkpoint["resume"]
    # text written by the command generate, and at the end of a training
    sample = {
        # text to continue
        "prompt": "The ",
        # bytes to generate
        "length": 400,
        # below 1 prefers likely characters; 0 always takes the most likely
        "temperature": 0.8,
        # seed of the sampled text
        "seed": 0,
    }
    # all random streams (shuffle, weights, dropout) derive from it
    seed = 0


@ex.named_config
def fast() -> None:
    """One epoch of a tiny model that sees 32 bytes, to try things out."""
    text = {"context": 32, "batch_size": 64}
    gpt = {"width": 16, "depth": 1, "heads": 1}
    epochs = 1
    sample = {"length": 80}


@ex.check
def _check_sample(config: Map) -> None:
    """Reject an empty prompt, and a length or temperature out of range."""
    if not config.sample.prompt:
        raise ConfigError("sample.prompt: got no text, expected at least one character to begin with")
    if config.sample.length < 0 or not 0 <= config.sample.temperature < math.inf:
        raise ConfigError(
            f"sample: got length={config.sample.length} and temperature={config.sample.temperature}, expected 0 or more"
        )


@text.capture
def make_text(
    seed: int, where: torch.device, _config: Map, _run: LabRun, start: Split | None = None
) -> tuple[Data, float]:
    """Return the text as batches of sequences, and its characters per byte.

    Args:
        seed: Seed of the experiment.
        where: The device of the batches.
        start: The split of the state that the training starts from, see `checkpoint.load_split`.

    Raises:
        DataError: If the text is missing or too short, or differs from that of the run to reproduce; or if text or
            split differ from those of `start`, and the config does not ask for a new split.
    """
    from sacristan.ingredients.datasets.corpus import characters_a_byte, make_corpus, read_text

    content = read_text(_config.path)
    options = {name: value for name, value in _config.items() if name not in ("path", "new_split")}
    batches = make_corpus(content, **options, seed=seed, device=where)
    name = _config.path or "pydoc_data"
    refuse_other_data(batches.fingerprint, Map(path=_config.path, name=name), _run.expected_data)
    split = batches.split
    assert split is not None  # of every corpus
    split_info: dict[str, Any] = {"digest": split.digest}
    if start is not None:
        if not _config.new_split:
            start.check(_config)
            split.check_start(start, name)
        split_info |= {"is_new": _config.new_split, "differs_from_start": split.warn_of_new(start)}
    _run.info["data"] = {"name": name, "fingerprint": batches.fingerprint, "split": split_info}
    return batches, characters_a_byte(content)


@gpt.capture
def make_gpt(context: int, seed: int, _config: Map) -> GPT:
    """Return the configured model for `context` bytes; raise ModelError if its sizes do not fit."""
    from sacristan.ingredients import global_stream

    with global_stream(seed, "init"):
        return _build_gpt(_config, context)


@gpt.command(unobserved=True)
def summary(_run: Any) -> None:
    """Show per layer output shape, parameters, operations and memory, and the totals."""
    import torch

    from sacristan.ingredients.inspection.probes import summarize
    from sacristan.ingredients.model import print_summary

    context = _run.config["text"]["context"]
    print_summary(summarize(make_gpt(context, _run.config["seed"]), (context,), torch.int64))


@gpt.check
def _check_gpt(config: Map) -> None:
    """Reject invalid sizes, by building the model without memory for its weights."""
    import torch

    with torch.device("meta"):
        _build_gpt(config, 1)


def _build_gpt(config: Map, context: int) -> GPT:
    from sacristan.ingredients.config.construct import build
    from sacristan.ingredients.datasets.corpus import VOCABULARY
    from sacristan.ingredients.models.networks import GPT

    return build(GPT, config, "gpt", ModelError, input_shape=(context,), num_outputs=VOCABULARY)


def make_task(characters: float) -> Task:
    """Return the task of predicting the next byte.

    It minimises the cross-entropy, and measures bits per character and the perplexity per byte. `characters` is the
    characters per byte from `make_text`; below 1 where characters take several bytes.
    """
    from torch.nn.functional import cross_entropy

    from sacristan.experiments.training import Task
    from sacristan.experiments.training.meters import WeightedMeans

    class Perplexed(WeightedMeans):
        """The means of loss and bits, and the perplexity of all bytes together."""

        def compute(self) -> dict[str, float]:
            means = super().compute()
            # exp of more than 700 overflows.
            return {**means, "perplexity": math.exp(min(means["loss"], 700.0))} if means else means

    class NextByte(Task):
        """The cross-entropy of each next byte, in nats; batches are (tokens, next tokens), both (B, T)."""

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            tokens, following = batch
            return cross_entropy(model(tokens).flatten(0, 1), following.flatten())

        def measure(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
            loss = self.loss(model, batch)
            return {"loss": loss, "bits_per_character": loss / (math.log(2) * characters)}

        def meter(self) -> WeightedMeans:
            return Perplexed(self)

    return NextByte()


def write(network: GPT, sample: Map) -> str:
    """Return the prompt with a continuation by the model, which is put in evaluation mode."""
    import torch

    from sacristan.ingredients import torch_stream
    from sacristan.ingredients.models.networks import continue_tokens

    network.eval()
    where = next(network.parameters()).device
    prompt = torch.tensor(list(sample.prompt.encode()), device=where)
    generator = torch_stream(sample.seed, "sample")
    tokens = continue_tokens(network, prompt, sample.length, sample.temperature, generator)
    return bytes(tokens.tolist()).decode(errors="replace")


@ex.command
def generate(_config: Map, _run: LabRun, seed: int, sample: Map) -> None:
    """Continue sample.prompt by a checkpoint (checkpoint.path=...); print and record the text."""
    where = device.make_device(seed)
    network = make_gpt(_config.text.context, seed).to(where)
    checkpoint.load_model(network, _config)
    written = write(network, sample)
    print(written)
    _run.log_media("sample", Text(written))


@ex.automain
def main(_config: Map, _run: LabRun, seed: int, sample: Map) -> float | None:
    """Train, and return the bits per character of the best epoch on the test part."""
    from sacristan.experiments import loop, results

    where = device.make_device(seed)
    batches, characters = make_text(seed, where, start=checkpoint.load_split(_run))
    network = make_gpt(_config.text.context, seed).to(where)
    results.announce(_config, network, batches, where)
    task, precision = make_task(characters), amp.make_amp(where)
    supervised.train(_run, _config, network, batches, task, precision)
    _run.log_media("sample", Text(write(network, sample)))
    metrics = loop.evaluate(network, batches.test, task, precision)
    _run.info["test"] = metrics
    _run.note_better({"result": "min", "bits_per_character": "min"})
    return metrics.get("bits_per_character")
