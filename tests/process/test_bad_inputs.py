"""Bad input on the command line: one line that names it on standard error, exit code 2, and nothing written.

Each table belongs to one command, in which ``{}`` stands for the tried input: a name in the folder of ``bad_files``, or
further arguments. ``@place`` is this folder, ``@files`` is ``tests/files``, and ``@out`` must not appear.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from specpilot.cli import main as cli

from ..helpers.bad_files import FILES, make_bad_files

PAIR = "--target @place/target --draft @place/draft"
SOME = "--validation-fraction 0.4"  # of the eight prompts of these datasets
TABLES: dict[str, list[tuple[str, str]]] = {}

TABLES["generate hello --target @place/{} --draft @place/draft"] = [
    ("nothing", "nothing': no such model folder"),
    ("cut", "a weight file is truncated or damaged"),
    ("weightless", "no file named model.safetensors"),
    ("lfs", "place/lfs/model.safetensors: is a git LFS pointer, not the file itself; download the file: cd "),
    ("lfs-tokenizer", "place/lfs-tokenizer && git lfs pull"),
    ("pickled", "its weights are in .bin files, pickles"),
    ("no-config", "in transformers' format, it holds no config.json"),
    ("config-cut", "config.json: not JSON"),
    ("hidden-text", "config.json: hidden_size='many':"),
    ("hidden-huge", "config.json: hidden_size=1000000000:"),
    ("layers-negative", "config.json: num_hidden_layers=-1:"),
    ("activation", "KeyError: 'shrug'"),
    ("defaults-penalty", "repetition_penalty=1.3"),
    ("no-tokenizer", "no-tokenizer': has no tokenizer that can be loaded"),
    ("tokenizer-cut", "has no tokenizer that can be loaded: a file is damaged, not JSON"),
    ("template", "the chat template does not support these messages (roles: user): no users here"),
    ("quant-magic", "weights quantised with 'magic'"),
    ("quant-nothing", "its quantization_config is damaged"),
    ("quant-gptq", "optimum"),
    ("broken", "NaN or infinite logits"),
    ("other", "target other and draft draft do not share a tokenizer: they differ in 2 tokens, the first is '<0>'"),
    ("target --tokenizer @place/other", "target target and tokenizer other do not share a tokenizer"),
]
TABLES["generate hello --target @place/target --draft {}"] = [
    ("@place/broken", "NaN or infinite logits"),
    ("''", "draft: is empty"),
    ("a/b/c/d", "draft='a/b/c/d': no such folder"),
    ("[]", "draft=[]:"),
    ("[@place/draft,@place/target]", "2 drafts need a router"),
]
TABLES[f"generate hello {PAIR} --length @place/{{}}"] = [
    ("nothing", "nothing': no such controller"),
    ("folder", "folder': not a controller"),
    ("target", "config.json: kind=None:"),
    ("head-flipped", "model.safetensors: truncated or changed"),
    ("head-lfs", "place/head-lfs && git lfs pull"),
    ("head-cut", "config.json: not JSON"),
    ("head-shipped", "another target and draft and tokenizer is given"),
]
TABLES["generate hello --target @place/target --router @place/{}"] = [
    ("head-shipped", "is of kind 'acceptance-head', which chooses no arm"),
]
TABLES["generate hello --length tiny-lag-free --cost {}"] = [
    ("@place/nothing.json", "nothing.json': no such file"),
    ("@place/lfs.json", "lfs.json': is a git LFS pointer"),
    ("@place/cost-cut.json", "cost-cut.json': not JSON"),
    ("@place/cost-none.json", "cost-none.json': holds no costs of a pair"),
    ("@place/cost-text.json", "cost.t_draft='x':"),
    ("@place/cost-negative.json", "cost-negative.json': t_draft=-1.0:"),
    ("@place/cost-zero.json", "t_verify=0.0:"),
    ("nan", "cost=nan:"),
]
TABLES["generate --target @place/target --draft @place/draft --no-chat --prompts {}"] = [
    ("@place/prompts.txt", "prompts='@place/prompts.txt':"),
    ("@place/prompts.txt --output @place/prompts.txt", "prompts.txt': exists, and was not written by 'specpilot gen"),
    ("@place/prompts.txt --output @place/folder", "folder': is a folder or a device; choose a file"),
    ("@place/prompts.txt --output out.jsonl hello", "prompt='hello':"),
    ("@place/prompts.txt --output out.jsonl --json", "json=True:"),
    ("@place/prompts.txt --output out.jsonl --target @place/broken", "NaN or infinite logits"),
    ("@place/prompts.txt --output out.jsonl --chat --target @place/template", "prompts.txt': row 1: prompt"),
]
TABLES["generate {}"] = [
    ("hello --output out.jsonl", "output='out.jsonl':"),
    ("caf\udce9", r"prompt: character 4 is '\udce9': half of a character, or a byte that is not UTF-8"),
    ("hello --system \ud83d", "system: character 1"),
    ("hello --length tiny-lag-free", "length='tiny-lag-free':"),
    ("hello --length tiny-head --cost 0.2 --threshold 0.5", "give one of threshold and cost"),
    (
        "hello --length tiny-hed",
        "length='tiny-hed': no such controller, did you mean 'tiny-head'?",
    ),
    (
        "hello --length confidense:0.4",
        "length='confidense:0.4': no such rule, did you mean 'confidence'? give a whole number, one of none, oracle",
    ),
    ("hello --length ²", "length='²': no such controller"),
    ("hello --tree 2x²", "tree='2x²':"),
    ("hello --draft ngram:²", "draft='ngram:²':"),
    (f"hello --length {'9' * 5000}", "no such rule; give a whole number"),
    ("hello --length oracle:3", "length='oracle:3':"),
    ("hello --threshold 0.5", "threshold=0.5:"),
    ("hello --length 4 --cost 0.2", "the rule '4' does not use costs"),
    ("hello --length tiny-lag-free --adapt", "adapt: corrects a cost while decoding, but cost is not set"),
    ("hello --sample-arm", "sample_arm: needs a router"),
    ("hello --system x --no-chat", "system: is part of the chat template"),
    ("hello --color --json", "color: JSON has no colours"),
    ("hello --config @place/list.yaml", "list.yaml: an object of keys and values is expected, not a list"),
    ("hello '--config={target: 7}'", "config: target: expected text, got 7; put text in quotes"),
]
TABLES[f"data acceptance {PAIR} --no-chat --output @out --prompts {{}}"] = [
    ("@place/nothing.txt", "nothing.txt': no such file"),
    ("@place/folder", "the folder holds no .parquet, .jsonl, .json"),
    ("@place/long.txt", "300 tokens, but the context holds 128; leave such prompts out with --max-prompt-tokens 64"),
    (
        "@place/latin.txt",
        "latin.txt': not UTF-8 text (byte 3); if it is Latin-1 or Windows-1252, convert it, and use the new file: "
        "iconv -f WINDOWS-1252 -t UTF-8 @place/latin.txt > @place/latin.utf8.txt",
    ),
    ("'@place/some latin.csv'", "iconv -f ISO-8859-1 -t UTF-8 '@place/some latin.csv' > '@place/some latin.utf8.csv'"),
    ("@place/utf16.jsonl", "(byte 0); convert it, and use the new file: iconv -f UTF-16 -t UTF-8 @place/utf16.jsonl"),
    ("@place/utf16le.txt", "utf16le.txt': not UTF-8 text; convert it, and use the new file: iconv -f UTF-16LE -t"),
    ("@place/utf16be.txt", "(byte 21); convert it, and use the new file: iconv -f UTF-16BE -t"),
    ("@place/utf32.txt", "iconv -f UTF-32 -t"),
    ("@place/lfs.txt", "lfs.txt': is a git LFS pointer, not the file itself; download the file: cd @place"),
    ("@place/lfs.jsonl", "lfs.jsonl': is a git LFS pointer"),
    ("@place/lfs.parquet", "lfs.parquet': is a git LFS pointer"),
    (
        "@place/open.csv",
        "open.csv:3: not CSV (unexpected end of data): the row that begins here has a quotation mark outside a "
        "quoted field; quote fields that have quotation marks, and double these",
    ),
    ("@place/null.txt", "null.txt': is a binary file; give a JSON Lines"),
    ("@place/blank.txt", "blank.txt': holds no rows"),
    ("@place/table.csv", "table.csv:2: more values than the header has names; quote separators"),
    ("@place/cut.jsonl", "cut.jsonl:2: not JSON"),
    ("@place/half.jsonl", r"half.jsonl:2: prompt: character 2 is '\ud83d': half of a character"),
    ("@place/deep.jsonl", "deep.jsonl:1: not JSON"),
    ("@place/other.jsonl", "row 1: no column of a known form contains a prompt; it has words"),
    ("@place/number.jsonl", "prompt is empty or not text: 5"),
    ("@place/ids.jsonl", "several prompts have the id '1'"),
    ("@place/page.parquet", "page.parquet': not a readable Parquet file (Corrupt snappy compressed data.)"),
    ("@place/prompts.txt --skip 99", "skip=99"),
    ("@place/prompts.txt --max-prompt-tokens 1", "no prompt has --max-prompt-tokens tokens or fewer"),
    ("@place/prompts.txt --draft @place/broken", "NaN or infinite logits"),
    ("@place/prompts.txt --output @place/file/sub", "file/sub"),
    ("@place/prompts.txt --output @place/target", "target': is not empty and has no manifest.json"),
    ("@place/prompts.txt --output @place/data-cut", "manifest.json: not JSON"),
]
TABLES["data {} --output @out"] = [
    ("acceptance --prompts builtin --split poems", "split='poems':"),
    ("acceptance --draft tiny-t5-draft-sql", "an encoder-decoder model"),
    ("acceptance --responses openai", "needs the server's address; add --base-url"),
    ("acceptance --base-url http://a", "base_url='http://a':"),
    (
        "acceptance --responses openai --base-url http://a --tensor-parallel 2",
        "tensor_parallel=2:",
    ),
    ("acceptance --ray 10.0.0.1:6379", "needs the number of workers; add --workers"),
    ("answers --target tiny-t5 --no-chat --plan", "an encoder-decoder model"),
    ("acceptance --domains [poems]", "no prompt of 'poems' in builtin"),
    (f"on-policy {PAIR} --prompts @place/prompts.txt --no-chat --length @place/head-cut", "config.json: not JSON"),
    ("router --arms [tiny-draft,exit:0]", "arm 'exit:0': give the layer"),
    ("router --target @place/target --arms [@place/draft,exit:9]", "arm 'exit:9': the target has 2 layers"),
]
TABLES[f"train acceptance {SOME} --output @out --data {{}}"] = [
    ("@place/nothing", "nothing': no dataset, there is no such folder"),
    ("@place/data-cut", "manifest.json: not JSON"),
    ("@place/data-lfs", "place/data-lfs && git lfs pull"),
    ("@place/data-new", "manifest.json: schema_version=99:"),
    ("@place/data-kind", "a dataset of kind 'poems'"),
    ("@place/data-incomplete", "the dataset is incomplete"),
    ("@place/data-shards", "manifest.json: shards=3:"),
    ("@place/data-sampling", "manifest.json: sampling.temperature='hot'"),
    ("@place/data-sampling-new", "manifest.json: sampling: unknown key 'typical_p'"),
    ("@place/data-forged", "shard-00000.parquet: not a readable Parquet file"),
    ("[@files/acceptance,@files/router-data]", "router-data': a dataset of kind 'router'"),
    ("@files/acceptance --validation-fraction 0.01", "validation_fraction=0.01:"),
    ("@files/acceptance --wandb a/b/c", "wandb='a/b/c': not the name of a project; give PROJECT"),
    ("@files/acceptance --draft tiny-draft-math", "draft='tiny-draft-math':"),
    ("@files/acceptance --output @place/target", "is not empty (it contains"),
    ("@files/acceptance --output @place/run-cut", "run.yaml: not YAML"),
    ("@files/acceptance --cost @place/cost-cut.json", "cost-cut.json': not JSON"),
]
TABLES[f"train router {SOME} --output @out --data {{}}"] = [
    ("@files/acceptance", "acceptance': a dataset of kind 'acceptance'"),
    ("@place/router-timeless", "times.json: no such file"),
    ("@place/router-times-text", "times.json: seconds_per_token[0]='x'"),
    ("@place/router-times-cost", "times.json: cost: key 't_verify' is missing"),
    ("@files/router-data --reward fame", "reward: expected 'rouge' or 'throughput', got 'fame'"),
]
TABLES["export {} @out"] = [
    ("@place/nothing", "nothing': no training run, there is no such folder"),
    ("@place/run-unknown", "run.yaml: unknown key 'momentum'"),
    ("@place/run-text", "run.yaml: depth='deep':"),
    ("@place/run-settingless", "it holds no run.yaml"),
    ("@place/run-data-kind", "dataset.json: kind=3:"),
    ("@place/run-best-lfs", "best.ckpt: is a git LFS pointer"),
    ("@place/run-best-cut", "best.ckpt: truncated or damaged"),
    ("@place/run-bestless", "no epoch is finished yet"),
    ("@files/router --threshold 0.5", "threshold=0.5:"),
    ("@files/router --whole-vocabulary", "whole_vocabulary=True: a controller has no vocabulary; leave it out"),
    ("@files/run --whole-vocabulary", "whole_vocabulary=True: a controller has no vocabulary; leave it out"),
]
TABLES["calibrate --output @out {}"] = [
    ("tiny-lag-free --data @files/acceptance", "controller='tiny-lag-free':"),
    ("tiny-head --data @files/acceptance --report @place/folder", "report='@place/folder':"),
]
TABLES["compare --output @out {}"] = [
    ("--length nope", "online-confidence, or the folder of a trained controller"),
    ("--data @files/router-data", "a dataset of kind 'router'"),
    ("--data @files/acceptance/manifest.json", "no metrics.speculative_decoding. Start vLLM with --per-request"),
    ("--data [@files/acceptance,@place/prompts.txt]", "acceptance: is a dataset among files of responses"),
    ("--against @files/acceptance", "name it with --data"),
    ("--data @files/acceptance --wandb a/b/c", "wandb='a/b/c': not the name of a project; give PROJECT"),
    ("--data @files/acceptance --minutes 1", "minutes=1.0:"),
    ("--length 2,2", "the name '2' occurs twice"),
    ("--no-rules --length tiny-copies", "no other decoder is left to compare"),
    ("--length ngram,transformers:fast", "decoder 'transformers:fast': transformers:fast: no such generation method"),
    ("--draft null --length 3", "needs a draft model"),
    (f"{PAIR} --length 2 --prompts @place/long.txt --no-chat", ": 300 tokens, but the context holds 128; leave it out"),
]
TABLES["serve --port 0 {}"] = [
    ("--host 203.0.113.7", "host='203.0.113.7'"),
    ("--length tiny-head --draft tiny-draft-math --threshold 0.5", "trained for"),
    ("--tree 2x1 --verifier mcss --log-rounds log", "log_rounds: needs one draft model, drafts that are chains"),
]
TABLES["{}"] = [
    ("tarin", "unknown command 'tarin', did you mean 'train'? choose from data, train"),
    ("acceptance", "unknown command 'acceptance', did you mean 'data acceptance' or 'train acceptance'?"),
    ("train --data x", "unknown option --data; options follow a command: acceptance"),
    ("--completion tcsh", "completion='tcsh': choose one of bash, zsh, fish"),
    ("train acceptance", "the following arguments are required: data, output"),
    ("train acceptance --config", "--config: expected one argument"),
    ("train acceptance --output out --data nowhere", "data='nowhere': no dataset, there is no such folder; make one"),
    (
        "train acceptance --output out --data '[x]'",
        "no dataset, there is no such folder; make one with 'specpilot data …'; "
        "[x] is a list with one name; for a folder of this name pass",
    ),
    (
        "train acceptance --output out --data '[5]'",
        "data='[5]': a list of names is expected; put numbers in",
    ),
    (
        "train acceptance --output out '--config={data: {a: b}}'",
        "expected text or a list of texts, got {'a': 'b'}",
    ),
    (
        "train acceptance --data x '--config={output: [x]}'",
        "output: expected a path, got ['x']; put text in",
    ),
    ("train draft --output out --data nowhere", "data='nowhere': no such file or folder, and no dataset on the hub"),
    (
        "data acceptance --output out --domains code",
        "got 'code'; write a list in brackets",
    ),
    ("data acceptance --output out --prompts @place/cut.jsonl", "prompts: @place/cut.jsonl:2: not JSON"),
    ("data acceptance --output out --prompts @place/half.jsonl/x", "prompts='@place/half.jsonl/x': no such file"),
    ("data acceptance --output /dev/null/x", "output='/dev/null/x': '/dev/null' is not a folder"),
    ("calibrate tiny-head --output out --data @place/data-cut", "data: @place/data-cut/manifest.json: not JSON"),
    (
        "generate --prompts @place/prompts.txt --output /proc/x/y --no-chat",
        "output: /proc/x: No such file or",
    ),
    ("data acceptance --revision v1", "--revision; a revision is part of the model's name, as in owner/name@v1"),
    ("calibrate nope --output out --data x", "controller='nope': no such controller"),
    ("generate hi --router x", "router='x': no such router; give a folder, or an id on the Hugging Face hub"),
    ("generate hi --router tiny-haed", "router='tiny-haed': no such router; give a folder, or an id"),
    ("generate hi --copies tiny-haed", "copies='tiny-haed': no such copy head; give a folder, tiny-copies, or an id"),
    ("generate hi --length x", "length='x': no such controller; give a folder, tiny-head, tiny-lag-free, or an id"),
    ("train acceptance --data a --output b --w-rej 1", "--w-rej: is an option of --predictor specdec;"),
    ("generate hi --max_new_tokens 4", "unknown option --max_new_tokens, did you mean '--max-new-tokens'?"),
    ("generate -1", "unknown option -1; text that begins with a dash is passed as --prompt=-1 ("),
    ("generate hi there", "extra word: there"),
    ("generate hi --temperature -2", "temperature=-2"),
    ("generate hi --config @place/dashed.yaml", "dashed.yaml: unknown key 'top-k', did you mean 'top_k'?"),
    ("generate hi --config {lenght:4,length:4}", "config: unknown key 'lenght:4'"),
    ("generate hi --config @place/typed.yaml", "typed.yaml: temperature: expected a number or 'auto', got 'hot'"),
    (
        "generate --target @place/eagle hello",
        "eagle': an EAGLE-3 draft, which has no tokenizer; give it as the draft of",
    ),
    (
        "data acceptance --target @place/target --draft @place/eagle --prompts @place/prompts.txt --output @out",
        "eagle': an EAGLE-3 draft, which reads the target's states; data acceptance has no",
    ),
    (
        "data router --target @place/target --arms [@place/eagle,autoregressive] --prompts @place/prompts.txt "
        "--output @out",
        "eagle': reads the target's states, which it gets only while decoding",
    ),
    (
        "trim-vocabulary @place/eagle --target @place/target --keep 9 --data @place/prompts.txt --output @out",
        "eagle': is an EAGLE-3 draft, which was trained with its vocabulary; choose",
    ),
    ("generate --chat=maybe x", "--chat/--no-chat: takes no value, got 'maybe'"),
    ("export @files/run @place/target --overwrite", "target': contains 'chat_template.jinja', which would be lost"),
    ("bench cost --judge confidence:0.5", "judge='confidence:0.5'"),
    ("bench cost --judge nonsense", "judge='nonsense': no such controller"),
    ("bench cost --judge fixed:3", "judge='fixed:3': no such rule"),
    ("bench cost --judge @place", "judge='@place': not a controller"),
    ("demo --output @place/target", "target': contains "),
    ("demo --real @place/target", "target: does not contain SmolLM2-135M-Instruct"),
]
DIVERGING = (
    "acceptance --predictor specdec --w-rej 1e300 --data @files/acceptance",
    "acceptance --weight-decay 1e30 --data @files/acceptance",
    "acceptance --predictor lag-free --weight-decay 1e30 --data @files/acceptance",
    "router --entropy 1e300 --data @files/router-data",
)
ROWS = [(command.replace("{}", arguments), message) for command, rows in TABLES.items() for arguments, message in rows]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "place"
    folder.mkdir()
    make_bad_files(folder)
    return folder


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run ``specpilot`` with ``words``, which exits with 2, and return the line on standard error, without progress."""
    capsys.readouterr()
    assert cli.main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip() and not line.startswith("texts ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("specpilot: error: ")
    return lines[0].removeprefix("specpilot: error: ")


def state(folder: Path) -> dict[Path, int]:
    """Return every file below ``folder`` with its time of modification."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "message"), ROWS, ids=[words for words, _ in ROWS])
def test_bad_input_is_one_line_and_writes_nothing(
    words: str,
    message: str,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at(text: str) -> str:
        return text.replace("@place", str(place)).replace("@files", str(FILES)).replace("@out", str(tmp_path / "out"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    before = state(place)
    assert at(message) in refused([at(word) for word in shlex.split(words)], capsys)
    assert list(tmp_path.iterdir()) == []
    assert state(place) == before


@pytest.mark.parametrize("words", DIVERGING)
def test_a_training_that_diverges(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Features that were made before the training may remain, a run folder may not."""
    out = tmp_path / "out"
    command = f"train {words.replace('@files', str(FILES))} {SOME} --output {out}"
    assert cli.main(command.split()) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert re.match("specpilot: error: lr=.*: training diverged, .* not finite after step 1; use a smaller lr", line)
    assert {path.name for path in out.glob("*")} <= {"features"}
