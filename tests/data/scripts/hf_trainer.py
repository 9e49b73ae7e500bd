"""A tiny GPT-2 with random weights in the Trainer of Transformers, its arguments by HfArgumentParser."""

from dataclasses import dataclass

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging


@dataclass
class ModelArguments:
    n_embd: int = 8
    n_layer: int = 1


logging.set_verbosity_error()
parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
# three lines: import sacristan
# three lines: run = sacristan.init(config={**vars(model_args), "learning_rate": training_args.learning_rate})
torch.manual_seed(0)
config = GPT2Config(vocab_size=16, n_positions=8, n_embd=model_args.n_embd, n_layer=model_args.n_layer, n_head=2)
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(16, (12, 8))]
trainer = Trainer(GPT2LMHeadModel(config), training_args, train_dataset=data, eval_dataset=data[:4])
trainer.remove_callback(PrinterCallback)
trainer.train()
for row in trainer.state.log_history:
    losses = {name: row[name] for name in ("loss", "eval_loss") if name in row}
    if losses:
        print(row["step"], losses)
        # three lines: name = "train/loss" if "loss" in row else "eval/loss"
        # three lines: run.log({name: [*losses.values()][0]}, row["step"])
