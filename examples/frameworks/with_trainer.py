"""Train with the Trainer of Hugging Face transformers: one method puts foreload's loader in.

python with_trainer.py out
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers

import foreload as fl


class Trainer(transformers.Trainer):
    """A Trainer whose loaders are foreload's; collator, columns, ranks and order are the Trainer's."""

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's loader as one of foreload's."""
        return fl.from_torch(super().get_train_dataloader(), num_workers="auto", cache="64MiB")


class Classifier(torch.nn.Module):
    """A linear model with the interface that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with the Trainer of transformers.")
    parser.add_argument("folder", help="for what the Trainer writes")
    given = parser.parse_args()
    points = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    dataset = [{"x": point, "labels": int(point.sum() > 0)} for point in points]
    arguments = transformers.TrainingArguments(
        output_dir=given.folder,
        per_device_train_batch_size=20,
        num_train_epochs=2,
        learning_rate=0.05,
        report_to=[],
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    trainer = Trainer(Classifier(), arguments, train_dataset=dataset)
    print(f"the loader: {type(trainer.get_train_dataloader().base_dataloader).__module__}")
    result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
