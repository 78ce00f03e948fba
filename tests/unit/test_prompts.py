"""Prompt sources: files, folders, columns, the built-in prompts, and refused inputs."""

import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from specpilot.common.errors import InputError
from specpilot.data_gen import builtin
from specpilot.data_gen.acceptance import make_answers
from specpilot.data_gen.builtin import FILES, builtin_prompts
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.documents import read_documents
from specpilot.data_gen.kinds import AnswerRow, read_dataset
from specpilot.data_gen.options import AnswersDataOptions, TextFormOptions
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.data_gen.rows import RowSource
from specpilot.models.loading.names import load_tokenizer
from tokenizers.processors import TemplateProcessing

from ..helpers.clock import one_day_later
from ..helpers.folders import contents
from ..helpers.tiny import byte_tokenizer, save_pair


def test_the_same_prompts_from_every_kind_of_file(tmp_path: Path) -> None:
    """Texts such as numbers, NA, brackets and other ends of lines stay unchanged."""
    texts = ["one", "zwei\u2028zwei", "[INST] {y}", "NA", "007"]
    columns = [f'"{text}",1\n' for text in texts]
    contents = {
        "a.jsonl": "\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts) + "\n\n",
        "a.dat": "".join(json.dumps({"prompt": text}) + "\n" for text in texts),
        "a.json": json.dumps([{"prompt": text} for text in texts], indent=1),
        "a.txt": "\ufeff" + "\n".join(texts) + "\n",  # a byte order mark
        "a": "\n\n".join(texts),
        "a.csv": "prompt,other\n" + "".join(columns),
        "b.csv": "prompt;other\n" + "".join(columns).replace(",", ";"),
        "a.tsv": "prompt\tother\n" + "".join(columns).replace(",", "\t"),
    }
    pq.write_table(pa.table({"prompt": texts}), tmp_path / "a.parquet")
    expected = load_prompts(str(tmp_path / "a.parquet"))
    assert [prompt.prompt for prompt in expected] == texts
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert load_prompts(str(tmp_path / name)) == expected, name
    assert load_prompts(str(tmp_path)) == expected  # repeated prompts once
    assert load_prompts(str(tmp_path / "a.txt"), limit=2) == expected[:2]
    named = load_prompts([{"question": "why?", "id": 7, "domain": "doubt"}], column="question")
    assert named == [PromptRow("7", "doubt", "why?")]


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ('id\tprompt\n1\t"Why\n2\tfoo\n3\tbar"\n', ['"Why', "foo", 'bar"']),
        ('prompt\tother\n"Why\tA\nfoo\tB\nbar"\tC\n', ['"Why', "foo", 'bar"']),
        ('prompt\n"Why, then\nfoo\n"a ""b"""\n', ['"Why, then', "foo", 'a "b"']),
        ('prompt\tother\r\n"5"" disk"\tA\r\n\r\n6" disk\tB\r\n', ['5" disk', '6" disk']),
        ('prompt\tother\n"two\nlines"\tA\n"a\tb"\tB\n', ["two\nlines", "a\tb"]),
    ],
)
def test_quotation_marks_of_tab_separated_files(text: str, prompts: list[str], tmp_path: Path) -> None:
    """A mark at a field's start continues the field in the next line only if the lines are not rows of the header."""
    (tmp_path / "a.tsv").write_bytes(text.encode())
    assert [prompt.prompt for prompt in load_prompts(str(tmp_path / "a.tsv"))] == prompts


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM, TOOL = {"role": "system", "content": "s"}, {"role": "tool", "content": "t"}
MORE, END = {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
PARTS = [{"type": "text", "text": "q"}, {"type": "text", "text": "q"}]
TWO = ["[user]q|a", "[user]q[assistant]a[user]r|b"]
# Row → the prompt of `data`, or the error; the documents of `train draft` as "prompt|answer", or the error.
FORMS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "TRL": ({"prompt": "q", "completion": "a"}, "q", ["[user]q|a"]),
    "TRL, messages": ({"prompt": [USER], "completion": [ANSWER]}, "q", ["[user]q|a"]),
    "a question": ({"question": "q", "answer": "a"}, "q", ["[user]q|a"]),
    "messages": ({"messages": [USER, ANSWER, MORE, END]}, [USER, ANSWER, MORE], TWO),
    "not learned": (
        {"messages": [USER, ANSWER | {"weight": 0}, MORE, END]}, [USER, ANSWER | {"weight": 0}, MORE], TWO[1:]
    ),
    "ends with a question": ({"messages": [USER, ANSWER, MORE]}, [USER, ANSWER, MORE], TWO[:1]),
    "parts": (
        {"messages": [{"role": "user", "content": PARTS}, {"role": "assistant", "content": PARTS[:1]}]},
        "q\nq", ["[user]q\nq|q"],
    ),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "q", ["[user]q|a"],
    ),
    "ShareGPT with tools": (
        {"conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
            {"from": "tool", "value": "t"}, {"from": "gpt", "value": "b"},
        ]},
        [SYSTEM, USER, ANSWER, TOOL], ["[system]s[user]q|a", "[system]s[user]q[assistant]a[tool]t|b"],
    ),
    "Alpaca": ({"instruction": "q", "input": "r", "output": "a"}, "q\n\nr", ["[user]q\n\nr|a"]),
    "Alpaca without input": ({"instruction": "q", "input": "", "output": "a"}, "q", ["[user]q|a"]),
    "a system column": ({"system": "s", "question": "q", "response": "a"}, [SYSTEM, USER], ["[system]s[user]q|a"]),
    "MT-Bench": ({"question_id": 1, "category": "c", "turns": ["q", "r"]}, "q", ["|q"]),
    "MT-Bench with references": ({"turns": ["q", "r"], "reference": ["a", "b"]}, "q", TWO),
    "a batch": ({"custom_id": "x", "url": "/v1", "body": {"model": "m", "messages": [USER]}}, "q", ["|q"]),
    "text": ({"text": "q", "other": "a"}, "q", ["|q"]),
    "a prompt": ({"prompt": "q"}, "q", ["|q"]),
    "no answer": ({"prompt": "q", "completion": None}, "q", ["|q"]),
    "an empty answer": ({"prompt": "q", "completion": " "}, "q", "row 1: the answer is empty; leave the row out"),
    "tools": ({"messages": [USER, ANSWER, MORE], "tools": [{"name": "f"}]}, [USER, ANSWER, MORE], TWO[:1]),
    "a content of null": ({"messages": [ANSWER | {"content": None}]}, "it has a role alone", "it has a role alone"),
    "a call": ({"messages": [USER, CALL]}, "q", "row 1: an answer contains 'tool_calls', but only its text"),
    "preferences": ({"prompt": "q", "chosen": "a", "rejected": "b"}, "q", "rejected; .* --answer-column chosen"),
    "an unknown answer": ({"prompt": "q", "gold": "a"}, "q", "it has gold, prompt; name the column with"),
    "unknown columns": ({"q": "q", "a": "a"}, "it has a, q; name the prompt's column with --column", "it has a, q"),
    "an unknown role": ({"conversations": [{"from": "elf", "value": "q"}]}, "role 'elf' is unknown", "role 'elf'"),
    "an empty prompt": ({"prompt": ""}, "row 1: the prompt is empty", "row 1: the prompt is empty"),
    "a picture": ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only parts of text", "only parts"),
}  # fmt: skip


def documents(source: RowSource, form: TextFormOptions = TextFormOptions()) -> list[str]:  # noqa: B008 - it is frozen
    tokenizer = byte_tokenizer()
    texts = read_documents([source], tokenizer, form, stops=[256])
    assert all(document.tokens[-1] == 256 for document in texts)
    return [
        "|".join(map(tokenizer.decode, (document.tokens[: document.start], document.tokens[document.start : -1])))
        for document in texts
    ]


@pytest.mark.parametrize(("row", "prompt", "texts"), FORMS.values(), ids=FORMS)
def test_forms_of_rows(row: dict[str, Any], prompt: Any, texts: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.ndjson").write_text(json.dumps(row) + "\n")
    for source in (str(tmp_path / "rows.ndjson"), [row], Dataset.from_list([row])):
        for read, expected in ((load_prompts, prompt), (documents, texts)):
            if isinstance(expected, str) and expected not in ("q", "q\nq", "q\n\nr"):
                with pytest.raises(InputError, match=expected):
                    read(source)
            elif read is load_prompts:
                assert [prompt.prompt for prompt in load_prompts(source)] == [expected]
            else:
                assert documents(source) == expected


def test_columns_that_are_named(tmp_path: Path) -> None:
    row = {"prompt": "q", "gold": "a", "chosen": [USER, ANSWER], "rejected": "b"}
    assert documents([row], TextFormOptions(answer_column="gold")) == ["[user]q|a"]
    assert documents([row], TextFormOptions(answer_column="chosen")) == ["[user]q|a"]
    assert documents([row], TextFormOptions(answer_column="none")) == ["|q"]
    assert documents([row], TextFormOptions(answer_column="gold", chat=False)) == ["q|a"]
    several = [[row | {"id": f"{name}{i}"} for i in range(3)] for name in "ab"]
    limited = read_documents(several, byte_tokenizer(), TextFormOptions(answer_column="gold", limit=1))
    assert [prompt.id for prompt in limited] == ["a0", "b0"]
    with pytest.raises(InputError, match="no column 'best' contains an answer; it has chosen, gold, prompt, rejected"):
        documents([row], TextFormOptions(answer_column="best"))
    with pytest.raises(InputError, match="a conversation, which needs the chat template; leave --no-chat out"):
        documents([{"messages": [SYSTEM, USER, ANSWER]}], TextFormOptions(chat=False))


def test_a_conversation_is_one_document_where_each_prompt_continues_the_one_before() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (document,) = read_documents([[[USER, ANSWER, MORE, END]]], tokenizer)
    assert tokenizer.decode(document.tokens) == "[user]q[assistant]a<|end|>[user]r[assistant]b<|end|>"
    learned = [token for token, is_learned in zip(document.tokens, document.learned, strict=True) if is_learned]
    assert tokenizer.decode(learned) == "a<|end|>b<|end|>"


def test_texts_to_train_on_end_once() -> None:
    """Texts have one end token, also with a tokenizer that appends its end token."""
    tokenizer = byte_tokenizer()
    plain, question = (read_documents([rows], tokenizer) for rows in (["some text"], [{"prompt": "q", "answer": "a"}]))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A <|end|>", special_tokens=[("<|end|>", tokenizer.eos_token_id)]
    )
    assert read_documents([["some text"]], tokenizer) == plain
    assert tokenizer.decode(plain[0].tokens) == "some text<|end|>"
    for chat in (True, False):
        form = TextFormOptions(chat=chat)
        (document,) = read_documents([[{"prompt": "q", "answer": "a"}]], tokenizer, form)
        assert document.tokens.count(tokenizer.eos_token_id) == 1
        assert chat is False or [document] == question


def test_folders_and_saved_datasets(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mixed").mkdir()
    for name, content in {"a.ndjson": '{"prompt": "x"}', "README.md": "# x", "b.txt": "z"}.items():
        (tmp_path / "mixed" / name).write_text(content)
    assert [prompt.prompt for prompt in load_prompts(str(tmp_path / "mixed"))] == ["x"]
    assert "JSON files are read (1), other files are ignored: README.md, b.txt" in capfd.readouterr().err
    rows = Dataset.from_list([{"messages": [USER, ANSWER, MORE, END]}])
    (tmp_path / "quoted.csv").write_text('prompt,answer\n"a, b","1\n2"\n')
    assert documents(str(tmp_path / "quoted.csv")) == ["[user]a, b|1\n2"]
    rows.save_to_disk(tmp_path / "one")
    both = DatasetDict({"first": rows, "second": rows})
    both.save_to_disk(tmp_path / "two")
    rows.to_parquet(tmp_path / "nested.parquet")
    for source in (str(tmp_path / "one"), str(tmp_path / "nested.parquet"), rows.to_pandas()):
        assert documents(source) == TWO
        assert [prompt.prompt for prompt in load_prompts(source)] == [[USER, ANSWER, MORE]]
    for split in (both, str(tmp_path / "two")):
        assert documents(split, TextFormOptions(split="second")) == TWO
        with pytest.raises(InputError, match=r"no split 'train'; it has first, second: .*\(--split\)"):
            load_prompts(split)
    capfd.readouterr()
    load_prompts(rows.add_column("tools", [[{"name": "f"}]]))
    load_prompts([{"custom_id": "x", "body": {"messages": [USER], "tools": [{"name": "f"}]}}])
    messages = capfd.readouterr().err
    assert messages.startswith("<Dataset>: 1 row: answers are left out, because the target answers the prompts")
    assert messages.count(": 1 row: tools are left out, because the chat template only gets the messages") == 2


def test_the_date_of_a_dataset_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that is begun on one day and continued on the next has the same bytes as without a break."""
    target, _ = save_pair(tmp_path)
    tokenizer = load_tokenizer(target)
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}" + str(tokenizer.chat_template)
    tokenizer.save_pretrained(target)
    prompts = [f"number {i}" for i in range(4)]
    settings = AnswersDataOptions(target=target, prompts=prompts, shard_size=2, max_new_tokens=4, device="cpu")  # type: ignore[arg-type]
    today = date.today().isoformat()
    whole = make_answers(settings, tmp_path / "whole")
    cut = make_answers(settings, tmp_path / "cut")
    (cut / "shard-00001.parquet").unlink()
    one_day_later(monkeypatch)
    make_answers(settings, cut)
    assert contents(whole) == contents(cut)
    assert read_manifest(cut).day == today
    other = make_answers(settings, tmp_path / "other")
    assert read_dataset(other, AnswerRow)[0].prompt_ids != read_dataset(cut, AnswerRow)[0].prompt_ids


def test_a_hub_dataset_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own loading code over a local folder that stands for a dataset repository."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "cache" / "repo").mkdir(parents=True)  # as if it had been loaded before
    (tmp_path / "repo" / "train.jsonl").write_text('{"prompt": "from afar"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    from specpilot.data_gen.rows import _read_hub

    assert _read_hub("repo", "train") == [{"prompt": "from afar"}]


# Built-in prompts


DOMAINS = ("math", "sql", "shell", "code", "prose", "dialogue")
SPLITS = ("train", "validation", "test")
CARD = Path(__file__).parents[2] / "data_gen" / "builtin" / "README.md"


def test_a_damaged_file_of_built_in_prompts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builtin.FILES, "builtin-copy", "0" * 64)
    builtin_prompts.cache_clear()
    with pytest.raises(InputError, match="its SHA-256 is not the expected one"):
        builtin_prompts("builtin-copy")
    builtin_prompts.cache_clear()


def test_built_in_prompts_are_distinct_and_their_card_has_their_numbers() -> None:
    card = CARD.read_text(encoding="utf-8")
    for name in FILES:
        rows = builtin_prompts(name)
        assert len({item.id for item in rows}) == len({" ".join(item.prompt.split()) for item in rows}) == len(rows)
        assert f"`{name}` ({len(rows):,})" in card
    for domain in DOMAINS:
        counts = Counter(item.split for item in builtin_prompts("builtin") if item.domain == domain)
        assert f"| {domain} | {' | '.join(str(counts[split]) for split in SPLITS)} |" in card
