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
    """Decides how many tokens a round drafts. A draft also ends at EOS, the token budget and ``MAX_DRAFT`` tokens.

    The current token is verified even if the controller stops, because its draft forward is already done. Each text has
    a controller of its own, which ``for_text`` returns.

    Attributes:
        reads_target: whether the engine calls ``read_target`` with the target's states.
    """

    reads_target = False

    @property
    def draft_exponent(self) -> float:
        """The power of the draft's probabilities under the rule ``invariant``; 1 without a trained predictor."""
        return 1.0

    @property
    def planned(self) -> int | None:
        """The number of tokens that the round drafts, if it does not depend on the tokens; otherwise None.

        With a planned length the host of an accelerator does not wait for the tokens, and ``observe`` is not called.
        """
        return None

    def with_costs(
        self, cost: CostModel | None = None, *, adapt: bool = False, batch: BatchCosts | None = None
    ) -> LengthController:
        """Return the same controller with other costs; ``self`` if the controller does not use costs.

        Args:
            cost: the cost model; None keeps the current one.
            adapt, batch: as for :class:`.RateOptimal`.
        """
        return self

    def for_text(self) -> Self:
        """Return a controller for one text; called once for each request, before ``start_text``.

        The default is a shallow copy. All texts share the objects in its attributes, such as a list that is changed in
        place, unless ``start_text`` creates new ones. A subclass overrides this method to share less.
        """
        return copy(self)

    def check_sampling(self, sampling: SamplingParams) -> None:  # noqa: B027 — rules fit any sampling
        """Check the sampling parameters of a generation; trained controllers warn if those of the training differ."""

    def check_verifier(self, verifier: str) -> None:  # noqa: B027 — most rules fit any verification
        """Check the verification rule of a generation; called at temperatures above 0.

        Controllers with a threshold warn if their predictions are for another rule. Controllers that stop by costs do
        not warn, because they correct their predictions by the accepted tokens.
        """

    def start_text(self) -> None:  # noqa: B027 — most rules remember nothing between rounds
        """Reset the state of a text; called before the first round of a generation."""

    def shared_by(self, rows: int) -> None:  # noqa: B027 — most rules do not use it
        """Receive, before every round, the number of requests that share its forwards, including this one."""

    def drafting_with(self, rows: int) -> None:  # noqa: B027 — most rules do not use it
        """Receive, before every forward of the draft model, the number of requests whose next token it gives."""

    def read_target(self, state: Tensor) -> None:  # noqa: B027 — most rules read no states
        """Receive, before every round, the target's last hidden state (d,) that the text's newest token came from."""

    def start_round(self) -> bool:
        """Reset the state of a round; return False to draft nothing (one autoregressive step)."""
        return True

    def state_values(self, hidden: Tensor) -> Tensor | None:
        """Return the numbers (N, m) that the controller's predictor needs of draft states ``hidden`` (N, d).

        None if there is no predictor, or it reads no states; see :meth:`.AcceptancePredictor.state_values`.
        """
        return None

    @abstractmethod
    def observe(self, step: Step) -> bool:
        """Return true to draft another token after the token of ``step``."""

    def end_round(self, drafted: int, accepted: int) -> None:  # noqa: B027 — most rules do not use it
        """Receive the result of a round whose length this controller decided.

        Args:
            drafted: number of drafted tokens.
            accepted: number of accepted tokens.
        """

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:  # noqa: B027 — most rules do not use it
        """Receive the wall time of a round; for a batch, the method is called for one row with the largest numbers.

        Args:
            tokens: number of drafted tokens.
            forwards: number of forwards of the draft model.
            seconds: wall time of the round.
        """

    def untimed(self) -> None:  # noqa: B027 — most rules do not use it
        """Receive the end of a round that no cost model covers, because it read a prompt or copied tokens."""
