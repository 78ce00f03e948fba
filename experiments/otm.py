"""Acceptance probability of k proposals (SpecTr, Sun et al. 2023, Figures 1, 2, 3 and 5).

Computed by the functions of the verifiers and compared with the closed forms of Appendix B.2 and the bound of Theorem
1. ``p`` is the target and ``q`` the draft; the paper swaps the two letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.options import File
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.options import LoadingOptions, PairOptions
from specpilot.infer.prompting import encode_prompt
from specpilot.infer.verify.k_seq import acceptance, division_factor
from specpilot.infer.verify.otm import optimal_transport
from specpilot.models import TextReader
from torch import Tensor

from .figure import canvases, label, save
from .spectr_bound import upper_bound

SIZE = 120  # Figure 1: q is uniform over this many tokens
SHARES = (1, 2, 4, 8, 24)  # Figure 1: p is uniform over this fraction (1/n) of them
COIN = 0.25  # Figures 2 and 3: q is Bernoulli with this probability
COINS = (0.05, 0.25, 0.5, 0.75, 1.0)  # Figure 2: p is Bernoulli with one of these
DRAWS = (1, 2, 3, 4, 6, 8)
SUPPORT = 10  # Figure 5: number of most probable tokens taken from each model


@dataclass(frozen=True, kw_only=True)
class OtmBenchOptions(PairOptions, LoadingOptions):
    """Benchmark.

    Options of ``python -m experiments otm``.

    Attributes:
        prompt: Text after which the two models' next-token distributions are compared (Figure 5).
        output: File for the plot.
    """

    prompt: str = "He said he also has asked prosecutors to"
    output: File = Path("runs/otm.png")


def k_seq_acceptance(p: Tensor, q: Tensor, k: int) -> float:
    """Return the acceptance probability of K-SEQ at its best division factor."""
    return acceptance(p, q, k, division_factor(p, q, k))[1]


def coin(heads: float) -> Tensor:
    return torch.tensor([1 - heads, heads], dtype=torch.float64)


def coin_optimum(p: float, q: float, k: int) -> float:
    """Return the optimal acceptance probability α_k of two Bernoulli distributions (Appendix B.2)."""
    return min(p, 1 - (1 - q) ** k) + min(1 - p, 1 - q**k)


def uniforms() -> list[dict[str, Any]]:
    """Return the rows of Figure 1."""
    rows = []
    q = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64)
    for share in SHARES:
        p = torch.zeros(SIZE, dtype=torch.float64)
        p[: SIZE // share] = share / SIZE
        for k in DRAWS:
            rows.append(
                {"share": share, "k": k, "k_seq": k_seq_acceptance(p, q, k), "closed_form": 1 - (1 - 1 / share) ** k}
            )
    return rows


def coins() -> list[dict[str, Any]]:
    """Return the rows of Figures 2 and 3."""
    q = coin(COIN)
    return [
        {
            "p": heads,
            "k": k,
            "otm": optimal_transport(coin(heads), q, k).acceptance,
            "k_seq": k_seq_acceptance(coin(heads), q, k),
            "bound": upper_bound(coin(heads), q, k),
            "closed_form": coin_optimum(heads, COIN, k),
        }
        for heads in sorted({*COINS, *(round(0.1 * i, 1) for i in range(11))})
        for k in DRAWS
    ]


def compressed(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``p`` and ``q`` (V,) restricted to the union of their ``SUPPORT`` most probable tokens (Appendix D.2)."""
    likely = [*p.topk(min(SUPPORT, len(p))).indices.tolist(), *q.topk(min(SUPPORT, len(q))).indices.tolist()]
    tokens = sorted(set(likely))
    return p[tokens] / p[tokens].sum(), q[tokens] / q[tokens].sum()


def acceptance_of_pair(p: Tensor, q: Tensor, most: int = 4) -> list[dict[str, Any]]:
    """Return the rows of Figure 5: the acceptance probabilities of OTM and K-SEQ by number of proposals.

    Args:
        p, q: (V,) next-token distributions of target and draft after one prompt.
        most: the largest number of proposals.
    """
    p, q = compressed(p.double(), q.double())
    return [
        {"k": k, "otm": optimal_transport(p, q, k).acceptance, "k_seq": k_seq_acceptance(p, q, k)}
        for k in range(1, most + 1)
    ]


def bench_otm(decoder: SpeculativeDecoder, prompt: str) -> dict[str, Any]:
    """Return the numbers of the four figures; those of Figure 5 are for the pair of ``decoder`` after ``prompt``."""
    ids = encode_prompt(decoder.tokenizer, prompt)
    models = (decoder.target, *decoder.drafts)
    size = min(model.vocab_size for model in models)
    distributions = []
    for model in models:
        reader, text = TextReader.begin(model, ids)
        with torch.inference_mode():
            logits, _ = reader.read(text, keep=1)
        distributions.append(logits[-1, :size].cpu().double().softmax(-1))
    p, q = distributions
    return {"uniforms": uniforms(), "coins": coins(), "models": acceptance_of_pair(p, q)}


def plot_otm(result: dict[str, Any], path: Path) -> None:
    """Plot the four figures; lines are closed forms or the optimum, marks are the acceptance of the rules."""
    figure, (figure1, figure2, figure3, figure5) = canvases(11, 8, 2, 2)
    _curves(figure1, result["uniforms"], "share", "k", {"k_seq": "o"}, "p uniform on 1/{}")
    figure1.set_title(f"Figure 1: q = U({SIZE}); circles K-SEQ")
    coin_rows = [row for row in result["coins"] if row["p"] in COINS]
    _curves(figure2, coin_rows, "p", "k", {"otm": "x", "k_seq": "o", "bound": "_"}, "p = Ber({})")
    figure2.set_title(f"Figure 2: q = Ber({COIN}); × OTM, ○ K-SEQ, – bound")
    _curves(figure3, result["coins"], "k", "p", {"otm": "x"}, "k = {}")
    figure3.set_title(f"Figure 3: q = Ber({COIN}); × OTM")
    figure5.plot([r["k"] for r in result["models"]], [r["otm"] for r in result["models"]], "x-", label="OTM-k")
    figure5.plot([r["k"] for r in result["models"]], [r["k_seq"] for r in result["models"]], "o-", label="K-SEQ")
    figure5.set_title(f"Figure 5: {result['pair']}, top {SUPPORT} of each")
    for axes, x in ((figure1, "k"), (figure2, "k"), (figure3, "p"), (figure5, "k")):
        label(axes, x, "acceptance probability", legend=8)
    save(figure, path)


def _curves(axes: Any, rows: list[dict[str, Any]], by: str, x: str, marks: dict[str, str], title: str) -> None:
    for number, value in enumerate(sorted({row[by] for row in rows})):
        part = sorted((row for row in rows if row[by] == value), key=lambda row: row[x])
        color = f"C{number}"
        axes.plot([r[x] for r in part], [r["closed_form"] for r in part], color=color, label=title.format(value), lw=1)
        for key, mark in marks.items():
            axes.plot([r[x] for r in part], [r[key] for r in part], mark, color=color, fillstyle="none")


def main(options: OtmBenchOptions) -> None:
    """Compute acceptance of one of k proposals: optimal transport, K-SEQ, closed forms (SpecTr, Figures 1 to 3, 5)."""
    canvases(1, 1)  # refuses where matplotlib is missing
    begin()
    decoder = SpeculativeDecoder.from_pretrained(
        options.target, options.draft, length=4,
        dtype=options.dtype, device=options.device, trust_remote_code=options.trust_remote_code,
    )  # fmt: skip
    result = bench_otm(decoder, options.prompt) | {"pair": f"{options.target} + {options.draft}"}
    plot_otm(result, options.output)
    finish(result | {"prompt": options.prompt, "picture": str(options.output)}, options)
