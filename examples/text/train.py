"""Classify lines of text that are read at random from one file of JSON lines.

python train.py reviews.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from pathlib import Path

import torch
from torch import nn

import foreload as fl

GOOD, BAD = "lovely great charming warm clever".split(), "dull noisy tired clumsy cold".split()
FILLERS = "the a film plot scene it was with and actor music quite that ending".split()
VOCABULARY = 4096


def make_reviews(path: Path, count: int, seed: int = 0) -> None:
    """Write reviews with a label; the words of some speak for both."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(count):
            label = rng.randrange(2)
            words = rng.choices(FILLERS, k=rng.randrange(5, 40)) + rng.choices((BAD, GOOD)[label], k=3)
            words += rng.choices((GOOD, BAD)[label], k=1)
            rng.shuffle(words)
            print(json.dumps({"text": " ".join(words), "label": label}), file=file)


def tokenize(text: str) -> list[int]:
    """Number words by a hash; 0 is left for padding. (A tokenizer of Hugging Face would do, too.)"""
    return [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in text.split()]


class Mean(nn.Module):
    """The mean of the words' vectors decides."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(VOCABULARY, 16, mode="mean", padding_idx=0)
        self.out = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.vectors(ids))


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify lines of text.")
    parser.add_argument("file", type=Path, help="JSON lines with text and label; made if it is not there")
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    if not given.file.exists():
        make_reviews(given.file, given.lines)

    # Each batch is padded to its longest text only: (ids, lengths, labels).
    texts = fl.TextDataset(given.file, tokenize, max_length=64, padding=False)
    train, val = torch.utils.data.random_split(texts, [0.8, 0.2], torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = Mean()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loader = fl.DataLoader(train, batch_size=50, shuffle=True, seed=0, collate_fn=texts.collate)
    for epoch in range(given.epochs):
        for ids, _, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    with torch.inference_mode():
        batches = fl.DataLoader(val, batch_size=100, collate_fn=texts.collate)
        right = [(model(ids).argmax(1) == labels).float() for ids, _, labels in batches]
    print(f"accuracy {torch.cat(right).mean():.3f} on {len(val)} of {len(texts)} texts")


if __name__ == "__main__":
    main()
