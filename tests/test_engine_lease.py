"""A model is leased once at a time, and comes back as it was."""

from __future__ import annotations

import contextlib
import threading

import pytest

from anchorscope.engine.lease import Lease
from anchorscope.errors import UserError


def test_two_leases_of_one_thread_are_an_error(tiny_llama):
    with Lease(tiny_llama), pytest.raises(UserError, match="in use by another"):
        Lease(tiny_llama).__enter__()
    with Lease(tiny_llama):  # and it can be had again
        pass


def test_another_thread_waits_for_the_model(tiny_llama):
    order = []

    def borrow():
        with Lease(tiny_llama):
            order.append("second")

    with Lease(tiny_llama):
        other = threading.Thread(target=borrow)
        other.start()
        other.join(timeout=0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    assert tiny_llama.lm.config._attn_implementation != "anchorscope"


def test_each_part_comes_back_as_it_was(tiny_llama):
    """Training flags that differ, and a config of a part with an attention of its own."""
    lm = tiny_llama.lm.train()
    lm.model.layers[1].eval()
    lm.set_attn_implementation("eager")
    before = [module.training for module in lm.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in lm.modules()]
    with contextlib.suppress(ZeroDivisionError), Lease(tiny_llama):
        assert not any(module.training for module in lm.modules())
        raise ZeroDivisionError
    assert before == [module.training for module in lm.modules()]
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in lm.modules()]
    assert lm.config._attn_implementation == "eager"
