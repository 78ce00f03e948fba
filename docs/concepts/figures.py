"""Draws figures of the documentation: ``make figures`` writes the SVG files beside this script and in docs/results.

Every number in a figure of a concept page is computed here, from the formula on the page or with the function of
specpilot that implements it. Figures of results are drawn from the JSON files in docs/results. Each figure has a white
background of its own, so that its text is readable on light and dark pages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import accumulate, permutations
from operator import mul
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.rate import steady_rate
from specpilot.controllers.length.running_cost import RunningCost
from specpilot.infer.verify.block import joint_ratios, pass_probabilities
from specpilot.infer.verify.k_seq import acceptance, division_factor
from specpilot.infer.verify.otm import optimal_transport

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "results"
INK, GREY, PALE, FAINT = "#1b1f24", "#57606a", "#d0d7de", "#f6f8fa"
BLUE, ORANGE, GREEN, RED, PURPLE = "#0969da", "#bc4c00", "#1a7f37", "#cf222e", "#8250df"
LIGHT_BLUE, LIGHT_ORANGE, LIGHT_GREEN, LIGHT_RED = "#ddf4ff", "#fff1e5", "#dafbe1", "#ffebe9"

Point = tuple[float, float]


class Picture:
    """An SVG file under construction.

    Args:
        width, height: size of the picture in pixels.
        title: name of the picture for screen readers.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="15" fill="{INK}">',
            f"  <title>{escape(title)}</title>",
            '  <defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 L10 5 L0 10 z" fill="{GREY}"/></marker></defs>',
            f'  <rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        ]

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 15,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Add text at the point (``x``, ``y``), in pixels.

        Args:
            x, y: the point on the baseline of the text, at its ``anchor``.
            words: the text.
            size: font size in pixels.
            color: colour in SVG's notation.
            anchor: the part of the text at the point: ``"start"``, ``"middle"`` or ``"end"``.
            bold: whether the text is bold.
        """
        weight = ' font-weight="bold"' if bold else ""
        self.lines.append(
            f'  <text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>'
            f"{escape(words)}</text>"
        )

    def box(
        self, x: float, y: float, width: float, height: float, words: str = "", *, fill: str = FAINT, stroke: str = GREY
    ) -> None:
        """Add a rectangle with ``words`` in its middle, one line for each part between line breaks."""
        self.lines.append(
            f'  <rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )
        rows = words.split("\n") if words else []
        for row, part in enumerate(rows):
            middle = y + height / 2 + 5 + 18 * (row - (len(rows) - 1) / 2)
            self.text(x + width / 2, middle, part, size=14, anchor="middle")

    def line(
        self, points: Sequence[Point], *, color: str = GREY, width: float = 1.5, dashed: bool = False, tip: bool = False
    ) -> None:
        """Add a line through ``points``, with an arrow at its end if ``tip`` is true."""
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        extra = ' stroke-dasharray="5 4"' * dashed + ' marker-end="url(#tip)"' * tip
        self.lines.append(f'  <path d="M{path}" fill="none" stroke="{color}" stroke-width="{width}"{extra}/>')

    def dot(self, x: float, y: float, color: str, radius: float = 4) -> None:
        """Add a filled circle around the point (``x``, ``y``); all sizes are in pixels."""
        self.lines.append(f'  <circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>')

    def svg(self) -> str:
        """Return the text of the SVG file."""
        return "\n".join([*self.lines, "</svg>", ""])


class Axes:
    """A coordinate system in a picture.

    Args:
        picture: the picture.
        frame: left, top, width and height in pixels.
        x, y: the lowest and the highest value of each axis.
    """

    def __init__(self, picture: Picture, frame: tuple[float, float, float, float], x: Point, y: Point) -> None:
        self.picture, self.frame, self.x, self.y = picture, frame, x, y

    def at(self, x: float, y: float) -> Point:
        """Return the position in the picture, in pixels, of the point (``x``, ``y``) of the coordinate system."""
        left, top, width, height = self.frame
        right = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return left + right * width, top + (1 - up) * height

    def draw(self, x_title: str, y_title: str, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
        """Draw both axes with their titles, their numbers, and a pale line for each number of the vertical axis."""
        left, top, width, height = self.frame
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            self.picture.line([(left, y), (left + width, y)], color=PALE, width=1)
            self.picture.text(left - 8, y + 5, f"{tick:g}", size=13, color=GREY, anchor="end")
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            self.picture.text(x, top + height + 19, f"{tick:g}", size=13, color=GREY, anchor="middle")
        self.picture.line([(left, top + height), (left + width, top + height)])
        self.picture.text(left + width / 2, top + height + 42, x_title, size=14, anchor="middle")
        self.picture.text(left - 34, top - 22, y_title, size=14)

    def curve(self, points: Sequence[Point], color: str, *, dots: bool = True, dashed: bool = False) -> None:
        """Draw a line through ``points`` of the coordinate system, with a dot at each point if ``dots`` is true."""
        pixels = [self.at(*point) for point in points]
        self.picture.line(pixels, color=color, width=2, dashed=dashed)
        for x, y in pixels if dots else []:
            self.picture.dot(x, y, color, 3.5)

    def bar(self, x: float, low: float, high: float, width: float, fill: str, stroke: str) -> None:
        """Draw a bar around ``x``, ``width`` pixels wide, from the value ``low`` to ``high``."""
        middle, top = self.at(x, high)
        _, bottom = self.at(x, low)
        self.picture.box(middle - width / 2, top, width, bottom - top, fill=fill, stroke=stroke)


def speed_up() -> str:
    """Draw the speed-up by draft length for three acceptance rates, if a draft step takes 0.1 of a target forward."""
    picture = Picture(760, 340, "Speed-up by draft length")
    axes = Axes(picture, (80, 50, 460, 220), (0, 12), (0.6, 3.6))
    axes.draw("drafted tokens in a round, K", "speed-up over no drafts", range(0, 13, 2), (0.6, 1, 2, 3))
    for rate, color in ((0.9, GREEN), (0.7, BLUE), (0.4, RED)):
        points = [(k, sum(rate**i for i in range(k + 1)) / (1 + 0.1 * k)) for k in range(13)]
        axes.curve(points, color)
        picture.text(560, axes.at(12, points[-1][1])[1] + 5, f"acceptance {rate}", color=color)
    axes.curve([(0, 1), (12, 1)], GREY, dots=False, dashed=True)
    return picture.svg()


def acceptance_head() -> str:
    """Draw the acceptance head's layers, and the product of its predictions, which falls below 1 - h."""
    picture = Picture(860, 330, "The acceptance head and its stopping rule")
    picture.text(30, 34, "One prediction", bold=True)
    layers = (
        ("the draft's last hidden\nstate at the token", LIGHT_BLUE), ("D residual blocks\nx + SiLU(Wx + b)", FAINT),
        ("linear layer,\nsigmoid", FAINT), ("â", LIGHT_GREEN),
    )  # fmt: skip
    for place, (words, fill) in enumerate(layers):
        y = 52 + 68 * place
        picture.box(30, y, 200, 48, words, fill=fill)
        if place:
            picture.line([(130, y - 20), (130, y - 2)], tip=True)
    accepts = (0.95, 0.9, 0.8, 0.55, 0.6)
    products = [*accumulate(accepts, mul)]
    axes = Axes(picture, (330, 72, 400, 190), (0.4, 5.6), (0, 1))
    axes.draw("drafted token", "survival â₁·…·âₖ", range(1, 6), (0, 0.5, 1))
    for token, product in enumerate(products, 1):
        is_above = product >= 0.3
        axes.bar(token, 0, product, 48, LIGHT_BLUE if is_above else LIGHT_RED, BLUE if is_above else RED)
        x, y = axes.at(token, product)
        picture.text(x, y - 7, f"{product:.2f}", size=13, anchor="middle")
    axes.curve([(0.4, 0.3), (5.6, 0.3)], GREY, dots=False, dashed=True)
    y = axes.at(0, 0.3)[1]
    picture.text(742, y - 2, "1 − h = 0.3", color=GREY, size=14)
    picture.text(742, y + 18, "below: stop", color=RED, size=14)
    return picture.svg()


def lag_free_head() -> str:
    """Draw the times at which two heads predict: the acceptance head predicts one draft forward later."""
    picture = Picture(860, 300, "When a prediction is available")
    picture.text(30, 36, "time →", color=GREY)
    for step in range(3):
        picture.box(190 + 220 * step, 56, 130, 44, f"draft forward {step + 1}", fill=LIGHT_BLUE, stroke=BLUE)
        picture.line([(320 + 220 * step, 78), (348 + 220 * step, 78)], tip=True)
        picture.box(350 + 220 * step, 56, 40, 44, f"y{'₁₂₃'[step]}", fill=LIGHT_ORANGE, stroke=ORANGE)
        if step < 2:
            picture.line([(390 + 220 * step, 78), (408 + 220 * step, 78)], tip=True)
    picture.text(30, 83, "draft")
    picture.text(30, 165, "lag-free head")
    picture.text(30, 245, "acceptance head")
    for step in range(3):
        picture.box(342 + 220 * step, 138, 56, 42, f"â{'₁₂₃'[step]}", fill=LIGHT_GREEN, stroke=GREEN)
        picture.line([(370 + 220 * step, 100), (370 + 220 * step, 136)], tip=True)
    for step in range(2):
        picture.box(562 + 220 * step, 218, 56, 42, f"â{'₁₂'[step]}", fill=LIGHT_RED, stroke=RED)
        picture.line([(475 + 220 * step, 100), (475 + 220 * step, 239), (560 + 220 * step, 239)], tip=True)
    return picture.svg()


def rate_optimal_stopping() -> str:
    """Draw the expected gain of each next token, and the price of a token on two machines."""
    picture = Picture(760, 340, "Rate-optimal stopping")
    axes = Axes(picture, (80, 50, 460, 220), (0.5, 10.5), (0, 1))
    axes.draw("next drafted token, k + 1", "expected gain in tokens", range(1, 11), (0, 0.5, 1))
    gains = [(k, 0.8**k) for k in range(1, 11)]
    for k, gain in gains:
        axes.bar(k, 0, gain, 28, LIGHT_BLUE, BLUE)
    for share, color, words in ((0.05, GREEN, "cheap draft"), (0.3, RED, "expensive draft")):
        cost = CostModel(share, 0.95, 0.05)
        price = steady_rate(0.8, cost) * cost.per_token
        length = sum(gain >= price for _, gain in gains)
        axes.curve([(0.5, price), (10.5, price)], color, dots=False)
        y = axes.at(0, price)[1]
        picture.text(552, y - 4, f"price, {words}:", color=color, size=14)
        picture.text(552, y + 14, f"drafts {length} token{'s' * (length > 1)}", color=color, size=14)
    return picture.svg()


def confidence_rules() -> str:
    """Draw the same draft under three rules: a fixed length, a confidence and a cumulative confidence."""
    picture = Picture(860, 300, "Three stopping rules on one draft")
    probabilities = (0.9, 0.8, 0.7, 0.65, 0.3, 0.9)
    products = [*accumulate(probabilities, mul)]
    rows = (
        ("length 4", ["1", "2", "3", "4"], 4), ("confidence:0.4", [f"{q:g}" for q in probabilities], 5),
        ("cumulative-confidence:0.4", [f"{product:.2f}" for product in products], 4),
    )  # fmt: skip
    picture.text(30, 50, "draft's probability q(y)")
    for token, q in enumerate(probabilities):
        picture.box(250 + 96 * token, 26, 76, 38, f"{q:g}", fill=LIGHT_ORANGE, stroke=ORANGE)
    for row, (name, numbers, length) in enumerate(rows):
        y = 92 + 60 * row
        picture.text(30, y + 24, name)
        for token in range(length):
            stops = token == length - 1
            fill, stroke = (LIGHT_RED, RED) if stops else (LIGHT_GREEN, GREEN)
            picture.box(250 + 96 * token, y, 76, 38, numbers[token], fill=fill, stroke=stroke)
        picture.text(250 + 96 * length, y + 24, "stop", color=RED)
    note = "Each row shows the number that the rule compares. The red token is the last one drafted."
    picture.text(30, 284, note, color=GREY, size=14)
    return picture.svg()


def copies() -> str:
    """Draw a text whose last tokens occurred before, and the copied continuation of the earlier occurrence."""
    picture = Picture(860, 250, "An n-gram copy")
    words = ["the", "red", "fox", "ran", "home", ".", "Then", "the", "red", "fox"]
    for place, word in enumerate(words):
        matches = place in (0, 1, 2, 7, 8, 9)
        fill, stroke = (
            (LIGHT_BLUE, BLUE) if matches else (LIGHT_ORANGE, ORANGE) if place in (3, 4, 5) else (FAINT, GREY)
        )
        picture.box(30 + 62 * place, 96, 54, 40, word, fill=fill, stroke=stroke)
    for place, word in enumerate(words[3:6]):
        picture.box(666 + 62 * place, 96, 54, 40, word, fill="#ffffff", stroke=ORANGE)
    picture.text(112, 64, "earlier occurrence", color=BLUE, anchor="middle", size=14)
    picture.text(546, 64, "last tokens of the text", color=BLUE, anchor="middle", size=14)
    picture.text(749, 64, "draft: a copy", color=ORANGE, anchor="middle", size=14)
    picture.line([(112, 76), (112, 90)], tip=True)
    picture.line([(546, 76), (546, 90)], tip=True)
    picture.line([(305, 140), (305, 190), (749, 190), (749, 142)], color=ORANGE, tip=True)
    picture.text(527, 182, "no forward of a draft model", color=GREY, anchor="middle", size=14)
    return picture.svg()


def router() -> str:
    """Draw the steps of a router from the prompt to the chosen arm."""
    picture = Picture(860, 250, "A router chooses an arm")
    stages = (
        ("prompt", FAINT), ("target reads\nthe prompt", LIGHT_BLUE), ("embedding\nof the prompt", FAINT),
        ("policy: MLP,\nsoftmax", LIGHT_ORANGE),
    )  # fmt: skip
    for place, (words, fill) in enumerate(stages):
        picture.box(20 + 145 * place, 95, 115, 60, words, fill=fill)
        if place < len(stages) - 1:
            picture.line([(135 + 145 * place, 125), (163 + 145 * place, 125)], tip=True)
    arms = (("draft for math", 0.08), ("draft for code", 0.71), ("copies", 0.15), ("no draft", 0.06))
    for place, (arm, probability) in enumerate(arms):
        y = 28 + 52 * place
        is_best = probability == max(p for _, p in arms)
        picture.line([(570, 125), (634, y + 19)], color=GREEN if is_best else PALE, width=2 if is_best else 1.5)
        picture.box(636, y, 140, 38, arm, fill=LIGHT_GREEN if is_best else FAINT, stroke=GREEN if is_best else GREY)
        picture.text(786, y + 24, f"{probability:g}", color=GREEN if is_best else GREY)
    return picture.svg()


def token_wise() -> str:
    """Draw two distributions p and q, their overlap min(p, q), and the residual (p - q)₊."""
    picture = Picture(860, 330, "Token-wise verification of one token")
    p, q = (0.5, 0.25, 0.15, 0.1), (0.2, 0.45, 0.3, 0.05)
    axes = Axes(picture, (70, 56, 420, 210), (0.4, 4.6), (0, 0.6))
    axes.draw("token", "probability", (), (0, 0.2, 0.4, 0.6))
    residual = [max(a - b, 0) for a, b in zip(p, q, strict=True)]
    for token, (target, draft) in enumerate(zip(p, q, strict=True), 1):
        axes.bar(token - 0.2, 0, target, 34, LIGHT_BLUE, BLUE)
        axes.bar(token - 0.2, 0, min(target, draft), 34, LIGHT_GREEN, GREEN)
        axes.bar(token + 0.2, 0, draft, 34, LIGHT_ORANGE, ORANGE)
        x, y = axes.at(token, 0)
        picture.text(x, y + 19, "abcd"[token - 1], anchor="middle")
    overlap = sum(map(min, zip(p, q, strict=True)))
    notes = (
        ("blue and green: target p", BLUE), ("orange: draft q", ORANGE),
        (f"green: min(p, q), {overlap:.2f} in total.", GREEN),
        ("This is the probability that a", INK), ("drafted token is accepted.", INK),
        (f"blue alone: (p − q)₊, {sum(residual):.2f} in total.", BLUE),
        ("After a rejection the token", INK), ("is drawn from this part.", INK),
    )  # fmt: skip
    for row, (words, color) in enumerate(notes):
        picture.text(530, 76 + 27 * row, words, color=color)
    return picture.svg()


def block_verification() -> str:
    """Draw the probability that at least 1, 2, 3 tokens of a draft are accepted, token-wise and by blocks."""
    picture = Picture(800, 330, "Token-wise and block verification")
    p = torch.tensor([[0.6, 0.4]] * 4, dtype=torch.float64)
    q = torch.tensor([[0.3, 0.7]] * 3, dtype=torch.float64)
    acceptance = {"token-wise": [0.0] * 3, "block": [0.0] * 3}
    for number in range(8):
        tokens = [number >> place & 1 for place in range(3)]
        chance = float(q[range(3), tokens].prod())
        ratios = [float(p[i, y] / q[i, y]) for i, y in enumerate(tokens)]
        single = [*accumulate((min(1.0, ratio) for ratio in ratios), mul)]
        passes = pass_probabilities(p, q, joint_ratios(ratios))
        for place in range(3):
            fails = 1.0
            for later in passes[place:]:
                fails *= 1.0 - later
            acceptance["token-wise"][place] += chance * single[place]
            acceptance["block"][place] += chance * (1.0 - fails)
    axes = Axes(picture, (80, 56, 440, 210), (0.4, 3.6), (0, 0.8))
    y_title = "probability that at least k tokens are accepted"
    axes.draw("number of tokens, k", y_title, (1, 2, 3), (0, 0.2, 0.4, 0.6, 0.8))
    styles = ((LIGHT_BLUE, BLUE, -1), (LIGHT_GREEN, GREEN, 1))
    for (name, values), (fill, stroke, side) in zip(acceptance.items(), styles, strict=True):
        for place, value in enumerate(values, 1):
            axes.bar(place + 0.17 * side, 0, value, 40, fill, stroke)
            x, y = axes.at(place + 0.17 * side, value)
            picture.text(x, y - 6, f"{value:.2f}", size=13, anchor="middle")
        picture.text(550, 110 + 40 * (side > 0), f"{name}: {sum(values):.3f}", color=stroke)
        picture.text(550, 128 + 40 * (side > 0), "accepted tokens on average", size=13, color=GREY)
    picture.text(550, 220, "p = (0.6, 0.4), q = (0.3, 0.7)", size=14, color=GREY)
    picture.text(550, 240, "at each of three positions", size=14, color=GREY)
    return picture.svg()


def multi_candidate() -> str:
    """Draw the acceptance probability at one position by the number of proposals, under four rules."""
    picture = Picture(840, 340, "Acceptance with several proposals")
    p = torch.tensor([0.45, 0.25, 0.15, 0.1, 0.05], dtype=torch.float64)
    q = torch.tensor([0.1, 0.2, 0.4, 0.1, 0.2], dtype=torch.float64)
    counts = (1, 2, 3, 4)
    curves = {
        "optimal transport": ([optimal_transport(p, q, k).acceptance for k in counts], GREY),
        "k-seq": ([acceptance(p, q, k, division_factor(p, q, k))[1] for k in counts], BLUE),
        "spec-infer": ([_with_replacement(p, q, k) for k in counts], ORANGE),
        "mcss": ([_without_replacement(p, q, k) for k in counts], GREEN),
    }
    axes = Axes(picture, (80, 50, 420, 220), (0.8, 4.2), (0.4, 1))
    axes.draw("proposals, k", "probability that one is accepted", counts, (0.4, 0.6, 0.8, 1))
    for values, color in curves.values():
        axes.curve([*zip(counts, values, strict=True)], color, dashed=color == GREY)
    ends = sorted(curves.items(), key=lambda item: -item[1][0][-1])
    for row, (name, (values, color)) in enumerate(ends):
        picture.text(525, 80 + 28 * row, f"{name}: {values[1]:.3f} with k = 2", color=color)
    picture.text(525, 80 + 28 * 5, "p = (0.45, 0.25, 0.15, 0.1, 0.05)", size=14, color=GREY)
    picture.text(525, 80 + 28 * 6, "q = (0.1, 0.2, 0.4, 0.1, 0.2)", size=14, color=GREY)
    return picture.svg()


def _with_replacement(p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """Return the acceptance probability of SpecInfer's rule with k i.i.d. proposals.

    Each rejection replaces p by the residual norm((p - q)₊).

    Args:
        p, q: the distributions (V,).
        k: number of proposals.
    """
    rejected = 1.0
    for _ in range(k):
        overlap = float(torch.minimum(p, q).sum())
        rejected *= 1.0 - overlap
        p = (p - q).clamp(min=0)
        p = p / p.sum()
    return 1.0 - rejected


def _without_replacement(p: torch.Tensor, q: torch.Tensor, k: int) -> float:
    """Return the acceptance probability of MCSS with k proposals, drawn from q without replacement.

    It is 1 - Σ Pr(proposals) Pr(all are rejected) over all ordered proposals.

    Args:
        p, q: the distributions (V,).
        k: number of proposals.
    """
    failing = 0.0
    for proposals in permutations(range(len(q)), k):
        chance, target, draft = 1.0, p, q
        for token in proposals:
            chance *= float(draft[token]) * (1.0 - min(1.0, float(target[token] / draft[token])))
            if chance == 0.0:
                break
            target = (target - draft).clamp(min=0)
            target = target / target.sum()
            draft = draft.clone()
            draft[token] = 0.0
            draft = draft / draft.sum()
        failing += chance
    return 1.0 - failing


def trees() -> str:
    """Draw a tree of a fixed shape, and a grown tree with the acceptance probabilities of its nodes."""
    picture = Picture(920, 340, "A fixed and a grown tree")
    picture.text(30, 34, "--tree 3x2x1", bold=True)
    picture.text(470, 34, "--tree auto, price 0.15", bold=True)
    _edge_and_box(picture, None, (170, 56), "text", FAINT)
    for first in range(3):
        child = (70 + 110 * first, 126)
        _edge_and_box(picture, (170, 56), child, "", LIGHT_ORANGE)
        for second in range(2):
            grandchild = (child[0] - 27 + 54 * second, 196)
            _edge_and_box(picture, child, grandchild, "", LIGHT_ORANGE)
            _edge_and_box(picture, grandchild, (grandchild[0], 266), "", LIGHT_ORANGE)
    picture.text(170, 326, "always 15 nodes", color=GREY, anchor="middle", size=14)
    nodes: dict[str, tuple[str, Point, float]] = {
        "a": ("", (590, 126), 0.8), "b": ("", (730, 126), 0.16), "c": ("a", (550, 196), 0.64),
        "d": ("a", (640, 196), 0.12), "e": ("c", (550, 266), 0.5),
    }  # fmt: skip
    _edge_and_box(picture, None, (640, 56), "text", FAINT)
    for parent, place, survival in nodes.values():
        start = nodes[parent][1] if parent else (640, 56)
        is_drafted = survival >= 0.15
        fill = LIGHT_GREEN if is_drafted else "#ffffff"
        _edge_and_box(picture, start, place, f"{survival:g}", fill, dashed=not is_drafted)
    picture.text(665, 201, "below the price: not drafted", color=RED, size=14)
    picture.text(640, 326, "number in a node: probability π that it is accepted", color=GREY, anchor="middle", size=14)
    return picture.svg()


def _edge_and_box(
    picture: Picture, start: Point | None, end: Point, words: str, fill: str, *, dashed: bool = False
) -> None:
    """Draw a node of a tree around ``end``, and the line from its parent at ``start``; no line if that is None."""
    if start is not None:
        picture.line([(start[0], start[1] + 17), (end[0], end[1] - 17)], dashed=dashed)
    picture.box(end[0] - 22, end[1] - 17, 44, 34, words, fill=fill, stroke=RED if dashed else GREY)


def joint_decoding() -> str:
    """Draw the joint ratio min(1, P_j / Q_j) of a draft's first j tokens, and the threshold τ."""
    picture = Picture(800, 330, "Verification of MTAD")
    ratios = (0.8, 0.5, 1.9, 0.35)
    joint = [*accumulate(ratios, mul)]
    axes = Axes(picture, (80, 56, 440, 210), (0.4, 4.6), (0, 1))
    axes.draw("first j tokens of the draft", "min(1, P_j / Q_j)", (1, 2, 3, 4), (0, 0.5, 1))
    last = max(place for place, value in enumerate(joint, 1) if value > 0.5)
    for place, value in enumerate(joint, 1):
        is_accepted = place <= last
        fill, stroke = (LIGHT_GREEN, GREEN) if is_accepted else (LIGHT_RED, RED)
        axes.bar(place, 0, min(1.0, value), 60, fill, stroke)
        x, y = axes.at(place, min(1.0, value))
        picture.text(x, y - 7, f"{value:.2f}", size=13, anchor="middle")
    axes.curve([(0.4, 0.5), (4.6, 0.5)], INK, dots=False, dashed=True)
    picture.text(532, axes.at(0, 0.5)[1] + 5, "τ = 0.5")
    picture.text(532, 90, "Three tokens are accepted:", size=14)
    picture.text(532, 110, "3 is the largest j above τ,", size=14)
    picture.text(532, 130, "although j = 2 is below.", size=14)
    return picture.svg()


def typical_acceptance() -> str:
    """Draw the least probability of an accepted token, by the entropy of the target's distribution."""
    picture = Picture(800, 330, "The bounds of typical acceptance and BiLD")
    axes = Axes(picture, (80, 56, 440, 210), (0, 4), (0, 0.12))
    axes.draw("entropy of p in nats", "least probability of an accepted token", range(5), (0, 0.04, 0.08, 0.12))
    entropies = [number / 20 for number in range(81)]
    bounds = [(entropy, min(0.09, 0.3 * math.exp(-entropy))) for entropy in entropies]
    axes.curve(bounds, BLUE, dots=False)
    axes.curve([(0, math.exp(-3)), (4, math.exp(-3))], ORANGE, dots=False, dashed=True)
    picture.text(532, axes.at(4, bounds[-1][1])[1] + 5, "typical: ε = 0.09, δ = 0.3", color=BLUE)
    picture.text(532, axes.at(4, math.exp(-3))[1] + 5, "bild:3", color=ORANGE)
    return picture.svg()


def adaptive_costs() -> str:
    """Draw the correction of a wrong initial cost of a drafted token by the times of rounds."""
    picture = Picture(800, 330, "Costs corrected while decoding")
    real, wrong = CostModel(0.25, 0.95, 0.05), CostModel(0.05, 0.95, 0.05)
    running = RunningCost(wrong)
    points = [(0.0, running.cost.per_token)]
    for number in range(1, 161):
        tokens = 0 if number % 10 == 0 else 2 + number % 4
        running.add(tokens, tokens, real.round(tokens))
        points.append((number, running.cost.per_token))
    axes = Axes(picture, (80, 56, 460, 210), (0, 160), (0, 0.4))
    axes.draw("rounds", "cost of one more drafted token, in verifications", range(0, 161, 40), (0, 0.1, 0.2, 0.3, 0.4))
    axes.curve([(0, real.per_token), (160, real.per_token)], GREY, dots=False, dashed=True)
    axes.curve(points, BLUE, dots=False)
    picture.text(552, axes.at(0, real.per_token)[1] + 5, "true cost", color=GREY)
    picture.text(552, axes.at(0, points[-1][1])[1] + 24, "estimate", color=BLUE)
    return picture.svg()


def draft_curve() -> str:
    """Draw the acceptance of drafts of SmolLM2-135M-Instruct by the number of tokens of answers to train on."""
    layers, eagle = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("draft-curve-smollm2", "draft-curve-smollm2-eagle")
    )
    numbers = sorted({row["tokens"] for row in layers["rows"]})
    x = {number: math.log2(number) for number in numbers}
    picture = Picture(800, 340, "Acceptance by the number of tokens to train on")
    axes = Axes(picture, (80, 56, 460, 210), (x[numbers[0]] - 0.2, x[numbers[-1]] + 0.2), (0, 0.6))
    axes.draw("tokens of answers", "acceptance on held-out prompts", (), (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
    for number in numbers:
        picture.text(axes.at(x[number], 0)[0], 56 + 210 + 19, f"{number:,}", size=13, color=GREY, anchor="middle")
    for report, name, color in ((layers, "layers 0, 1, 29", BLUE), (eagle, "EAGLE-3", ORANGE)):
        rows = report["rows"]
        axes.curve([(x[row["tokens"]], row["acceptance"]["value"]) for row in rows], color)
        for row in rows:
            ends = [axes.at(x[row["tokens"]], row["acceptance"][end]) for end in ("low", "high")]
            picture.line(ends, color=color)
        height = rows[-1]["acceptance"]["value"]
        text = f"{name}, {report['settings']['minutes']:g} minutes"
        picture.text(552, axes.at(0, height)[1] + 5, text, color=color)
    (included,) = layers["references"]
    height = included["acceptance"]["value"]
    axes.curve([(axes.x[0], height), (axes.x[1], height)], GREY, dots=False, dashed=True)
    picture.text(552, axes.at(0, height)[1] + 5, "included draft, trained for hours", color=GREY)
    return picture.svg()


FIGURES: dict[str, Callable[[], str]] = {
    "speed-up": speed_up,
    "acceptance-head": acceptance_head,
    "lag-free-head": lag_free_head,
    "rate-optimal-stopping": rate_optimal_stopping,
    "confidence-rules": confidence_rules,
    "copies": copies,
    "router": router,
    "token-wise": token_wise,
    "block-verification": block_verification,
    "multi-candidate": multi_candidate,
    "trees": trees,
    "joint-decoding": joint_decoding,
    "typical-acceptance": typical_acceptance,
    "adaptive-costs": adaptive_costs,
}
RESULT_FIGURES: dict[str, Callable[[], str]] = {"draft-curve": draft_curve}

if __name__ == "__main__":
    for folder, figures in ((FOLDER, FIGURES), (RESULTS, RESULT_FIGURES)):
        for name, draw in figures.items():
            (folder / f"{name}.svg").write_text(draw(), encoding="utf-8")
            print(folder / f"{name}.svg")
