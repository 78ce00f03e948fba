"""Measures servers of three configurations with guidellm, a load generator of the vLLM project.

It runs as a program of an environment of its own, since it needs other versions of libraries. The servers run one after
another.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.common.json_file import read_object
from specpilot.common.progress import progress_bar
from specpilot.compare.engines.serve import FIXED, NONE, OURS, running
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.loading.names import load_tokenizer

from .settings import ExternalOptions

LENGTHS = {OURS: "--length tiny-lag-free --cost auto", FIXED: "--length 2", NONE: "--length none"}
PROMPTS = 64  # built-in ones, asked again and again
REPORT = "report.json"


def measure(settings: ExternalOptions) -> dict[str, Any]:
    """Throughput and latencies by number of requests at once and by configuration, in tokens per second and seconds.

    Raises:
        InputError: guidellm cannot be run, failed, or saw a request fail.
    """
    version = _run([str(settings.guidellm), "--version"], Path.cwd()).split()[-1]
    load: dict[str, dict[str, Any]] = {str(at_once): {} for at_once in settings.loads}
    commands: dict[str, str] = {}
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        rows = load_prompts("builtin", split="test", limit=PROMPTS)
        (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": row.prompt}) + "\n" for row in rows))
        load_tokenizer("tiny").save_pretrained(folder / "tokenizer")
        advance = stack.enter_context(progress_bar(Console(stderr=True), "servers", len(LENGTHS)))
        for key, options in LENGTHS.items():
            with running(shlex.split(options)) as server:
                words = command(settings, server.port)
                _run(words, folder)
            commands[key] = shlex.join(["guidellm", *words[1:]])
            report = read_object(folder / REPORT, "measure again")
            for at_once, one in zip(settings.loads, report["benchmarks"], strict=True):
                load[str(at_once)][key] = summary(one["metrics"])
            advance()
    servers = {key: f"specpilot serve {words}" for key, words in LENGTHS.items()}
    return {"tool": f"guidellm {version}", "servers": servers, "commands": commands, "load": load}


def command(settings: ExternalOptions, port: int) -> list[str]:
    """The words that measure the server at ``port``."""
    return [
        str(settings.guidellm), "run", "--disable-console",
        "--backend", f"kind=openai_http,target=http://127.0.0.1:{port},model=tiny,"
        f"request_format=/v1/chat/completions,max_tokens={settings.max_new_tokens}",
        "--profile", "kind=concurrent", "--override", "profile.streams", ",".join(map(str, settings.loads)),
        "--constraint", f"kind=max_requests,count={settings.requests}",
        "--tokenizer", "kind=huggingface_auto,model=tokenizer",
        "--data", "kind=json_file,path=prompts.jsonl",
        "--output", f"kind=json,path={REPORT}",
    ]  # fmt: skip


def summary(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What a report says of one number of requests at once.

    Raises:
        InputError: a request failed.
    """
    totals = metrics["request_totals"]
    if totals["successful"] < totals["total"]:
        raise InputError(f"guidellm: {totals['total'] - totals['successful']} of {totals['total']} requests failed")
    return {
        "tokens_per_second": metrics["output_tokens_per_second"]["successful"]["mean"],
        "time_to_first_token": metrics["time_to_first_token_ms"]["successful"]["median"] / 1000,
        "inter_token_latency": metrics["inter_token_latency_ms"]["successful"]["median"] / 1000,
    }


def add_to(result: Path, external: Mapping[str, Any]) -> None:
    """Put ``external`` into the result of ``bench serve``."""
    document = dict(read_object(result, "run bench serve first")) | {"external": dict(external)}
    with replacing(result) as temporary:
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")


def _run(words: Sequence[str], folder: Path) -> str:
    try:
        found = subprocess.run(
            words, cwd=folder, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise InputError(f"guidellm={words[0]}: {error.strerror}; install it into an environment of its own") from None
    if found.returncode:
        raise InputError(f"{shlex.join(words)}: {(found.stderr or found.stdout).strip().splitlines()[-1]}")
    return found.stdout
