"""The configuration of the copy head."""

from __future__ import annotations

from dataclasses import dataclass

from ..acceptance.copy_head import CopyHead
from .config import WIDEST, ControllerConfig, check_range


@dataclass(frozen=True, kw_only=True)
class CopyHeadConfig(ControllerConfig):
    """A copy head.

    Attributes:
        hidden_size: size d of the target's output embedding.
        width: hidden units of the head.
        tokens: copied tokens it was trained on.
    """

    kind = "copy-head"
    given_as = "copies"
    title = "Copy head"
    summary = (
        "Predicts the probability that the target model accepts a token copied from the text, as prompt lookup drafts "
        "it. Its inputs are the match that the token was copied after, how often the text has gone on like its matches "
        "so far, and the embeddings of the token and of the one before it. It needs no draft model."
    )

    hidden_size: int
    width: int
    tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("hidden_size", self.hidden_size, 1, WIDEST)
        check_range("width", self.width, 1, WIDEST)

    def module(self) -> CopyHead:
        return CopyHead(self.hidden_size, self.width)

    def usage(self) -> str:
        return f'target="{self.provenance.target}", draft="ngram", copies="path/to/this/folder", cost="auto"'

    def rows(self) -> dict[str, str]:
        return {
            "hidden units": f"{self.width}",
            "trained on": f"{self.tokens:,} copied tokens",
        }
