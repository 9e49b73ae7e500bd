"""Train, evaluate and use a network on real data, composed of ingredients.

python exp.py                                       train on the digits
python exp.py with lr=3e-3 model.name=cnn           change settings
python exp.py with configs/digits_cnn.yaml          follow a recipe
python exp.py with resume=auto                      resume this run if it was interrupted, else start it
python exp.py print_config                          see every setting
python exp.py data.stats                            look at the data
python exp.py evaluate with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt
python exp.py predict with my_runs/1/config.json checkpoint.path=my_runs/1/checkpoints/best.pt data.path=new.csv
python exp.py export with my_runs/1/config.json checkpoint.path=run:1 export.path=model.onnx

Its parts, settings and commands are in `experiments/supervised.py`; each part is a file in `ingredients/`.
"""

from sacristan.experiments import Experiment, supervised

ex = Experiment("exp", ingredients=supervised.ingredients())
supervised.compose(ex)

if __name__ == "__main__":
    ex.run_commandline()
