"""A stream that is cut at every place: what the client has received, and what follows.   python -m unittest discover deploy/ray"""

import asyncio
import json
import unittest

from resume import CHAT, TEXT, Resumption, prefix_blocks

HEAD = {"status": 200, "headers": {"Content-Type": "text/event-stream"}, "replica": "one"}
TOKENS = [(7, "The"), (8, " goat"), (9, " ate"), (10, " the"), (11, " rose."), (1, "")]


def event(fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def stream(path, tokens, identity):
    """As the server writes it."""
    base = {"id": identity, "object": "chunk", "created": 1, "model": "m"}
    is_chat = path == CHAT
    events = [event({**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]})] if is_chat else []
    for token, text in tokens:
        new = {"delta": {"content": text}} if is_chat else {"text": text}
        events.append(event({**base, "choices": [{"index": 0, **new, "token_ids": [token], "finish_reason": None}]}))
    end = {"delta": {}} if is_chat else {"text": ""}
    events.append(event({**base, "choices": [{"index": 0, **end, "finish_reason": "stop"}]}))
    usage = {"prompt_tokens": 3 + len(TOKENS) - len(tokens), "completion_tokens": len(tokens), "total_tokens": 3 + len(TOKENS)}
    events.append(event({**base, "choices": [], "usage": usage}))
    return b"".join(events) + b"data: [DONE]\n\n"


def received(pieces):
    """Ids, text, usage and whether the end came."""
    lines = [line for line in b"".join(pieces).split(b"\n\n") if line]
    chunks = [json.loads(line[6:]) for line in lines if line != b"data: [DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join((choice.get("delta", {}).get("content") or "") + choice.get("text", "") for choice in choices)
    assert not any("token_ids" in choice for choice in choices)
    usage = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    return {chunk["id"] for chunk in chunks}, text, usage, lines[-1:] == [b"data: [DONE]"]


async def ask(path, body):
    fields = json.loads(body)
    if path == "/apply-template":
        return json.dumps({"prompt": fields["messages"][0]["content"]}).encode()
    return json.dumps({"tokens": [100, 101, 102]}).encode()


class Cut(unittest.TestCase):
    def run_cut(self, path, fields, prompt):
        first = stream(path, TOKENS, "first")
        for end in range(len(first)):
            resumption = Resumption(path, json.dumps({**fields, "stream": True, "max_tokens": 6}).encode())
            self.assertTrue(json.loads(resumption.first_body())["return_tokens"])
            resumption.begin(HEAD)
            pieces = [*resumption.feed(first[:end // 2]), *resumption.feed(first[end // 2:end])]
            self.assertTrue(resumption.is_cut() and resumption.can_resume())
            sent = len(resumption.tokens)
            if resumption.is_full():
                pieces += resumption.last_events()
            elif not resumption.has_sent():
                resumption.begin(HEAD)
                pieces += resumption.feed(first)
            else:
                rest = json.loads(asyncio.run(resumption.rest_body(ask)))
                expected = [token for token, _ in TOKENS[:sent]]
                self.assertEqual((rest["prompt"], rest["max_tokens"]), ([*prompt, *expected], 6 - sent))
                self.assertNotIn("messages", rest)
                resumption.begin(HEAD)
                pieces += resumption.feed(stream(TEXT, TOKENS[sent:], "second"))
                self.assertFalse(resumption.is_cut())
            ids, text, usage, is_whole = received(pieces)
            self.assertEqual((text, is_whole), ("The goat ate the rose.", True), end)
            self.assertLessEqual(ids, {"first"} if sent else {"first", "second"})
            for one in usage:
                self.assertEqual(one, {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}, end)

    def test_a_chat(self):
        self.run_cut(CHAT, {"messages": [{"role": "user", "content": "Who?"}]}, [100, 101, 102])

    def test_a_prompt(self):
        self.run_cut(TEXT, {"prompt": "Who?"}, ["Who?"])
        self.run_cut(TEXT, {"prompt": [5, 6]}, [5, 6])

    def test_what_cannot_be_gone_on_with(self):
        base = {"messages": [], "stream": True}
        calls = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "token_ids": [1]}]}
        for fields, chunk in [({**base, "n": 2}, {"choices": []}), (base, calls)]:
            resumption = Resumption(CHAT, json.dumps(fields).encode())
            resumption.begin(HEAD)
            list(resumption.feed(event(chunk)))
            self.assertFalse(resumption.can_resume())

    def test_whatever_the_body_is(self):
        for body in [b"", b"[]", b"{", b'{"messages": 3}', b"\xff", b'"a"', b'{"n": "x", "stream": true}']:
            resumption = Resumption(CHAT, body)
            self.assertTrue(resumption.can_resume())
            self.assertIsInstance(prefix_blocks(body), list)


class Blocks(unittest.TestCase):
    def test_equal_beginnings_have_equal_hashes(self):
        one, other = (prefix_blocks(json.dumps({"messages": "a" * 1000 + end}).encode()) for end in ("b" * 600, "c" * 600))
        common = sum(left == right for left, right in zip(one, other))
        self.assertEqual((common, len(one) > common), (3, True))


if __name__ == "__main__":
    unittest.main()
