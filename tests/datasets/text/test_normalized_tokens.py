"""Added tokens that a normalizer changes are found in the text that they become."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

import foreload as fl
from foreload.datasets.text.pieces import PieceEncoder
from tests.datasets.text.conftest import write

CORPUS = ["wait for it... the end", "affine fox TM é"]

# Tokens that some normalizers turn into ASCII, into other text that is none, or leave as they are.
TOKENS = ["…", "™", "ﬁ", "é", "e\u0301", "FOX", "<end>"]

TEXTS = [
    *("wait...", "TM is a mark", "affine", "cafe\u0301 and café", "fox FOX", "so <end> it is", "plain text"),
    *TOKENS,
]

NORMALIZERS = {
    "none": None,
    "NFC": tokenizers.normalizers.NFC(),
    "NFD": tokenizers.normalizers.NFD(),
    "NFKC": tokenizers.normalizers.NFKC(),
    "NFKD": tokenizers.normalizers.NFKD(),
    "Lowercase": tokenizers.normalizers.Lowercase(),
    "one of one": tokenizers.normalizers.Sequence([tokenizers.normalizers.NFKC()]),
    "several": tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.NFKD(), tokenizers.normalizers.StripAccents(), tokenizers.normalizers.Lowercase()]
    ),
}


def byte_level(normalizer: tokenizers.normalizers.Normalizer | None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("token", TOKENS)
def test_ids_are_the_tokenizers_own(name: str, is_normalized: bool, token: str, tmp_path: Path) -> None:
    tokenizer = byte_level(NORMALIZERS[name])
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=is_normalized)])
    data = fl.TextDataset(write(tmp_path / "a.txt", "\n".join(TEXTS)), tokenizer, 40, padding=False)
    for _ in range(2):
        assert [ids.tolist() for ids in data] == [tokenizer.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize(
    ("name", "token", "is_normalized", "by_pieces"),
    [
        ("NFKC", "…", True, False),
        ("NFKD", "™", True, False),
        ("NFKC", "…", False, True),
        ("NFC", "…", True, True),
        ("NFD", "<end>", True, True),
        ("none", "…", True, True),
    ],
)
def test_pieces_are_given_up_only_for_tokens_that_change(
    name: str, token: str, is_normalized: bool, by_pieces: bool
) -> None:
    tokenizer = byte_level(NORMALIZERS[name])
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=is_normalized)])
    assert (PieceEncoder.of(tokenizer) is not None) is by_pieces
