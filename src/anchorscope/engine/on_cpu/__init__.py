"""What a model's products are made with on a CPU, while it is lent: the same numbers to
rounding, sooner.

Gates go without new memory for every step (`gates.py`). On some processors another library
multiplies (`products.py`), weights lie as they are multiplied (`packed.py`), or query heads that
share their keys attend together (`groups.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anchorscope.engine.on_cpu.gates import Wanted, gates_in_place
from anchorscope.engine.on_cpu.packed import weights_packed
from anchorscope.engine.on_cpu.products import wins_without_onednn, without_onednn
from anchorscope.models import Model


@contextmanager
def sooner(model: Model, wanted: Wanted = lambda: None) -> Iterator[None]:
    """A model that lies on a CPU, with what makes it faster there; all is put back as it was."""
    with gates_in_place(model.lm, wanted), weights_packed(model):
        if not wins_without_onednn(model.dtype):
            yield
            return
        with without_onednn():
            yield


__all__ = ["sooner"]
