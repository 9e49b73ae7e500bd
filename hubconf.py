"""The lab's models for `torch.hub`: networks by name, and models that were trained here.

torch.hub.load(FOLDER, "cnn", source="local", input_shape=(1, 8, 8), num_outputs=10)
torch.hub.load(FOLDER, "trained", source="local", checkpoint="run:1", store="my_runs")

FOLDER is this one, which has to be installed.
"""

# Imports stand in the functions: torch.hub takes every name here for a model.
dependencies = ["einops", "numpy", "sacred", "torch"]


def mlp(input_shape, num_outputs, weights=None, store="my_runs", seed=0, **options):
    """Return a multilayer perceptron: inputs (B, *input_shape) to scores (B, num_outputs).

    Args:
        input_shape: Shape of one input.
        num_outputs: Scores.
        weights: None, PATH.pt, PATH.safetensors, run:ID or run:ID@last.
        store: The folder of runs that run:ID is in.
        seed: Of the initial weights.
        options: Such as hidden=[128, 128], activation="relu", dropout=0.0.
    """
    from sacristan.ingredients.deployment import load_network

    return load_network("mlp", input_shape, num_outputs, weights, store, seed, options)


def cnn(input_shape, num_outputs, weights=None, store="my_runs", seed=0, **options):
    """Return a residual network for images (B, C, H, W) to scores (B, num_outputs).

    Args:
        input_shape: (C, H, W).
        num_outputs: Scores.
        weights: None, PATH.pt, PATH.safetensors, run:ID or run:ID@last.
        store: The folder of runs that run:ID is in.
        seed: Of the initial weights.
        options: Such as widths=[32, 64], blocks=1, activation="relu", dropout=0.0.
    """
    from sacristan.ingredients.deployment import load_network

    return load_network("cnn", input_shape, num_outputs, weights, store, seed, options)


def vit(input_shape, num_outputs, weights=None, store="my_runs", seed=0, **options):
    """Return a vision transformer for images (B, C, H, W) to scores (B, num_outputs).

    Args:
        input_shape: (C, H, W).
        num_outputs: Scores.
        weights: None, PATH.pt, PATH.safetensors, run:ID or run:ID@last.
        store: The folder of runs that run:ID is in.
        seed: Of the initial weights.
        options: Such as patch=2, width=64, depth=3, heads=4, mlp_ratio=2.0, dropout=0.0.
    """
    from sacristan.ingredients.deployment import load_network

    return load_network("vit", input_shape, num_outputs, weights, store, seed, options)


def trained(checkpoint, store="my_runs", prepared=False):
    """Return the model of a checkpoint with its weights, in evaluation mode.

    The checkpoint is of an experiment with the ingredients data, loss and model; the GPT and the GAN are not.

    Args:
        checkpoint: run:ID, for the best weights of a run, run:ID@last, or PATH.pt.
        store: The folder of runs that run:ID is in.
        prepared: Whether it takes values that are not normalised, and returns those of a regression in their own unit.
    """
    from sacristan.ingredients.deployment import load_trained

    return load_trained(checkpoint, store, prepared=prepared)
