"""What one process or several that share a model give for the same samples; started by torchrun.

torchrun --nproc-per-node 2 shared_model.py MODEL OUT [out of memory in the second process]
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging

from anchorscope import ranks
from anchorscope.engine.attention_mass import with_mass
from anchorscope.engine.batches import Budget
from anchorscope.engine.check import check_model
from anchorscope.engine.decode import write_answers
from anchorscope.engine.interventions import Intervention
from anchorscope.engine.lease import Lease
from anchorscope.engine.trunk import grow_trunk, read_prefix
from anchorscope.models import Model, load_model
from anchorscope.run_folder.identity import weights_hash
from kit.engine_samples import PREFIX, SAMPLES, engine_states

CUTS = {
    "clean": {"heads": ()},
    "knockout": {},
    "post": {"where": "post"},
    "window": {"layers": "window:2"},
    "heads": {"heads": ((1, 2), (2, 0), (3, 0), (3, 3), (4, 1))},
}


def results(model: Model) -> dict[str, np.ndarray]:
    """States by intervention, answers with their states, attention mass, and the fingerprint."""
    out = {
        name: engine_states(model, SAMPLES, Intervention(name=name, **options)).numpy()
        for name, options in CUTS.items()
    }
    prompts = [s.ids[: s.answer_at] for s in SAMPLES]
    with Lease(model) as lease:
        known = read_prefix(lease, PREFIX)
        stop = torch.tensor([-1])
        written = write_answers(lease, known, prompts, stop_ids=stop, limit=4)
        trunk = grow_trunk(lease, known, prompts, room=0, head=False).trunk
        marks = with_mass(lease, trunk, SAMPLES, budget=Budget(64))
    out["answers"] = np.array([line.token_ids for line in written.lines])
    out["log_probs"] = np.array([line.log_probs for line in written.lines])
    out["answer_states"] = written.states.numpy()
    out["mass"] = np.concatenate([np.array(m.mass) for m in marks if m is not None and m.mass])
    out["weights"] = np.array(weights_hash(model.lm))
    out["failed"] = np.array([check.seen for check in check_model(model) if not check.ok])
    return out


class OutOfMemory:
    """Runs out of memory in the third block of the second process, above so many tokens.

    Prefix and trunk, the first two passes, come before any batch and are spared.
    """

    def __init__(self, most: int) -> None:
        self.most, self.passes, self.times = most, 0, 0

    def __call__(self, module, args) -> None:
        self.passes += 1
        if ranks.number() == 1 and self.passes > 2 and args[0].shape[1] > self.most:
            self.times += 1
            raise torch.OutOfMemoryError("made up")


def main(place: str, out: str, most: str = "") -> None:
    logging.set_verbosity_error()
    model = load_model(place, device=ranks.TENSOR_PARALLEL, dtype="float32")
    with ExitStack() as stack:
        if most:
            scarce = OutOfMemory(int(most))
            third = model.parts.blocks[2]
            stack.callback(third.register_forward_pre_hook(scarce).remove)
            states = engine_states(model, SAMPLES, Intervention(name="k"), budget=200).numpy()
            found = {"knockout": states, "times": np.array(scarce.times)}
        else:
            found = results(model)
    np.savez(Path(out) / f"{ranks.number()}.npz", **found)
    ranks.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
