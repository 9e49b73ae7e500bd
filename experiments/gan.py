"""Train a GAN on images: a generator, and a critic that tells its images from the data.

sacristan gan with configs/gan.yaml
sacristan gan with fast data.path=my_images.npz
sacristan gan sample with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt

A Wasserstein GAN with gradient penalty: Gulrajani et al., https://arxiv.org/abs/1704.00028. Its validation loss, and
the result, is the Frechet distance between generated images and the data, as normal distributions of pixels; 0 means
that they agree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sacristan.configs import Map
from sacristan.experiments import supervised
from sacristan.experiments.experiment import Experiment
from sacristan.experiments.running import LabRun
from sacristan.ingredients import (
    ConfigError,
    DataError,
    Ingredient,
    amp,
    checkpoint,
    data,
    device,
    distributed,
    probe,
    sweep,
    training,
)
from sacristan.observers import Image

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from sacristan.experiments.training import Task
    from sacristan.experiments.training.callbacks import Callback
    from sacristan.ingredients.datasets.fitted import Preparation
    from sacristan.ingredients.ranks.group import Ranks

__all__ = ["ex", "gan"]

gan = Ingredient("gan")
parts = (device, distributed, data, amp, training, checkpoint, probe, sweep)
ex = Experiment("gan", ingredients=[gan, *(part.ingredient for part in parts)])
ex.alias(epochs="training.epochs", resume="checkpoint.resume")


@gan.config
def gan_config() -> None:
    # number of random inputs of the generator
    noise = 32
    # units of the hidden layers of both networks
    hidden = [128, 128]
    # learning rate of the generator
    generator_lr = 1e-3
    # learning rate of the critic
    critic_lr = 1e-3
    # steps of the critic for each step of the generator
    critic_steps = 3
    # weight of the gradient penalty
    penalty = 10.0


@gan.check
def _check_gan(config: Map) -> None:
    """Reject sizes and rates out of range."""
    for name in ("noise", "critic_steps"):
        if config[name] < 1:
            raise ConfigError(f"gan.{name}: got {config[name]}, expected at least 1")
    for name in ("generator_lr", "critic_lr"):
        if not 0 < config[name] < math.inf:
            raise ConfigError(f"gan.{name}: got {config[name]}, expected more than 0")


@ex.config
def config(training: Any, checkpoint: Any) -> None:
    # passes over the training data; the same setting as training.epochs
    epochs = training["epochs"]
    # auto resumes the unfinished run with this config, if there is one; the same setting as checkpoint.resume
    resume = checkpoint["resume"]
    # all random streams (split, shuffle, weights, noise) derive from it
    seed = 0


@ex.named_config
def fast() -> None:
    """Two epochs of small networks, to try things out."""
    data = {"limit": 300}
    gan = {"hidden": [32]}
    epochs = 2


@gan.capture
def make_networks(shape: tuple[int, ...], seed: int, _config: Map) -> nn.ModuleDict:
    """Return `generator`, from noise (B, noise) to images (B, *shape), and `critic`, from images to scores (B, 1)."""
    from torch import nn

    from sacristan.ingredients import global_stream

    def layers(*sizes: int) -> list[nn.Module]:
        modules: list[nn.Module] = []
        for pair in itertools.pairwise(sizes):
            modules += [nn.Linear(*pair), nn.LeakyReLU(0.2)]
        return modules[:-1]

    size = math.prod(shape)
    with global_stream(seed, "init"):
        generator = layers(_config.noise, *_config.hidden, size)
        critic = layers(size, *reversed(_config.hidden), 1)
        return nn.ModuleDict(
            {
                "generator": nn.Sequential(*generator, nn.Unflatten(1, shape)),
                "critic": nn.Sequential(nn.Flatten(), *critic),
            }
        )


@gan.command(unobserved=True)
def summary(_config: Map, _run: Any) -> None:
    """Show per layer of both networks output shape, parameters, operations and memory, and the totals."""
    import torch

    from sacristan.ingredients.inspection.probes import summarize
    from sacristan.ingredients.model import print_summary

    seed = _run.config["seed"]
    shape = data.make_data(seed, torch.device("cpu")).input_shape
    check_images(shape)
    networks: Any = make_networks(shape, seed)
    for name, inputs in (("generator", (_config.noise,)), ("critic", shape)):
        print(f"{name}:")
        print_summary(summarize(networks[name], inputs))


@gan.capture
def make_optimizers(networks: Any, _config: Map) -> dict[str, torch.optim.Optimizer]:
    """Return an Adam optimizer for each network, by its name, at the learning rate in the config."""
    import torch

    rates = {"generator": _config.generator_lr, "critic": _config.critic_lr}
    return {name: torch.optim.Adam(networks[name].parameters(), lr, betas=(0.0, 0.9)) for name, lr in rates.items()}


@gan.capture
def make_task(_config: Map) -> Task:
    """Return the task: several steps of the critic, one of the generator."""
    import torch

    from sacristan.experiments.training import Task, Trainer

    class Adversarial(Task):
        """Batches are (images, labels); labels are ignored."""

        def step(self, trainer: Trainer, group: Any) -> dict[str, Any]:
            networks: Any = trainer.model
            generator, critic = networks["generator"], networks["critic"]

            def of_critic(batch: Any) -> Tensor:
                real = batch[0]
                fake = make_images(generator, len(real), real.device).detach()
                share = torch.rand(len(real), *[1] * (real.ndim - 1), device=real.device)
                between = (share * real + (1 - share) * fake).requires_grad_()
                (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
                penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
                return critic(fake).mean() - critic(real).mean() + _config.penalty * penalty

            def of_generator(batch: Any) -> Tensor:
                return -critic(make_images(generator, len(batch[0]), batch[0].device)).mean()

            for _ in range(_config.critic_steps):
                judged = trainer.minimize(of_critic, group, "critic")
            made = trainer.minimize(of_generator, group, "generator")
            return {"loss": made, "critic_loss": judged}

        def meter(self) -> Frechet:
            return Frechet()

    return Adversarial()


@gan.capture
def make_images(generator: nn.Module, count: int, where: torch.device, _config: Map) -> Tensor:
    """Return generated images (count, *shape), from noise of torch's global stream."""
    import torch

    return generator(torch.randn(count, _config.noise, device=where))


class Frechet:
    """The Frechet distance of pixels as `loss`: Heusel et al., https://arxiv.org/abs/1706.08500, with features."""

    names = ("loss",)

    def __init__(self) -> None:
        self._real: list[Tensor] = []
        self._fake: list[Tensor] = []

    def update(self, model: nn.Module, batch: Any, amp: Any) -> None:
        real = batch[0]
        with amp.autocast():
            fake = make_images(model["generator"], len(real), real.device)  # type: ignore[index]  # a ModuleDict
        self._real.append(real.flatten(1).double())
        self._fake.append(fake.flatten(1).double())

    def merge(self, ranks: Ranks) -> None:
        """Add the images of the other ranks."""
        self._real, self._fake = (
            [images for rank in ranks.gather([each.cpu() for each in own]) for images in rank]
            for own in (self._real, self._fake)
        )

    def compute(self) -> dict[str, float]:
        import torch

        if not self._real:
            return {}
        (mean, spread), (other, other_spread) = (
            (images.mean(0), images.T.cov()) for images in (torch.cat(self._real), torch.cat(self._fake))
        )
        # The trace of the root of a product of covariances is the sum of the roots of its eigenvalues.
        roots = torch.linalg.eigvals(spread @ other_spread).real.clamp(min=0).sqrt().sum()
        distance = (mean - other).square().sum() + spread.trace() + other_spread.trace() - 2 * roots
        return {"loss": float(distance)}


def make_callback(run: LabRun) -> Callback:
    """Return the callback that logs images of the same noise as `samples` after each validation."""
    import torch

    from sacristan.experiments.training import Trainer
    from sacristan.experiments.training.callbacks import Callback
    from sacristan.ingredients import global_stream

    class Samples(Callback):
        @torch.no_grad()
        def after_validation(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            networks: Any = trainer.model
            with global_stream(0, "samples"):  # the same noise each time
                made = picture(networks["generator"], trainer.amp.device, trainer.data.preparation)
            run.log_media("samples", made, trainer.place.step)

    return Samples()


def picture(generator: nn.Module, where: torch.device, prepared: Preparation | None, side: int = 8) -> Image:
    """Return side x side generated images as one picture, without the normalisation of the data."""
    import torch

    with torch.no_grad():
        images = make_images(generator, side * side, where).cpu()
    if prepared is not None and prepared.mean is not None and prepared.std is not None:
        images = images * torch.as_tensor(prepared.std) + torch.as_tensor(prepared.mean)
    rows = [torch.cat(list(images[side * row : side * row + side]), -1) for row in range(side)]
    return Image(torch.cat(rows, -2).clamp(0, 1))


def check_images(shape: tuple[int, ...]) -> None:
    """Check that inputs are images: 1 or 3 channels, height and width."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"data: got inputs of shape {shape}, expected images (1 or 3, height, width)")


@ex.command
def sample(_config: Map, _run: LabRun, seed: int) -> None:
    """Record a picture of images from the generator of a checkpoint (checkpoint.path=...)."""
    from sacristan.ingredients import global_stream

    where = device.make_device(seed)
    preparation = checkpoint.load_preparation()
    networks = make_networks(preparation.input_shape, seed).to(where)
    checkpoint.load_model(networks, _config)
    with global_stream(seed, "samples"):
        _run.log_media("samples", picture(networks["generator"], where, preparation))


@ex.automain
def main(_config: Map, _run: LabRun, seed: int) -> float | None:
    """Train, and return the distance of the best epoch to the test part."""
    from sacristan.experiments import loop, results

    where = device.make_device(seed)
    batches = data.make_data(seed, where, start=checkpoint.load_split(_run))
    check_images(batches.input_shape)
    networks = make_networks(batches.input_shape, seed).to(where)
    results.announce(_config, networks, batches, where)
    task, precision = make_task(), amp.make_amp(where)
    opts, callbacks = make_optimizers(networks), [make_callback(_run)]
    supervised.train(_run, _config, networks, batches, task, precision, opts, callbacks)
    metrics: Mapping[str, float] = loop.evaluate(networks, batches.test, task, precision)
    _run.info["test"] = dict(metrics)
    _run.note_better({"result": "min"})
    _run.log_media("test/samples", picture(networks["generator"], where, batches.preparation))
    return metrics.get("loss")
