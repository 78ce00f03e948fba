"""Settings of the vLLM plugin, from ``--additional-config`` or the environment, and checks of vLLM's configuration.

Example: ``{"specpilot": {"length": "tiny-lag-free", "cost": "vllm-cost.json"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specpilot.common.errors import InputError
from specpilot.common.json_file import build, naming_file, parse_object
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.checkpoints.provenance import EXACT, TOKENIZER
from specpilot.controllers.length import Oracle, load_rule, names_rule, takes_cost
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.length.trained import stopping_threshold

from .build import check_interface, check_version, installed_version

WORKERS = (
    "vllm.v1.worker.cpu_worker.CPUWorker",
    "vllm.v1.worker.gpu_worker.Worker",
)  # workers that the plugin's worker replaces
KEY = "specpilot"  # key of the settings in the additional configuration
VARIABLE = "SPECPILOT_VLLM"  # environment variable with the settings as JSON, if the configuration has none
REMEDY = 'give an object such as {"length": "cumulative-confidence:0.4"}'


@dataclass(frozen=True)
class Settings:
    """Settings of the plugin.

    Attributes:
        length: length controller: a number of tokens, a rule, or a trained controller, as for ``specpilot generate``.
            vLLM's ``num_speculative_tokens`` is the longest draft.
        threshold: stopping threshold of a trained controller.
        cost: a file of ``specpilot-vllm bench --cost``, or the cost of a draft step in units of a verification.
        drafts: ``request`` draws drafts with the temperature, top-k and top-p of the request, and none beyond its
            maximum number of tokens; ``vllm`` draws as vLLM's drafter, which only uses the temperature.
        pair_check: ``exact`` if a trained controller must be for exactly this pair, ``tokenizer`` if the tokenizer
            suffices.
        log_rounds: folder for the rounds, with a dataset for each combination of temperature, top-k and top-p.
    """

    length: int | str
    threshold: float | None = None
    cost: float | str | None = None
    drafts: Literal["request", "vllm"] = "request"
    pair_check: str = EXACT
    log_rounds: str | None = None

    def __post_init__(self) -> None:
        if self.pair_check not in (EXACT, TOKENIZER):
            raise InputError(f"pair_check={self.pair_check!r}: choose one of {EXACT}, {TOKENIZER}")
        if self.log_rounds is not None and self.drafts != "request":
            raise InputError("log_rounds: needs drafts with the requests' sampling parameters; leave out drafts='vllm'")

    @property
    def spec(self) -> str:
        """The name of the length controller."""
        return str(self.length)

    def costs(self) -> tuple[CostModel | None, BatchCosts | None]:
        """Return the cost model of a single request, and costs by number of requests; None for missing ones.

        Raises:
            InputError: the file is missing or damaged.
        """
        if self.cost is None:
            return None, None
        if self.cost == "auto":
            raise InputError("cost='auto': measure the costs with 'specpilot-vllm bench --cost FILE' and pass the file")
        cost = CostModel.load(self.cost)
        batch = BatchCosts.load(self.cost) if isinstance(self.cost, str) and not _is_number(self.cost) else None
        return (cost, None) if batch is None else (batch.at(1), batch)

    def check(self) -> None:
        """Check everything that needs no model.

        Raises:
            InputError: the rule is malformed, the controller or the costs are missing or damaged, or settings cannot be
                combined.
        """
        if self.log_rounds is not None:
            try:
                Path(self.log_rounds).expanduser().mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"log_rounds={self.log_rounds!r}: cannot be created ({error.strerror}); choose another folder"
                ) from None
        cost, _ = self.costs()
        if cost is not None and not takes_cost(self.spec):
            raise InputError(
                f"cost: the rule {self.spec!r} does not use costs; leave cost out, or choose a trained controller"
            )
        if not names_rule(self.spec):
            stopping_threshold(self.spec, load_controller(self.spec), self.threshold, cost)
            return
        if self.threshold is not None:
            raise InputError(
                f"threshold={self.threshold}: is only for trained controllers, but {self.spec!r} is a rule; leave it "
                "out"
            )
        if isinstance(load_rule(self.spec, cost), Oracle):
            raise InputError(
                f"length={self.spec!r}: reads the target before it drafts, which is not possible in vLLM; choose "
                "another rule"
            )


def settings_of(additional: Mapping[str, Any], environment: Mapping[str, str]) -> Settings | None:
    """Return the plugin's settings; None without settings, which leaves vLLM unchanged.

    Args:
        additional: vLLM's additional configuration, which takes precedence.
        environment: the environment variables.

    Raises:
        InputError: a key or value is wrong.
    """
    if KEY in additional:
        with naming_file(KEY, REMEDY):
            return build(Settings, additional[KEY])
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    with naming_file(VARIABLE, REMEDY):
        return build(Settings, parse_object(text))


def _is_number(text: str) -> bool:
    """Return true if ``text`` is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


# vLLM's own configuration


def prepare(settings: Settings, arguments: Any) -> None:
    """Check versions, settings and ``vllm.EngineArgs``, and allow drafts of different lengths.

    Raises:
        InputError: vLLM has an unsupported version or build, or a setting is wrong or contradicts vLLM's options.
    """
    check_version(installed_version())
    check_interface()
    settings.check()
    if arguments.async_scheduling:
        raise InputError("async_scheduling: drafts of different lengths need synchronous scheduling; leave it out")
    arguments.async_scheduling = False


def apply(settings: Settings, config: Any) -> None:
    """Check a ``VllmConfig``, and make the plugin's worker run the models.

    Raises:
        InputError: the engine does not draft with a draft model, or with an option that the plugin does not support.
    """
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or speculative.method != "draft_model":
        method = "none" if speculative is None else repr(speculative.method)
        raise InputError(
            f"speculative_config: method is {method}, but specpilot needs a draft model; set method to draft_model, "
            "model and num_speculative_tokens"
        )
    if config.use_v2_model_runner:
        raise InputError(
            "model runner: V2 drafts the same number of tokens for all requests; set VLLM_USE_V2_MODEL_RUNNER=0, or "
            "use the adaptive scheduler instead"
        )
    if speculative.enable_adaptive_verification:
        raise InputError("enable_adaptive_verification: needs model runner V2, but this engine has V1; leave it out")
    for name in ("tensor", "pipeline", "data"):
        size = vars(parallel)[f"{name}_parallel_size"]
        if size > 1:
            raise InputError(f"{name}_parallel_size={size}: specpilot runs on a single device; set it to 1")
    if speculative.parallel_drafting or speculative.use_heterogeneous_vocab:
        raise InputError(
            "speculative_config: parallel_drafting and use_heterogeneous_vocab are not supported; leave them out"
        )
    if settings.drafts == "request" and speculative.rejection_sample_method != "standard":
        raise InputError(
            f"rejection_sample_method={speculative.rejection_sample_method!r}: is not supported; choose 'standard'"
        )
    if parallel.worker_cls not in WORKERS:
        raise InputError(f"worker_cls={parallel.worker_cls!r}: is not supported; choose one of {', '.join(WORKERS)}")
    parallel.worker_cls = f"{__package__}.worker.ControlledWorker"
