"""An inspected question as HTML: what was said, its tokens by role, and its belief by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import resources

from anchorscope.inspection.lines import bands_of, lines_of
from anchorscope.inspection.record import Inspected, Token
from anchorscope.notebook.belief_chart import belief_chart, key
from anchorscope.notebook.visible import codes, escape, visible

_VERDICTS = {"right": "right", "wrong": "wrong", "abstain": "no answer"}


def notebook_html(of: Inspected) -> str:
    """The panel with its own style: a notebook has none."""
    dark = f"@media (prefers-color-scheme: dark) {{ .anchorscope {{ {own('dark.css')} }} }}"
    return f"<div><style>{own('panel.css')}{dark}</style>{panel(of)}</div>"


def panel(of: Inspected, *, live: bool = False) -> str:
    """The whole of one question; where it is live, each prompt token is a button."""
    parts = [
        f'<p class="asked">{visible(of.question)}</p>',
        _answer(of),
        _wrong(of),
        _pathway(of),
        tokens_html(of.tokens, of.cut, live=live),
        _roles(live),
    ]
    if of.beliefs:
        parts += [_chart(of), _note(of)]
    return f'<article class="anchorscope panel">{"".join(parts)}</article>'


def streamed(question: str, tokens: Sequence[str], growth: Sequence[float]) -> str:
    """The panel while the answer is being written."""
    return (
        f'<article class="anchorscope panel"><p class="asked">{visible(question)}</p>'
        f'<p class="said">answering … </p>{grown(tokens, growth)}</article>'
    )


def message(text: str) -> str:
    """A friendly line."""
    return f'<p class="anchorscope box" role="status">{visible(text)}</p>'


def grown(tokens: Sequence[str], growth: Sequence[float]) -> str:
    """The answer's tokens, each with P(wrong) as if the answer ended there."""
    cells = "".join(
        f'<span class="grown"><span class="token answer">{codes(text)}</span>'
        f'<small style="--p:{value:.2f}">{value:.0%}</small></span>'
        for text, value in zip(tokens, growth, strict=False)
    )
    return f'<p class="growth" dir="ltr" aria-label="P(wrong) after each token">{cells}</p>'


def _answer(of: Inspected) -> str:
    pill = ""
    if of.verdict:
        pill = f' <span class="verdict {of.verdict}">{_VERDICTS[of.verdict]}</span>'
    texts = [token.text for token in of.tokens if token.answer]
    said = visible(of.answer) if of.answer else "(nothing)"
    return f'<p class="said">answered <b>{said}</b>{pill}</p>{grown(texts, of.growth)}'


def _wrong(of: Inspected) -> str:
    if of.wrong is None:
        return '<p class="box">The answer holds no entity that a probe could read.</p>'
    p = of.wrong.probability
    number = "–" if math.isnan(p) else f"{p:.0%}"
    return (
        f'<div class="fact"><div class="big" style="--p:{0 if math.isnan(p) else p:.3f}">'
        f'<b>{number}</b><span class="meter"></span></div><div><b>P(wrong)</b> by '
        f'{escape(of.wrong.by)}. <span class="quiet">{escape(of.wrong.calibration)}</span>'
        "</div></div>"
    )


def _pathway(of: Inspected) -> str:
    said = of.pathway
    if said is None:
        return ""
    flips = "flips" if said.pathway == "Q" else "does not flip"
    words = (
        f"At layer {of.layer} the prediction {flips} when the struck-out tokens are cut, say "
        f"{round(said.share * said.probes)} of {said.probes} probes that never saw the question."
    )
    caution = []
    if of.mode == "strict":
        caution.append("The pathway comes from another probe than the one drawn below.")
    if not math.isnan(said.agreement):
        caution.append(f"Over the run two independent probes agree with κ = {said.agreement:.2f}.")
    if of.finding:
        caution.append(f"The run's finding on {of.title}: {of.finding} ({of.why}).")
    scored = of.wrong.scored if of.wrong else None
    if scored is not None and scored.pathway:
        chance = f"{scored.pathway_probability:.0%}"
        caution.append(f"From the clean state alone the detector says {scored.pathway} ({chance}).")
    return (
        f'<div class="fact"><div class="big"><b class="group {said.pathway}">{said.pathway}</b>'
        f'<span class="quiet">{said.certainty}</span></div><div><b>Pathway</b>. {escape(words)} '
        f'<span class="quiet">{escape(" ".join(caution))}</span></div></div>'
    )


def tokens_html(tokens: Sequence[Token], cut: Sequence[int], *, live: bool) -> str:
    """The tokens in a row: those of the prompt as buttons where they can be cut or kept."""
    gone = set(cut)
    cells = "".join(_token(token, token.position in gone, live=live) for token in tokens)
    return f'<p class="tokens" dir="ltr">{cells}</p>'


def _token(token: Token, gone: bool, *, live: bool) -> str:
    roles = [
        ("exact-question", "exact question", token.exact_question),
        ("question", "question", token.question and not token.exact_question),
        ("exact-answer", "exact answer", token.exact_answer),
        ("answer", "answer", token.answer and not token.exact_answer),
        ("cut", "cut", gone),
    ]
    names = " ".join(["token", *(name for name, _, has in roles if has)])
    about = ", ".join([f"token {token.position}", *(word for _, word, has in roles if has)])
    text, end = codes(token.text), "\n" if token.text.endswith("\n") else ""
    if not live or token.answer or token.position == 0:
        return f'<span class="{names}" title="{about}">{text}{end}</span>'
    return (
        f'<button type="button" class="{names}" data-token="{token.position}" '
        f'aria-pressed="{str(gone).lower()}" title="{about}: click to {"keep" if gone else "cut"}"'
        f">{text}</button>{end}"
    )


def _roles(live: bool) -> str:
    entries = (
        ("question", "question"),
        ("exact-question", "exact question"),
        ("question cut", "cut: no later token sees it"),
        ("answer", "answer"),
        ("exact-answer", "exact answer, read at its last token"),
    )
    marks = "".join(
        f'<span><span class="token {name}">Ab</span> {text}</span>' for name, text in entries
    )
    hint = "<span><b>Click a token to cut or keep it.</b></span>" if live else ""
    return f'<p class="roles quiet">{hint}{marks}</p>'


def _chart(of: Inspected) -> str:
    lines, bands = lines_of(of), bands_of(of)
    svg = belief_chart(lines, bands, layer=of.layer)
    marks = "".join(f"<span>{key(line)}{visible(line.label)}</span>" for line in lines)
    marks += "".join(
        f'<span><i class="swatch {band.name}" style="--c:{escape(band.color)}"></i>'
        f"{visible(band.label)}</span>"
        for band in bands
    )
    return f'<h4>P(wrong) by layer, {of.mode} mode</h4>{svg}<p class="key">{marks}</p>'


def _note(of: Inspected) -> str:
    at = {line.label: line.values[of.layer - 1] for line in lines_of(of)}
    numbers = ", ".join(f"{codes(label)} {value:.2f}" for label, value in at.items())
    return (
        f'<p class="quiet">At layer {of.layer} (dotted): {numbers}. Bands: the middle half of the '
        "run's Q and A answers with the same predicted class; none below 10 answers.</p>"
    )


def own(name: str) -> str:
    """A file of this folder's web part."""
    folder = resources.files("anchorscope.inspection").joinpath("web")
    return folder.joinpath(name).read_text(encoding="utf-8")
