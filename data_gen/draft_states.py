"""Draft states at drafted tokens: the training examples of acceptance predictors.

There are two contexts. With *target* context x_<i, as in decoding, the lag-free head and the feature model use the
draft's distribution and hidden state before y_i. With *mixed* context (SpecDec++, Huang et al. 2024, §3.3), tokens Z_i
are x_i with probability r and y_i otherwise, and the acceptance head uses the hidden state at Z_i = y_i.
Shapes: n texts, m examples in all, d the draft's hidden size, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..common.console import progress_bar, stderr_console
from ..common.errors import InputError
from ..controllers.acceptance.lag_free_head import evidence_rows, match_copies
from ..controllers.acceptance.ngram_index import NgramIndex, NgramMatch
from ..controllers.acceptance.step import DraftSignals, draft_signals
from ..controllers.acceptance.training import Examples
from ..controllers.sampling import SamplingParams
from ..infer.core import TokenDistribution
from ..models import CausalLM, LanguageModel, Read, TextReader, TreeMask
from .kinds import Text
from .rollout import scores_at_once


@torch.inference_mode()
def after_target_text(
    draft: LanguageModel, texts: Sequence[Text], sampling: SamplingParams, vocab_size: int
) -> Examples:
    """Return examples of the drafted tokens of ``texts`` with target context, except tokens whose q(y) rounds to 0."""
    sequences = [(text, max(text.places), max(text.places) - min(text.places) + 1) for text in texts]
    parts: list[Examples] = []
    for text, logits, hidden in _read(draft, sequences):
        before = torch.tensor(text.places, device=logits.device) - min(text.places)  # place 0: the prompt's last token
        parts.append(examples_of(text, logits[before], hidden[before], sampling, vocab_size))
    return joined(parts)


def examples_of(text: Text, scores: Tensor, hidden: Tensor, sampling: SamplingParams, vocab_size: int) -> Examples:
    """Return the examples of a text, from logits (m, V) and hidden states (m, d) before each of its drafted tokens."""
    chosen, signals = signals_of(text, scores, sampling, vocab_size)
    matches = match_all(text)
    drawn = torch.tensor([probability > 0 for probability in chosen])
    return Examples(
        accept=torch.tensor(text.accept)[drawn],
        states=hidden.float().cpu()[drawn],
        evidence=evidence_rows(signals, matches, text.tokens)[drawn],
        tokens=torch.tensor(text.tokens, dtype=torch.int32)[drawn],
        copies=match_copies(matches).int()[drawn],
    )


def signals_of(
    text: Text, scores: Tensor, sampling: SamplingParams, vocab_size: int
) -> tuple[list[float], list[DraftSignals]]:
    """Return q(y) (m,) and draft signals (m,) of the drafted tokens of ``text``, from logits (m, V) before each."""
    q = TokenDistribution.from_logits(sampling, scores, vocab_size)
    chosen = q.of(text.tokens)
    return chosen, draft_signals(chosen, text.tokens, q.probabilities, scores)


@torch.inference_mode()
def after_rounds(
    target: CausalLM, draft: CausalLM, texts: Sequence[Text], sampling: SamplingParams, vocab_size: int
) -> Examples:
    """Return examples of the drafted tokens of ``texts`` for a draft that reads the target's states.

    Such a draft reads the text with the target's states, and its drafted tokens with its own states. Its output for a
    token therefore depends on the number of tokens that the round drafted before. The rounds of a text are read
    together as branches of a tree, one drafted token of each at a time.

    Raises:
        InputError: the draft's architecture does not read trees in one forward.
    """
    if not draft.together:
        raise InputError(
            f"draft: {draft.name} reads branches one by one, which is not supported for drafts that read states"
        )
    parts = []
    for text in texts:
        logits, hidden = read_rounds(target, draft, text)
        parts.append(examples_of(text, logits, hidden, sampling, vocab_size))
    return joined(parts)


def read_rounds(target: CausalLM, draft: CausalLM, text: Text) -> tuple[Tensor, Tensor]:
    """Return logits (m, V) and hidden states (m, d) before each drafted token of ``text``."""
    assert draft.state_input is not None
    tokens = [*text.prompt_ids, *text.x[: max(text.places)]]
    reader, _ = TextReader.begin(target, tokens)
    _, target_states = reader.read(tokens)
    states = draft.state_input.from_target(target_states)
    skipped = draft.state_input.skipped
    cache = draft.new_cache()
    cache.add(0, len(tokens) + len(text.tokens))
    unread = tokens[skipped:]  # each token is read with the state before it; no token follows the last state
    logits, hidden = draft.forward(cache, [Read(0, unread, len(unread), states=states[: len(unread)])])

    trunk = len(text.prompt_ids) - skipped
    results: list[tuple[Tensor, Tensor]] = [(logits[:0], hidden[:0])] * len(text.tokens)
    above: dict[int, list[int]] = {}  # columns of each example's context, from the trunk on
    for depth in range(max(text.depths) + 1):
        at_depth = [i for i, depth_of_token in enumerate(text.depths) if depth_of_token == depth]
        if depth:
            columns = cache.length(0)
            before = [above[i - 1] for i in at_depth]
            read = Read(
                0, [text.tokens[i - 1] for i in at_depth], len(at_depth), TreeMask(trunk, before),
                states=torch.cat([results[i - 1][1] for i in at_depth]),
            )  # fmt: skip
            logits, hidden = draft.forward(cache, [read])
            above |= {i: [*above[i - 1], columns + row] for row, i in enumerate(at_depth)}
            rows = [*range(len(at_depth))]
        else:
            above |= {i: [*range(trunk, trunk + text.places[i])] for i in at_depth}
            rows = [trunk + text.places[i] - 1 for i in at_depth]
        for row, i in zip(rows, at_depth, strict=True):
            results[i] = logits[row : row + 1], hidden[row : row + 1]
    return torch.cat([scores for scores, _ in results]), torch.cat([state for _, state in results])


@torch.inference_mode()
def after_mixed_text(draft: LanguageModel, texts: Sequence[Text], drafted: Sequence[NDArray[np.bool_]]) -> Examples:
    """Return examples of the draft's tokens in mixed texts.

    Args:
        draft: the draft model.
        texts: the texts, with a drafted token y_i at every position.
        drafted: for each text a mask (T,) that is true where Z_i = y_i.
    """
    mixed = []
    for text, is_drafted in zip(texts, drafted, strict=True):
        z = np.where(is_drafted, text.tokens, text.x).tolist()
        places = np.flatnonzero(is_drafted).tolist()
        mixed.append(Text(text.prompt_id, text.prompt_ids, z, places, [], text.accept, [0] * len(places)))
    sequences = [(text, len(text.x), len(text.x)) for text in mixed]
    parts: list[Examples] = []
    for text, _, hidden in _read(draft, sequences):
        parts.append(Examples(torch.tensor(text.accept)[text.places], hidden[text.places].float().cpu()))
    return joined(parts)


@torch.inference_mode()
def at_drafted_tokens(draft: LanguageModel, text: Text) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits and hidden states at each drafted token y_i of ``text``, with target context.

    Each y_i has its own context, and a single forward reads all of them as branches.

    Returns:
        Logits (M, V) of q_i, hidden states (M, d) before y_i, and hidden states (M, d) at y_i, which are the limit r =
        1 of mixed context.
    """
    start, longest = len(text.prompt_ids), max(text.places)
    reader, prompt = TextReader.begin(draft, text.prompt_ids, len(text.x) + len(text.tokens))
    logits, before = reader.read([*prompt, *text.x[:longest]], keep=longest + 1)
    branches = TreeMask(start, [[*range(start, start + position)] for position in text.places])
    _, after = reader.read(text.tokens, tree=branches)
    return logits[text.places], before[text.places], after


def at_all_drafted_tokens(draft: LanguageModel, texts: Sequence[Text]) -> Examples:
    """Return examples of every y_i of ``texts`` with target context."""
    parts = [Examples(torch.tensor(text.accept), at_drafted_tokens(draft, text)[-1].float().cpu()) for text in texts]
    return joined(parts)


@torch.inference_mode()
def read_positions(
    draft: LanguageModel, rows: Sequence[Text], sampling: SamplingParams, vocab_size: int | None = None
) -> Examples:
    """Return an example for every position of ``rows`` in order, except positions whose q(y) rounds to 0.

    The column ``states`` has the hidden states at y_i; :class:`.Examples` describes the other columns.

    Args:
        draft: the draft model.
        rows: the texts.
        sampling: the sampling parameters.
        vocab_size: the target's vocabulary size if the draft's is larger (``vocab_size`` of the manifest); else None.
    """
    parts = []
    size = draft.vocab_size if vocab_size is None else vocab_size
    with progress_bar(stderr_console(), "texts read by the draft", len(rows)) as advance:
        for row in rows:
            logits, _, states = at_drafted_tokens(draft, row)
            parts.append(examples_of(row, logits, states, sampling, size))
            advance()
    return joined(parts)


def _read(draft: LanguageModel, sequences: Sequence[tuple[Text, int, int]]) -> Iterator[tuple[Text, Tensor, Tensor]]:
    """Yield each text with logits (keep, V) and hidden states (keep, d) of the last ``keep`` tokens that are read.

    Args:
        draft: the draft model.
        sequences: (text, number of its tokens to read after the prompt, ``keep``) for each text.
    """
    longest = max((keep for _, _, keep in sequences), default=1)
    together = max(1, scores_at_once(draft.device) // (longest * draft.vocab_size))
    for start in range(0, len(sequences), together):
        group = sequences[start : start + together]
        cache = draft.new_cache()
        reads = [
            Read(row, [*draft.begin(cache, row, text.prompt_ids, len(text.x)), *text.x[:length]], keep)
            for row, (text, length, keep) in enumerate(group)
        ]
        logits, hidden = draft.forward(cache, reads)
        sizes = [keep for _, _, keep in group]
        results = zip(group, torch.split(logits, sizes), torch.split(hidden, sizes), strict=True)
        yield from ((text, scores, states) for (text, _, _), scores, states in results)


def joined(parts: Sequence[Examples]) -> Examples:
    """Return the examples of all ``parts`` together, with an entry of ``counts`` for each part."""
    columns = [part.columns() for part in parts]
    together = {name: torch.cat([part[name] for part in columns]) for name in columns[0]}
    return Examples(counts=torch.tensor([*map(len, parts)]), **together)


def match_all(text: Text) -> list[NgramMatch]:
    """Return n-gram matches (M,) in the prompt and the text before each drafted token."""
    before = [*text.prompt_ids]
    index = NgramIndex(before)
    matches = []
    for position, token in zip(text.places, text.tokens, strict=True):  # ascending places
        before += text.x[len(before) - len(text.prompt_ids) : position]
        matches.append(index.match([token]))
    return matches


def from_draft(seed: int, stream: int, row: int, length: int, mixing: float) -> NDArray[np.bool_]:
    """Return a mask (length,) that is true where a mixed text has the draft's token, Z_i = y_i.

    Args:
        seed, stream, row: seeds of the random numbers: that of the dataset, the number of the mixing, and the number of
            the text.
        length: number of tokens of the text.
        mixing: share r of target tokens. A token is the draft's with probability 1 - r.
    """
    return np.random.default_rng([seed, stream, row]).random(length) >= mixing


def mixing_for(mean_acceptance: float) -> float:
    """Return the default share of target tokens in mixed texts for a pair with this mean acceptance probability.

    With a high acceptance, draft tokens are similar to target tokens, and the paper's share (§3.3) works well. With a
    low acceptance, mixed contexts differ from contexts in decoding, and a larger share is better (``python -m
    experiments mixing``).
    """
    return 0.15 if mean_acceptance >= 0.5 else 0.5
