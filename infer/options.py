"""Options of loading models, sampling and decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

from ..common.errors import InputError
from ..common.options import (
    AUTO,
    Count,
    DeviceOptions,
    DType,
    Folder,
    NotNegative,
    Objects,
    Options,
    Range,
    Seed,
    Several,
    Share,
)

SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p")

Auto = Literal["auto"]
DraftDType = Literal[DType, "int8", "int4"]


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Options):
    """Models.

    The option of commands that load a target.

    Attributes:
        target: Target model: a shipped model, a folder, a hub id, perhaps with a revision (owner/name@v1), or a GGUF
            file. The text has its distribution.
    """

    target: str = "tiny"


@dataclass(frozen=True, kw_only=True)
class PairOptions(TargetOptions):
    """Models.

    Options of commands that load a target and a draft.

    Attributes:
        draft: Draft model with the target's tokenizer: a shipped model, a folder, a hub id, perhaps with a revision
            (owner/name@v1), or a GGUF file.
    """

    draft: str = "tiny-draft"


class LoadingKeywords(TypedDict):
    """Keywords of ``load_model`` for every model."""

    dtype: str
    device: str
    trust_remote_code: bool


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(DeviceOptions):
    """Models.

    Options of loading models.

    Attributes:
        dtype: Precision of the models; auto uses that of each checkpoint.
        trust_remote_code: Run code that comes with the models; only for sources you trust.
    """

    dtype: DType = "float32"
    trust_remote_code: bool = False

    @property
    def loading(self) -> LoadingKeywords:
        """The keywords of ``load_model`` for every model."""
        return {"dtype": self.dtype, "device": self.device, "trust_remote_code": self.trust_remote_code}


@dataclass(frozen=True, kw_only=True)
class DraftPrecisionOptions(Options):
    """Models.

    The option of commands that decode with a draft model.

    Attributes:
        draft_dtype: Precision of the draft models. int8 and int4 round the weights of drafts on a CPU. auto measures a
            draft step in the target's precision, bfloat16, int8 and int4 and takes the fastest. Null takes the target's
            precision, or auto if `length` is null as well.
    """

    draft_dtype: DraftDType | None = None


class PlacementKeywords(TypedDict):
    """Keywords of ``load_model`` that place a model on devices."""

    device_map: str | dict[str, int | str] | None
    offload_folder: Path | None


@dataclass(frozen=True, kw_only=True)
class PlacementOptions(Options):
    """Models.

    Options of commands that may place the target on several devices.

    Attributes:
        device_map: Spread the target over several devices: "auto" or "balanced" as in transformers, or a device, "cpu"
            or "disk" for each of its modules.
        offload_folder: Folder for weights that a device map puts on disk.
    """

    device_map: str | dict[str, int | str] | None = None
    offload_folder: Folder | None = None

    @property
    def placement(self) -> PlacementKeywords:
        """The keywords of ``load_model`` that place the target on devices."""
        return {"device_map": self.device_map, "offload_folder": self.offload_folder}


@dataclass(frozen=True, kw_only=True)
class PairCheckOptions(Options):
    """Models.

    The option of commands that load trained controllers.

    Attributes:
        pair_check: Pairs of models that a trained controller accepts. exact accepts only the pair that it was trained
            for. tokenizer also accepts other models with the same tokenizer, with a warning: for example the same
            models in another precision or as GGUF files.
    """

    pair_check: Literal["exact", "tokenizer"] = "exact"


class SamplingKeywords(TypedDict, total=False):
    """Keywords of ``SpeculativeDecoder.generate`` for sampling; the decoder fills in its defaults for missing keys."""

    max_new_tokens: int | Auto
    temperature: float | Auto
    top_k: int | Auto | None
    top_p: float | Auto


def check_system(system: str | None, chat: bool | Auto) -> None:
    """Raise InputError if there is a system message, and the chat template that holds it is left out."""
    if system is not None and chat is False:
        raise InputError("system: is part of the chat template; leave it or chat=False (--no-chat) out")


def _sampling(options: Options) -> SamplingKeywords:
    """Keywords of ``SpeculativeDecoder.generate``."""
    keywords: Any = {name: getattr(options, name) for name in SAMPLING}
    return cast(SamplingKeywords, keywords)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """Sampling.

    Options of commands that generate texts.

    Attributes:
        max_new_tokens: Maximum number of new tokens per text.
        top_k: Sample from the k most probable tokens; null keeps all.
        top_p: Sample from the most probable tokens with this total probability; 1 keeps all.
        temperature: Divides the logits of both models; 0 is greedy.
    """

    max_new_tokens: Count = 128
    top_k: Count | None = 50
    top_p: Annotated[float, Range(0, 1, "(]")] = 1.0
    temperature: NotNegative = 1.0

    sampling = property(_sampling)


@dataclass(frozen=True, kw_only=True)
class LengthOptions(Options):
    """Drafting.

    Options of the rule that ends a draft.

    Attributes:
        length: The end of a draft: a number of tokens, from 0 to 20; a rule, "heuristic:5", "adaptive-length:4",
            "confidence:0.4", "cumulative-confidence:0.4", "entropy:0.5", "fallback:0.6", "online-confidence:0.4", or
            "oracle" at temperature 0; a trained controller, "tiny-lag-free" or another included one, a folder or a hub
            id; or a class of your own, "package.module:Class", with its arguments after colons. "none" decodes without
            drafts. Null is the rule "online-confidence" with cost "auto", and "+ngram", which also copies from the
            text: the end depends on costs and acceptance rates that are measured while decoding. Null is 4 tokens
            instead for files of texts, whose bytes must not depend on measured times, for a router's arms and for lossy
            verification rules.
        threshold: Stopping threshold of a trained controller, from 0 to 1, instead of its checkpoint's.
        cost: Cost of drafting: a file of `specpilot bench cost --output`, the time of a draft step in units of a
            verification, such as 0.2, or "auto". With a cost, a trained controller needs no threshold: it stops when
            another draft token would cost more time than it saves. "auto" measures the cost for about a second when the
            models are loaded, and by default corrects it while decoding.
    """

    length: Annotated[int | str | tuple[int | str, ...] | None, Several(distinct=False), Objects()] = None
    threshold: Share | None = None
    cost: Annotated[str | float | None, Objects()] = None


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(
    TargetOptions, LengthOptions, PlacementOptions, LoadingOptions, DraftPrecisionOptions, PairCheckOptions
):
    """Drafting.

    All choices of how to decode, for the commands and for Python, where :meth:`SpeculativeDecoder.from_pretrained` also
    takes objects: a length controller, router, cost model, copy predictor or :class:`Beams`, and a tuple as tree.

    Attributes:
        target: Target model: a shipped model, a folder, a hub id, or a GGUF file. The text has its distribution. "auto"
            is the target that the trained controller was made for, or tiny without a trained controller.
        draft: Draft model with the target's tokenizer: a shipped model such as tiny-draft, a folder, a hub id, perhaps
            with a revision (owner/name@v1), or a GGUF file. Several, as "[a,b]", are the drafts that a router chooses
            from (its arms). "auto" is the draft of the trained controller, the arms of the router, or tiny-draft if
            there is neither. Null decodes without a draft model. "ngram" copies from the text: it drafts the tokens
            that followed an earlier occurrence of the text's last tokens, at most four of them ("ngram:6": six).
            "tiny-draft+ngram" chooses in each round between the model, the copy, and both.
        router: Trained router, a folder or hub id. It chooses a draft for each prompt. The choices are the arms in its
            checkpoint, or the drafts in `draft`, such as "[a,b,exit:2,ngram,autoregressive]". `length` is then one
            length for all arms, or a list with one for each.
        sample_arm: Sample the draft from the router's probabilities instead of taking the most probable one.
        adapt: Correct the cost by the rounds' wall times; drafts then no longer depend on the seed alone. The
            distribution of the text does not change. "auto" corrects measured costs, and all costs of the default
            drafts.
        copies: Trained copy head, tiny-copies, a folder or hub id. It predicts the acceptance of the tokens that n-gram
            drafts copy. Without a copy head, the prediction is the acceptance rate of copied tokens in the text so far.
        tree: Draft a tree with this number of children at each level, such as "3x2x1"; "4x1x1" is four chains of three
            tokens. "auto" grows trees node by node while another node pays. The predictions of `length` (a lag-free or
            feature predictor, or online-confidence) and `cost` decide this.
        verifier: Verification rule: token-wise or block for one chain; spec-infer, mcss (children drawn without
            replacement), k-seq or otm also for trees; invariant for both. Under invariant, the text of a seed depends
            on the seed and the target alone, not on the drafts. These rules keep the target's distribution. typical,
            bild and mtad do not; their threshold follows a colon, "mtad:0.5". mtjd chooses `length` tokens of the
            target jointly, without a draft. "auto" is invariant if there is a seed and the temperature is above 0.
            Otherwise "auto" is token-wise, or mcss for trees of a fixed shape.
        draft_exponent: Power to which the draft's probabilities are raised under the verification rule invariant. The
            power k has the effect of dividing the draft's temperature by k. The text stays the same; the draft may
            agree with the target more often. Default: the power in the trained controller's checkpoint, which
            `specpilot calibrate` fits, or 1 if there is none.
        beams: Number of beams of mtad and mtjd. Default: 4.
        argmax: Keep the most probable beams instead of sampling them.
        generation_config: "follow" takes sampling settings from the target's generation_config and refuses those that
            are not supported; "ignore" does not read it.
        revision: Branch, tag or commit of the target on the hub. The form owner/name@v1 selects the revision of any
            model.
        tokenizer: Folder or hub id whose tokenizer and chat template replace those of the target.
        max_running: Maximum number of texts that are decoded together; further texts wait.
        max_columns: Maximum number of tokens of a text, prompt and continuation together. Longer prompts are refused,
            and longer texts end at this number. On a GPU, the memory for this number is reserved at the start, so that
            CUDA graphs are captured only once. Default: the context length of the models, and memory that grows with
            the longest text.
        graphs: CUDA graphs of drafting and verification on a GPU: on, off, or compiled. compiled also joins small
            kernels: forwards of Llama, Mistral, Qwen2 and Qwen3 then take 10 to 18 % less time, after about 20 s of
            compiling.
    """

    target: Annotated[str, Objects((Path,))] = "auto"
    draft: Annotated[str | tuple[str, ...] | None, Several(distinct=False), Objects((Path,))] = "auto"
    router: Annotated[str | None, Objects()] = None
    sample_arm: bool = False
    adapt: bool | Auto = "auto"
    copies: Annotated[str | None, Objects()] = None
    tree: Annotated[str | None, Objects()] = None
    verifier: str = AUTO
    draft_exponent: Annotated[float, Range(0.1, 10)] | None = None
    beams: Count | None = None
    argmax: bool = False
    generation_config: Literal["follow", "ignore"] = "follow"
    revision: str | None = None
    tokenizer: Annotated[str | None, Objects((Path,))] = None
    max_running: Annotated[int, Range(1, 4096)] = 64
    max_columns: Count | None = None
    graphs: Literal["on", "off", "compiled"] = "on"


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(DecodingOptions):
    """Generation.

    Options of ``specpilot generate``.

    Attributes:
        seed: Seed of the text. The same seed gives the same text, with any drafts. Without a seed, every run samples
            another text with a random seed, which `--stats` and `--json` print. For files of texts, the default is 0.
        prompt: The prompt, as a positional argument or by flag; "-" reads it from standard input.
        n: Number of independent samples, printed one after another.
        max_new_tokens: Maximum number of new tokens; "auto" is the target's generation_config, else 128.
        temperature: Divides the logits; 0 is greedy. "auto" is the target's generation_config, else 1.
        top_k: Sample from the k most probable tokens; null keeps all. "auto" as for temperature, else 50.
        top_p: Sample from the most probable tokens with this total probability; 1 keeps all. "auto" as for temperature,
            else 1.
        chat: Apply the tokenizer's chat template; --no-chat continues the prompt as plain text. "auto" applies it if
            the tokenizer has one.
        system: System message of the chat.
        stream: Print the text while it is generated.
        color: Print the complete text with accepted, rejected and target tokens in colour.
        stats: Print counters, rates and how the text was decoded to standard error.
        json: Print one JSON object with text, tokens, rounds and counters instead of text.
    """

    seed: Seed | None = None
    prompt: str = field(default="-", kw_only=False)
    n: Count = 1
    max_new_tokens: Count | Auto = "auto"
    temperature: NotNegative | Auto = "auto"
    top_k: Count | Auto | None = "auto"
    top_p: Annotated[float, Range(0, 1, "(]")] | Auto = "auto"
    chat: bool | Auto = "auto"
    system: str | None = None
    stream: bool = True
    color: bool = False
    stats: bool = False
    json: bool = False
    sampling = property(_sampling)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_system(self.system, self.chat)
        if self.color and self.json:
            raise InputError("color: JSON has no colours; give one of color and json")
