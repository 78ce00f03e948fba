"""Specifications of models: name, precision and device, before and after loading."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeAlias

from ..common.options import AUTO
from ..models import LanguageModel
from ..models.forwards import Graphs
from .options import LoadingKeywords, PlacementKeywords

Name: TypeAlias = str | Path

CHECKPOINT = "the checkpoint's precision"
ACCELERATOR = "an accelerator if there is one"
UNKNOWN = "chosen when the model is loaded"


class TargetKeywords(PlacementKeywords):
    """Keywords of ``load_any_model`` that only the target has."""

    revision: str | None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A draft model.

    Attributes:
        name: an included model, a folder, a hub id or a GGUF file; an early exit, ``exit:2``; or the architecture of a
            model that was loaded by the caller.
        precision: ``float32`` …, ``int8`` or ``int4``; before loading also ``CHECKPOINT``.
        fastest: whether the draft is loaded in the precision with the fastest step on this machine: ``precision``,
            bfloat16, int8 or int4.
        device: ``cpu``, ``cuda:1`` …; before loading also ``ACCELERATOR``.
        trust_remote_code: whether code in the checkpoint may run.
        graphs: CUDA graphs: on, off or compiled.
        forward: the forward that runs, in words; set by :meth:`loaded`.
    """

    name: Name
    precision: str
    device: str = ACCELERATOR
    trust_remote_code: bool = False
    graphs: Graphs = "on"
    fastest: bool = False
    forward: str = UNKNOWN

    @classmethod
    def of(cls, model: LanguageModel) -> Self:
        """Return the specification of a loaded model."""
        path = getattr(model.model, "name_or_path", "")
        return cls(name=path or model.name, precision=model.precision).loaded(model)

    def loaded(self, model: LanguageModel) -> Self:
        """Return the specification after loading, with the precision, the device and the forward of ``model``."""
        return replace(
            self,
            precision=model.precision,
            device=str(model.device),
            forward=model.forward_description,
        )

    @property
    def loading(self) -> LoadingKeywords:
        """Keywords of ``load_any_model``; weights for int8 and int4 are loaded in bfloat16 and rounded afterwards."""
        dtypes = {CHECKPOINT: AUTO, "int8": "bfloat16", "int4": "bfloat16"}
        dtype = dtypes.get(self.precision, self.precision)
        device = AUTO if self.device == ACCELERATOR else self.device
        return {"dtype": dtype, "device": device, "trust_remote_code": self.trust_remote_code}

    def describe(self) -> str:
        """Return name, precision, device and forward in one line."""
        precision = self.precision
        if self.fastest and self.forward == UNKNOWN:
            precision = f"{precision} or a smaller precision whose step is faster"
        return f"{self.name}, {precision}, on {self.device}, forward: {self.forward}"


@dataclass(frozen=True, kw_only=True)
class TargetSpec(ModelSpec):
    """A target model.

    Attributes:
        tokenizer: name of the model whose tokenizer and chat template are used; None for the target.
        revision: branch, tag or commit on the hub; None for the default branch.
        device_map: the devices of the target's modules; None for one device.
        offload_folder: folder for weights that the device map puts on disk.
    """

    tokenizer: Name | None = None
    revision: str | None = None
    device_map: str | dict[str, int | str] | None = None
    offload_folder: Path | None = None

    @property
    def placement(self) -> TargetKeywords:
        """Keywords of ``load_any_model`` that only the target has."""
        return {"device_map": self.device_map, "offload_folder": self.offload_folder, "revision": self.revision}
