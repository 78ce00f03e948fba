"""``specpilot calibrate``: maps an acceptance head's logits to probabilities, with scikit-learn, and evaluates them.

Labels are probabilities P in [0, 1], not outcomes: every position counts as two binary rows, accepted with weight P and
rejected with weight 1 - P. This fits and evaluates the expectation over the outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..common.errors import InputError
from ..common.files import check_free
from ..common.record import Record
from ..controllers.acceptance import specdec_head
from ..controllers.acceptance.calibration import UNCALIBRATED, Array, Calibration, fit_logistic, undo_weights
from ..controllers.acceptance.metrics import Metrics
from ..controllers.acceptance.specdec_head import AcceptanceHead
from ..controllers.checkpoints.card import judgement
from ..controllers.checkpoints.checkpoint import load_controller, save_controller
from ..controllers.checkpoints.provenance import INVARIANT
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import Manifest
from ..data_gen.draft_states import read_positions
from ..data_gen.kinds import AcceptanceRow, Text, read_texts
from ..data_gen.rollout import Rollout, acceptance_by_exponent
from ..models import LanguageModel, language_model
from .datasets import joint_manifest, load_same, split
from .options import CalibrateOptions

EXPONENTS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6)  # powers of the draft's probabilities that are compared
READ = 64  # texts that they are compared on, for the fit and for the evaluation
STORED = ("auroc", "brier", "kl", "ece", "kl_constant")  # metrics in a checkpoint


def fit_all(logits: Array, p: Array, *, w_acc: float, w_rej: float) -> dict[str, Calibration]:
    """Return calibrations by method: ``weights`` undoes the loss weights, ``platt`` is Platt's fit.

    Args:
        logits: (N,) logits of the head.
        p: (N,) true acceptance probabilities.
        w_acc, w_rej: the loss weights.
    """
    (scale,), shift = fit_logistic(logits[:, None], p)
    return {"weights": undo_weights(w_acc, w_rej), "platt": Calibration(float(scale), shift, "platt")}


@dataclass(frozen=True)
class CalibrationResult(Record):
    """The data and the effect of a calibration.

    Attributes:
        method: the method whose calibration is stored.
        fitted, judged: numbers of positions for the fit and for the evaluation.
        metrics: metrics of the head before calibration (``none``) and under every method.
        warnings: weaknesses that the metrics show, as phrases whose subject is the controller.
        draft_exponent: the power of the draft's probabilities that is stored, see :func:`fit_draft_exponent`.
        acceptance: expected acceptance on held-out texts under the rule ``invariant``, without a power and with it;
            empty for data of another rule.
    """

    method: str
    fitted: int
    judged: int
    metrics: dict[str, dict[str, float]]
    warnings: list[str]
    draft_exponent: float = 1.0
    acceptance: dict[str, float] = field(default_factory=dict)


def calibrate(options: CalibrateOptions) -> CalibrationResult:
    """Write the checkpoint ``options.controller`` with a calibration to ``options.output``, and return the effect.

    The calibration is fitted to one half of the prompts and evaluated on the other half. If the data is the head's
    training data, only prompts that training held out are used.

    Raises:
        InputError: the data is of another pair, incomplete or too small, or the output exists.
    """
    data, method = options.data, options.method
    trained = load_controller(options.controller)
    config, head = trained.config, trained.head
    if not isinstance(config, specdec_head.Config) or not isinstance(head, AcceptanceHead):
        raise InputError(
            f"controller={options.controller!r}: is a {config.kind}, which needs no calibration; choose an acceptance "
            "head"
        )
    check_free(options.output, options.overwrite)
    manifest, sampling = joint_manifest([data], AcceptanceRow.kind), config.provenance.sampling
    config.provenance.check_pair(manifest.pair)
    data_sampling = manifest.sampling
    if data_sampling != sampling:
        raise InputError(
            f"{data}: was made with {data_sampling}, but the head was trained with {sampling}; give data of the "
            "training's sampling"
        )
    if manifest.verifier != config.provenance.verifier:
        raise InputError(
            f"{data}: has the acceptance of verifier={manifest.verifier!r}, but the head was trained for "
            f"{config.provenance.verifier!r}; give data of that rule"
        )
    same_data = manifest.dataset_fingerprint in config.datasets
    total = options.validation_fraction if same_data else 1.0
    reader = load_draft(options.draft, manifest, device=options.device)
    size = manifest.vocab_size
    fitted_rows, tested_rows = split_rows(load_rows(data), total / 2, total)
    fitted, tested = (read_positions(reader, rows, sampling, size) for rows in (fitted_rows, tested_rows))
    exponent, acceptance = 1.0, dict[str, float]()
    if manifest.verifier == INVARIANT and sampling.temperature > 0:
        target = load_target(options.target, manifest, device=options.device)
        exponent, acceptance = fit_draft_exponent(target, reader, fitted_rows[:READ], tested_rows[:READ], sampling)

    before, after = (head(part.states).double() for part in (fitted, tested))  # logits (N,)
    fitted_p, p = fitted.accept.double().numpy(), tested.accept
    calibrations = fit_all(before.numpy(), fitted_p, w_acc=config.w_acc, w_rej=config.w_rej)
    metrics = {
        name: Metrics(calibration.scale * after + calibration.shift, p).compute()
        for name, calibration in {"none": UNCALIBRATED, **calibrations}.items()
    }
    chosen = metrics[method]
    judged = {
        **{f"calibrated_{name}": chosen[name] for name in STORED},
        "auroc_draft": Metrics(tested.evidence[:, 0], p).auroc(),  # log q(y) ranks tokens as q(y) does
    }
    new = replace(
        config,
        calibration=replace(
            calibrations[method], dataset_fingerprint=manifest.dataset_fingerprint, draft_exponent=exponent
        ),
        metrics={
            **config.metrics,
            **{name: value for name, value in judged.items() if math.isfinite(value)},
            "mean_acceptance": float(fitted_p.mean()),
        },
    )
    save_controller(options.output, head, new, overwrite=options.overwrite)
    weakness = judgement(judged)
    return CalibrationResult(
        method, len(fitted_p), len(p), metrics, [weakness] if weakness else [], exponent, acceptance
    )


def fit_draft_exponent(
    target: LanguageModel,
    draft: LanguageModel,
    fitted: Sequence[Text],
    tested: Sequence[Text],
    sampling: SamplingParams,
) -> tuple[float, dict[str, float]]:
    """Return the power of the draft's probabilities with the highest expected acceptance under ``invariant``.

    The exponent is chosen on the target's answers in ``fitted``. If it is not better than 1 on those in ``tested``, it
    is replaced by 1. Datasets hold the acceptance of drafted tokens alone, so both models read the texts again.

    Args:
        target: the target.
        draft: the draft.
        fitted: the texts on which the exponent is chosen.
        tested: the texts on which it is tested.
        sampling: sampling parameters of the texts.

    Returns:
        The exponent, and the expected acceptance on ``tested`` by exponent: with 1, and with the one chosen on
        ``fitted``.
    """

    def acceptance(rows: Sequence[Text], exponents: Sequence[float]) -> list[float]:
        prompts, rollouts = [row.prompt_ids for row in rows], [Rollout(row.x) for row in rows]
        return acceptance_by_exponent(target, draft, prompts, rollouts, sampling, exponents)

    on_fitted = acceptance(fitted, EXPONENTS)
    best = max(zip(on_fitted, EXPONENTS, strict=True))[1]
    plain, raised = acceptance(tested, (1.0, best))
    return best if raised > plain else 1.0, {"1": plain, f"{best:g}": raised}


def split_rows(rows: Sequence[Text], test: float, total: float = 1.0) -> tuple[list[Text], list[Text]]:
    """Split a share ``total`` of all prompts into rows for the fit and a share ``test`` for the evaluation.

    Prompts that training holds out come first, so that a ``total`` up to the validation fraction contains no training
    data.

    Raises:
        InputError: one of the two parts would be empty.
    """
    _, usable = split(rows, [row.prompt_id for row in rows], total)
    fitted, tested = split(usable, [row.prompt_id for row in usable], test)
    if not fitted or not tested:
        raise InputError(
            f"data: {len(fitted)} rollouts to fit to and {len(tested)} held out; each needs at least one: use more data"
        )
    return fitted, tested


def load_rows(*folders: str) -> list[Text]:
    """Return the rollouts of acceptance datasets with at least one token, after validation."""
    return [text for folder in folders for text in read_texts(folder, "acceptance") if text.x]


def load_target(name: str | None, manifest: Manifest, *, device: str) -> LanguageModel:
    """Return the target of a dataset, loaded from ``name``, or by default from the name in the manifest.

    Raises:
        InputError: ``name`` cannot be loaded, or is another model than the dataset's target.
    """
    return language_model(load_same("target", name or manifest.target, manifest, device=device))


def load_draft(name: str | None, manifest: Manifest, *, device: str) -> LanguageModel:
    """Return the draft of a dataset, loaded from ``name``, or by default from the name in the manifest.

    Raises:
        InputError: ``name`` cannot be loaded, is another model than the dataset's draft, or does not read tokens alone.
    """
    name = name or manifest.draft
    assert name is not None, "data with labels is of a pair"
    reader = language_model(load_same("draft", name, manifest, device=device, target=manifest.target))
    reader.require_tokens_alone(f"draft={name!r}", "calibrate reads the draft without decoding")
    return reader
