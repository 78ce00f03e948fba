"""Settings of the ablation, light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass

from ..controllers.errors import InputError


@dataclass(frozen=True)
class AblationOptions:
    """What stopping rules and trained controllers reach on held-out prompts, by eq. 2.3, at several costs.

    Args:
        controllers: trained controllers as name=PATH, in the order of the table.
        ours: name of the one that is compared with the rules; by default the last.
        target: target model: a shipped tiny model, a folder, or a hub id.
        draft: draft model.
        costs: what tokens cost: numbers t_draft / t_verify, or files of 'specpilot bench cost'.
        prompts: 'builtin-large', 'builtin', or a hub dataset id with a column 'domain' and a split 'test'.
        in_domain: domains the controllers were trained on; the others are left out.
        per_domain: how many prompts of each domain of the test split are judged on.
        max_new_tokens: longest text.
        temperature: sampling of both models.
        top_k: keep the k most probable tokens; null keeps all.
        top_p: keep the most probable tokens up to this mass.
        seed: seed of every random number.
        device: auto, cpu, cuda, …
    """

    controllers: list[str]
    ours: str | None = None
    target: str = "tiny"
    draft: str = "tiny-draft"
    costs: tuple[float | str, ...] = (0.21, 0.05)
    prompts: str = "builtin-large"
    in_domain: tuple[str, ...] = ("math", "code", "sql", "prose")
    per_domain: int = 300
    max_new_tokens: int = 64
    temperature: float = 1.0
    top_k: int | None = 50
    top_p: float = 1.0
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("costs", "in_domain"):
            object.__setattr__(self, name, tuple(map(str, getattr(self, name))))  # YAML and flags give a list
        if not self.controllers:
            raise InputError("controllers=[]: name at least one, as name=PATH")
        names = [controller.partition("=")[0] for controller in self.controllers]
        for controller, name in zip(self.controllers, names, strict=True):
            if not name or "=" not in controller:
                raise InputError(f"controllers: {controller!r}: give it as name=PATH")
            if names.count(name) > 1:
                raise InputError(f"controllers: the name {name!r} is given twice")
        if self.ours is None:
            object.__setattr__(self, "ours", names[-1])
        elif self.ours not in names:
            raise InputError(f"ours={self.ours!r}: choose one of {', '.join(names)}")
        for name in ("per_domain", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
