"""The speculative decoder, the public interface of the engine.

A draft proposes, the target verifies, and a controller decides how long to draft (SpecDec++, Huang et al. 2024,
Algorithm 2). ``p`` is the target, ``q`` the draft, both under the same sampling parameters. Under a lossless rule the
output has the target's distribution for every draft and controller.

The file is longer than others because of the documentation of public arguments.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Never, NoReturn, TypeAlias, Unpack, overload

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ..common.console import log_at_end
from ..common.errors import InputError, check_count
from ..common.json_file import build
from ..common.options import AUTO, DType, check_names
from ..controllers.acceptance.copy_head import CopyPredictor
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.provenance import EXACT, INVARIANT
from ..controllers.length import LengthController
from ..controllers.length.cost_model import CostModel
from ..controllers.length.cost_source import cost_source
from ..controllers.router import Router
from ..controllers.sampling import SamplingParams
from ..models import EncoderDecoder, GgufModel, LanguageModel, count_parameters
from ..models.loading.generation_defaults import GenerationDefaults, generation_defaults, model_stop_tokens
from .build import Builder, Models, Setup, load_models
from .core import Generation, Request, warn_of_context
from .drafters.beams import Beams
from .drafters.ngram import Ngram
from .engine import Engine
from .hooks import RoundClock, RouterHook
from .integrations.custom_generate import custom_generate
from .loading.controllers import load_copies, load_length
from .loading.pair import Model, check_pair, with_states, wrap_model
from .loading.routing import Routing
from .model_spec import Name
from .options import Auto, DecodingOptions, DraftDType, SamplingKeywords, check_system
from .plan import Call, LoadedOptions, Mixed, Plan, named_length, resolve, with_models
from .prompting import PromptLike, SeveralPrompts, SinglePrompt, as_prompts, encode_prompt
from .random_source import RandomSource, SharedNoise, drawn_seed, text_seeds
from .scheduler import Scheduler
from .text_stream import PLAIN, Stop, TextStream, TextStyle

FOLLOW, IGNORE = "follow", "ignore"  # values of generation_config
# Numbers of samples that a type checker knows to be several when they are written in a call.
SeveralSamples: TypeAlias = Literal[2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 32, 48, 50, 64, 100, 128]


class GenerateKeywords(SamplingKeywords, total=False):
    """Keywords of :meth:`SpeculativeDecoder.generate` that do not affect the type of its result."""

    sampling: SamplingParams | None
    seed: int | Sequence[int] | None
    length: Name | int | LengthController | None
    verifier: str | None
    chat: bool | Auto
    system: str | None
    stop: Stop
    on_tokens: Callable[[Sequence[int]], None] | None


class SpeculativeDecoder:
    """Speculative decoding with a target model and a draft model. Thread-safe.

    Args:
        target: the target model, whose distribution the output has.
        draft: the draft model, also in a list; None decodes autoregressively.
        routing: chooses one of several arms for each prompt, instead of ``draft`` and ``length``.
        tokenizer: needed for text prompts and text output.
        length: length controller of chains, or its name, or their number of tokens. Default: four tokens.
        threshold, cost: settings of a length controller that is passed by its name, as for :meth:`from_pretrained`.
        verifier: the verification rule, with its threshold if it has one: ``"block"``, ``"mtad:0.5"``; see
            ``specpilot.infer.verify``. ``"mtjd"`` is joint decoding by the target alone, ``length`` tokens per step.
            ``"auto"`` is ``"invariant"`` in calls that give a seed, see
            :class:`~specpilot.infer.options.DecodingOptions`.
        draft_exponent: power of the draft's probabilities under the rule ``"invariant"``. Default: that of the trained
            controller, else 1.
        beams: settings of the beam search of MTAD and MTJD. Default: four beams, which are sampled.
        tree: draft a tree instead of a chain: number of children at each level, such as (3, 2, 1), or ``"auto"`` for
            as many nodes as pay by the predictions and costs of ``length``.
        ngram: settings of n-gram drafts, which copy the continuation of an earlier occurrence of the text's last
            tokens. With a draft model, they are used in rounds where they pay.
        max_running: maximum number of requests decoded together; others wait.
        max_columns: largest number of tokens of a text, for which memory on a GPU is taken at once.
        generation_config: ``"follow"`` takes sampling settings that are ``"auto"`` in a call from the target's
            ``generation_config`` and refuses settings that are not supported; ``"ignore"`` does not read it.
        pair_check: for trained controllers named in calls: ``"exact"`` or ``"tokenizer"``, see :meth:`from_pretrained`.

    Raises:
        InputError: the models do not fit together, or an argument is invalid.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | Sequence[Model] | None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        length: LengthController | Name | int | None = None,
        threshold: float | None = None,
        cost: CostModel | str | float | None = None,
        verifier: str = AUTO,
        draft_exponent: float | None = None,
        beams: Beams | None = None,
        tree: str | Sequence[int] | None = None,
        ngram: Ngram | None = None,
        routing: Routing | None = None,
        max_running: int = 64,
        max_columns: int | None = None,
        generation_config: str = FOLLOW,
        pair_check: str = EXACT,
    ) -> None:
        models = [] if draft is None else list(draft) if isinstance(draft, list | tuple) else [draft]
        drafts = [wrap_model(model, "draft") for model in models]
        reader = wrap_model(target, "target") if routing is None else routing.target
        check_count("max_running", max_running)
        objects: dict[str, Any] = {"router": routing, "length": length, "cost": cost, "tree": tree}
        choices: dict[str, Any] = {"generation_config": generation_config, "pair_check": pair_check}
        options = LoadedOptions(
            target=reader,
            draft=(*drafts, *([] if ngram is None else [ngram])) or None,
            threshold=threshold,
            verifier=verifier,
            draft_exponent=draft_exponent,
            beams=beams,
            max_running=max_running,
            max_columns=max_columns,
            **objects,
            **choices,
        )
        self._begin(options, Models(reader, drafts, tokenizer, routing), steady=True)

    def _begin(self, options: DecodingOptions, models: Models | None, *, steady: bool) -> None:
        """Set up the decoder.

        Args:
            options: the options.
            models: the models; None loads those that the options name.
            steady: whether the default draft length must not depend on measured times.
        """
        options = with_models(options)  # fills in the names of target and draft
        plan = resolve(options, steady=steady)
        self.options, self.steady = options, steady
        models = load_models(plan) if models is None else models
        if plan.max_columns is not None:
            models = models.limited(plan.max_columns)
        for model in models.drafts:
            check_pair(models.target, model)
        self.target = with_states(models.target, models.drafting)
        self.drafts, self.routing, self.tokenizer = models.drafts, models.routing, models.tokenizer
        self.generation_config, self.pair_check = plan.generation_config, plan.pair_check
        self.stop_tokens = self._ends = model_stop_tokens(self.target.model, self.tokenizer)
        self.defaults.sampling_params()  # raises for unsupported settings here instead of at the first prompt
        engine = Engine(self.target)
        engine.hooks.append(RoundClock(self.target.device))
        if self.routing is not None:
            engine.hooks.append(RouterHook(self.routing.router, self.target, engine.cache))
        self.builder = Builder(engine, models._replace(target=self.target))
        self.setup = self.builder.build(plan)
        # Setups of earlier calls, by the name of the length, the verification rule, and whether a seed sets the rule.
        self._calls: dict[tuple[str, str | None, bool], Setup] = {}
        self._replaced: LengthController | None = None  # the length set by use_length
        self._warn_of_short_drafts()
        self._warn_of_large_drafts()
        self.scheduler = Scheduler(engine, plan.max_running)

    @classmethod
    def from_pretrained(
        cls,
        target: Name,
        draft: Name | Sequence[Name] | None = None,
        *,
        length: LengthController | Name | int | Sequence[LengthController | Name | int] | None = None,
        threshold: float | None = None,
        cost: CostModel | Name | float | None = None,
        adapt: bool | Literal["auto"] = "auto",
        router: Router | Name | None = None,
        sample_arm: bool = False,
        copies: CopyPredictor | Name | None = None,
        tree: str | Sequence[int] | None = None,
        verifier: str = AUTO,
        draft_exponent: float | None = None,
        beams: Beams | int | None = None,
        argmax: bool = False,
        dtype: DType = "float32",
        draft_dtype: DraftDType | None = None,
        device: str = "auto",
        device_map: str | dict[str, int | str] | None = None,
        offload_folder: Name | None = None,
        graphs: Literal["on", "off", "compiled"] = "on",
        max_running: int = 64,
        max_columns: int | None = None,
        generation_config: Literal["follow", "ignore"] = "follow",
        pair_check: Literal["exact", "tokenizer"] = "exact",
        tokenizer: Name | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        **misspelt: Never,
    ) -> SpeculativeDecoder:
        """Load a decoder by name: shipped tiny models, local folders, hub ids, or GGUF files.

        The keywords are the fields of :class:`~specpilot.infer.options.DecodingOptions`, which describes them. Some
        take objects as well as names.

        Args:
            target, draft: model names, or paths of GGUF files, which run in llama.cpp (extra ``gguf``); ``draft=None``
                decodes autoregressively, or with a router takes the arms that it was trained for.
            length: also a length controller, or a list with one for each arm of a router.
            cost, router, copies, beams: also a cost model, a router, a copy predictor, and :class:`.Beams`.
            tree: also the number of children at each level, (3, 2, 1).
            misspelt: keywords that are not options. Each of them is an error that names a similar option.

        Raises:
            InputError: a model, tokenizer or controller is missing or does not fit this pair, there is no such option,
                or options cannot be combined.
        """
        check_names(DecodingOptions, misspelt)
        if any(isinstance(model, nn.Module) for model in (target, draft)):
            raise InputError(
                "target, draft: are loaded models; pass them to SpeculativeDecoder(target, draft, tokenizer)"
            )
        if isinstance(beams, Beams):
            argmax = beams.argmax
            beams = beams.width
        objects: dict[str, Any] = {  # names, or objects, which the fields take in Python
            "target": target, "draft": draft, "length": length, "cost": cost, "router": router, "copies": copies,
            "tree": tree, "tokenizer": tokenizer, "offload_folder": offload_folder,
        }  # fmt: skip
        options = DecodingOptions(
            threshold=threshold, adapt=adapt, sample_arm=sample_arm, verifier=verifier,
            draft_exponent=draft_exponent, beams=beams, argmax=argmax, dtype=dtype, draft_dtype=draft_dtype,
            device=device, device_map=device_map, graphs=graphs,
            max_running=max_running, max_columns=max_columns, generation_config=generation_config,
            pair_check=pair_check, revision=revision, trust_remote_code=trust_remote_code, **objects,
        )  # fmt: skip
        return cls.from_options(options)

    @classmethod
    def from_options(cls, options: DecodingOptions, models: Models | None = None) -> SpeculativeDecoder:
        """Create a decoder from its options.

        Args:
            options: the options.
            models: the loaded models, with which the default draft length is four tokens. Default: the models that
                ``options`` name are loaded, as by :meth:`from_pretrained`.

        Raises:
            InputError: as for :meth:`from_pretrained`.
        """
        return cls._from_parts(options, models, steady=models is not None)

    @classmethod
    def steady_from_options(cls, options: DecodingOptions) -> SpeculativeDecoder:
        """Create a decoder from its options, for texts that must not depend on measured times.

        It differs from :meth:`from_options` in the default draft length, which is four tokens.
        """
        return cls._from_parts(options, None, steady=True)

    @classmethod
    def _from_parts(cls, options: DecodingOptions, models: Models | None, *, steady: bool) -> SpeculativeDecoder:
        decoder = cls.__new__(cls)
        with log_at_end():
            decoder._begin(options, models, steady=steady)
        return decoder

    @property
    def plan(self) -> Plan:
        """The plan of decoding; :meth:`.Plan.describe` returns it in words."""
        return self.setup.plan

    @property
    def length(self) -> LengthController:
        """The length controller of calls without a ``length``."""
        return self.setup.arms[0].length

    def __repr__(self) -> str:
        return f"{type(self).__name__}\n{self.plan.describe()}"

    # The type of the result follows from the type of the prompt and from ``n``.
    @overload
    def generate(
        self, prompt: SinglePrompt, *, n: Literal[1] = 1, **options: Unpack[GenerateKeywords]
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: SinglePrompt, *, n: SeveralSamples, **options: Unpack[GenerateKeywords]
    ) -> list[Generation]: ...
    @overload
    def generate(
        self, prompt: SinglePrompt, *, n: int, **options: Unpack[GenerateKeywords]
    ) -> Generation | list[Generation]: ...
    @overload
    def generate(
        self, prompt: SeveralPrompts, *, n: Literal[1] = 1, **options: Unpack[GenerateKeywords]
    ) -> list[Generation]: ...
    @overload
    def generate(
        self, prompt: SeveralPrompts, *, n: SeveralSamples, **options: Unpack[GenerateKeywords]
    ) -> list[list[Generation]]: ...
    @overload
    def generate(
        self, prompt: SeveralPrompts, *, n: int, **options: Unpack[GenerateKeywords]
    ) -> list[Generation] | list[list[Generation]]: ...
    @overload
    def generate(
        self, prompt: PromptLike, *, n: int = 1, **options: Unpack[GenerateKeywords]
    ) -> Generation | list[Generation] | list[list[Generation]]: ...

    def generate(  # long by its arguments and their documentation
        self,
        prompt: PromptLike,
        *,
        n: int = 1,
        max_new_tokens: int | Auto = "auto",
        temperature: float | Auto = "auto",
        top_k: int | Auto | None = "auto",
        top_p: float | Auto = "auto",
        sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        length: Name | int | LengthController | None = None,
        verifier: str | None = None,
        chat: bool | Auto = "auto",
        system: str | None = None,
        stop: Stop = None,
        on_tokens: Callable[[Sequence[int]], None] | None = None,
    ) -> Generation | list[Generation] | list[list[Generation]]:
        """Generate a continuation of one prompt, or of several together.

        Args:
            prompt: text, token ids in a list, tensor or array, or chat messages. A list of these, a 2-D tensor or a
                tokenizer's result for several texts is decoded as one batch; up to rounding, each text is the same as
                when decoded alone.
            n: number of independent samples of each prompt.
            max_new_tokens: maximum number of new tokens; an end token may end the text earlier. A text that ends
                earlier at the target's context has the ``finish_reason`` ``"context"``, and there is a warning.
            temperature, top_k, top_p: sampling of both models; temperature 0 is greedy, top_k None keeps every token.
                ``"auto"`` is the target's ``generation_config``, else 1, 50 and 1 (and 128 new tokens).
            sampling: ``temperature``, ``top_k`` and ``top_p`` in one object, instead of single arguments.
            seed: seed of the text. Up to rounding, the same seed gives the same text with any drafts. The global random
                state is neither read nor changed. Several texts have different seeds: a list with one for each, or
                seeds that are derived from this one and returned with the outputs. Without a seed, a random seed is
                drawn, and the text also depends on the drafts.
            length, verifier: length controller and verification rule of this call, instead of the decoder's.
            chat: apply the tokenizer's chat template to a text prompt. ``"auto"`` applies it if the tokenizer has one,
                as ``specpilot generate`` does; ``False`` continues the text as it is. Messages always use the template,
                token ids never.
            system: a system message before the prompt, in the chat template.
            stop: strings that end the text, special tokens among them; text and tokens end there, without the string.
            on_tokens: called with the new tokens after every round; for a single text only.

        Returns:
            A :class:`~specpilot.infer.core.Generation`; a list of them for several prompts or for n > 1; a list
            of lists for both.

        Raises:
            InputError: the prompt is empty or longer than the context, a setting is out of range, or logits are NaN.
        """
        check_count("n", n)
        prompts, single = as_prompts(prompt)
        seeds = text_seeds(drawn_seed() if seed is None else seed, len(prompts) * n)
        if on_tokens is not None and (not single or n > 1):
            raise InputError("on_tokens: supports a single text; give one prompt and n=1")
        sampling = self._sampling(sampling, temperature=temperature, top_k=top_k, top_p=top_p)
        self.check_models()
        setup = self.setup_for(length, verifier, seed=seed, temperature=sampling.temperature)
        style = TextStyle.until(stop)
        ids = [self._encode(single_prompt, chat, system) for single_prompt in prompts]
        budgets = [self.defaults.budget(max_new_tokens, len(tokens)) for tokens in ids]
        requests = [
            self.new_request(ids[i // n], sampling, budgets[i // n], text_seed, setup=setup, style=style)
            for i, text_seed in enumerate(seeds)
        ]
        if on_tokens is None:
            self.scheduler.run(requests)
        else:
            for tokens in self.scheduler.tokens(requests[0]):
                on_tokens(tokens)
        outputs = [self.finish(request) for request in requests]
        warn_of_context(outputs, self.context)
        if single:
            return outputs[0] if n == 1 else outputs
        return outputs if n == 1 else [outputs[i : i + n] for i in range(0, len(outputs), n)]

    def stream(
        self,
        prompt: PromptLike,
        *,
        max_new_tokens: int | Auto = "auto",
        temperature: float | Auto = "auto",
        top_k: int | Auto | None = "auto",
        top_p: float | Auto = "auto",
        sampling: SamplingParams | None = None,
        seed: int | None = None,
        length: Name | int | LengthController | None = None,
        verifier: str | None = None,
        chat: bool | Auto = "auto",
        system: str | None = None,
        stop: Stop = None,
    ) -> Iterator[str]:
        """Generate a continuation of one prompt, and yield its text piece by piece after each round.

        The arguments are those of :meth:`generate`. Closing the iterator cancels the generation.

        Raises:
            InputError: there is no tokenizer, there are several prompts, or as for :meth:`generate`.
        """
        if self.tokenizer is None:
            raise InputError("stream: text needs a tokenizer; pass one to SpeculativeDecoder")
        prompts, single = as_prompts(prompt)
        if not single:
            raise InputError("stream: supports a single prompt; give one")
        self.check_models()
        ids = self._encode(prompts[0], chat, system)
        sampling = self._sampling(sampling, temperature=temperature, top_k=top_k, top_p=top_p)
        budget = self.defaults.budget(max_new_tokens, len(ids))
        (text_seed,) = text_seeds(drawn_seed() if seed is None else seed, 1)
        setup = self.setup_for(length, verifier, seed=seed, temperature=sampling.temperature)
        style = TextStyle.until(stop)
        return self._stream(self.new_request(ids, sampling, budget, text_seed, setup=setup, style=style))

    def _stream(self, request: Request) -> Iterator[str]:
        text = self.text_stream(request.prompt, request.style)
        for tokens in self.scheduler.tokens(request):
            yield text.push(tokens)
        yield text.flush()
        warn_of_context([request.output], self.context)

    def __call__(
        self, model: PreTrainedModel, input_ids: Tensor, *, stop_strings: Stop = None, **prepared: Any
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Decode for ``model.generate(…, custom_generate=decoder)``; see :func:`.custom_generate.custom_generate`."""
        self.check_models()
        # No named parameters for prepared inputs: generate would pass such arguments here instead of preparing them, as
        # it does with stop_strings. It drops the tokenizer that belongs to them; the decoder's is the same.
        style = TextStyle.until(stop_strings, "stop_strings", across=True)
        # transformers draws with its global generator, which has a seed whether the caller sets it or not.
        new_request = partial(self.new_request, setup=self.setup_for(seed=torch.initial_seed()))
        return custom_generate(self.target, self.scheduler, new_request, style, model, input_ids, **prepared)

    def new_request(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        seed: int | RandomSource,
        *,
        stop_tokens: frozenset[int] | None = None,
        setup: Setup | None = None,
        style: TextStyle = PLAIN,
    ) -> Request:
        """Make a request for the scheduler, as :meth:`generate` does.

        Args:
            prompt: token ids of the prompt.
            sampling: sampling parameters of both models.
            max_new_tokens: maximum number of new tokens.
            seed: seed of the text, or its random source.
            stop_tokens: ids that end the text. Default: those of the target.
            setup: drafters, length controllers and rule that decode the request. Default: those of the decoder.
            style: the rules that make the text from the tokens.

        Raises:
            InputError: the prompt fills the context, or the verifier does not support the sampling parameters.
        """
        setup = setup or self.setup
        setup.plan.check_sampling(sampling, self.target.vocab_size)
        for arm in setup.arms:
            arm.length.check_sampling(sampling)
            if sampling.temperature > 0:  # greedy drafts are accepted alike
                arm.length.check_verifier(setup.plan.verifier.rule)
        if self.routing is not None:
            self.routing.router.check_sampling(sampling)
            if sampling.temperature > 0:
                self.routing.router.check_verifier(setup.plan.verifier.rule)
        for model in (self.target, *self._draft_models()):
            if not isinstance(model.model, GgufModel) and model.model.training:
                raise InputError(f"{model.name}: the model is in training mode, so dropout is on; call .eval() on it")
        output = Generation(prompt)
        context = self.context
        available = (len(prompt) + max_new_tokens if context is None else context) - len(prompt)
        if available < 1:
            holder = "the context holds" if self.target.longest is None else "max_columns is"
            raise InputError(f"prompt: {len(prompt)} tokens, but {holder} {context}; shorten the prompt")
        if available < max_new_tokens:
            output.finish_reason = "context"
        stop_tokens_now = model_stop_tokens(self.target.model, self.tokenizer)
        if stop_tokens_now != self._ends:  # the generation_config has changed
            self.stop_tokens = self._ends = stop_tokens_now
        ends = (self.stop_tokens if stop_tokens is None else stop_tokens) | style.stop_token_ids
        output.verifier = setup.plan.verifier.name
        if isinstance(seed, RandomSource):
            rng = seed
        else:
            output.seed = seed
            rng = SharedNoise(seed) if setup.plan.verifier.rule == INVARIANT else RandomSource(seed)
        request = Request(prompt, sampling, rng, min(max_new_tokens, available), ends, setup.verify, setup.arms, output)
        request.style = style
        if style.stop:
            request.stopping = self.text_stream(prompt, style)
        return request

    def text_stream(self, prompt: list[int], style: TextStyle = PLAIN, *, by_token: bool = False) -> TextStream:
        """Return the stream that converts the tokens of an answer to ``prompt`` to text.

        Raises:
            InputError: the decoder has no tokenizer.
        """
        if self.tokenizer is None:
            raise InputError("stop strings: text needs a tokenizer; pass one to SpeculativeDecoder")
        # The answer of an encoder-decoder is a text of its own.
        context = [] if isinstance(self.target, EncoderDecoder) else prompt
        return TextStream(self.tokenizer, context, style, by_token=by_token)

    @property
    def context(self) -> int | None:
        """The maximum number of tokens of prompt and output that the target can read; None if there is no limit."""
        return self.target.context

    @property
    def fingerprint(self) -> PairFingerprint:
        """The fingerprints of the target, its draft model and the tokenizer, for a decoder with one draft model."""
        (draft,) = self.drafts
        assert self.tokenizer is not None, "decoder was not loaded by name"
        return PairFingerprint.of(self.target.model, draft.model, self.tokenizer)

    def _warn_of_short_drafts(self) -> None:
        """Warn of drafts that read shorter texts than the target, which decodes longer texts without them."""
        longest = math.inf if self.context is None else self.context
        continuation = "with n-gram drafts alone" if isinstance(self.plan.drafting, Mixed) else "without drafts"
        for model in dict.fromkeys(self._draft_models()):
            if model.context is not None and model.context < longest:
                warnings.warn(
                    f"{model.model.name_or_path or model.name}: the draft reads texts of at most {model.context} "
                    f"tokens; longer ones go on {continuation}",
                    stacklevel=3,
                )

    def _warn_of_large_drafts(self) -> None:
        """Warn of drafts that are not smaller than the target, because their steps take as long as decoding."""
        target_count = count_parameters(self.target.model)
        for model in dict.fromkeys(self._draft_models()):
            count = count_parameters(model.model)
            if model.precision == self.target.precision and count >= target_count:
                remedy = "swap target and draft" if count > target_count else "give a smaller draft"
                warnings.warn(
                    f"draft={model.model.name_or_path or model.name!r}: it has {count:,} parameters and the target "
                    f"{target_count:,}, so drafts cost more than they save; {remedy}",
                    stacklevel=3,
                )

    def check_models(self) -> None:
        """Check that no model has changed in a way that decoding would ignore.

        Raises:
            InputError: a model has changed.
        """
        self.target.check_unchanged("target")
        for model in self._draft_models():
            model.check_unchanged("draft")

    @property
    def defaults(self) -> GenerationDefaults:
        """The current settings of the target's ``generation_config``; no settings if the decoder ignores it.

        Raises:
            InputError: a setting is not supported.
        """
        return generation_defaults(self.target.model) if self.generation_config == FOLLOW else GenerationDefaults()

    def _draft_models(self) -> list[LanguageModel]:
        """Return the draft models; with a router, those of its arms."""
        return self.drafts if self.routing is None else self.routing.models

    def _sampling(self, sampling: SamplingParams | None, **arguments: Any) -> SamplingParams:
        """Return ``sampling``, or the sampling parameters made of a call's single ``arguments``.

        Raises:
            InputError: a call has both, a value is out of range, or ``sampling`` has another type.
        """
        if sampling is None:
            return self.defaults.sampling_params(**arguments)
        if not isinstance(sampling, SamplingParams):
            raise InputError(
                f"sampling: of type {type(sampling).__name__}; give SamplingParams(temperature=…, top_k=…, top_p=…)"
            )
        for name, value in arguments.items():
            if value != AUTO:
                raise InputError(f"{name}={value!r}: sampling has a {name} already; give one of them")
        return sampling

    def _encode(self, prompt: PromptLike, chat: bool | Auto, system: str | None) -> list[int]:
        expected: Any = bool | Auto  # a union, which is no type to a type checker
        build(expected, chat, "chat")
        check_system(system, chat)
        return encode_prompt(
            self.tokenizer,
            prompt,
            chat=chat,
            system=system,
            vocab_size=self.target.vocab_size,
            encoder=self.target.encodes_prompts,
        )

    def setup_for(
        self,
        length: Name | int | LengthController | None = None,
        verifier: str | None = None,
        *,
        seed: int | Sequence[int] | None = None,
        temperature: float = 1.0,
    ) -> Setup:
        """Return the decoder's setup, or that of a call with a ``length``, a ``verifier`` or a seed.

        A length replaces a tree, unless the length grows trees. With a seed and a temperature above 0, the rule is
        ``invariant``, with which the text depends on the seed only, unless the options or the call name a rule.

        Args:
            length, verifier: length controller and rule of the call; None for those of the decoder.
            seed: seed of the call, or None. The setup only depends on whether there is a seed.
            temperature: temperature of the call.

        Raises:
            InputError: the length or the rule does not exist, or does not fit the decoder's options.
        """
        seeded = seed is not None and temperature > 0 and self.options.verifier == AUTO and verifier is None
        if length is None and verifier is None and not seeded:
            return self.setup
        call = Call(self._replaced if length is None else length, verifier)
        if isinstance(length, LengthController):
            return self._build_setup(call, seeded)
        key = str(length), verifier, seeded
        if key not in self._calls:
            self._calls[key] = self._build_setup(call, seeded)
        return self._calls[key]

    def _build_setup(self, call: Call, seeded: bool = False) -> Setup:
        return self.builder.build(resolve(self.options, call, steady=self.steady, seeded=seeded))

    def use_length(self, length: LengthController) -> None:
        """Use ``length`` in all later calls without a length; running requests keep their controllers.

        Raises:
            InputError: the controller does not fit the decoder's options.
        """
        self.setup = self._build_setup(Call(length))
        self._replaced = length
        self._calls.clear()

    def load_length(
        self, name: str, *, threshold: float | None = None, cost: CostModel | None = None
    ) -> LengthController:
        """Load a length controller for this decoder's models: a rule, or a trained one (included, local or on the hub).

        Args:
            name: the name.
            threshold, cost: settings of a trained controller, as for :meth:`from_pretrained`.

        Raises:
            InputError: there is no such rule or controller, it was trained for another pair, or it cannot use ``cost``.
        """
        first = self.drafts[0].model if self.drafts else None
        named_length(name, threshold, cost_source(cost), drafted=first is not None)
        return load_length(name, self.target.model, first, self.tokenizer, threshold, cost, self.pair_check)

    def load_copies(self, name: Name) -> CopyPredictor:
        """Load a copy head (included, local or on the hub) for this decoder's target, for use in :class:`Ngram`.

        Raises:
            InputError: the head cannot be loaded, is a controller of another kind, or was trained for another target.
        """
        return load_copies(name, self.target.model, self.tokenizer, self.pair_check)

    def finish(self, request: Request) -> Generation:
        """Return the output of a finished request, with its text."""
        if self.tokenizer is not None:
            text = self.text_stream(request.prompt, request.style)
            request.output.text = text.push(request.output.tokens) + text.flush()
        return request.output

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "SpeculativeDecoder: cannot be pickled or copied; make a new one from the same models, or by "
            "from_pretrained in the other process"
        )
