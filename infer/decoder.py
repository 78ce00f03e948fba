"""The speculative decoder: draft, verify, keep, roll back.

The loop of Leviathan et al. 2023 with the draft length left to a controller (SpecDec++, Huang et al. 2024,
Algorithm 2). ``p`` is the target, ``q`` the draft, both warped alike; the law of the output is the warped target's,
whatever the draft and the controller do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from math import prod
from typing import Any, cast, overload

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..controllers.cost_model import CostModel
from ..controllers.errors import InputError
from ..controllers.length import MAX_DRAFT, Fixed, LengthController, Oracle, RateOptimal
from ..controllers.lookup import Lookup
from ..controllers.router import Router
from ..controllers.sampling import SamplingParams
from .batch import Batch, Row
from .cache import as_row
from .cached_model import CachedModel
from .custom_generate import custom_generate
from .distribution import TokenDistribution
from .draft import NO_DRAFT, Chain, Draft, draft_chain, merge
from .draft_beam import Beams, draft_beams
from .draft_tree import count_nodes, draft_tree, parse_expansions
from .encoder_decoder import cached
from .foresight import foresee
from .generation import Generation, Round
from .lengths import AUTO, load_length, quick_costs
from .loading import check_same_tokenizer, load_model, load_tokenizer
from .prompting import Prompt, encode_prompt, is_batch
from .random_source import RandomSource
from .routing import Routing, Way, load_routing
from .text_stream import TextStream
from .tree_mask import TreeMask, ancestors_of
from .verify import SELECTIONS, VERIFIERS, parse_verifier
from .verify.otm import MOST, unknowns

JOINT = ("mtad", "mtjd")  # rules whose sequences are searched by beams


def check_joint(rule: str, drafts: int, length: LengthController | None, beams: Beams | None) -> None:
    """Refuse what does not go with joint decoding, or without it.

    Raises:
        InputError: it does not.
    """
    if rule not in JOINT:
        if beams is not None:
            raise InputError(f"beams: only {' and '.join(JOINT)} search; verifier={rule!r} does not, leave them out")
        return
    if rule == "mtad" and not drafts:
        raise InputError("verifier='mtad': it judges a draft model's beams; name a draft, or take 'mtjd' without one")
    if rule == "mtjd" and drafts:
        raise InputError(
            "verifier='mtjd': the target decodes alone; leave the draft out (null), or take 'mtad' with it"
        )
    if length is not None and not isinstance(length, Fixed):
        raise InputError(f"length: verifier={rule!r} takes a number of tokens a step, no rule of stopping")
    if length is not None and length.k < 1:
        raise InputError(f"length={length.k}: verifier={rule!r} needs at least one token a step")


class SpeculativeDecoder:
    """A target model, a draft model, and the rules that join them.

    Args:
        target: the model whose text is wanted.
        draft: the model that proposes; None decodes autoregressively. Several feed one tree, each its own branches.
        routing: chooses one of several ways to decode for each prompt, instead of ``draft`` and ``length``.
        tokenizer: needed for text prompts and text output.
        length: when to stop drafting a chain (default: four tokens).
        verifier: the verification rule, with its threshold where it has one: ``"block"``, ``"mtad:0.5"``; see
            ``specpilot.infer.verify``. ``"mtjd"`` is joint decoding by the target alone, ``length`` tokens a step.
        beams: how MTAD's drafts and MTJD's steps are searched (default: four beams, drawn).
        tree: draft a tree instead of a chain: children at each level, such as (3, 2, 1).
        compile: pass both models through ``torch.compile``: seconds to minutes at first, faster forwards after.

    Raises:
        InputError: the pair or a name does not fit.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel | Sequence[PreTrainedModel] | None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        length: LengthController | None = None,
        verifier: str = "token-wise",
        beams: Beams | None = None,
        tree: Sequence[int] | None = None,
        compile: bool = False,
        routing: Routing | None = None,
    ) -> None:
        rule, verify = ("mtjd", VERIFIERS["token-wise"]) if verifier == "mtjd" else parse_verifier(verifier)
        if tree is not None and rule not in SELECTIONS:
            raise InputError(
                f"verifier={verifier!r}: judges one chain; a tree needs one of {', '.join(SELECTIONS)}, which choose "
                "from several proposals"
            )
        if routing is not None and (draft is not None or length is not None or tree is not None):
            raise InputError("routing: its arms have drafts and lengths of their own, and draft chains; leave them out")
        if routing is not None and rule in JOINT:
            raise InputError(f"verifier={verifier!r}: a router's arms draft chains; leave the router out")
        drafts = [] if draft is None else [draft] if isinstance(draft, PreTrainedModel) else list(draft)
        if tree is not None and not drafts:
            raise InputError("tree: without a draft model there is nothing to draft; name one, or leave the tree out")
        if tree is not None and length is not None:
            raise InputError("tree and length: a tree's shape is its length; give one of them")
        if len(drafts) > 1 and (tree is None or rule != "spec-infer"):
            raise InputError(
                f"draft: {len(drafts)} of them can only feed one tree, and only spec-infer judges proposals of "
                "different laws; give tree=… and verifier='spec-infer', or one draft"
            )
        check_joint(rule, len(drafts), length, beams)
        if not drafts and rule != "mtjd" and length is not None and not (isinstance(length, Fixed) and length.k == 0):
            raise InputError(
                "length: without a draft model there is nothing to stop; name one, or leave the length out"
            )
        for model in drafts:
            if model.config.is_encoder_decoder != target.config.is_encoder_decoder:
                raise InputError(
                    f"target is a {target.config.model_type}, draft a {model.config.model_type}: one of them is an "
                    "encoder-decoder; take models of one kind"
                )
            if model.device != target.device:
                raise InputError(f"target is on {target.device}, draft on {model.device}; put both on one device")
        self.target = cached(target, compile=compile) if routing is None else routing.target
        self.routing = routing
        self.drafts = [cached(model, compile=compile) for model in drafts]
        self.tokenizer = tokenizer
        self.beams = (beams or Beams()) if rule in JOINT else None
        self.length = length or Fixed(4 if drafts or self.beams is not None else 0)
        self.tree = None if tree is None else parse_expansions("x".join(map(str, tree)))
        self.verifier, self.verify = rule, verify
        self.stop_tokens = stop_tokens_of(target, tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        target: str,
        draft: str | Sequence[str] | None = None,
        *,
        length: str | int | LengthController | Sequence[str | int | LengthController] | None = None,
        threshold: float | None = None,
        cost: str | CostModel | None = None,
        adapt: bool = False,
        router: str | Router | None = None,
        sample_arm: bool = False,
        verifier: str = "token-wise",
        beams: Beams | None = None,
        tree: str | Sequence[int] | None = None,
        compile: bool = False,
        dtype: str = "float32",
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> SpeculativeDecoder:
        """Load a pair by name: shipped tiny models, local folders or hub ids.

        Args:
            target, draft: model names; ``draft=None`` decodes autoregressively, several drafts feed one tree.
            length: a number (fixed K; default 4), ``"none"``, a rule such as ``"cumulative-confidence:0.4"``, the path
                or hub id of a trained controller, or a controller object.
            beams: how MTAD's drafts and MTJD's steps are searched.
            tree: children at each level of a tree draft, ``"3x2x1"`` or (3, 2, 1), instead of ``length``.
            threshold: stopping threshold h of a trained controller, instead of the one its checkpoint names.
            cost: what a token costs, or the file of ``specpilot bench cost --output``: a trained controller then stops
                where drafting on no longer pays, without a threshold. ``"auto"`` measures it now, roughly, and adapts.
            adapt: keep correcting the cost by the wall times of the rounds. The same seed may then draft otherwise, and
                say something else, though by the same law.
            router: folder or hub id of a trained router, or a router object: for each prompt it chooses one of the
                arms in ``draft`` (draft models, ``exit:LAYER``, ``autoregressive``; by default those it was trained
                for). ``length`` is then one for all, or a list with one for each arm.
            sample_arm: draw the arm from the trained router's policy instead of taking its most likely one.
            compile: pass both models through ``torch.compile``.

        Raises:
            InputError: a model, tokenizer or controller is missing or does not belong to this pair.
        """
        if router is not None:
            if tree is not None:
                raise InputError("tree and router: a routed draft is a chain; give one of them")
            if adapt or cost == AUTO:
                raise InputError("adapt, cost='auto': arms differ in what they cost; give a router a cost file")
            routing, tokenizer = load_routing(
                router, target, draft,
                length=length, threshold=threshold, cost=cost, sample=sample_arm,
                loading={"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code, "compile": compile},
            )  # fmt: skip
            return cls(routing.target.model, None, tokenizer, verifier=verifier, routing=routing)
        if sample_arm:
            raise InputError("sample_arm: there is no choice to draw; name a router")
        if length is not None and not isinstance(length, str | int | LengthController):
            raise InputError("length: several are for the arms of a router; give one, or name a router")
        if cost is not None and (draft is None or length is None or isinstance(length, LengthController)):
            raise InputError("cost: tells a trained controller when to stop; name one as length, and a draft")
        if adapt and cost is None:
            raise InputError("adapt: corrects what a token costs; give the cost to begin with, or cost='auto'")
        tokenizer = load_tokenizer(target, trust_remote_code=trust_remote_code)
        target_model = load_model(target, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        drafts = []
        for name in [] if draft is None else [draft] if isinstance(draft, str) else draft:
            check_same_tokenizer(tokenizer, load_tokenizer(name, trust_remote_code=trust_remote_code))
            drafts.append(load_model(name, dtype=dtype, device=device, trust_remote_code=trust_remote_code))
        if length is not None and not isinstance(length, LengthController):
            first = drafts[0] if drafts else None
            if cost == AUTO and first is not None:
                cost, adapt = quick_costs(target_model, first), True
            costs = CostModel.load(cost) if isinstance(cost, str) else cost
            length = load_length(str(length), target_model, first, tokenizer, threshold, costs)
            if adapt and isinstance(length, RateOptimal):
                length = RateOptimal(length.source, length.cost, adapt=True)
        expansions = parse_expansions(tree) if isinstance(tree, str) else tree
        shape: dict[str, Any] = {"beams": beams, "tree": expansions}
        return cls(target_model, drafts, tokenizer, length=length, verifier=verifier, compile=compile, **shape)

    @overload
    def generate(
        self, prompt: Prompt, *,
        max_new_tokens: int = ..., temperature: float = ..., top_k: int | None = ..., top_p: float = ...,
        seed: int = ..., chat: bool = ..., system: str | None = ...,
        on_tokens: Callable[[Sequence[int]], None] | None = ...,
    ) -> Generation: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: list[str] | list[list[int]] | list[Prompt], *,
        max_new_tokens: int = ..., temperature: float = ..., top_k: int | None = ..., top_p: float = ...,
        seed: int = ..., chat: bool = ..., system: str | None = ...,
        on_tokens: Callable[[Sequence[int]], None] | None = ...,
    ) -> list[Generation]: ...  # fmt: skip

    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]] | list[Prompt],
        *,
        max_new_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int | None = 50,
        top_p: float = 1.0,
        seed: int = 0,
        chat: bool = False,
        system: str | None = None,
        on_tokens: Callable[[Sequence[int]], None] | None = None,
    ) -> Generation | list[Generation]:
        """Generate a continuation of one prompt, or of each of several together.

        Args:
            prompt: text, token ids, or chat messages; a list of such is decoded as one batch, whose row i says what it
                would say alone with ``seed + i``, but for rounding. (One after another with trees and beams, with a
                router, and with models that count positions by their cache's columns: MPT and encoder-decoders.)
            max_new_tokens: the budget; never exceeded, and never padded out: EOS ends earlier.
            temperature, top_k, top_p: the warp of both models; temperature 0 is greedy.
            seed: same seed, same output on one device; the global random state is neither read nor changed.
            chat: wrap a text prompt in the chat template; ``system`` adds a system message.
            on_tokens: called with the new tokens after every round; not for batches.

        Raises:
            InputError: empty prompt, prompt longer than the context, a setting out of range, NaN logits.
        """
        if is_batch(prompt):
            if on_tokens is not None:
                raise InputError("on_tokens: several prompts have no one stream of tokens; give one prompt")
            # One after another, where there is no batch to read: branches of different rows share no columns, and some
            # models count positions by them; and rows of different arms share no draft's forward.
            takes_rows = (
                self.tree is None
                and self.beams is None
                and self.routing is None
                and all(model.takes_holes for model in (self.target, *self.drafts))
            )
            if len(prompt) == 1 or not takes_rows:
                sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
                return [
                    self.generate(
                        one, max_new_tokens=max_new_tokens, seed=seed + i, chat=chat, system=system, **sampling
                    )
                    for i, one in enumerate(prompt)
                ]
            return self._generate_batch(
                prompt, max_new_tokens, SamplingParams(temperature, top_k, top_p), seed, chat, system
            )
        one = cast(Prompt, prompt)  # what is no batch
        generation, rounds = self._start(
            one, max_new_tokens, SamplingParams(temperature, top_k, top_p), seed, chat, system
        )
        for tokens in rounds:
            if on_tokens is not None:
                on_tokens(tokens)
        if self.tokenizer is not None:
            generation.text = str(self.tokenizer.decode(generation.tokens, skip_special_tokens=True))
        return generation

    def _generate_batch(
        self,
        prompts: list[Prompt],
        max_new_tokens: int,
        warp: SamplingParams,
        seed: int,
        chat: bool,
        system: str | None,
    ) -> list[Generation]:
        generations = [
            Generation(encode_prompt(self.tokenizer, prompt, chat=chat, system=system)) for prompt in prompts
        ]
        budgets = [self._budget(len(generation.prompt_tokens), max_new_tokens) for generation in generations]
        self.length.check_warp(warp)
        self._check_transport(warp)
        rows = [
            Row(generation, budget, RandomSource(seed + i), copy(self.length), [*generation.prompt_tokens])
            for i, (generation, budget) in enumerate(zip(generations, budgets, strict=True))
        ]
        for row in rows:
            self._inform(row.length, row.generation, row.budget)
        draft = self.drafts[0] if self.drafts else None
        batch = Batch(self.target, draft, rows, verify=self.verify, warp=warp, stop_tokens=self.stop_tokens)
        batch.run()
        for generation, budget in zip(generations, budgets, strict=True):
            if budget < max_new_tokens:
                generation.finish_reason = "context"
            if generation.tokens[-1] in self.stop_tokens:
                generation.finish_reason = "eos"
            if self.tokenizer is not None:
                generation.text = str(self.tokenizer.decode(generation.tokens, skip_special_tokens=True))
        return generations

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int | None = 50,
        top_p: float = 1.0,
        seed: int = 0,
        chat: bool = False,
        system: str | None = None,
    ) -> Iterator[str]:
        """Like :meth:`generate`, but yields the text piece by piece as rounds complete."""
        if self.tokenizer is None:
            raise InputError("stream: text needs a tokenizer; pass one to SpeculativeDecoder")
        _, rounds = self._start(prompt, max_new_tokens, SamplingParams(temperature, top_k, top_p), seed, chat, system)
        text = TextStream(self.tokenizer)
        for tokens in rounds:
            yield text.push(tokens)
        yield text.flush()

    def __call__(
        self, model: PreTrainedModel, input_ids: Tensor, **prepared: Any
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """What ``model.generate(…, custom_generate=decoder)`` calls; see :func:`.custom_generate.custom_generate`."""
        # What is prepared has no names here: generate would take arguments so called away from its own preparations.
        return custom_generate(self, model, input_ids, **prepared)

    def _start(
        self, prompt: Prompt, max_new_tokens: int, warp: SamplingParams, seed: int, chat: bool, system: str | None
    ) -> tuple[Generation, Iterator[list[int]]]:
        generation = Generation(encode_prompt(self.tokenizer, prompt, chat=chat, system=system))
        budget = self._budget(len(generation.prompt_tokens), max_new_tokens)
        for way in self._ways():
            way.length.check_warp(warp)
        if self.routing is not None:
            self.routing.router.check_warp(warp)
        self._check_transport(warp)
        if self.beams is not None:
            self.beams.check_warp(warp, self.target.vocab_size)
        self._inform(self.length, generation, budget)
        if budget < max_new_tokens:
            generation.finish_reason = "context"
        return generation, self.rounds(generation, warp, budget, RandomSource(seed))

    def _budget(self, prompt_length: int, max_new_tokens: int) -> int:
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens={max_new_tokens}: must be at least 1")
        models = [self.target, *(draft for way in self._ways() for draft in way.drafts)]
        context = min((m.context for m in models if m.context is not None), default=prompt_length + max_new_tokens)
        if prompt_length >= context:
            raise InputError(f"prompt: {prompt_length} tokens, but the context holds {context}; shorten the prompt")
        return min(max_new_tokens, context - prompt_length)

    def _inform(self, length: LengthController, generation: Generation, budget: int) -> None:
        """Tell an oracle what the text will be."""
        if isinstance(length, Oracle):
            length.agrees = foresee(self.target, self.drafts[0], generation.prompt_tokens, budget, self.stop_tokens)

    def _check_transport(self, warp: SamplingParams) -> None:
        """Refuse a warp under which optimal transport would have too many unknowns, before the first token."""
        proposals = prod(self.tree or (1,))
        tokens = min(warp.support or self.target.vocab_size, self.target.vocab_size)
        if self.verifier == "otm" and unknowns(tokens, proposals) > MOST:
            raise InputError(
                f"verifier='otm' with {proposals} proposals over {tokens} tokens: too large a linear program; "
                "take a smaller top_k or tree"
            )

    def _ways(self) -> Sequence[Way]:
        """All there are to decode a prompt."""
        return [Way(self.drafts, self.length)] if self.routing is None else self.routing.ways

    @torch.inference_mode()
    def rounds(
        self, generation: Generation, warp: SamplingParams, budget: int, chance: RandomSource
    ) -> Iterator[list[int]]:
        """Fill ``generation`` round by round, yielding each round's new tokens. The decoding loop itself.

        Invariant between rounds: both caches hold a prefix of ``text``; the target's lacks exactly the last token.
        """
        target, stats = self.target, generation.stats

        # The prefill's last distribution already gives a token, and its last hidden state the prompt's embedding.
        started = time.perf_counter()
        text = target.begin(generation.prompt_tokens)
        prompt = as_row(text, target.device)
        room = len(text) + budget + len(self.drafts) * count_nodes(self.tree or ())
        if self.beams is not None:
            room += self.beams.width * self._joint_length
        target.start(room)
        logits, hidden = target.forward(prompt, keep=1)
        way, embedding = self._choose(hidden, generation, chance)
        drafts, length, lookup = way.drafts, way.length, Lookup(text)
        length.start_text()
        for draft in drafts:  # the others are idle: they do not even read the prompt
            self._read_prompt(draft, generation.prompt_tokens, prompt, room)
        first = TokenDistribution.under(warp, logits[0]).sample(0, chance)
        stats.n_target_forwards += 1
        stats.prefill_seconds = time.perf_counter() - started
        text += generation.record(Round([], [], [first]), self.stop_tokens)
        yield generation.rounds[-1].emitted

        while generation.tokens[-1] not in self.stop_tokens and len(generation.tokens) < budget:
            started = time.perf_counter()
            left = budget - len(generation.tokens) - 1  # the token after the draft is the target's own
            if self.verifier == "mtjd":
                step = self._search(target, text[-1:], warp, chance, left + 1)
                text += generation.record_step(step, self.stop_tokens)
                stats.seconds += time.perf_counter() - started
                yield generation.rounds[-1].emitted
                continue
            proposals = [self._propose(draft, length, lookup, warp, chance, left) for draft in drafts]
            proposal = merge(proposals) if proposals else NO_DRAFT
            read = as_row([text[-1], *proposal.tokens], target.device)
            branches = None if self.tree is None or not proposal.tokens else _below_last(proposal, len(text))
            logits, _ = target.forward(read, branches=branches)
            verdict = self.verify(TokenDistribution.under(warp, logits[0]), proposal, chance)
            if proposal.tokens:
                length.end_round(len(proposal.tokens), verdict.accepted)

            # Columns of a draft's nodes, in both caches, follow the text's; the draft has not read its last ones.
            target.keep(len(text), [len(text) + node for node in verdict.path])
            for draft, own in zip(drafts, proposals, strict=True):
                if own.tokens:
                    path = verdict.path if own is proposal else own.follow([proposal.tokens[n] for n in verdict.path])
                    draft.keep(len(text), [len(text) + n for n in path if len(text) + n < draft.length])
            text += generation.record_verdict(proposal, verdict, self.stop_tokens)
            seconds = time.perf_counter() - started
            stats.seconds += seconds
            length.timed(len(proposal.tokens), seconds)
            yield generation.rounds[-1].emitted

        if generation.tokens[-1] in self.stop_tokens:
            generation.finish_reason = "eos"
        if self.routing is not None and embedding is not None and generation.arm is not None and stats.seconds > 0:
            self.routing.router.learn(embedding, generation.arm, (stats.n_generated - 1) / stats.seconds)

    def _choose(self, hidden: Tensor, generation: Generation, chance: RandomSource) -> tuple[Way, Tensor | None]:
        """How to decode this prompt, and with a router the embedding (d,) it chose by, from the prompt's ``hidden``."""
        if self.routing is None:
            return Way(self.drafts, self.length), None
        embedding = self.target.embed(hidden)
        generation.arm = self.routing.choose(embedding, chance)
        return self.routing.ways[generation.arm], embedding

    def _read_prompt(self, draft: CachedModel, prompt_tokens: list[int], text: Tensor, room: int) -> None:
        """Let ``draft`` read the prompt, unless it cannot, or shares a cache that has read it already."""
        draft.begin(prompt_tokens)
        draft.start(room)
        unread = text[:, draft.length :]
        if unread.shape[1] and _can_read(draft, unread[0].tolist()):
            draft.forward(unread, keep=1)

    def _propose(
        self,
        draft: CachedModel,
        length: LengthController,
        lookup: Lookup,
        warp: SamplingParams,
        chance: RandomSource,
        longest: int,
    ) -> Draft:
        """A draft after the lookup's text, up to ``longest`` tokens deep."""
        unread = lookup.text[draft.length :]
        if not _can_read(draft, unread):
            return NO_DRAFT
        vocab_size = self.target.vocab_size
        if self.beams is not None:
            return self._search(draft, unread, warp, chance, longest)
        if self.tree is None:
            chain = Chain(unread, length, chance, min(MAX_DRAFT, longest), self.stop_tokens, lookup)
            return draft_chain(draft, chain, warp, vocab_size)
        return draft_tree(
            draft, unread, self.tree, warp, chance,
            vocab_size=vocab_size, deepest=longest, stop_tokens=self.stop_tokens, replacement=self.verifier != "mcss",
        )  # fmt: skip

    def _search(
        self, model: CachedModel, unread: list[int], warp: SamplingParams, chance: RandomSource, longest: int
    ) -> Draft:
        """The best of ``model``'s beams after a text of which it has read all but ``unread``."""
        assert self.beams is not None
        # A step of one token leaves nothing to choose jointly: it is drawn (Qin et al. 2025, after Definition 3.1).
        beams = Beams(1) if self.verifier == "mtjd" and self._joint_length == 1 else self.beams
        return draft_beams(
            model, unread, beams, min(self._joint_length, longest), warp, chance,
            vocab_size=self.target.vocab_size, stop_tokens=self.stop_tokens,
        )  # fmt: skip

    @property
    def _joint_length(self) -> int:
        """γ of MTAD, K of MTJD."""
        assert isinstance(self.length, Fixed)
        return self.length.k


def _below_last(draft: Draft, length: int) -> TreeMask:
    """Where the text's last token, at column ``length`` - 1, and the nodes below it stand in the target's cache."""
    above = [[length + node for node in ancestors_of(draft.parents, node)] for node in range(len(draft.tokens))]
    return TreeMask(length - 1, [[], *([length - 1, *columns] for columns in above)])


def _can_read(draft: CachedModel, tokens: list[int]) -> bool:
    """Whether the draft has an embedding for every token: its vocabulary may be padded less than the target's.

    Such a token is no text of the tokenizer's; should the target emit one all the same, it goes on alone.
    """
    return max(tokens) < draft.vocab_size


def stop_tokens_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """The ids that end a text: the model's own, as transformers' ``generate`` takes them, else the tokenizer's."""
    ids = model.generation_config.eos_token_id
    if ids is None and tokenizer is not None:
        ids = tokenizer.eos_token_id
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)
