"""A decoder configuration by name, as tables list them and as its results are filed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...controllers.length import parse_rule
from ...infer.decoder import SpeculativeDecoder
from ...infer.drafters import Beams, parse_expansions
from ...infer.verify import LOSSY


@dataclass(frozen=True)
class DecoderSpec:
    """What ``SpeculativeDecoder`` is made with; ``length`` a rule such as "4" or "fallback:0.6", ``tree`` "4x1x1"."""

    verifier: str = "token-wise"
    length: str | None = None
    tree: str | None = None
    beams: int | None = None
    argmax: bool = False
    drafts: bool = True

    @property
    def lossy(self) -> bool:
        """Whether its text has another law than the target's."""
        return self.verifier.partition(":")[0] in LOSSY

    def decoder(self, pair: SpeculativeDecoder) -> SpeculativeDecoder:
        """On the models of ``pair`` and their packed weights: dozens of copies would not fit into memory."""
        return SpeculativeDecoder(
            pair.target,
            pair.drafts[0] if self.drafts else None,
            pair.tokenizer,
            length=None if self.length is None else parse_rule(self.length),
            verifier=self.verifier,
            beams=None if self.beams is None else Beams(self.beams, self.argmax),
            tree=None if self.tree is None else parse_expansions(self.tree),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


AUTOREGRESSIVE = DecoderSpec(drafts=False)
