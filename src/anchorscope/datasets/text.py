"""Normalise text for comparing questions, and hash it the same way on every machine."""

from __future__ import annotations

import hashlib
import re
import unicodedata


def one_line(text: str) -> str:
    """Replace every run of white space by one blank."""
    return " ".join(text.split())


def normalised(text: str) -> str:
    """Normalise a text: no case, no outer punctuation, single blanks.

    Inner punctuation stays: "What is C++?" and "What is C#?" are two questions.
    """
    folded = one_line(unicodedata.normalize("NFKC", text).casefold())
    return folded.strip(" ?!.\"'") or folded


def words(text: str) -> str:
    """The text's words without accents and case, with a blank on either side."""
    bare = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(char for char in bare if not unicodedata.combining(char))
    found = re.findall(r"[^\W_]+", letters)
    return f" {' '.join(found)} "


def digest(*parts: object) -> str:
    """Hash the parts to hexadecimal digits, the same in every process and on every machine."""
    joined = "\x1f".join(str(part) for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
