"""Train, evaluate and use a network on real data, composed of ingredients.

python exp.py                                       train on the digits
python exp.py with lr=3e-3 model.name=cnn           change settings
python exp.py with configs/digits_cnn.yaml          follow a recipe
python exp.py with resume=auto                      resume this run if it was cut off, else start it
python exp.py print_config                          see every setting
python exp.py data.stats                            look at the data
python exp.py evaluate with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt
python exp.py predict with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt data.path=new.csv
python exp.py export with my_runs/1/config.json checkpoint.path=run:1 export.path=model.onnx
"""

from experiments import Experiment, results
from ingredients import (
    amp,
    checkpoint,
    data,
    device,
    distributed,
    exporting,
    loss,
    metrics,
    model,
    optimizer,
    probe,
    scheduler,
    sweep,
    training,
)
from observers import file_observer, run_folder

parts = (
    device,
    distributed,
    data,
    loss,
    metrics,
    model,
    optimizer,
    scheduler,
    amp,
    training,
    checkpoint,
    exporting,
    probe,
    sweep,
)
ex = Experiment("exp", ingredients=[part.ingredient for part in parts])
ex.alias(lr="optimizer.lr", epochs="training.epochs", resume="checkpoint.resume")
ex.observers.append(file_observer("my_runs"))


@ex.config
def config(optimizer, training, checkpoint):
    # learning rate; the same setting as optimizer.lr
    lr = optimizer["lr"]
    # passes over the training data; the same setting as training.epochs
    epochs = training["epochs"]
    # auto resumes the unfinished run of this config, if there is one; the same setting as checkpoint.resume
    resume = checkpoint["resume"]
    # all random streams (split, shuffle, augmentation, weights, dropout) derive from it
    seed = 0


def build(batches, where, seed, config, pretrained=False):
    """Return the loss, the model and its precision, as configured, for data on a device."""
    criterion = metrics.add_metrics(loss.make_loss(batches, device=where), batches, device=where)
    told = {"dtype": batches.input_dtype, "preparation": batches.preparation, "pretrained": pretrained}
    network = model.make_model(batches.input_shape, criterion.num_outputs, seed, **told).to(where)
    results.announce(config, network, batches, where)
    return criterion, network, amp.make_amp(where)


@ex.command
def evaluate(_config, _run, seed):
    """Measure a checkpoint (checkpoint.path=...): on the test part that its training kept apart, or on other data."""
    from experiments import loop

    where = device.make_device(seed)
    batches = data.make_test_data(seed, where, checkpoint.load_preparation())
    criterion, network, precision = build(batches, where, seed, _config)
    checkpoint.load_model(network, _config, loss=criterion)
    with results.measured_speed(_run, batches.test):
        measured = loop.evaluate(network, batches.test, criterion, precision)
    return results.report_test(_run, measured, criterion)


@ex.command
def predict(_config, _run, seed):
    """Write what a checkpoint (checkpoint.path=...) predicts, as a table; the data need no targets."""
    from experiments import loop

    where = device.make_device(seed)
    batches = data.make_test_data(seed, where, checkpoint.load_preparation(), needs_targets=False)
    criterion, network, precision = build(batches, where, seed, _config)
    checkpoint.load_model(network, _config)
    found = loop.predict(network, batches.test, criterion, precision)
    return results.record_predictions(_run, found, batches, _config.export.predictions)


@ex.command
def export(_config, _run, seed):
    """Write a checkpoint (checkpoint.path=...) as a file for other programs, compared with the model on its data."""
    where = device.make_device(seed)
    batches = data.make_test_data(seed, where, checkpoint.load_preparation(), needs_targets=False)
    criterion, network, _ = build(batches, where, seed, _config)
    origin = checkpoint.load_model(network, _config)
    return exporting.export_model(network, batches, criterion, origin, _config, _run)


@ex.automain
def main(_config, _run, seed, training):
    """Train, and return the metric of the best epoch on the test part."""
    from experiments import inspection, loop

    where = device.make_device(seed)
    batches = data.make_data(seed, where, start=checkpoint.load_split(_run))
    criterion, network, precision = build(batches, where, seed, _config, pretrained=True)
    results.record_graph(_run, network, batches)
    opt = optimizer.make_optimizer(network, criterion)
    steps = loop.steps_per_epoch(batches.train, precision.accumulate)
    schedule = scheduler.make_scheduler(opt, training.epochs, steps)
    with run_folder(_run) as folder:
        keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
        fitted = loop.fit(
            network,
            batches,
            criterion,
            opt,
            scheduler=schedule,
            amp=precision,
            checkpointer=keeper,
            callbacks=inspection.make_callbacks(_run, _config),
            log=_run.log_scalar,
            **training,
        )
        keeper.restore_best(network)
    results.report_speed(_run, fitted.speed)
    measured, found = loop.evaluate_and_predict(network, batches.test, criterion, precision)
    results.report_cases(_run, found, batches, criterion)
    return results.report_test(_run, measured, criterion)
