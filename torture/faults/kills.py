"""Kills: at random moments spread over the whole of a command, and at every call of the disk."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from torture.faults.place import Place
from torture.faults.points import killed_at
from torture.faults.tally import Count

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
_IN_A_ROW = 3  # kills of one folder before it may finish


def at_moments(place: Place, count: Count, job: str, *, kills: int, draw: random.Random) -> None:
    """Kills a job at random moments, several times in a row, then lets it finish.

    The moments are drawn from as many equal parts of the time an undisturbed command takes.
    """
    place.whole(job)
    parts = [(n + draw.random()) / kills * place.seconds[job] for n in range(kills)]
    draw.shuffle(parts)
    while parts:
        count.go_on()
        out, trial = place.new(), []
        for _ in range(min(_IN_A_ROW, len(parts))):
            moment, number = parts.pop(), draw.choice(SIGNALS)
            trial.append(f"{number.name} after {moment:.2f} s")
            wrong = _killed(place, job, out, moment, number)
            if wrong or not parts:
                break
        _finish(place, count, job, out, ", ".join(trial), times=len(trial), wrong=wrong)


def _killed(place: Place, job: str, out: Path, moment: float, number: int) -> str:
    """What was not as it should be when a command was killed."""
    command = place.begin(job, out)
    ended = command.wait(moment)
    if ended is None:
        command.kill(number)
        ended = command.end()
    # Ctrl-C has an exit code and a sentence of its own; a command may also have been done by then.
    right = ended.code in (0, -number) or (number == signal.SIGINT and ended.code == 130)
    return "" if right else f"it ended with {ended.code} and said: {ended.said[-600:]}"


def at_calls(place: Place, count: Count, job: str, *, kills: int, draw: random.Random) -> None:
    """Kills a job before or after calls of the file system, evenly over all that it makes."""
    place.whole(job)
    calls = place.calls[job]
    numbers = sorted({1 + int((n + 0.5) / kills * calls) for n in range(kills)})
    for number in numbers:
        count.go_on()
        late = draw.random() < 0.5
        out, said = place.new(), f"killed {'after' if late else 'before'} call {number} of {calls}"
        ended = place.run(job, out, hooks=(killed_at(number, after=late),))
        wrong = "" if ended.code in (0, -signal.SIGKILL) else f"it ended with {ended.code}"
        _finish(place, count, job, out, said, times=1, wrong=wrong)


def _finish(
    place: Place, count: Count, job: str, out: Path, trial: str, *, times: int, wrong: str
) -> None:
    """The same command again, undisturbed: it must end well, with the same files."""
    ended = place.run(job, out)
    lost = place.different(job, out) if ended.code == 0 else ["everything"]
    if ended.code != 0 or ended.traceback:
        wrong = wrong or f"continued, it ended with {ended.code}: {ended.said[-600:]}"
    elif lost:
        wrong = wrong or f"continued, these differ: {', '.join(lost[:5])}"
    for _ in range(times):  # a chain of kills fails as one, and counts as many
        count.add(f"{job} {trial}", wrong=wrong, lost=bool(lost))
