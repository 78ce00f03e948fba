"""A configuration of each kind of controller checkpoint."""

from dataclasses import replace

from specpilot.controllers.acceptance import copy_head, feature_model, lag_free_head, specdec_head
from specpilot.controllers.arms import Arm
from specpilot.controllers.checkpoints.config import ControllerConfig
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.controllers.checkpoints.provenance import Provenance
from specpilot.controllers.router import policy
from specpilot.controllers.sampling import SamplingParams

PAIR = PairFingerprint("1" * 64, "2" * 64, "3" * 64)
PROVENANCE = Provenance("org/target", "org/draft", PAIR, SamplingParams(0.7, None, 0.9))
ARMS = (
    Arm("draft", "org/draft", "2" * 64, parameters=700),
    Arm("exit", "exit:2", layer=2, parameters=900),
    Arm("autoregressive", "autoregressive", parameters=12000),
)
CONFIG = specdec_head.Config(
    provenance=PROVENANCE, datasets=["4" * 64], metrics={"kl": 0.25, "auroc": 0.75}, hidden_size=8, depth=2, w_acc=1.0,
    w_rej=6.0, mixing=0.15, threshold=0.7, threshold_source="paper default",
)  # fmt: skip
CONFIGS: dict[str, ControllerConfig] = {
    config.kind: config
    for config in (
        CONFIG,
        lag_free_head.Config(
            provenance=PROVENANCE, datasets=["4" * 64, "5" * 64], metrics={"auroc": 0.75}, hidden_size=8, width=4,
            uses_ngrams=True, mean=0.5, tokens=10,
        ),
        feature_model.Config(provenance=PROVENANCE, datasets=["4" * 64], metrics={"auroc": 0.75}, mean=0.5),
        copy_head.Config(
            provenance=replace(PROVENANCE, draft=None, fingerprint=replace(PAIR, draft=None)), datasets=["4" * 64],
            metrics={"auroc": 0.75}, hidden_size=8, width=4, tokens=10,
        ),
        policy.Config(
            provenance=replace(PROVENANCE, draft=None, fingerprint=replace(PAIR, draft=None)), datasets=["4" * 64],
            metrics={"regret": 0.5}, hidden_size=8, width=16, arms=ARMS, reward="rouge", alpha=0.5, cost="parameters",
        ),
    )
}  # fmt: skip
