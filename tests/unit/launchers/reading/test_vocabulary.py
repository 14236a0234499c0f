"""How many tokens a tokenizer has, by its kind, its path and its file."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.vocabulary import pieces, vocabulary_of
from meshwright.shell.values import unknown_value


@pytest.mark.parametrize(
    ("kind", "path", "tokens"),
    [
        # what the path states, if it is a size: a power of two, not a month
        ("", "/data/vocab_131072/x", 131_072),
        ("", "/data/vocab_202401/x", None),
        ("GPT2BPETokenizer", "/scratch/tokenizers/nordic_tokenizer_131072/vocab.json", 131_072),
        # a kind's own, unless the path names somebody else's
        ("GPT2BPETokenizer", "/data/gpt2-vocab.json", 50_257),
        ("GPT2BPETokenizer", "/path/to/tokenizer/vocab.json", 50_257),
        ("GPT2BPETokenizer", "/scratch/europa-tokenizer/vocab.json", None),
        ("Llama2Tokenizer", "/data/tokenizer.model", 32_000),
        ("Llama2Tokenizer", "/models/llama-2-7b/tokenizer.model", 32_000),
        ("Llama2Tokenizer", "models/ver3.0/llm-jp-tokenizer-100k.ver3.0b1.model", None),
        ("Llama2Tokenizer", f"{unknown_value('ENV_DIR')}/src/llm-jp-tokenizer-v4/v4_alpha_1.0.model", None),
        ("Llama2Tokenizer", "/models/baichuan-7b/tokenizer.model", None),
        # editions
        ("HFTokenizer", "mistralai/Mistral-Large-Instruct-2407", 32_768),
        ("HFTokenizer", "mistralai/Ministral-8B-Instruct-2410", None),
        ("HFTokenizer", "/data/qwen25_tokenizer_flat", 151_665),
        ("HFTokenizer", "tmp-llama-30b", 32_000),
        ("HFTokenizer", "open_llama_3b", 32_000),
        ("HFTokenizer", "llama31_8b", 128_256),
        ("HFTokenizer", "Llama-3.2-3B", 128_256),
        ("HFTokenizer", "llama-3b", None),  # of which Llama?
    ],
)
def test_a_vocabulary_is_its_kinds_or_its_paths_and_nobodys_is_guessed(
    kind: str, path: str, tokens: int | None
) -> None:
    found = vocabulary_of(kind, (path,), lambda _: None)
    assert (found and found[0]) == tokens
    assert found is None or kind or found[1] == path  # what it was taken from


def test_a_sentencepiece_model_is_counted() -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    # ModelProto: pieces are field 1, the trainer's and the normalizer's settings are 2 and 3
    model = b"".join(field(1, field(1, word)) for word in (b"<unk>", b"<s>", b"</s>", b"a"))
    model += field(2, b"\x18\x01") + field(3, b"")
    assert pieces(model.decode("latin-1")) == 4
    assert pieces("{}") is None
    for less in (1, 3):  # it ends before a length, or in a field
        assert pieces(model[:-less].decode("latin-1")) is None
