"""Tokenise untrusted text without its special tokens: `<|im_end|>` in a question ends no turn.

A tokenizer turns the names of its special tokens into the tokens wherever they are. So a prompt is
made of pieces, ours and those of others. Where one of the latter gave a special token, the prompt
is tokenised again by a copy of the tokenizer that has secret names for its special tokens.
"""

from __future__ import annotations

import json
import re
import secrets
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenizers import Tokenizer

Offsets = tuple[tuple[int, int], ...]


class Piece(NamedTuple):
    """A part of a prompt; special tokens that it names are tokens only where it is ours."""

    text: str
    ours: bool


class Coded(NamedTuple):
    """A prompt as tokens, and the characters [start, stop) that each of them covers."""

    ids: tuple[int, ...]
    offsets: Offsets


class _Secret(NamedTuple):
    """A copy of a tokenizer that has other names for its special tokens."""

    coder: Tokenizer
    names: dict[str, str]  # name in the tokenizer -> name in the copy, just as long
    ids: dict[int, int]  # id in the copy -> id in the tokenizer
    pattern: re.Pattern[str]  # finds the names of the tokenizer


_SECRETS: weakref.WeakKeyDictionary[Any, _Secret] = weakref.WeakKeyDictionary()


def code(tokenizer: Any, prompts: Sequence[Sequence[Piece]], *, special: bool) -> list[Coded]:
    """The tokens of each prompt; `special` adds those that the tokenizer puts around a text.

    All are tokenised together; a hostile one is tokenised once more by itself.
    """
    texts = ["".join([piece.text for piece in pieces]) for pieces in prompts]
    only = dict.fromkeys(("return_attention_mask", "return_token_type_ids", "verbose"), False)
    coded = tokenizer(texts, add_special_tokens=special, return_offsets_mapping=True, **only)
    both = zip(coded["input_ids"], coded["offset_mapping"], strict=True)
    plain = [Coded(tuple(ids), tuple(map(tuple, offsets))) for ids, offsets in both]
    guarded = guarded_tokens(tokenizer)
    return [
        _coded_again(tokenizer, pieces, special) if _taken(pieces, one, guarded) else one
        for pieces, one in zip(prompts, plain, strict=True)
    ]


def guarded_tokens(tokenizer: Any) -> dict[int, str]:
    """The tokens that no question may write: special ones, and those of the chat template."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    return {
        int(id): token.content
        for id, token in tokenizer.added_tokens_decoder.items()
        if token.content.strip() and (token.special or token.content in template)
    }


def _taken(pieces: Sequence[Piece], coded: Coded, guarded: dict[int, str]) -> bool:
    """Whether a piece that is not ours gave a guarded token."""
    if guarded.keys().isdisjoint(coded.ids):
        return False
    spans = [span for id, span in zip(*coded, strict=True) if id in guarded and span[0] < span[1]]
    others = [other for other in _others(pieces) if other[0] < other[1]]
    starts = [start for start, _ in others]
    # Pieces are in order, so only the last that begins before a token ends can overlap it.
    before = ((a, bisect_left(starts, b)) for a, b in spans)
    return any(count > 0 and a < others[count - 1][1] for a, count in before)


def _others(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    at = 0
    for piece in pieces:
        if not piece.ours:
            yield at, at + len(piece.text)
        at += len(piece.text)


def _coded_again(tokenizer: Any, pieces: Sequence[Piece], special: bool) -> Coded:
    secret = _SECRETS.get(tokenizer)
    if secret is None:
        secret = _SECRETS[tokenizer] = _make_secret(tokenizer)
    text = "".join(_renamed(piece.text, secret) if piece.ours else piece.text for piece in pieces)
    coded = secret.coder.encode(text, add_special_tokens=special)
    return Coded(tuple(secret.ids.get(id, id) for id in coded.ids), tuple(coded.offsets))


def _renamed(text: str, secret: _Secret) -> str:
    return secret.pattern.sub(lambda match: secret.names[match[0]], text)


def _make_secret(tokenizer: Any) -> _Secret:
    guarded = guarded_tokens(tokenizer)
    names = {content: _secret_name(len(content)) for content in guarded.values()}
    about = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in about["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    coder = Tokenizer.from_str(json.dumps(about))
    coder.no_truncation()
    coder.no_padding()
    known = {id: coder.token_to_id(names[content]) for id, content in guarded.items()}
    ids = {here: id for id, here in known.items() if here is not None}
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return _Secret(coder, names, ids, re.compile("|".join(longest_first)))


def _secret_name(length: int) -> str:
    """Random private-use letters, different in each process, so that no text can contain them."""
    return "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in range(length))
