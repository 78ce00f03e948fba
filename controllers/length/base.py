"""The interface of length controllers, which decide after each drafted token whether to draft another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Self

from torch import Tensor

from ..acceptance.step import Step
from ..sampling import SamplingParams
from .cost_model import BatchCosts, CostModel


class LengthController(ABC):
    """Decides how many tokens a round drafts. EOS, the token budget and ``MAX_DRAFT`` stop any controller.

    The current token is verified even if the controller stops, since its draft forward is already done. Each text has a
    controller of its own, which ``for_text`` makes.

    Attributes:
        reads_target: whether it is given the target's states, by ``read_target``.
    """

    reads_target = False

    @property
    def planned(self) -> int | None:
        """How many tokens the round drafts, where this depends on none of them; None otherwise.

        On an accelerator nothing then waits for them, and ``observe`` is not called.
        """
        return None

    def repriced(
        self, cost: CostModel | None = None, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> LengthController:
        """The same controller with other costs; itself where it does not go by costs.

        Args:
            cost: None keeps its own.
            adapt, batch: as for :class:`.RateOptimal`.
        """
        return self

    def for_text(self) -> Self:
        """A controller for one text, which begins with ``start_text``; called once for each request.

        Here it is a shallow copy: objects in attributes are shared by all texts, such as a list that is changed in
        place or a fit, unless ``start_text`` makes new ones. A subclass overrides this to share less, or nothing.
        """
        return copy(self)

    def check_sampling(self, sampling: SamplingParams) -> None:  # noqa: B027 — rules fit any sampling
        """Called with the sampling parameters of every generation; trained controllers warn if theirs differ."""

    def check_verifier(self, verifier: str) -> None:  # noqa: B027 — most rules fit any verification
        """Called with the verification rule of every generation at a temperature above 0.

        Controllers with a threshold on predictions for another rule warn. Those that stop by costs do not: they correct
        their predictions by what is accepted.
        """

    def start_text(self) -> None:  # noqa: B027 — most rules remember nothing between rounds
        """Called before the first round of a generation, to reset per-text state."""

    def shared_by(self, rows: int) -> None:  # noqa: B027 — most rules do not ask
        """Called before every round with the number of requests that share its forwards, this one included."""

    def read_target(self, state: Tensor) -> None:  # noqa: B027 — most rules read none
        """Called before every round with the target's last hidden state (d,) that the text's newest token came from."""

    def start_round(self) -> bool:
        """Reset for a new round; return False to draft nothing (one autoregressive step)."""
        return True

    def state_values(self, hidden: Tensor) -> Tensor | None:
        """What its predictor computes of draft states, see :meth:`.AcceptancePredictor.state_values`."""
        return None

    @abstractmethod
    def observe(self, step: Step) -> bool:
        """Whether to draft another token after this one."""

    def end_round(self, drafted: int, accepted: int) -> None:  # noqa: B027 — most rules do not ask
        """Called after a round with tokens that this controller steered.

        The first ``accepted`` of its ``drafted`` tokens were accepted.
        """

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:  # noqa: B027 — most rules do not ask
        """Called after a round with its wall time, and the draft's tokens and forwards.

        For a batch it is called for one row, with the largest numbers.
        """

    def untimed(self) -> None:  # noqa: B027 — most rules do not ask
        """Called instead of ``timed`` after a round that no cost model covers: it read a prompt or copied tokens."""
