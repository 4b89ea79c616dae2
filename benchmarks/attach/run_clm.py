"""huggingface/transformers examples/pytorch/language-modeling/run_clm.py at 00d481d18f91.

Under Apache-2.0. From "Initialize our Trainer" on: a GPT-2 from a config of two small layers,
trained, saved, evaluated.
"""

import math

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


class Chunks(torch.utils.data.Dataset):
    def __init__(self, size):
        self.rows = torch.randint(
            64, (size, 16), generator=torch.Generator().manual_seed(size)
        )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index].clone()}


def compute_metrics(found):
    predictions, labels = found
    right = predictions[:, :-1].reshape(-1) == labels[:, 1:].reshape(-1)
    return {"accuracy": float(right.mean())}


training_args = TrainingArguments(
    output_dir="out",
    max_steps=6,
    save_steps=3,
    logging_steps=1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,  # how often its bars are drawn depends on the time
)
set_seed(training_args.seed)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=Chunks(64),
    eval_dataset=Chunks(8),
    data_collator=default_data_collator,
    compute_metrics=compute_metrics,
    preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
)
train_result = trainer.train()
trainer.save_model()
metrics = train_result.metrics
metrics["train_samples"] = 64
trainer.log_metrics("train", metrics)
trainer.save_metrics("train", metrics)
trainer.save_state()
metrics = trainer.evaluate()
metrics["perplexity"] = math.exp(metrics["eval_loss"])
trainer.log_metrics("eval", metrics)
trainer.save_metrics("eval", metrics)
