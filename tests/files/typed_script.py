"""A user's script for mypy, which must accept it under --strict: results have the types that are asserted here, and the
errors that are ignored must be errors."""

from pathlib import Path
from typing import assert_type

import specpilot
from specpilot import SpeculativeDecoder
from specpilot.compare.run import Comparison
from specpilot.controllers.length import Fixed
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.core import Generation
from specpilot.train.fitting import TrainingResult

decoder = SpeculativeDecoder.from_pretrained("tiny", Path("draft"), length=Fixed(3), tree=(3, 2), dtype="auto")
samples = int("2")
message = {"role": "user", "content": "hello"}

assert_type(decoder.generate("hello"), Generation)
assert_type(decoder.generate([1, 2, 3], max_new_tokens=4), Generation)
assert_type(decoder.generate([message], temperature=0), Generation)
assert_type(decoder.generate("hello", n=4, top_k=None), list[Generation])
assert_type(decoder.generate("hello", n=samples), Generation | list[Generation])
assert_type(decoder.generate(["hello", "you"], seed=[1, 2]), list[Generation])
assert_type(decoder.generate([[1, 2], [3]]), list[Generation])
assert_type(decoder.generate([[message], [message]]), list[Generation])
assert_type(decoder.generate(["hello", "you"], n=2), list[list[Generation]])
assert_type(decoder.generate(["hello"], n=samples), list[Generation] | list[list[Generation]])
assert_type(decoder.generate({"input_ids": [1]}), Generation | list[Generation] | list[list[Generation]])
assert_type(list(decoder.stream("hello", stop=["."])), list[str])

data = specpilot.make_dataset(specpilot.AcceptanceDataOptions(limit=8), "data")
result = specpilot.train(specpilot.LagFreeTrainingOptions(data=str(data)), "run")
assert_type(result, TrainingResult)
controller = specpilot.export(result.run, "controller", threshold=0.5)
assert_type(controller, Path)
comparison = specpilot.compare([controller, 3, "none"], ["hello"], limit=2, output="report")
assert_type(comparison, Comparison)
load_prompts("builtin", split="test", limit=3)

SpeculativeDecoder.from_pretrained("tiny", lenght=3)  # type: ignore[arg-type]
SpeculativeDecoder.from_pretrained("tiny", verifier=3)  # type: ignore[arg-type]
SpeculativeDecoder.from_pretrained("tiny", dtype="float3")  # type: ignore[arg-type]
decoder.generate("hello", temprature=0.5)  # type: ignore[call-overload]
decoder.generate("hello", seed="a")  # type: ignore[arg-type]
decoder.stream("hello", temprature=0.5)  # type: ignore[call-arg]
specpilot.compare(["3"], minuts=1)  # type: ignore[arg-type]
specpilot.compare(["3"], minutes="long")  # type: ignore[arg-type]
specpilot.make_dataset(3, "data")  # type: ignore[arg-type]
specpilot.AcceptanceDataOptions(limits=8)  # type: ignore[call-arg]
specpilot.train(specpilot.LagFreeTrainingOptions(data="data", epoch=3), "run")  # type: ignore[call-arg]
load_prompts("builtin", spilt="test")  # type: ignore[arg-type]
