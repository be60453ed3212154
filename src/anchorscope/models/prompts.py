"""Make few-shot prompts, as chat turns or plain `Q:`/`A:` text, and find the question in them.

A tokenizer turns the names of its special tokens into the tokens wherever they occur: `<|im_end|>`
in a question would end a turn. So a prompt is made of trusted and untrusted pieces. Where an
untrusted piece gives a special token, the prompt is tokenised again by a copy of the tokenizer that
has secret names for its special tokens.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from anchorscope.errors import UserError, short
from anchorscope.models.load import Model
from anchorscope.records import Shot, Span

# Tokens that end a turn, for models whose files name only the end of the text.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")
LONGEST = 4096  # tokens of a prompt that are allowed even where the model names a smaller window
_NO_THINKING = {"enable_thinking": False}  # read by templates that know it, ignored by the others


class Wording(NamedTuple):
    """The words of a prompt around its questions and answers."""

    question: str  # in front of a question, in plain text
    answer: str  # in front of an answer, in plain text
    instruction: str  # in front of the first turn of a chat


USUAL = Wording("Q: ", "A:", "")
RETEST = Wording("Question: ", "Answer:", "Answer each question in a few words.\n\n")


@dataclass(frozen=True)
class Prompt:
    """A prompt as tokens, and which characters each token covers."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]  # characters of the whole prompt text
    question: Span  # characters of the question in that text
    pieces: tuple[PromptPart, ...] = field(default=(), compare=False, repr=False)  # of that text


def make_prompt(model: Model, question: str, *, shots: Sequence[Shot], style: str) -> Prompt:
    """Make the prompt for a question in the style `chat` or `text`."""
    return make_prompts(model, [question], shots=shots, style=style)[0]


def make_prompts(
    model: Model,
    questions: Sequence[str],
    *,
    shots: Sequence[Shot],
    style: str,
    wording: Wording = USUAL,
) -> list[Prompt]:
    """Make the prompts for questions in the style `chat` or `text`, tokenised on all cores."""
    *before, after = _pieces_around(model, shots, style, wording)
    pieces = [[*before, PromptPart(question, False), after] for question in questions]
    if style == "chat":
        pieces = [_as_written(model, parts, shots, wording) for parts in pieces]
    # A chat template writes its own special tokens; plain text gets the tokenizer's.
    coded = tokenise(model.tokenizer, pieces, special=style == "text")
    most = window_of(model)
    for question, one in zip(questions, coded, strict=True):
        if most is not None and len(one.ids) > max(most, LONGEST):  # it would only fill the memory
            raise UserError(
                f"The question {short(question)} of {len(question)} characters makes a prompt of "
                f"{len(one.ids)} tokens, and {model.name} reads {most}. Shorten it, or leave it "
                "out."
            )
    prompts = []
    for one, parts in zip(coded, pieces, strict=True):
        start = sum(len(part.text) for part in parts[:-2])
        span = Span(start, start + len(parts[-2].text))
        prompts.append(Prompt(one.ids, one.offsets, span, tuple(parts)))
    return prompts


def answer_tokens(
    tokenizer: Any, pieces: Sequence[PromptPart], answer: str, *, special: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of a prompt, and of the answer that follows it."""
    text = "".join(piece.text for piece in pieces)
    own = PromptPart(("" if not text or text[-1].isspace() else " ") + answer.strip(), False)
    prompt, whole = (
        one.ids for one in tokenise(tokenizer, [[*pieces], [*pieces, own]], special=special)
    )
    if whole[: len(prompt)] == prompt:
        return prompt, whole[len(prompt) :]
    # The tokenizer merged the answer's first letters into the prompt's last token.
    return prompt, tokenise(tokenizer, [[own]], special=False)[0].ids


def _written(
    model: Model, question: str, shots: Sequence[Shot], style: str, wording: Wording
) -> str:
    """Write the text of a prompt, by the chat template or as lines of questions and answers."""
    turns = [(shot.question, shot.answer) for shot in shots]
    if style == "text":
        before = "".join(f"{wording.question}{q}\n{wording.answer} {a}\n\n" for q, a in turns)
        return f"{before}{wording.question}{question}\n{wording.answer}"
    # Without a system turn, which not every template has.
    texts = [*(text for turn in turns for text in turn), question]
    texts[0] = wording.instruction + texts[0]
    chat = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return model.tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True, **_NO_THINKING
    )


def _as_written(
    model: Model, parts: list[PromptPart], shots: Sequence[Shot], wording: Wording
) -> list[PromptPart]:
    """Split a prompt as the chat template writes it; a UserError where it changes the question."""
    question = parts[-2].text
    written = _written(model, question, shots, "chat", wording)
    if "".join(part.text for part in parts) == written:
        return parts
    if written.count(question) == 1:  # a template that writes other text around some questions
        before, _, after = written.partition(question)
        return [PromptPart(before, True), PromptPart(question, False), PromptPart(after, True)]
    raise UserError(
        f"The chat template of {model.name} changes the question {short(question)}, so its tokens "
        "cannot be found. Use the prompt style `text`."
    )


def _pieces_around(
    model: Model, shots: Sequence[Shot], style: str, wording: Wording
) -> list[PromptPart]:
    """Split a prompt into the pieces before and after a question, found with random marks."""
    texts = [text for shot in shots for text in (shot.question, shot.answer)]
    marks = [f"x{secrets.token_hex(8)}x" for _ in (*texts, "the question")]
    turns = [Shot(question=q, answer=a) for q, a in zip(marks[:-1:2], marks[1::2], strict=True)]
    rest, pieces = _written(model, marks[-1], turns, style, wording), []
    for mark, text in zip(marks, [*texts, None], strict=True):
        own, found, rest = rest.partition(mark)
        if not found or mark in rest:
            raise UserError(
                f"The chat template of {model.name} does not write each turn once, so the question "
                "cannot be found in it. Use the prompt style `text`."
            )
        pieces.append(PromptPart(own, True))
        pieces += [] if text is None else [PromptPart(text, False)]
    return [*pieces, PromptPart(rest, True)]


def window_of(model: Model) -> int | None:
    """The model's context window in tokens; None where its config does not give it."""
    config = getattr(getattr(model, "lm", None), "config", None)
    return getattr(config and config.get_text_config(), "max_position_embeddings", None)


def too_long(model: Model, question: str, prompt: int, answer: int) -> str:
    """The reason if prompt and answer exceed the model's context window; empty if they fit."""
    window = window_of(model)
    if window is None or prompt + answer <= window:
        return ""
    return (
        f"the question {short(question)} needs a prompt of {prompt} tokens and an answer of "
        f"{answer} tokens; {model.name} reads {window} in all"
    )


def has_chat(model: Model) -> bool:
    """Whether the tokenizer has a chat template."""
    return bool(getattr(model.tokenizer, "chat_template", None))


def first_tokens(model: Model) -> tuple[bool, str]:
    """Check that prompts begin with BOS as the model's files say; also return what was found."""
    tokenizer = model.tokenizer
    file = Path(str(getattr(tokenizer, "name_or_path", ""))) / "tokenizer_config.json"
    files = getattr(tokenizer, "init_kwargs", {})
    if file.is_file():
        files = json.loads(file.read_text(encoding="utf-8"))
    named, bos = files.get("add_bos_token"), tokenizer.bos_token_id
    if named is None or bos is None:
        return True, "its files name none"
    for style in ("text", "chat") if has_chat(model) else ("text",):
        ids = make_prompt(model, "Who wrote Hamlet?", shots=(), style=style).ids
        count = next((n for n, token in enumerate(ids) if token != bos), len(ids))
        # A chat template may leave BOS out on purpose; it must not write it twice.
        if (style == "text" and count != int(named)) or count > 1:
            return False, f"{count} × {tokenizer.bos_token!r} in front of a {style} prompt"
    return True, repr(tokenizer.bos_token) if named else f"no {tokenizer.bos_token!r}"


def stop_ids(model: Model, *, lines: bool = True) -> list[int]:
    """Ids of the tokens that end an answer: end of text, end of turn, and the end of `lines`."""
    tokenizer = model.tokenizer
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    ends_line = {i for token, i in vocabulary.items() if "Ċ" in token or "\n" in token}
    ends_line |= {i for token, i in vocabulary.items() if token == "<0x0A>"}
    ends = getattr(model.lm.generation_config, "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    named = (tokenizer.eos_token_id, *(vocabulary.get(name) for name in _TURN_ENDS))
    return sorted((ends_line if lines else set()) | {i for i in (*ends, *named) if i is not None})


# --- Tokenise untrusted text without its special tokens ---


Offsets = tuple[tuple[int, int], ...]


class PromptPart(NamedTuple):
    """A part of a prompt; the names of special tokens become tokens only where it is `ours`."""

    text: str
    ours: bool


class TokenisedPrompt(NamedTuple):
    """A prompt as tokens, and the characters [start, stop) that each of them covers."""

    ids: tuple[int, ...]
    offsets: Offsets


def tokenise(
    tokenizer: Any, prompts: Sequence[Sequence[PromptPart]], *, special: bool
) -> list[TokenisedPrompt]:
    """Tokenise prompts; `special` adds the tokens that the tokenizer puts around a text.

    All are tokenised together; one with an injected special token is tokenised again by itself.
    """
    texts = ["".join([piece.text for piece in pieces]) for pieces in prompts]
    only = dict.fromkeys(("return_attention_mask", "return_token_type_ids", "verbose"), False)
    coded = tokenizer(texts, add_special_tokens=special, return_offsets_mapping=True, **only)
    both = zip(coded["input_ids"], coded["offset_mapping"], strict=True)
    plain = [TokenisedPrompt(tuple(ids), tuple(map(tuple, offsets))) for ids, offsets in both]
    guarded = guarded_tokens(tokenizer)
    return [
        _secret_coder(tokenizer)(pieces, special)
        if _writes_guarded_token(pieces, one, guarded)
        else one
        for pieces, one in zip(prompts, plain, strict=True)
    ]


def guarded_tokens(tokenizer: Any) -> dict[int, str]:
    """Tokens that a question must not produce: special ones, and those of the chat template."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    return {
        int(id): token.content
        for id, token in tokenizer.added_tokens_decoder.items()
        if token.content.strip() and (token.special or token.content in template)
    }


def _writes_guarded_token(
    pieces: Sequence[PromptPart], coded: TokenisedPrompt, guarded: dict[int, str]
) -> bool:
    """Whether an untrusted piece of a prompt gave a guarded token."""
    if guarded.keys().isdisjoint(coded.ids):
        return False
    spans = [span for id, span in zip(*coded, strict=True) if id in guarded and span[0] < span[1]]
    ends = [0, *accumulate(len(piece.text) for piece in pieces)]
    others = [
        (start, stop)
        for start, stop, piece in zip(ends[:-1], ends[1:], pieces, strict=True)
        if not piece.ours and start < stop
    ]
    return any(a < stop and start < b for a, b in spans for start, stop in others)


@lru_cache(maxsize=4)
def _secret_coder(tokenizer: Any) -> Callable[[Sequence[PromptPart], bool], TokenisedPrompt]:
    """Make a function that tokenises with secret names for the special tokens."""
    guarded = guarded_tokens(tokenizer)
    # Random private-use letters, different in each process, so that no text can contain them; as
    # many as the name has, so that offsets stay.
    names = {
        content: "".join(chr(0xF0000 + secrets.randbelow(0xFFFE)) for _ in content)
        for content in guarded.values()
    }
    about = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in about["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    coder = Tokenizer.from_str(json.dumps(about))
    coder.no_truncation()
    coder.no_padding()
    ids = {coder.token_to_id(names[content]): id for id, content in guarded.items()}
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = re.compile("|".join(longest_first))

    def tokenise_one(pieces: Sequence[PromptPart], special: bool) -> TokenisedPrompt:
        texts = [
            pattern.sub(lambda match: names[match[0]], piece.text) if piece.ours else piece.text
            for piece in pieces
        ]
        coded = coder.encode("".join(texts), add_special_tokens=special)
        return TokenisedPrompt(tuple(ids.get(id, id) for id in coded.ids), tuple(coded.offsets))

    return tokenise_one
