"""Text to tokens and back: SmolLM2's byte-level BPE and chat form, built from the tables of a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence

from tilewise.demo.checkpoint import DemoUnavailable, TokenizerTables


class ChatTokenizer:
    """Encodes the parts of a conversation, one at a time, so that a shared system prompt is a shared prefix."""

    def __init__(self, tables: TokenizerTables) -> None:
        try:
            from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        except ImportError:
            raise DemoUnavailable("the demo tokenises with `tokenizers`: pip install tokenizers") from None
        vocabulary = {token: i for i, token in enumerate(tables.tokens)}
        self._tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(tables.merges)))
        # Digits stand alone, then the pattern of GPT-2: what llama.cpp names "smollm".
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        self._tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in tables.special]
        )
        self._tokenizer.encode_special_tokens = True  # as text; the turns below set the real ones
        self._start, self._end = vocabulary["<|im_start|>"], vocabulary["<|im_end|>"]
        self.end_token = tables.end_token

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text: "<|im_end|>" typed by a user is ten characters, and does not end his turn."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def system(self, text: str) -> list[int]:
        """The opening of a conversation, up to where the user begins."""
        return self._turn("system", text)

    def user(self, text: str) -> list[int]:
        """A question, up to where the assistant begins."""
        return [*self._turn("user", text), self._start, *self.encode("assistant\n")]

    def _turn(self, role: str, text: str) -> list[int]:
        return [self._start, *self.encode(f"{role}\n{text}"), self._end, *self.encode("\n")]
