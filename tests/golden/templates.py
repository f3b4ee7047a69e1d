#!/usr/bin/env python3
"""Renders conversations with chat templates as transformers does: the expected outputs of runtime/text's template test.

    pip install jinja2
    python3 tests/golden/templates.py                 # writes tests/golden/templates/*.json
    python3 tests/golden/templates.py FOLDER          # the same for the *.jinja of another folder, such as a model's own

The environment is that of transformers' apply_chat_template: jinja2's immutable sandbox with trimmed blocks, loop controls,
a tag for generated text, and `tojson`, `raise_exception` and `strftime_now`. Around it is what this project promises: a
`developer` is the system; a system message that a template refuses or leaves out joins the others, or the first question;
where it refuses what is left, later ones are the user's, and messages in a row of the user or the assistant are one;
parts of a content are lines, but for a user's where the template goes through them; reasoning is a part of the assistant's content where
the template has it there; and a message that would be missing is an error.
"""

import datetime
import json
import pathlib
import sys

import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)
HERE = pathlib.Path(__file__).parent / "templates"


class Generation(jinja2.ext.Extension):
    """`{% generation %}`, whose content is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    result = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = NOW.strftime
    return result


def render(template, messages, conversation):
    tokens = {"bos_token": "<bos>", "eos_token": "<eos>"}
    messages = with_thoughts(messages) if template.thinks_in_parts else messages
    own = {"messages": messages, "tools": conversation.get("tools"), "documents": None, "add_generation_prompt": True}
    return template.render(**tokens, **conversation.get("arguments", {}), **own)


def goes_through_parts(template):
    """Whether a content that is a list of one part becomes what the text itself becomes, and of two parts none is left out."""
    first, second = ({"type": "text", "text": text} for text in ("contentinparts", "anotherpart"))
    try:
        text, one, both = (
            render(template, [{"role": "user", "content": content}], {})
            for content in (first["text"], [first], [first, second])
        )
    except Exception:
        return False
    return first["text"] in both and second["text"] in both and text == one


def with_lines(messages, kept=()):
    """The same with parts of a content as lines of one text, but for messages with one of these roles."""

    def lined(message):
        if isinstance(message["content"], str) or message["role"] in kept:
            return message
        return {**message, "content": "\n".join(part["text"] for part in message["content"])}

    return [lined(message) for message in messages]


def with_thoughts(messages):
    """The same with the assistant's reasoning as a part of its content."""

    def thinking(message):
        reasoning = message.get("reasoning_content")
        if message["role"] != "assistant" or not reasoning:
            return message
        text = [{"type": "text", "text": message["content"]}] if message["content"] else []
        return {**message, "content": [{"type": "thinking", "thinking": reasoning}] + text}

    return [thinking(message) for message in messages]


def system_at_start(messages):
    count = 0
    while count < len(messages) and messages[count]["role"] == "system":
        count += 1
    return count


def appended(message, later):
    """The message with what one of the same role says behind it."""
    result = {**later, **message}
    parts = [[{"type": "text", "text": c}] if isinstance(c, str) else c for c in (message["content"], later["content"])]
    if not isinstance(message["content"], str) or not isinstance(later["content"], str):
        result["content"] = parts[0] + parts[1]
    else:
        result["content"] = "\n\n".join(text for text in (message["content"], later["content"]) if text)
    if message.get("tool_calls") and later.get("tool_calls"):
        result["tool_calls"] = message["tool_calls"] + later["tool_calls"]
    if message.get("reasoning_content") and later.get("reasoning_content"):
        result["reasoning_content"] = message["reasoning_content"] + "\n\n" + later["reasoning_content"]
    return result


def in_turns(messages, within_results):
    """The same with the system's words as the user's, and with one message of the user or assistant in the place of several in a row."""
    turns = []
    for message in messages:
        message = {**message, "role": "user"} if message["role"] == "system" else message
        last = turns[-1]["role"] if turns else None
        is_same = last == message["role"] and last in ("user", "assistant")
        if is_same or (within_results and last == "tool" and message["role"] == "user"):
            turns[-1] = appended(turns[-1], message)
        else:
            turns.append(message)
    return turns


def arrangements(messages):
    messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
    yield messages
    count = system_at_start(messages)
    text = "\n\n".join(m["content"] for m in messages[:count])
    rests = [messages[count:]] + [in_turns(messages[count:], within) for within in (False, True)]
    if count == 0:
        yield from rests[1:]
        return
    for rest in rests:
        yield [{"role": "system", "content": text}] + rest
    for rest in rests:
        if rest and rest[0]["role"] == "user":
            yield [{"role": "user", "content": text + "\n\n" + rest[0]["content"]}] + rest[1:]
        else:
            yield [{"role": "user", "content": text}] + rest


def dropped(template, messages, conversation):
    """The role of the first message that the template leaves out. It may leave out what is beside calls of tools."""
    marks = [f"message{index}content" for index in range(len(messages))]
    try:
        text = render(template, [{**m, "content": mark} for m, mark in zip(messages, marks)], conversation)
    except Exception:
        return None
    for message, mark in zip(with_lines(messages), marks):
        if message["content"].strip() and not message.get("tool_calls") and mark not in text:
            return message["role"]
    return None


def outcome(template, conversation):
    result = None
    # Gemma 3's template takes the first part of a system message alone.
    kept = ["user"] if goes_through_parts(template) else []
    for messages in arrangements(with_lines(conversation["messages"], kept)):
        try:
            text = render(template, messages, conversation)
        except Raised as error:
            result = {"raised": str(error)}
            continue
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
            continue
        role = dropped(template, messages, conversation)
        if role is None:
            return {"text": text}
        result = {"dropped": role}
    return result


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    conversations = json.loads((HERE / "conversations.json").read_text())
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text()
        template = environment().from_string(source)
        template.thinks_in_parts = "[THINK]" in source and "'thinking'" in source
        outcomes = {c["name"]: outcome(template, c) for c in conversations}
        path.with_suffix(".json").write_text(json.dumps(outcomes, ensure_ascii=False, indent=1) + "\n")
        kinds = [next(iter(o)) for o in outcomes.values()]
        print(f"{path.name}: " + ", ".join(f"{kinds.count(k)} {k}" for k in sorted(set(kinds))))


main()
