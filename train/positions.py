"""A dataset's positions as a controller finds them when decoding: each drafted token y_i after the target's own x_<i.

A token only counts if all before it were accepted, and accepted tokens follow the target's distribution. So the context
of interest is the target's text, at every position; no mixing. All y_i of a rollout are read in one forward, each after
its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from ..controllers.acceptance.feature_model import features
from ..controllers.acceptance.ngram_index import nothing
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..controllers.errors import InputError
from ..controllers.length import Step
from ..controllers.sampling import SamplingParams
from ..data_gen.draft_states import at_drafted_tokens
from ..data_gen.split import is_validation
from ..data_gen.texts import Text, read_texts
from ..infer.distribution import TokenDistribution
from ..infer.loading import load_causal_lm
from ..infer.models import CausalLM


@dataclass(frozen=True)
class Positions:
    """N positions of rollouts.

    Attributes:
        hidden: (N, d) the draft's last hidden state at y_i.
        features: (N, 3) log q(y_i), log(1 - max q) and the entropy of q, as a feature controller takes them.
        p: (N,) the probability that the target accepts y_i.
        place: (N,) how many tokens of the rollout come before.
    """

    hidden: Tensor
    features: NDArray[np.float64]
    p: NDArray[np.float64]
    place: NDArray[np.int64]


def split(rows: Sequence[Text], test: float, total: float = 1.0) -> tuple[list[Text], list[Text]]:
    """Rows to fit to and rows to evaluate on: a share ``test`` of all prompts, out of a share ``total`` that is taken.

    Both are shares from the end that training holds out for validation: at most its fraction, nothing was trained on.

    Raises:
        InputError: one of the two would be empty.
    """
    taken = [row for row in rows if is_validation(row.prompt_id, total)]
    tested = [row for row in taken if is_validation(row.prompt_id, test)]
    fitted = [row for row in taken if not is_validation(row.prompt_id, test)]
    if not fitted or not tested:
        raise InputError(
            f"data: {len(fitted)} rollouts to fit to and {len(tested)} held out; each needs at least one: use more data"
        )
    return fitted, tested


def load_rows(*folders: str) -> list[Text]:
    """The rollouts of acceptance datasets that hold at least one token, checked."""
    return [text for folder in folders for text in read_texts(folder, "acceptance") if text.x]


def load_draft(name: str | None, manifest: dict[str, Any], *, device: str) -> CausalLM:
    """The draft a dataset was made with; ``name`` is where it is now, by default where it was.

    Raises:
        InputError: it is another model.
    """
    draft = load_causal_lm(name or manifest["draft"], device=device)
    if model_fingerprint(draft) != manifest["fingerprint"]["draft"]:
        raise InputError(f"draft={name!r}: is not the one the data was made with ({manifest['draft']}); give that one")
    return CausalLM(draft)


@torch.inference_mode()
def read_positions(
    draft: CausalLM, rows: Sequence[Text], sampling: SamplingParams, vocab_size: int | None = None
) -> Positions:
    """Every position of ``rows``, in order; without those whose y the draft here could not have drawn, by rounding.

    Args:
        vocab_size: V of the target, where the draft's rows are longer: the manifest's ``vocab_size``.
    """
    hidden: list[Tensor] = []
    signals: list[tuple[float, float, float]] = []
    p: list[float] = []
    place: list[int] = []
    for row in track(rows, "positions", transient=True):
        logits, states = at_drafted_tokens(draft, row)
        for i, (token, probability) in enumerate(zip(row.tokens, row.accept, strict=True)):
            q = TokenDistribution.from_logits(sampling, logits[i : i + 1], vocab_size)
            (drawn,) = q.of([token])
            if drawn == 0:
                continue
            step = Step(1, token, drawn, q.probabilities, logits[i], states[i : i + 1], nothing)  # what serving goes by
            signals.append(features(step.confidence(), step.top_probability(), step.entropy()))
            hidden.append(states[i])
            p.append(probability)
            place.append(i)
    return Positions(torch.stack(hidden).float().cpu(), np.array(signals), np.array(p), np.array(place))
