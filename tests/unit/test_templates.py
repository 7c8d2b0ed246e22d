"""Chat templates: Hugging Face's prompts, a sandbox that holds, and users' text kept out of control tokens."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.config import ConfigError
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.server.templates import ChatTemplate, ChatTemplateError, TemplateLimits, normalise
from octavo.server.text import ModelText, load_text
from tests.support.tiny import CHAT_TEMPLATE, write_hf

Make = Callable[..., ChatTemplate]
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[ChatTemplate] = []

    def build(source: str, **options: Any) -> ChatTemplate:
        made.append(ChatTemplate(source, **options))
        return made[-1]

    yield build
    for template in made:
        template.close()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_hf(tmp_path_factory.mktemp("model")).path)


@pytest.fixture(scope="module")
def chat(tokenizer: Tokenizer) -> Iterator[ChatTemplate]:
    template = ChatTemplate.of(tokenizer)
    yield template
    template.close()


def text(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
    return "".join(part for part, _ in template.render(messages, **options))


# --- limits: case I7 -----------------------------------------------------------------------------------


HOSTILE = [
    "{{ 'A' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ 'a' | center(10**9) }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{% for i in range(10**5) %}{{ 'a' * 10000 }}{% endfor %}",
    "{% for i in range(10**6) %}{% for j in range(10**6) %}{% for k in range(10**6) %}" + "{% endfor %}" * 3,
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ (messages | map(attribute='__class__') | first).__base__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ missing.attribute.walk }}",
]


@pytest.fixture(scope="module")
def hostile() -> Iterator[ChatTemplate]:
    cases = (f"{{% if case == {i} %}}{source}{{% endif %}}" for i, source in enumerate(HOSTILE))
    template = ChatTemplate("".join(cases) + "{% if case is undefined %}fine{% endif %}")
    yield template
    template.close()


@pytest.mark.parametrize("case", range(len(HOSTILE)))
def test_a_hostile_template_ends_in_an_error_and_the_next_render_works(hostile: ChatTemplate, case: int) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        hostile.render(USER, variables={"case": case})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert text(hostile, USER) == "fine"


@pytest.mark.parametrize(
    "work",
    [
        "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
        "{{ (messages | length + 2) ** (3 ** 19) % 7 }}",
    ],
)
def test_the_time_cap_interrupts(make: Make, work: str) -> None:
    template = make("{% if hostile %}" + work + "{% else %}fine{% endif %}", limits=TemplateLimits(seconds=0.5))
    template.check()
    begin = time.monotonic()
    with pytest.raises(ChatTemplateError, match=r"longer than 0\.5 s"):
        template.render(USER, variables={"hostile": True})
    assert time.monotonic() - begin < 5
    assert text(template, USER) == "fine"


def test_a_worker_that_was_killed_is_replaced(make: Make) -> None:
    template = make("{{ messages[0].content }}")
    template.check()
    process = template._worker._process  # type: ignore[union-attr]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert text(template, USER) == "hi"


def test_a_template_that_does_not_compile_says_so(make: Make) -> None:
    template = make("{% for %}")
    for _ in range(2):
        with pytest.raises(ChatTemplateError, match="cannot be compiled"):
            template.check()
    with pytest.raises(ChatTemplateError, match="to compile"):  # constants are folded while compiling
        make("{{ 3 ** (3 ** 19) % 7 }}", limits=TemplateLimits(seconds=0.5)).check()
    deep = make("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}")
    with pytest.raises(ChatTemplateError):
        deep.check()


def test_after_close_nothing_runs_and_closing_again_is_harmless(make: Make) -> None:
    template = make("x")
    template.check()
    process = template._worker._process  # type: ignore[union-attr]
    template.close()
    template.close()
    assert process.poll() is not None
    with pytest.raises(ChatTemplateError):
        template.render(USER)


def test_a_file_in_the_working_directory_is_not_imported(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.setenv("PYTHONPATH", str(Path(octavo.__file__).resolve().parents[1]))
    monkeypatch.chdir(tmp_path)
    assert text(make("{{ messages[0].content }}"), USER) == "hi"


def test_many_threads_share_one_template(make: Make) -> None:
    template = make("{{ messages[0].content }}")
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(50):
            content = f"{number}/{i}"
            if text(template, [{"role": "user", "content": content}]) != content:
                wrong.append(content)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_long_chat_passes_the_pipe_whole(make: Make) -> None:
    template = make("{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": "Käse 世界 😀 \n" * 20_000} for _ in range(8)]
    assert text(template, messages) == "".join(message["content"] for message in messages)


# --- what templates may use ---------------------------------------------------------------------------


def test_the_names_that_templates_expect_exist(make: Make) -> None:
    with pytest.raises(ChatTemplateError, match="refused the messages: only one turn, please"):
        make("{{ raise_exception('only one turn, please') }}").render(USER)
    assert text(make("{{ strftime_now('%Y') }}"), USER).isdigit()
    source = "{{ tools | tojson }} {{ tools[0] | tojson(indent=2) }} {{ 'ü<' | tojson }}"
    tools = [{"b": 1, "a": "ü<'"}]
    assert (
        text(make(source), USER, tools=tools)
        == json.dumps(tools, ensure_ascii=False) + " " + json.dumps(tools[0], ensure_ascii=False, indent=2) + ' "ü<"'
    )
    loop = "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"
    assert text(make(loop), USER) == "13"
    assert text(make("{% generation %}{{ bos_token }}{% endgeneration %}"), USER) == ""
    assert text(make("{{ bos_token }}", special_strings={"bos_token": "<s>"}), USER) == "<s>"
    assert text(make("{{ thinking }}"), USER, variables={"thinking": 3}) == "3"
    assert text(make("{% if tools is none %}none{% endif %}"), USER) == "none"


TURNS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "  x\n"}],
    [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "10 000"},
        {"role": "user", "content": "ďábel 😀"},
    ],
]


@pytest.mark.parametrize("messages", TURNS)
def test_chat_ids_equal_those_of_transformers(
    tmp_path: Path, chat: ChatTemplate, tokenizer: Tokenizer, messages: list[dict[str, Any]]
) -> None:
    from transformers import PreTrainedTokenizerFast

    hf = PreTrainedTokenizerFast.from_pretrained(write_hf(tmp_path / "m").path)
    for prompt in (True, False):
        expected = hf.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        segments = chat.render(messages, add_generation_prompt=prompt)
        assert tokenizer.encode_chat(segments) == expected
        assert text(chat, messages, add_generation_prompt=prompt) == hf.apply_chat_template(
            messages, add_generation_prompt=prompt, tokenize=False
        )


# --- what messages may look like: cases K2, K3, K5 ------------------------------------------------------


def test_parts_are_joined_without_a_separator(chat: ChatTemplate) -> None:
    for role in ("user", "system", "tool"):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert chat.render([{"role": role, "content": parts}]) == chat.render([{"role": role, "content": "ab"}])
    refusal = [{"type": "refusal", "refusal": "no"}]
    assert "no" in text(chat, [{"role": "assistant", "content": refusal}])


@pytest.mark.parametrize("part", [{"type": "image_url", "image_url": {}}, {"text": "a"}, "a", {"type": "text"}, 3])
def test_an_unknown_part_is_named(chat: ChatTemplate, part: Any) -> None:
    with pytest.raises(ChatTemplateError, match=r"messages\[1\]\.content\[0\]"):
        chat.render([*USER, {"role": "user", "content": [part]}])
    with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.content"):
        chat.render([{"role": "user", "content": 5}])


def test_null_empty_and_absent_content_are_empty_text(chat: ChatTemplate) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answers: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant"},
        {"role": "assistant", "content": [], "tool_calls": None},
    ]
    prompts = [text(chat, [*USER, answer, *USER]) for answer in answers]
    assert len(set(prompts)) == 1 and "None" not in prompts[0]


@pytest.mark.parametrize(
    "source",
    [
        "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}",
        "{% for c in messages[0].tool_calls %}{{ c['function']['arguments'] }}{% endfor %}",
        "{% for c in messages[0].tool_calls %}{{ '' + c.function.arguments + '' }}{% endfor %}",
    ],
)
def test_arguments_as_text_and_as_object_give_the_same_prompt(make: Make, source: str) -> None:
    template = make(source)

    def prompt(arguments: Any) -> str:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return text(template, [{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert prompt('{"a":1, "b": "ü"}') == prompt({"a": 1, "b": "ü"}) == '{"a": 1, "b": "ü"}'
    assert prompt("") == prompt({}) == "{}"
    assert "not json" in prompt("{not json")
    assert prompt("[" * 100_000)


def test_the_callers_messages_are_left_as_they_were() -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]}
    before = json.dumps(message)
    normalise(message, 0)
    assert json.dumps(message) == before


def test_the_text_of_a_control_token_in_a_message_stays_text(chat: ChatTemplate, tokenizer: Tokenizer) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    pieces = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "the ", "\n", "  ", "<|im_", "end|>", "10", "é", "|>"]
    for _ in range(200):
        contents = ["".join(rng.choices(pieces, k=rng.randrange(9))) for _ in range(3)]
        messages = [{"role": "user", "content": content} for content in contents]
        ids = tokenizer.encode_chat(chat.render(messages))
        assert ids.count(1) == 4 and ids.count(2) == 3 and ids.count(0) == 0, f"seed {seed}"
        expected = [1, *tokenizer.encode(f"user\n{contents[0]}"), 2]
        assert ids[: len(expected)] == expected, f"seed {seed}"
        assert tokenizer.decode(ids, skip_special=False) == text(chat, messages), f"seed {seed}"


def test_control_text_in_tools_and_keys_stays_text(make: Make, tokenizer: Tokenizer) -> None:
    template = make("<|im_start|>{{ tools | tojson }}<|im_end|>", control_texts=tokenizer.control_texts)
    tools = [{"name": "<|im_end|>", "<|im_start|>": {"x": ["<|endoftext|>"]}}]
    segments = template.render(USER, tools=tools)
    assert "".join(part for part, _ in segments) == f"<|im_start|>{json.dumps(tools)}<|im_end|>"
    ids = tokenizer.encode_chat(segments)
    assert (ids.count(0), ids.count(1), ids.count(2)) == (0, 1, 1)


def test_a_template_that_cuts_a_hidden_word_is_an_error(make: Make) -> None:
    template = make("{{ messages[0].content[:15] }}", control_texts=["<|im_end|>"])
    assert text(template, [{"role": "user", "content": "a long ordinary text"}]) == "a long ordinary"
    with pytest.raises(ChatTemplateError, match="cuts"):
        template.render([{"role": "user", "content": "a <|im_end|>"}])


def test_messages_nested_without_end_are_refused(chat: ChatTemplate) -> None:
    value: Any = "x"
    for _ in range(20_000):
        value = [value]
    with pytest.raises(ChatTemplateError, match="nested"):
        chat.render([{"role": "user", "content": "a", "extra": value}])


def test_a_lone_surrogate_does_not_break_the_worker(chat: ChatTemplate, tokenizer: Tokenizer) -> None:
    segments = chat.render([{"role": "user", "content": "a\ud800b"}])
    assert "a\ufffdb" in tokenizer.decode(tokenizer.encode_chat(segments))


# --- where templates come from: case K4 ----------------------------------------------------------------


def without_template(folder: Path) -> Path:
    path = write_hf(folder).path
    config = json.loads((path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_a_model_without_a_template_says_how_to_supply_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(without_template(tmp_path / "m"))
    assert tokenizer.encode("the")
    with pytest.raises(ChatTemplateError, match=r"chat_template\.jinja"):
        ChatTemplate.of(tokenizer)


@pytest.mark.parametrize("name", ["chat_template.jinja", "mine.jinja"])
def test_a_jinja_file_in_the_directory_is_found(tmp_path: Path, name: str) -> None:
    path = without_template(tmp_path / "m")
    (path / name).write_text(CHAT_TEMPLATE)
    assert load_tokenizer(path).chat_template == CHAT_TEMPLATE


def test_a_named_list_of_templates_gives_its_default(tmp_path: Path) -> None:
    path = without_template(tmp_path / "m")
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(path).chat_template == "yes"


def test_a_template_is_chosen_by_file_or_name(tmp_path: Path) -> None:
    path = without_template(tmp_path / "m")
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "rag", "template": "named"}, {"name": "default", "template": "usual"}]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "own.jinja").write_text("mine")
    tokenizer = load_tokenizer(path)
    chosen = {None: "usual", "rag": "named", str(tmp_path / "own.jinja"): "mine"}
    for name, expected in chosen.items():
        side = load_text(tokenizer, name)
        assert side.chat(USER) == tokenizer.encode(expected)
        side.close()
    with pytest.raises(ConfigError, match=r"--chat-template 'missing\.jinja' .*rag, default.*\.jinja"):
        load_text(tokenizer, "missing.jinja")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% for %}", "chats will be refused: the chat template cannot be compiled"),
        ("{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}", "took longer than 0.2 s"),
        ("{{ raise_exception('never') }}", "a trial of one message was: .*never"),
        ("{{ messages[0].content }}", None),
    ],
)
def test_at_start_a_template_that_cannot_work_is_told(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str, told: str | None
) -> None:
    limits = TemplateLimits(seconds=0.2 if told and "longer" in told else 2.0)
    ModelText(load_tokenizer(write_hf(tmp_path / "m").path), make(source, limits=limits)).check()
    assert re.search(told, caplog.text) if told else not caplog.text
